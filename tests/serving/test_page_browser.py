"""The page to translate in, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from capital_letters import CapitalTranslator, listen, make_models
from chromium import needs_chromium, open_browser
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits

pytestmark = [
    pytest.mark.slow,
    needs_chromium,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def translator() -> CapitalTranslator:
    return CapitalTranslator()


@pytest.fixture(scope="module")
def url(translator: CapitalTranslator) -> Iterator[str]:
    models = make_models((translator, ("en", "de")), (CapitalTranslator("!"), ("de", "en")))
    with listen(TranslationService(models, ServerLimits())) as address:
        yield address


def test_page_of_a_server_without_translator_says_so(browser: Any) -> None:
    with listen(TranslationService(make_models(), ServerLimits())) as address:
        page = browser.new_page()
        page.goto(address + "/")
        page.wait_for_selector("#state.error")
        assert page.locator("#state").text_content().startswith("No model of this server translates texts.")
        assert page.locator("#text").is_disabled()
        page.close()


class OpenPage:
    """Open page of the server; every request to another address is refused and noted, and so are problems of the script."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.strangers: list[str] = []
        self.problems: list[str] = []
        self.page.route(lambda address: not address.startswith((url, "data:")), self.refuse)
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(url + "/")
        self.page.wait_for_selector("#source option[value=en]", state="attached")

    def refuse(self, route: Any) -> None:
        self.strangers.append(route.request.url)
        route.abort()

    def translate(self, text: str, source: str = "en") -> None:
        self.page.locator("#source").select_option(source)
        self.page.locator("#text").fill(text)

    def wait_for_output(self, text: str) -> None:
        """Wait until the output is this text and the translation is finished, not only shown in advance."""
        self.page.wait_for_function(
            """text => document.getElementById("output").textContent === text
                && !document.getElementById("state").classList.contains("busy")""",
            arg=text,
        )

    def wait_for_state(self, text: str) -> None:
        self.page.wait_for_function("text => document.getElementById('state').textContent.startsWith(text)", arg=text)


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Any]:
    pages: list[OpenPage] = []

    def open_one(**options: Any) -> OpenPage:
        pages.append(OpenPage(browser, url, **options))
        return pages[-1]

    yield open_one
    for opened in pages:
        opened.context.close()


def test_typed_text_is_translated_hovered_and_replaced(open_page: Any) -> None:
    opened = open_page()
    page = opened.page
    opened.translate("One day. It costs {x} now.\n\nThird line.")
    opened.wait_for_output("ONE DAY. IT COSTS {x} NOW.\n\nTHIRD LINE.")
    assert page.locator("#count").inner_text() == "39 of 1,048,576 characters"
    page.locator(".sentence .word", has_text="COSTS").hover()
    assert page.locator("#details-source .linked").all_inner_texts() == ["costs"]
    page.locator(".sentence", has_text="ONE DAY.").click()
    assert page.locator("#alternatives button").all_inner_texts() == [f"ONE DAY. {number}" for number in (1, 2, 3)]
    assert "text=One+day.&source=en&target=de" in page.locator("#explain").get_attribute("href")
    page.locator("#alternatives button").nth(1).click()
    opened.wait_for_output("ONE DAY. 2 IT COSTS {x} NOW.\n\nTHIRD LINE.")
    assert page.locator("#alternatives button").first.inner_text() == "ONE DAY."
    # By the keyboard: the next sentence, then away.
    page.locator(".sentence", has_text="IT COSTS").focus()
    page.keyboard.press("Enter")
    assert page.locator(".sentence[aria-pressed=true]").inner_text() == "IT COSTS {x} NOW."
    page.keyboard.press("Escape")
    assert not page.locator("#details").is_visible()
    assert (opened.strangers, opened.problems) == ([], [])


def test_page_speaks_the_language_of_the_browser(subtests: pytest.Subtests, open_page: Any) -> None:
    cases = {
        "de-AT": (
            "Übersetzen",
            "39 von 1.048.576 Zeichen",
            "Sprache erkennen, Deutsch, Englisch",
            "Text eingeben oder einfügen",
        ),
        "zh-CN": ("翻译", "39 / 1,048,576 个字符", "检测语言, 德语, 英语", "输入或粘贴文本"),
        "pl-PL": ("Translate", "39 of 1,048,576 characters", "Detect language, English, German", "Type or paste a text"),
    }
    for locale, (title, count, languages, placeholder) in cases.items():
        with subtests.test(locale=locale):
            opened = open_page(locale=locale)
            opened.translate("One day. It costs {x} now.\n\nThird line.")
            opened.wait_for_output("ONE DAY. IT COSTS {x} NOW.\n\nTHIRD LINE.")
            assert opened.page.locator("h1").inner_text() == title
            assert opened.page.locator("#count").inner_text() == count
            assert ", ".join(sorted(opened.page.locator("#source option").all_inner_texts())) == ", ".join(
                sorted(languages.split(", "))
            )
            assert opened.page.locator("#text").get_attribute("placeholder") == placeholder
            assert opened.page.evaluate("document.documentElement.lang") == locale.split("-")[0].replace("pl", "en")
            assert opened.problems == []


