"""Words that a model cannot read."""

from __future__ import annotations

import pytest

from dragoman.text.inline_codes import CodedText, Element, Point
from dragoman.text.other_scripts import (
    find_other_scripts,
    is_in_other_script,
    mark_long_words,
    mark_same_words,
    mark_unread_words,
)


def test_texts_in_a_script_of_neither_language(subtests: pytest.Subtests) -> None:
    """Most letters decide. A text is never in another script for a language whose script is not known."""
    for source_language, target_language, text, is_other in [
        ("en", "de", "Сохраните файл, 3 MB", True),
        ("en", "de", "Сохраните файл, 3!", True),
        ("en", "de", "שמור את הקובץ", True),
        ("en", "de", "保存文件。", True),
        ("en", "de", "他叫迪 (Dilok)", True),
        ("en", "de", "The Wall (长城)", False),
        ("en", "de", "Die Datei файл", False),
        ("en", "de", "கோப்பைச் சேமி", True),
        ("en", "ru", "Сохраните файл", False),
        ("ru", "en", "Сохраните файл", False),
        ("ru", "en", "Save the file", False),
        ("zh", "en", "ファイルを保存", False),
        ("zh", "en", "файл", True),
        ("xx", "de", "файл", False),
        ("en", "xx", "файл", False),
        ("en", "de", "ª µ 𝐀 ½ 12", False),
        ("en", "de", "", False),
    ]:
        with subtests.test(text=text, source=source_language, target=target_language):
            assert is_in_other_script(text, find_other_scripts(source_language, target_language)) == is_other


def test_words_in_other_scripts_are_points(subtests: pytest.Subtests) -> None:
    """Words with a mark or space between them are one point. Combining vowels belong to their word; α alone is a quantity."""
    scripts = find_other_scripts("en", "de")
    for text, parts in [
        ("The word 你好 means hello.", ("The word ", Point("你好"), " means hello.")),
        ("The book «Война и мир», 1869.", ("The book «", Point("Война и мир"), "», 1869.")),
        ("Open отчёт.txt and смета.txt.", ("Open ", Point("отчёт"), ".txt and ", Point("смета"), ".txt.")),
        ("हिन्दी is spoken there.", (Point("हिन्दी"), " is spoken there.")),
        ("If α < Δt, μ is ψωμί.", ("If α < Δt, μ is ", Point("ψωμί"), ".")),
        ("Übergröße “and” more…", ("Übergröße “and” more…",)),
    ]:
        with subtests.test(text=text):
            assert mark_unread_words(CodedText((text,)), scripts, None).parts == parts
    element = Element("<b>", ("Say Привет!",), "</b>")
    assert mark_unread_words(CodedText((element,)), scripts, None).parts == (
        Element("<b>", ("Say ", Point("Привет"), "!"), "</b>"),
    )


def test_very_long_words_are_points() -> None:
    """Text without spaces of a language that writes none is not a word."""
    word, text = "Ab+/" * 126, "水" * 501
    assert mark_long_words(CodedText((f"See {word} {text}",))).parts == ("See ", Point(word), f" {text}")
    assert mark_long_words(CodedText((word[:500],))).parts == (word[:500],)


def test_words_that_a_tokenizer_cannot_read_are_points(subtests: pytest.Subtests) -> None:
    """A word with an index, or with a character without a piece, is one point. Signs are points of their own.

    Letters of scripts without spaces stand beside words, so they are none.
    """
    known = set("éü²\u0301")
    for text, parts in [
        ("We drink H₂O.", ("We drink ", Point("H₂O"), ".")),
        ("It is 10⁶ or m⁻¹, not m².", ("It is ", Point("10⁶"), " or ", Point("m⁻¹"), ", not m².")),
        ("A café of Erdős.", ("A café of ", Point("Erdős"), ".")),
        ("5\u20bd or 6‽", ("5", Point("\u20bd"), " or 6", Point("‽"))),
        ("H₂O是水", (Point("H₂O"), "是水")),
        ("A cafe\u0301.", ("A cafe\u0301.",)),
    ]:
        with subtests.test(text=text):
            coded = mark_unread_words(
                CodedText((text,)), frozenset(), lambda part: all(c in known or c.isascii() for c in part)
            )
            assert coded.parts == parts
    assert mark_same_words(CodedText(("H₂O and H₂",)), {"H₂", "H₂O"}).parts == (Point("H₂O"), " and ", Point("H₂"))
    assert mark_same_words(CodedText(("H₂",)), set()).parts == ("H₂",)
