"""The attention page in a real browser: it makes no requests, its controls work, and its numbers are the model's."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chromium import needs_chromium, open_browser
from dragoman import load
from dragoman.inference.explain.explain_translation import explain
from dragoman.viz.attention_page import embed_in_iframe, render_attention_page
from dragoman.viz.explanation import Explanation
from random_explanations import HOSTILE, random_explanation

READY = "html[data-ready]"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_core"),
    needs_chromium,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


class OpenPage:
    """Open page, with its requests, console messages, errors and dialogs."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "offline": True, **context})
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.goto(path.as_uri())

    def dismiss(self, dialog: Any) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()

    def readout(self) -> str:
        return str(self.page.locator("#readout").inner_text())

    def tokens(self, kind: str, side: str) -> Any:
        return self.page.locator(f"figure[data-kind={kind}] .token:has(.{side})")


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    sights: list[OpenPage] = []

    def opened(page: str, **context: Any) -> OpenPage:
        path = tmp_path / f"page{len(sights)}.html"
        path.write_text(page, encoding="utf-8")
        sights.append(OpenPage(browser, path, **context))
        if context.get("java_script_enabled", True):
            sights[-1].page.wait_for_selector(READY, state="attached")
        return sights[-1]

    yield opened
    for sight in sights:
        sight.context.close()


