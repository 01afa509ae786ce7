"""Whole texts with a translator that writes capital letters, so that each answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.inference import text_division
from dragoman.inference.text_division import divide
from dragoman.inference.text_options import ModelLimits, TextOptions
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TextTranslation, translate_texts
from dragoman.text.code_check import NO_DIFFERENCE, compare_codes
from dragoman.text.inline_codes import Markup, read_inline

ENGLISH = TextOptions(source_language="en", target_language="de")


class Capitalizer:
    """Translator that writes capital letters, with each word attending to itself. dropped: text that it leaves out"""

    def __init__(self, dropped: str = "") -> None:
        self.dropped = dropped
        self.lines: list[str] = []

    def __call__(self, request: LineRequest) -> list[Translation]:
        self.lines += request.lines
        return [self.translate(line) for line in request.lines]

    def translate(self, line: str) -> Translation:
        words = line.replace(self.dropped, "").split() if self.dropped else line.split()
        pieces = tuple("▁" + word for word in words)
        targets = tuple(piece if "{" in piece else piece.upper() for piece in pieces)
        text = "".join(targets).replace("▁", " ").strip()
        return Translation(text, tokens=targets, source_tokens=pieces, attention=np.eye(len(words)))


def translate_text(text: str, options: TextOptions, dropped: str = "") -> TextTranslation:
    (result,) = translate_texts([text], options, Capitalizer(dropped))
    return result


def test_line_breaks_and_spaces_stay() -> None:
    result = translate_text("  Good day. It rains.\r\n\n\t- one\n", ENGLISH)
    assert result.text == "  GOOD DAY. IT RAINS.\r\n\n\t- ONE\n"
    assert [segment.source for segment in result.segments] == ["Good day.", "It rains.", "- one"]


def test_sentences_are_separated_as_the_target_language_does() -> None:
    assert translate_text("好。是。", TextOptions(source_language="zh", target_language="en")).text == "好。 是。"
    assert translate_text("One. Two.", TextOptions(source_language="en", target_language="ja")).text == "ONE.TWO."


def test_equal_segments_are_translated_once_and_segments_without_words_not_at_all() -> None:
    capitalizer = Capitalizer()
    results = translate_texts(["yes", "yes\n---", "***"], ENGLISH, capitalizer)
    assert [result.text for result in results] == ["YES", "YES\n---", "***"]
    assert capitalizer.lines == ["yes"]


def test_markup_is_kept_and_character_references_are_read() -> None:
    source = '<p class="x">fish &amp; <b>chips</b> now. Go <br>there!</p>\n<script>if (a<b) x()</script>'
    expected = '<p class="x">FISH &amp; <b>CHIPS</b> NOW. GO <br>THERE!</p>\n<script>if (a<b) x()</script>'
    assert translate_text(source, TextOptions("html", "en", "de")).text == expected


def test_placeholders_that_the_model_copies_are_left_where_it_puts_them() -> None:
    capitalizer = Capitalizer()
    (result,) = translate_texts(["dear {name} hello"], ENGLISH, capitalizer)
    assert (result.text, capitalizer.lines) == ("DEAR {name} HELLO", ["dear {name} hello"])


def test_lost_placeholders_are_placed_by_attention() -> None:
    result = translate_text("dear {name} hello, {name}!", ENGLISH, dropped="{name}")
    assert result.text == "DEAR {name} HELLO, {name}!"


def test_changed_addresses_are_placed_by_attention() -> None:
    """The capitalizer changes the address, so the second reading is without it."""
    assert translate_text("see https://a.b/c today", ENGLISH).text == "SEE https://a.b/c TODAY"


def test_sentence_in_target_language_stays() -> None:
    source = "Save the file. 请使用 Git 提交您的更改。"
    options = TextOptions(source_language="en", target_language="zh", language_check=True)
    result = translate_text(source, options)
    assert result.text == "SAVE THE FILE.请使用 Git 提交您的更改。"
    assert [segment.status for segment in result.segments] == ["ok", "target_language"]
    assert result.status == "target_language"
    assert translate_text(source, replace(options, language_check=False)).status == "ok"


def test_sentence_in_another_script_stays() -> None:
    source = "Save the file. Сохраните файл. See 保存 now."
    options = TextOptions(source_language="en", target_language="de", language_check=True)
    result = translate_text(source, options)
    assert result.text == "SAVE THE FILE. Сохраните файл. SEE 保存 NOW."
    assert [segment.status for segment in result.segments] == ["ok", "other_script", "ok"]
    assert result.status == "other_script"


def test_words_in_another_script_are_placed_by_attention() -> None:
    """The capitalizer drops the word, or writes it in capitals; without the check it stays as the model writes it."""
    options = TextOptions(source_language="en", target_language="de", language_check=True)
    assert translate_text("dear друг hello", options, dropped="друг").text == "DEAR друг HELLO"
    assert translate_text("my dear <b>друг</b>!", replace(options, markup="html")).text == "MY DEAR <b>друг</b>!"
    assert translate_text("dear друг hello", ENGLISH).text == "DEAR ДРУГ HELLO"


def test_words_that_the_tokenizer_cannot_read_are_placed_by_attention() -> None:
    """They stay without the check of the language, too. The translation may have other words that the source cannot have."""
    options = replace(ENGLISH, target_language="el", limits=ModelLimits(reads=lambda text: text.isascii()))
    assert translate_text("drink h₂o now", options).text == "DRINK h₂o NOW"
    assert translate_text("see <b>erdős</b> ‽", replace(options, markup="html"), dropped="erdős").text == "SEE <b>erdős</b> ‽"


def test_lost_sign_of_a_currency_is_placed_and_its_name_counts() -> None:
    assert translate_text("it costs 5 \u20ac now", ENGLISH, dropped="\u20ac").text == "IT COSTS 5 \u20ac NOW"
    assert (
        translate_text("my dear <b>\u20ac5</b>", replace(ENGLISH, markup="html"), dropped="\u20ac").text
        == "MY DEAR <b>\u20ac5</b>"
    )
    assert translate_text("5 euro or \u20ac 5", ENGLISH, dropped="\u20ac").text == "5 EURO OR 5"


def test_symbols_are_kept_and_icons_are_not_read(subtests: pytest.Subtests) -> None:
    """The capitalizer drops each symbol, or would read an icon."""
    symbols = (
        "👩\u200d🚀",
        "🇩🇪",
        "*\ufe0f\u20e3",
        "❤\ufe0f",
        "≤",
        "№",
        "¾",
        "Ⅳ",
        "\U0001d6fc\U0001d465",
        "│└─",
        "\uf0c7",
        "\U000f0378",
    )
    for symbol in symbols:
        with subtests.test(symbol=symbol):
            assert translate_text(f"go {symbol} on {symbol}", ENGLISH, dropped=symbol).text == f"GO {symbol} ON {symbol}"
    capitalizer = Capitalizer()
    (result,) = translate_texts(["\uf0c7 press \uf0c7 now"], ENGLISH, capitalizer)
    assert (result.text, capitalizer.lines) == ("\uf0c7 PRESS \uf0c7 NOW", ["press now"])


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("the but\u00adton is \u200bhere", "the button is here", "THE\u00ad BUTTON IS \u200bHERE"),
        ("\u202bthe \u2066file\u2069 is here\u202c", "the file is here", "\u202bTHE \u2066FILE\u2069 IS HERE\u202c"),
        ("\ufeffthe\x00 file \x07is here", "the file is here", "\ufeffTHE\x00 FILE \x07IS HERE"),
        ("the \x1b[1;31mfile\x1b[0m is here", "the file is here", "THE \x1b[1;31mFILE\x1b[0m IS HERE"),
        ("the\u2009file is 5\u2003lines", "the file is 5 lines", "THE\u2009FILE IS 5\u2003LINES"),
        ("នេះ\u200bជា", "នេះ\u200bជា", "នេះ\u200bជា"),
        ("نمی\u200cبینم", "نمی\u200cبینم", "نمی\u200cبینم"),
    ],
)
def test_model_does_not_read_characters_without_width(text: str, line: str, expected: str) -> None:
    capitalizer = Capitalizer()
    (result,) = translate_texts([text], ENGLISH, capitalizer)
    assert (set(capitalizer.lines), result.text) == ({line}, expected)
    assert compare_codes(read_inline(text), read_inline(result.text.replace("\u00ad", ""))) == NO_DIFFERENCE


@pytest.mark.parametrize("text", ["", " ", "\n\n", "<br>", "&nbsp;", "<!-- a. B -->"])
def test_text_without_words_is_returned_as_it_is(text: str) -> None:
    for markup in get_args(Markup):
        result = translate_text(text, TextOptions(markup, "en", "de"))
        assert result.text.replace("\xa0", "&nbsp;") == text or markup == "none"


FRAGMENTS = st.lists(
    st.sampled_from(
        ["a ", "b. ", "C", " ", "\n", "<b>", "</b>", "<i>", "</i>", "<br>", "<p>", "</p>", "{x}", "%s ", "&amp;", "！"]
    ),
    max_size=20,
)


MARKUPS = st.sampled_from(get_args(Markup))


@given(FRAGMENTS, MARKUPS, st.booleans())
def test_pieces_are_the_text(fragments: list[str], markup: Markup, split: bool) -> None:
    text = "".join(fragments)
    options = TextOptions(markup, "en", "de", split_sentences=split)
    pieces = "".join(piece if isinstance(piece, str) else piece.write() for piece in divide(text, options))
    assert pieces == text or (markup == "html" and " ".join(pieces.split()) == " ".join(text.split()))


@given(FRAGMENTS, MARKUPS)
def test_translation_keeps_all_codes(fragments: list[str], markup: Markup) -> None:
    text = "".join(fragments)
    result = translate_text(text, TextOptions(markup, "en", "de"), dropped="{x}")
    for code in ("<b>", "</b>", "<i>", "</i>", "<br>", "<p>", "</p>", "{x}", "%s", "&amp;"):
        if markup != "none" or code[0] not in "<&":  # without markup, these are words of the text
            assert result.text.count(code) == text.count(code), code


def test_translation_with_a_fault_is_translated_again() -> None:
    """The first answer lacks the number, and so does the best one of the second search."""
    requests: list[LineRequest] = []

    def translate(request: LineRequest) -> list[Translation]:
        requests.append(request)
        if not request.is_retry:
            return [Translation("es kostet viel")]
        return [Translation("es kostet wenig", alternatives=(Translation("es kostet 250"), Translation("250")))]

    (result,) = translate_texts(["it costs 250"], ENGLISH, translate)
    assert [(request.lines, request.is_retry) for request in requests] == [
        (("it costs 250",), False),
        (("it costs 250",), True),
    ]
    assert (result.text, result.segments[0].checks) == ("es kostet 250", ())


def test_fault_that_no_other_search_mends_is_reported() -> None:
    (result,) = translate_texts(["it costs 250"], ENGLISH, lambda request: [Translation("es kostet viel")])
    assert (result.text, result.segments[0].checks) == ("es kostet viel", ("numbers",))


def test_alternatives_of_a_text_combine_those_of_its_segments() -> None:
    def translate(request: LineRequest) -> list[Translation]:
        return [Translation(line.upper(), alternatives=(Translation(line.title()),)) for line in request.lines]

    (result,) = translate_texts(["one two. Three"], ENGLISH, translate)
    assert (result.text, result.alternatives) == ("ONE TWO. THREE", ("One Two. Three",))


@pytest.mark.parametrize("text", [
    "The <b>old</b> house stands.", "A <a href='x'><b>word</b> more</a> here", "Two. <b>Three.</b>", "<b>One</b>",
    "a <p>b</p> c", "One <b> two</b> ", "a <b>  b</b>", "a <b></b> b", "x <br/> y", " <i>edge</i> text", "<i>x</i> y",
    "plain", "", "A. B", "a &amp; b", "a <b>\nb</b>", "Dr. <b>Who</b> is in.", "a <i>b. C</i> d",
])  # fmt: skip
@pytest.mark.parametrize("markup", ["html", "xml"])
def test_one_sentence_is_divided_as_any_text(text: str, markup: Markup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The direct way gives what the general one gives."""
    options = TextOptions(markup, "en", "de", keep_line_breaks=False)
    direct = list(divide(text, options))
    monkeypatch.setattr(text_division, "_is_one_sentence", lambda *arguments: False)
    assert direct == list(divide(text, options))
