"""The attention page in a real browser: it asks for nothing, its controls work, and what it shows is the model's."""

from __future__ import annotations

import os
import re
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman import load
from dragoman.inference.explain.translation import explain
from dragoman.viz.attention_page import MAX_TOKENS, embed_in_iframe, render_attention_page
from dragoman.viz.explanation import Explanation
from random_explanations import HOSTILE, made

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
READY = "html[data-ready]"
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run", "--mute-audio"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_core"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium, a package of Debian"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    sandbox = (
        ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    )  # chromium refuses to start as root with it
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, *sandbox])
        yield opened
        opened.close()


class Sight:
    """An open page, and all that went on in it."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "offline": True, **context})
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.troubles: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", self.refuse)
        self.page.goto(path.as_uri())

    def refuse(self, dialog: Any) -> None:
        self.troubles.append(dialog.message)
        dialog.dismiss()

    def ready_after(self) -> float:
        """Seconds from the navigation's start to the end of the page's script."""
        return float(self.page.locator(READY).get_attribute("data-ready")) / 1000

    def readout(self) -> str:
        return str(self.page.locator("#readout").inner_text())

    def tokens(self, kind: str, side: str) -> Any:
        return self.page.locator(f"figure[data-kind={kind}] .token:has(.{side})")


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    sights: list[Sight] = []

    def opened(page: str, **context: Any) -> Sight:
        path = tmp_path / f"page{len(sights)}.html"
        path.write_text(page, encoding="utf-8")
        sights.append(Sight(browser, path, **context))
        if context.get("java_script_enabled", True):
            sights[-1].page.wait_for_selector(READY, state="attached")
        return sights[-1]

    yield opened
    for sight in sights:
        sight.context.close()


@pytest.fixture(scope="module")
def small() -> Explanation:
    return made(source=7, said=5, layers=2, heads=3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_within_a_second_and_asks_for_nothing(open_page: Any, small: Explanation, scheme: str) -> None:
    page = render_attention_page(made(source=50, said=50, layers=6, heads=8, width=64, beam=4))
    open_page(render_attention_page(small))  # the browser's own first page is not the page's
    sights = [open_page(page, color_scheme=scheme) for _ in range(3)]
    for sight in sights:
        assert [url.split(":")[0] for url in sight.asked if not url.startswith("data:")] == ["file"]
        assert sight.troubles == []
    print(f"ready after {[sight.ready_after() for sight in sights]} s")
    assert min(sight.ready_after() for sight in sights) < 1.0


def test_numbers_shown_are_the_models(open_page: Any, bundle: Path) -> None:
    explanation = explain(load(bundle, device="cpu"), "three red five", heads=[1, 2])
    sight = open_page(render_attention_page(explanation))
    for kind in ("cross", "encoder", "decoder"):
        sight.page.locator(f"input[name=kind][value={kind}]").check(force=True)
        weights = explanation.heads(kind).weights_LHTS[0]
        for row in range(weights.shape[1]):
            sight.tokens(kind, "q").nth(row).hover()
            lines = re.findall(r"head (\d+)((?:\s+\S+ \d\.\d{3})+)", sight.readout())
            assert [int(head) for head, _ in lines] == list(range(1, weights.shape[0] + 1)), sight.readout()
            for head, told in lines:
                shown = [float(one) for one in re.findall(r"(\d\.\d{3})(?=\s|$)", told)]
                best = np.sort(weights[int(head) - 1, row])[::-1][: len(shown)]
                assert np.abs(np.array(shown) - best).max() <= 1 / 255
        for column in range(weights.shape[2]):
            sight.page.locator("#pair select").nth(0).select_option(str(weights.shape[1] - 1))
            sight.page.locator("#pair select").nth(1).select_option(str(column))
            told = sight.page.locator("#numbers tr[aria-current] td").all_inner_texts()
            query = explanation.heads(kind).query_LHTK[0, 0, -1]
            product = float(query @ explanation.heads(kind).key_LHSK[0, 0, column])
            assert float(told[1]) == pytest.approx(product, abs=0.01)
            assert float(told[2]) == pytest.approx(product / np.sqrt(len(query)), abs=0.005)
            assert float(told[3]) == pytest.approx(float(weights[0, -1, column]), abs=1 / 255)
    assert sight.troubles == []


def test_heads_and_layers_are_chosen_by_mouse(open_page: Any, small: Explanation) -> None:
    sight = open_page(render_attention_page(small))
    remark = sight.page.locator("figure[data-kind=cross] svg text.muted").first
    assert remark.text_content() == "layer 2, all heads"
    sight.page.locator(".grid[data-kind=cross] button[aria-label='layer 1, head 3']").click()
    assert remark.text_content() == "layer 1, head 3"
    assert set(
        sight.page.locator("figure[data-kind=cross] .lines path").evaluate_all("all => all.map(x => x.classList[1])")
    ) == {"h2"}
    sight.page.locator("label.head").first.click()
    assert remark.text_content() == "layer 1, heads 1, 3"
    assert sight.page.locator("#words svg text.muted").first.text_content() == "mean of layer 1, heads 1, 3"
    shades = sight.page.locator("#words .cells path").evaluate_all(
        "all => all.flatMap((path, shade) => Array((path.getAttribute('d').match(/M/g) || []).length).fill(shade + 1))"
    )
    expected = np.round(small.cross.weights_LHTS[0, [0, 2]].mean(axis=0) * 16)
    assert sorted(shades) == pytest.approx(sorted(expected[expected > 0]), abs=1)
    sight.page.locator("#controls button").click()
    assert remark.text_content() == "layer 1, all heads"
    sight.page.locator("#controls button").click()
    assert remark.text_content() == "layer 1, no head"
    assert sight.page.locator("figure[data-kind=cross] .lines path").count() == 0
    assert sight.troubles == []


def test_all_can_be_reached_by_keyboard(open_page: Any, small: Explanation) -> None:
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
    assert sight.readout().startswith("tok1 looks at")
    keys.press("ArrowRight")
    assert sight.readout().startswith("tok1 is looked at by")
    keys.press("Enter")
    sight.page.mouse.move(1, 1)
    assert sight.readout().startswith("tok1 is looked at by")
    keys.press("Escape")
    assert sight.readout().startswith("Point at a token")
    reached = set()
    for _ in range(20):
        keys.press("Tab")
        reached.add(sight.page.evaluate(f"{active}.closest('section') && {active}.closest('section').id"))
    assert {"looks", "words", "steps", "inside"} <= reached
    sight.page.locator("#words svg").focus()
    keys.press("ArrowDown")
    keys.press("ArrowRight")
    told = sight.page.locator("#word").inner_text()
    assert told.startswith("tok1 ← tok1: ")
    assert float(told.split(": ")[1]) == pytest.approx(small.cross.weights_LHTS[1, :, 1, 1].mean(), abs=1 / 255)
    assert sight.troubles == []


def test_hostile_tokens_stay_inert(open_page: Any) -> None:
    explanation = made(source=len(HOSTILE), said=len(HOSTILE), layers=1, heads=2, tokens=HOSTILE)
    sight = open_page(render_attention_page(explanation))
    for kind in ("cross", "encoder", "decoder"):
        sight.page.locator(f"input[name=kind][value={kind}]").check(force=True)
        for side in "qk":
            for place in range(len(HOSTILE)):
                sight.tokens(kind, side).nth(place).hover()
    assert sight.page.locator("script").count() == 3
    assert sight.page.locator("img").count() == 3
    assert sight.page.locator("[onclick], [onerror]").count() == 0
    assert "broken" not in sight.page.title().split(" ")[0]
    text = sight.page.evaluate("document.documentElement.textContent")
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)
    assert sight.troubles == []


def test_what_is_put_into_the_page_cannot_act(open_page: Any, small: Explanation) -> None:
    """Were a token ever to become a tag, the policy would still stop it: tags are put in by hand, and someone listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.5)
        place = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        acts = "document.title='broken'"
        bad = f"<script>{acts}</script><img src=data:x onerror={acts}><img src={place}><link rel=stylesheet href={place}>"
        sight = open_page(
            render_attention_page(small).replace("</header>", f"</header>{bad}<iframe src={place}></iframe>"), offline=False
        )
        heard = [b""]
        with suppress(TimeoutError):
            while True:  # a browser may open a connection before it knows that it will ask for nothing
                with listening.accept()[0] as connection, suppress(TimeoutError):
                    connection.settimeout(0.5)
                    heard.append(connection.recv(100))
    assert not any(heard)
    assert sight.page.title() != "broken"
    assert sum("Content Security Policy" in trouble for trouble in sight.troubles) >= 4