@pytest.fixture(scope="module")
def small() -> Explanation:
    return random_explanation(source_length=7, output_length=5, layers=2, heads=3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_without_requests(open_page: Any, scheme: str) -> None:
    page = render_attention_page(random_explanation(source_length=50, output_length=50, layers=6, heads=8, width=64, beam=4))
    sight = open_page(page, color_scheme=scheme)
    assert [url.split(":")[0] for url in sight.requests if not url.startswith("data:")] == ["file"]
    assert sight.problems == []


def test_shown_numbers_are_the_models(open_page: Any, bundle: Path) -> None:
    explanation = explain(load(bundle, task="translation", device="cpu"), "three red five", heads=[1, 2])
    sight = open_page(render_attention_page(explanation))
    for kind in ("cross", "encoder", "decoder"):
        sight.page.locator(f"input[name=kind][value={kind}]").check(force=True)
        weights = explanation.heads(kind).weights_LHTS[0]
        for row in range(weights.shape[1]):
            sight.tokens(kind, "q").nth(row).hover()
            lines = re.findall(r"head (\d+)((?:\s+\S+ \d\.\d{3})+)", sight.readout())
            assert [int(head) for head, _ in lines] == list(range(1, weights.shape[0] + 1)), sight.readout()
            for head, numbers in lines:
                shown = [float(number) for number in re.findall(r"(\d\.\d{3})(?=\s|$)", numbers)]
                best = np.sort(weights[int(head) - 1, row])[::-1][: len(shown)]
                assert np.abs(np.array(shown) - best).max() <= 1 / 255
        for column in range(weights.shape[2]):
            sight.page.locator("#pair select").nth(0).select_option(str(weights.shape[1] - 1))
            sight.page.locator("#pair select").nth(1).select_option(str(column))
            cells = sight.page.locator("#numbers tr[aria-current] td").all_inner_texts()
            query = explanation.heads(kind).query_LHTK[0, 0, -1]
            product = float(query @ explanation.heads(kind).key_LHSK[0, 0, column])
            assert float(cells[1]) == pytest.approx(product, abs=0.01)
            assert float(cells[2]) == pytest.approx(product / np.sqrt(len(query)), abs=0.005)
            assert float(cells[3]) == pytest.approx(float(weights[0, -1, column]), abs=1 / 255)
    assert sight.problems == []


def test_mouse_selects_heads_and_layers(open_page: Any, small: Explanation) -> None:
    sight = open_page(render_attention_page(small))
    caption = sight.page.locator("figure[data-kind=cross] svg text.muted").first
    assert caption.text_content() == "layer 2, all heads"
    sight.page.locator(".grid[data-kind=cross] button[aria-label='layer 1, head 3']").click()
    assert caption.text_content() == "layer 1, head 3"
    assert set(
        sight.page.locator("figure[data-kind=cross] .lines path").evaluate_all("all => all.map(x => x.classList[1])")
    ) == {"h2"}
    sight.page.locator("label.head").first.click()
    assert caption.text_content() == "layer 1, heads 1, 3"
    assert sight.page.locator("#words svg text.muted").first.text_content() == "mean of layer 1, heads 1, 3"
    shades = sight.page.locator("#words .cells path").evaluate_all(
        "all => all.flatMap((path, shade) => Array((path.getAttribute('d').match(/M/g) || []).length).fill(shade + 1))"
    )
    expected = np.round(small.cross.weights_LHTS[0, [0, 2]].mean(axis=0) * 16)
    assert sorted(shades) == pytest.approx(sorted(expected[expected > 0]), abs=1)
    sight.page.locator("#controls button").click()
    assert caption.text_content() == "layer 1, all heads"
    sight.page.locator("#controls button").click()
    assert caption.text_content() == "layer 1, no head"
    assert sight.page.locator("figure[data-kind=cross] .lines path").count() == 0
    assert sight.problems == []


def test_keyboard_reaches_everything(open_page: Any, small: Explanation) -> None:
    sight = open_page(render_attention_page(small))
    keys = sight.page.keyboard
    active = "document.activeElement"
    keys.press("Tab")
    assert sight.page.evaluate(f"{active}.name") == "kind"
    keys.press("ArrowRight")
    assert sight.page.evaluate(f"{active}.value") == "encoder"
    sight.page.wait_for_selector("figure[data-kind=encoder] .lines")
    keys.press("ArrowLeft")
    for _ in range(20):
        keys.press("Tab")
        if sight.page.evaluate(f"{active}.classList.contains('token')"):
            break
    keys.press("ArrowDown")
    assert sight.page.evaluate(f"{active}.getAttribute('aria-label')") == "from tok1"
    assert sight.readout().startswith("tok1 attends to")
    keys.press("ArrowRight")
    assert sight.readout().startswith("tok1 is attended to by")
    keys.press("Enter")
    sight.page.mouse.move(1, 1)
    assert sight.readout().startswith("tok1 is attended to by")
    keys.press("Escape")
    assert sight.readout().startswith("Point at a token")
    sections = set()
    for _ in range(20):
        keys.press("Tab")
        sections.add(sight.page.evaluate(f"{active}.closest('section') && {active}.closest('section').id"))
    assert {"attention", "words", "steps", "inside"} <= sections
    sight.page.locator("#words svg").focus()
    keys.press("ArrowDown")
    keys.press("ArrowRight")
    text = sight.page.locator("#word").inner_text()
    assert text.startswith("tok1 ← tok1: ")
    assert float(text.split(": ")[1]) == pytest.approx(small.cross.weights_LHTS[1, :, 1, 1].mean(), abs=1 / 255)
    assert sight.problems == []


def test_hostile_tokens_stay_inert(open_page: Any) -> None:
    explanation = random_explanation(source_length=len(HOSTILE), output_length=len(HOSTILE), layers=1, heads=2, tokens=HOSTILE)
    sight = open_page(render_attention_page(explanation))
    for kind in ("cross", "encoder", "decoder"):
        sight.page.locator(f"input[name=kind][value={kind}]").check(force=True)
        for side in "qk":
            for index in range(len(HOSTILE)):
                sight.tokens(kind, side).nth(index).hover()
    assert sight.page.locator("script").count() == 3
    assert sight.page.locator("img").count() == 3
    assert sight.page.locator("[onclick], [onerror]").count() == 0
    assert "broken" not in sight.page.title().split(" ")[0]
    text = sight.page.evaluate("document.documentElement.textContent")
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)
    assert sight.problems == []