def test_languages_are_detected_and_swapped(open_page: Any) -> None:
    opened = open_page(color_scheme="dark")
    page = opened.page
    opened.translate("This is an ordinary English sentence.", source="")
    opened.wait_for_output("THIS IS AN ORDINARY ENGLISH SENTENCE.")
    assert page.locator("#detected").inner_text().startswith("English (")
    assert page.locator("#swap").is_disabled()
    assert page.locator("#swap-note").inner_text() == "To swap, choose the language of the text first"
    page.locator("#source").select_option("en")
    page.locator("#text").fill("Alpha beta.")
    opened.wait_for_output("ALPHA BETA.")
    page.keyboard.press("Alt+s")
    opened.wait_for_output("ALPHA BETA.!")
    assert page.locator("#text").input_value() == "ALPHA BETA."
    assert [page.locator(name).input_value() for name in ("#source", "#target")] == ["de", "en"]
    # A translation that has not come yet is waited for: the text before must not come back.
    page.locator("#source").select_option("en")
    page.locator("#text").fill("Alpha beta gamma.")
    page.keyboard.press("Alt+s")
    opened.wait_for_output("ALPHA BETA GAMMA.!")
    assert page.locator("#text").input_value() == "ALPHA BETA GAMMA."
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 25, 28)"
    assert (opened.strangers, opened.problems) == ([], [])


def test_model_its_examples_and_the_clear_button(open_page: Any) -> None:
    opened = open_page()
    page = opened.page
    page.locator("#source").select_option("en")
    assert page.locator("#model").inner_text() == "capitals · Letters · license CC0-1.0"
    files = page.locator("#files").bounding_box()
    page.locator("#examples button").click()
    opened.wait_for_output("ONE DAY.")
    page.locator(".sentence").hover()
    assert page.locator("#details").is_visible()
    assert page.locator("#files").bounding_box() == files
    page.locator("#clear").click()
    opened.wait_for_output("")
    assert (page.locator("#text").input_value(), page.locator("#clear").is_disabled()) == ("", True)
    assert (opened.strangers, opened.problems) == ([], [])


def test_errors_are_said_and_the_text_stays(open_page: Any, translator: CapitalTranslator) -> None:
    opened = open_page()
    page = opened.page
    translator.gate.clear()
    opened.translate("One day.")
    opened.wait_for_state("Translating")
    translator.gate.set()
    opened.wait_for_output("ONE DAY.")
    opened.translate("This will fail.")
    opened.wait_for_state("internal error")
    assert page.locator("#state").get_attribute("class") == "error"
    opened.context.set_offline(True)
    opened.translate("One more day.")
    opened.wait_for_state("The server cannot be reached.")
    assert page.locator("#text").input_value() == "One more day."
    opened.context.set_offline(False)
    page.keyboard.press("Control+Enter")
    opened.wait_for_output("ONE MORE DAY.")
    opened.translate("")
    opened.wait_for_output("")
    assert opened.strangers == []


def test_page_of_the_api_sends_requests_and_loads_nothing_from_elsewhere(open_page: Any) -> None:
    opened = open_page()
    page = opened.page
    page.click("text=API")
    page.click(".opblock:has([data-path='/languages']) .opblock-summary-control")
    page.click("text=Try it out")
    page.click("button.execute")
    page.wait_for_selector(".live-responses-table .response .response-col_status")
    assert page.locator(".live-responses-table .response .response-col_status").first.text_content().startswith("200")
    assert (opened.strangers, opened.problems) == ([], [])


def test_page_fits_a_phone(open_page: Any) -> None:
    opened = open_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = opened.page
    opened.translate("One day. " + "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen. " * 2)
    opened.page.wait_for_selector(".sentence >> nth=1")
    page.locator(".sentence").first.tap()
    assert page.locator("#alternatives button").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("source", "target"):
        label, choice = (page.locator(selector).bounding_box() for selector in (f"label[for={name}]", f"#{name}"))
        assert choice["x"] >= label["x"] + label["width"]
        assert choice["y"] <= label["y"] <= label["y"] + label["height"] <= choice["y"] + choice["height"]
    boxes = [page.locator(name).bounding_box() for name in ("#text", "#output")]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    assert (opened.strangers, opened.problems) == ([], [])


def test_files_are_chosen_dropped_and_refused(open_page: Any) -> None:
    window = open_page()
    page = window.page
    page.locator("#source").select_option("en")
    with page.expect_file_chooser() as chooser:
        page.locator("#choose").press("Enter")
    chooser.value.set_files({"name": "a page.html", "mimeType": "text/html", "buffer": b"<p>one <b>day</b></p>"})
    link = page.get_by_role("link", name="Download a page.de.html")
    with page.expect_download() as download:
        link.click()
    assert download.value.path().read_bytes() == b"<p>ONE <b>DAY</b></p>"
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["a: b"], "a.json"));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    page.wait_for_selector("#file-list .error")
    assert "is not JSON" in page.locator("#file-list .error").text_content()
    page.get_by_role("button", name="Remove a.json").click()
    assert page.locator("#file-list > li").count() == 1
    assert window.problems == []