def test_it_is_readable_without_a_script_and_on_a_phone(open_page: Any, small: Explanation) -> None:
    page = render_attention_page(small)
    plain = open_page(page, java_script_enabled=False)
    for kind in ("cross", "encoder", "decoder"):
        assert plain.page.locator(f"#lines figure[data-kind={kind}] svg").is_visible()
        assert plain.page.locator(f".grid[data-kind={kind}] img").is_visible()
    phone = open_page(page, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 360
    phone.tokens("cross", "q").nth(1).tap()
    assert phone.readout().startswith("tok1 looks at")
    assert phone.troubles == []


def test_a_notebooks_frame_runs_it(open_page: Any, small: Explanation, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body>{embed_in_iframe(render_attention_page(small))}", encoding="utf-8"
    )
    sight = Sight(browser, path)
    frame = sight.page.frame_locator("iframe")
    frame.locator(READY).wait_for(state="attached")
    frame.locator("figure[data-kind=cross] .token").first.hover()
    assert frame.locator("#readout").inner_text().startswith("tok0 looks at")
    assert sight.troubles == []
    sight.context.close()


FRAMES = """async () => {
  const times = [];
  await new Promise(done => {
    let place = 0;
    const step = now => {
      times.push(now);
      place += 40;
      window.scrollTo(0, place);
      if (place < document.documentElement.scrollHeight && times.length < 200) requestAnimationFrame(step); else done();
    };
    requestAnimationFrame(step);
  });
  return times.slice(1).map((time, place) => time - times[place]);
}"""


def test_a_long_sentence_through_twelve_layers_opens_and_scrolls(open_page: Any) -> None:
    explanation = made(source=100, said=100, layers=12, heads=8, width=16, beam=4)
    sight = open_page(render_attention_page(explanation))
    seconds = sight.ready_after()
    gaps = sight.page.evaluate(FRAMES)
    print(f"opened in {seconds:.2f} s; {len(gaps)} frames, median {statistics.median(gaps):.1f} ms, worst {max(gaps):.1f} ms")
    assert seconds < 5.0
    assert statistics.median(gaps) < 34  # 30 frames a second, without a graphics card
    assert sight.troubles == []


def test_the_longest_page_is_whole(open_page: Any) -> None:
    explanation = made(source=MAX_TOKENS, said=MAX_TOKENS, layers=2, heads=2, width=4, beam=2)
    sight = open_page(render_attention_page(explanation))
    assert sight.tokens("cross", "q").count() == MAX_TOKENS
    assert sight.page.locator("#steps tbody tr").count() == MAX_TOKENS
    last = sight.tokens("cross", "q").nth(MAX_TOKENS - 1)
    last.hover()
    assert sight.readout().startswith("</s> looks at")
    best = float(explanation.cross.weights_LHTS[1, 0, -1].max())
    assert float(re.findall(r"\d\.\d{3}", sight.readout())[0]) == pytest.approx(best, abs=1 / 255)
    assert sight.troubles == []


def becomes(read: Callable[[], object], wanted: object) -> None:
    """What is read off the page is drawn with its next frame, which a busy machine is late with."""
    until = time.monotonic() + 10
    while (seen := read()) != wanted and time.monotonic() < until:
        time.sleep(0.02)
    assert seen == wanted


def test_a_step_of_the_beam_and_a_token_of_the_lines_are_chosen_together(open_page: Any, small: Explanation) -> None:
    sight = open_page(render_attention_page(small))
    columns, rows = sight.page.locator("#steps .column"), sight.page.locator("#steps tbody tr")
    picked = sight.page.locator("figure[data-kind=cross] .token.picked")
    assert columns.count() == rows.count() == len(small.output_tokens)
    columns.nth(2).click()
    becomes(lambda: picked.get_attribute("aria-label"), "from tok2")
    becomes(lambda: rows.nth(2).get_attribute("aria-current"), "step")
    becomes(lambda: sight.page.locator("#step").inner_text()[:17], "3. tok2 looks at ")
    told = sight.page.locator("#step").inner_text()
    weights = small.cross.weights_LHTS[small.selections["cross"].layer][list(small.selections["cross"].heads)].mean(axis=0)[2]
    assert float(re.findall(r"\d\.\d{3}", told)[0]) == pytest.approx(float(weights.max()), abs=1 / 255)
    rows.nth(1).locator("th").click()
    becomes(lambda: picked.get_attribute("aria-label"), "from tok1")
    becomes(lambda: columns.nth(1).get_attribute("aria-current"), "step")
    becomes(lambda: columns.nth(2).get_attribute("aria-current"), None)
    # And back: a token that is held marks its step, one of the other side none.
    sight.tokens("cross", "q").nth(3).click()
    becomes(lambda: columns.nth(3).get_attribute("aria-current"), "step")
    sight.tokens("cross", "k").nth(0).click()
    becomes(sight.page.locator("#steps [aria-current]").count, 0)
    becomes(sight.page.locator("#step").inner_text, "")
    # By the keyboard, and from the encoder, which says nothing itself.
    sight.page.locator("input[name=kind][value=encoder]").check(force=True)
    columns.nth(0).focus()
    sight.page.keyboard.press("ArrowRight")
    sight.page.keyboard.press("Enter")
    sight.page.wait_for_selector("figure[data-kind=cross] .token.picked")
    becomes(lambda: picked.get_attribute("aria-label"), "from tok1")
    sight.page.keyboard.press("Escape")
    becomes(picked.count, 0)
    assert sight.troubles == []