def test_policy_stops_inserted_tags(open_page: Any, small: Explanation) -> None:
    """Insert tags by hand: the policy must stop them, so a listening server receives nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        script = "document.title='broken'"
        bad = f"<script>{script}</script><img src=data:x onerror={script}><img src={url}><link rel=stylesheet href={url}>"
        sight = open_page(
            render_attention_page(small).replace("</header>", f"</header>{bad}<iframe src={url}></iframe>"), offline=False
        )
        received = [b""]
        with suppress(TimeoutError):
            while True:  # a browser may open a connection without a request
                with server.accept()[0] as connection, suppress(TimeoutError):
                    connection.settimeout(0.5)
                    received.append(connection.recv(100))
    assert not any(received)
    assert sight.page.title() != "broken"
    assert sum("Content Security Policy" in problem for problem in sight.problems) >= 4


def test_page_works_without_script_and_on_phones(open_page: Any, small: Explanation) -> None:
    page = render_attention_page(small)
    plain = open_page(page, java_script_enabled=False)
    for kind in ("cross", "encoder", "decoder"):
        assert plain.page.locator(f"#lines figure[data-kind={kind}] svg").is_visible()
        assert plain.page.locator(f".grid[data-kind={kind}] img").is_visible()
    phone = open_page(page, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 360
    phone.tokens("cross", "q").nth(1).tap()
    assert phone.readout().startswith("tok1 attends to")
    assert phone.problems == []


def test_notebook_frame_runs_the_page(open_page: Any, small: Explanation, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body>{embed_in_iframe(render_attention_page(small))}", encoding="utf-8"
    )
    sight = OpenPage(browser, path)
    frame = sight.page.frame_locator("iframe")
    frame.locator(READY).wait_for(state="attached")
    frame.locator("figure[data-kind=cross] .token").first.hover()
    assert frame.locator("#readout").inner_text().startswith("tok0 attends to")
    assert sight.problems == []
    sight.context.close()


def wait_for_value(read: Callable[[], object], expected: object) -> None:
    """Wait until the page shows this value; it changes with the next frame, which a busy machine draws late."""
    deadline = time.monotonic() + 60
    while (value := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    assert value == expected


def test_beam_step_and_token_are_selected_together(open_page: Any, small: Explanation) -> None:
    sight = open_page(render_attention_page(small))
    columns, rows = sight.page.locator("#steps .column"), sight.page.locator("#steps tbody tr")
    picked = sight.page.locator("figure[data-kind=cross] .token.picked")
    assert columns.count() == rows.count() == len(small.output_tokens)
    columns.nth(2).click()
    wait_for_value(lambda: picked.get_attribute("aria-label"), "from tok2")
    wait_for_value(lambda: rows.nth(2).get_attribute("aria-current"), "step")
    wait_for_value(lambda: sight.page.locator("#step").inner_text()[:19], "3. tok2 attends to ")
    text = sight.page.locator("#step").inner_text()
    weights = small.cross.weights_LHTS[small.selections["cross"].layer][list(small.selections["cross"].heads)].mean(axis=0)[2]
    assert float(re.findall(r"\d\.\d{3}", text)[0]) == pytest.approx(float(weights.max()), abs=1 / 255)
    rows.nth(1).locator("th").click()
    wait_for_value(lambda: picked.get_attribute("aria-label"), "from tok1")
    wait_for_value(lambda: columns.nth(1).get_attribute("aria-current"), "step")
    wait_for_value(lambda: columns.nth(2).get_attribute("aria-current"), None)
    # In the other direction: a selected target token marks its step, a source token none.
    sight.tokens("cross", "q").nth(3).click()
    wait_for_value(lambda: columns.nth(3).get_attribute("aria-current"), "step")
    sight.tokens("cross", "k").nth(0).click()
    wait_for_value(sight.page.locator("#steps [aria-current]").count, 0)
    wait_for_value(sight.page.locator("#step").inner_text, "")
    # By the keyboard, and from the encoder view, which has no output tokens.
    sight.page.locator("input[name=kind][value=encoder]").check(force=True)
    columns.nth(0).focus()
    sight.page.keyboard.press("ArrowRight")
    sight.page.keyboard.press("Enter")
    sight.page.wait_for_selector("figure[data-kind=cross] .token.picked")
    wait_for_value(lambda: picked.get_attribute("aria-label"), "from tok1")
    sight.page.keyboard.press("Escape")
    wait_for_value(picked.count, 0)
    assert sight.problems == []
