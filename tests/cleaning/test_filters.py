"""Cleaning: what each rule drops and keeps, duplicates against a set, tallies merged in any order, a page that stays inert."""

# Texts of many scripts are the point here.
# ruff: noqa: RUF001

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import pickle
import random
import sys
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.cleaning import filters
from dragoman.cleaning.decontamination import EvaluationTexts, normalize_for_matching
from dragoman.cleaning.deduplication import Digests, DuplicateFinder, digest_pairs, digest_sources
from dragoman.cleaning.language_id import make_language_filter, make_script_filter
from dragoman.cleaning.report import TABLE_HEADER, format_rows, render_cleaning_report
from dragoman.cleaning.enabled_filters import FILTER_ORDER, PairFilter, build_filters
from dragoman.cleaning.statistics import MAX_EXAMPLE_CHARACTERS, MAX_EXAMPLES, CleaningStats, FilterStats, apply_filters
from dragoman.config import CleaningConfig
from dragoman.errors import DataError, MissingDependencyError, OutputError, RecipeError
from dragoman.formats.pair import Pair

DATA = Path(__file__).parents[3] / "shared" / "data"
ALL = CleaningConfig(
    max_words=100, max_characters=600, max_ratio=3.0, source_equals_target=True, duplicate_pairs=True, duplicate_sources=True,
    control_characters=True, mojibake=True, markup=True, min_script_ratio=0.5, min_language_probability=0.5, numbers=True, urls=True, eval_overlap=True,
)  # fmt: skip
texts = st.text(max_size=30)


def read(name: str, split: str = "train") -> list[Pair]:
    path = DATA / name / f"{split}.tsv.gz"
    if not path.exists():
        pytest.skip(f"the corpus {name} is not here")
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream]
    return [Pair(source, target, f"{name}:{number}") for number, (source, target) in enumerate(rows, start=1)]


def rules(config: CleaningConfig = ALL, *exempt: str, source: str = "en", target: str = "de") -> list[PairFilter]:
    evaluation = EvaluationTexts.from_pairs([Pair("Where is the library?", "Wo ist die Bibliothek?")])
    return build_filters(
        config,
        source_language=source,
        target_language=target,
        evaluation=evaluation,
        skip_filters=exempt,  # type: ignore[arg-type]
    )


# Rules


def test_what_is_off_is_not_applied() -> None:
    assert [rule.name for rule in rules(CleaningConfig())] == ["empty"]


def test_every_rule_in_its_order_but_those_on_duplicates() -> None:
    assert [rule.name for rule in rules()] == [name for name in FILTER_ORDER if not name.startswith("duplicate")]


def test_an_exempt_rule_is_not_even_made() -> None:
    names = [rule.name for rule in rules(ALL, "language", "script", "numbers", source="", target="")]
    assert names == [name for name in FILTER_ORDER if name not in ("language", "script", "numbers") and "duplicate" not in name]


def test_sentences_hold_their_limits() -> None:
    sentences = {rule.name: rule.description for rule in rules()}
    assert sentences["length"] == "A side has more than 100 words or 600 characters."
    assert "more than 3 times" in sentences["ratio"]
    assert "50 %" in sentences["script"]
    assert "0.5" in sentences["language"]
    assert all(sentence.endswith(".") for sentence in sentences.values())


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("empty", " \u3000", "Ein Haus."),
        ("length", "a " * 101, "b " * 50),
        ("ratio", "No, I did not do that.", "Nein."),
        ("source-equals-target", "A house of cards", "a house of  Cards"),
        ("control", "Hidden \x07 bell", "Glocke"),
        ("urls", "See https://a.example.", "Siehe dort drüben."),
        ("numbers", "Room 12", "Zimmer 21"),
        ("markup", "A <b>bold</b> word", "Ein fettes Wort"),
        ("mojibake", "A door", "Eine TÃ¼r"),
        ("script", "A house", "Дом на горе"),
        ("eval-overlap", "where is the library", "In welchem Haus ist sie?"),
        ("language", "This is my house, and that is yours.", "Cette maison est la mienne, et voilà la vôtre."),
    ],
)
def test_a_pair_counts_under_its_rule(name: str, source: str, target: str) -> None:
    good = Pair("This is my house.", "Dies ist mein Haus.", "a:1")
    kept, tally = apply_filters([good, Pair(source, target, "a:2")], rules())
    assert kept == [good]
    assert (tally.num_read, tally.num_kept) == (2, 1)
    assert [rule for rule, dropped in tally.filter_stats.items() if dropped.num_dropped] == [name]


@pytest.mark.parametrize(
    ("settings", "languages", "names"),
    [
        ({"min_script_ratio": 0.5}, ("", "de"), "task.source_language"),
        ({"min_script_ratio": 0.5}, ("en", ""), "task.target_language"),
        ({"min_script_ratio": 0.5}, ("en", "qqq"), "task.target_language = 'qqq'"),
        ({"min_script_ratio": 0.5}, ("en", "en-Xxxx"), "Xxxx is not known"),
        ({"min_script_ratio": 0.5}, ("en", "to be"), "not a language code"),
        ({"min_language_probability": 0.5}, ("", "de"), "task.source_language"),
        ({"min_language_probability": 0.5}, ("en", "tlh"), "task.target_language = 'tlh'"),
    ],
)
def test_a_language_that_is_needed_is_asked_for(settings: dict[str, float], languages: tuple[str, str], names: str) -> None:
    with pytest.raises(RecipeError, match=names):
        build_filters(CleaningConfig(**settings), source_language=languages[0], target_language=languages[1], evaluation=None)  # type: ignore[arg-type]


def test_overlap_needs_something_to_look_for() -> None:
    with pytest.raises(RecipeError, match=r"data\.valid or data\.test"):
        build_filters(CleaningConfig(eval_overlap=True), source_language="", target_language="", evaluation=None)


@pytest.mark.parametrize(
    ("settings", "module"),
    [
        ({"mojibake": True}, "ftfy.badness"),
        ({"min_script_ratio": 0.5}, "regex"),
        ({"min_language_probability": 0.5}, "py3langid.langid"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    settings: dict[str, float], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.cleaning import language_id as language

    language._load_identifier.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"dragoman\[cleaning\]"):
        rules(CleaningConfig(**settings))  # type: ignore[arg-type]


# Length and ratio


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("two words", 2),
        ("  don't   stop ", 2),
        ("Größe und Maß – so", 5),
        ("我会见到你。", 5),
        ("您可以用 LibreOffice 7.0 打开“它”。", 9),
        ("ソフトウェアー", 7),
        ("ไทย", 3),
        ("ก่อน", 3),
        ("한국어 문장", 2),
        ("မြန်မာ", 3),
    ],
)
def test_words(text: str, count: int) -> None:
    assert filters.count_words(text) == count


def test_letters_without_spaces_are_those_of_unicodes_scripts() -> None:
    scripts = "".join(rf"\p{{Script={name}}}" for name in ("Han", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr"))
    letters = "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code))[0] == "L")
    expected = set(regex.findall(rf"[{scripts}]", letters))
    # Marks of length, shared by the two kana, which Unicode gives to neither.
    assert set(filters._UNSPACED_LETTERS.findall(letters)) - expected <= {
        "\u30fc",
        "\uff70",
        "\u3006",
        "\u303c",
        "\uff9e",
        "\uff9f",
    }
    assert expected <= set(filters._UNSPACED_LETTERS.findall(letters))


@pytest.mark.parametrize(
    ("words", "characters", "dropped"), [(3, None, False), (2, None, True), (None, 13, False), (None, 12, True), (3, 12, True)]
)
def test_length_is_the_most_that_stays(words: int | None, characters: int | None, dropped: bool) -> None:
    assert filters.is_too_long("one two three", "one", words, characters) is dropped
    assert filters.is_too_long("one", "one two three", words, characters) is dropped


def test_ratio() -> None:
    assert not filters.is_out_of_ratio("x" * 30, "y" * 10, 3.0)
    assert filters.is_out_of_ratio("x" * 31, "y" * 10, 3.0)
    assert not filters.is_out_of_ratio("x" * 10, "y", 3.0)
    assert filters.is_out_of_ratio("x" * 11, "y", 3.0)


# Characters


@pytest.mark.parametrize("text", ["a\x00", "\x1b[0m", "a\x85b", "\ufffd", "\ue000", "\U0010ffff", "\ufdd0", "\u0378"])
def test_control_characters_and_what_is_nobodys(text: str) -> None:
    assert filters.has_control_characters(text, "")
    assert filters.has_control_characters("", text)


def test_half_a_surrogate_is_nobodys() -> None:
    assert filters.has_control_characters("\udfff", "")


@pytest.mark.parametrize(
    "text", ["a\tb\n", "soft\u00adhyphen", "\u200dز\u200c", "\u00a0\u202f", "\ufeffa", "👩\u200d👧", "e\u0301"]
)
def test_ordinary_text_of_any_kind_is_kept(text: str) -> None:
    assert not filters.has_control_characters(text, text)


@pytest.mark.parametrize(
    "text", ["für", "C’est l’été – déjà !", "Příliš žluťoučký kůň", "Tiếng Việt", "我会见到你。", "Ünïcödé", "3 × 4"]
)
def test_mojibake_is_told_from_its_original(text: str) -> None:
    has_mojibake = filters.make_mojibake_filter()
    assert not has_mojibake(text, text)
    assert has_mojibake("", text.encode().decode("latin-1"))
    assert has_mojibake(text.encode().decode("latin-1"), "")


@pytest.mark.parametrize(
    "text",
    [
        "a <b>word</b>", "line<BR>", "x<br />y", "</whatever>",
        '<a href="x', "<font size=3>", "<!-- note", "<?xml version", "a&nbsp;b",
        "&#8217;", "&#x2019;", "&amp;amp;", "<![CDATA[x",
        "[[Berlin|the city]]", "'''bold'''", "== History ==", "{{cite web}}",
        "{% if x %}", "<%= name %>", '{| class="wikitable"', "<ref name=x>",
    ],
)  # fmt: skip
def test_markup(text: str) -> None:
    assert filters.has_markup(text, "")
    assert filters.has_markup("", f"Text with {text}")


@pytest.mark.parametrize(
    "text",
    [
        "Press <Ctrl>+<F4>.", "copy <file> to <folder>", "a < b and c > d",
        "fact <?>", "Q&A; R&D; AT&T", "x == y", "a ==> b", "========",
        "if [[ -f x ]]", "don''t", "{0} of %s", "{a}",
        "<https://example.org>", "<me@example.org>", "i <3 you", "|x|", "== a",
    ],
)  # fmt: skip
def test_what_only_looks_like_markup(text: str) -> None:
    assert not filters.has_markup(text, text)


@pytest.mark.parametrize(
    "part", ["=", "<", "<a ", "[[", "{{", "&a", "'", "<a b=c ", "a@", "a.", "www.", "http://", "1 ", "1,", " = "]
)
def test_long_lines_take_linear_time(part: str) -> None:
    """A pattern that goes back and forth over 200,000 characters would take minutes."""
    line = part * (200_000 // len(part))
    for rule in (filters.has_markup, filters.has_address_mismatch, filters.has_number_mismatch):
        rule(line, "a 1 @ www. ://")


# Numbers and addresses


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3,000.50", "3.000,50"), ("3,000.50", "3 000,50"), ("3,000", "3000"),
        ("1'000'000", "1\u202f000\u202f000"), ("٣٬٠٠٠٫٥", "3,000.5"),
        ("2:30", "2.30 Uhr"), ("2001-03-31", "31.03.2001"), ("1,2,3", "1, 2 und 3"),
        ("In 2019 100 people", "2019 kamen 100"), ("on 5/3 and 7", "7 und 5.3."),
        ("１２", "12"), ("H2O", "H2O"), ("none", "keine"), ("x²", "x"),
    ],
)  # fmt: skip
def test_the_same_numbers(one: str, other: str) -> None:
    assert not filters.has_number_mismatch(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [("2", "two"), ("12", "21"), ("3.50", "3.5"), ("5", "5 5"), ("1999", "1998"), ("٣", "4")]
)
def test_other_numbers(one: str, other: str) -> None:
    assert filters.has_number_mismatch(one, other)


@given(st.lists(st.integers(0, 10**12), max_size=5), st.lists(st.sampled_from(",.'_ \u00a0\u202f"), min_size=5, max_size=5))
def test_separators_do_not_change_a_number(numbers: list[int], separators: list[str]) -> None:
    plain = " und ".join(map(str, numbers))
    grouped = [
        f"{number:,}".replace(",", "" if separator == "_" else separator)
        for number, separator in zip(numbers, separators, strict=False)
    ]
    assert not filters.has_number_mismatch(plain, " and ".join(reversed(grouped)))


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=5), st.data())
def test_another_number_is_seen(numbers: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(numbers) - 1))
    changed = [*numbers[:place], numbers[place] + 1, *numbers[place + 1 :]]
    assert filters.has_number_mismatch(" und ".join(map(str, numbers)), " and ".join(map(str, changed)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("see http://a.example/x?y=1#z.", "请访问http://a.example/x?y=1#z。"),
        ("(https://a.example/)", "„https://a.example“"),
        ("WWW.A.example!", "www.a.example"),
        ("mail me@a.example, now", "Post an <Me@a.example>"), ("https://a.example", "http://a.example"),
        ("https://a.example/b_(c)", "https://a.example/b_(c)."),
        ("a@b", "c@d"), ("no address", "keine"), ("www. is short", "www."),
    ],
)  # fmt: skip
def test_the_same_addresses(one: str, other: str) -> None:
    assert not filters.has_address_mismatch(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://a.example", ""),
        ("http://a.example/b", "http://a.example/c"),
        ("me@a.example", "you@a.example"),
        ("", "www.a.de"),
    ],
)
def test_other_addresses(one: str, other: str) -> None:
    assert filters.has_address_mismatch(one, other)


@given(texts, texts)
def test_no_fault_depends_on_which_side_is_the_source(one: str, other: str) -> None:
    symmetric: list[Callable[[str, str], bool]] = [
        filters.is_empty, filters.is_identical, filters.has_control_characters, filters.has_markup, filters.has_number_mismatch,
        filters.has_address_mismatch, EvaluationTexts.from_pairs([Pair(one, "")]).contains_side,
        lambda source, target: filters.is_out_of_ratio(source, target, 1.5),
        lambda source, target: filters.is_too_long(source, target, 3, 20),
    ]  # fmt: skip
    for fault in symmetric:
        assert fault(one, other) == fault(other, one)


@given(texts)
def test_a_text_agrees_with_itself(text: str) -> None:
    assert not filters.has_number_mismatch(text, text)
    assert not filters.has_address_mismatch(text, text)
    assert not filters.is_out_of_ratio(text, text, 1.1)
    assert filters.is_identical(text, f" {text} ")


# Script and language


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "Größe"), ("ru", "Привет"), ("zh", "你好"),
        ("zh-TW", "你們"), ("ja", "東京タワーへ"), ("ko", "한국어 漢字"), ("sr", "Здраво"),
        ("sr-Latn", "zdravo"), ("sh", "zdravo"), ("el", "Γειά"),
        ("zho", "你好"), ("pt_BR", "ação"), ("hi", "नमस्ते"), ("en", "123 – !"),
        ("ar", "سلام"), ("de", "µ 5"),
    ],
)  # fmt: skip
def test_the_script_of_a_language(language: str, text: str) -> None:
    outside = make_script_filter(1.0, source_language=language, target_language="en")
    assert not outside(text, "fine")
    assert outside("ꦗꦮ", "fine")
    assert outside(text, "ꦗꦮ")


def test_script_is_a_share_of_the_letters() -> None:
    half = make_script_filter(0.5, source_language="zh", target_language="en")
    assert not half("用 Ctrl 打开它", "fine")  # four of eight letters
    assert half("用 Ctrl+V 打开它", "fine")  # four of nine


def test_short_and_empty_texts_are_in_no_other_language() -> None:
    other = make_language_filter(0.5, source_language="en", target_language="de")
    for text in ("", "OK", "Tom", "12:30", "0x7fffd3a2 0x00000000", "C:\\Users\\x.txt", "Hotel", "?", "\ud800"):
        assert not other(text, text), text


def test_varieties_are_not_other_languages() -> None:
    other = make_language_filter(0.3, source_language="zh-Hant", target_language="nb")
    assert not other("請你開門好嗎?", "Dette er huset mitt.")
    assert not other("请向服务台询问。", "Eg veit ikkje kva dette er.")
    assert other("This is my house, and that is yours.", "Dette er huset mitt.")
    apart = make_language_filter(0.3, source_language="zh", target_language="yue")
    assert apart("呢個係我屋企,你知唔知佢喺邊度?", "呢個係我屋企,你知唔知佢喺邊度?")


@pytest.mark.parametrize(("corpus", "least"), [("tatoeba", 0.90), ("libreoffice-help", 0.68)])
def test_languages_told_apart_on_short_sentences(corpus: str, least: float) -> None:
    """Measured at 0.5: none of Tatoeba's sentences and under 0.5 % of a help's lines are dropped wrongly."""
    pairs = read(f"{corpus}/en-de", "test")[:400]
    other = make_language_filter(0.5, source_language="en", target_language="de")
    sound = "This is an ordinary sentence of the English language."
    assert sum(other(pair.source, pair.target) for pair in pairs) <= 0.005 * len(pairs)
    assert sum(other(pair.target, pair.target) for pair in pairs) >= least * len(pairs)
    german_first = make_language_filter(0.5, source_language="de", target_language="en")
    assert sum(german_first(pair.source, sound) for pair in pairs) >= least * len(pairs)


@pytest.mark.parametrize(
    ("corpus", "most"),
    [
        ("tatoeba/en-de", {"numbers": 0.01}),
        ("tatoeba/en-fr", {"numbers": 0.01}),
        ("libreoffice-help/en-de", {"numbers": 0.015, "source-equals-target": 0.02, "ratio": 0.005, "length": 0.005}),
    ],
)
def test_few_pairs_of_a_good_corpus_are_dropped(corpus: str, most: dict[str, float]) -> None:
    """Shares dropped of the whole corpora lie below these; rules that are not named drop less than one in a thousand."""
    pairs = read(corpus)[::8]
    for rule in rules(ALL, "language", target=corpus[-2:]):
        dropped = sum(rule.is_faulty(pair.source, pair.target) for pair in pairs)
        assert dropped <= most.get(rule.name, 0.001) * len(pairs), rule.name


# Overlap


def test_overlap_is_blind_to_case_and_punctuation_only() -> None:
    evaluation = EvaluationTexts.from_pairs([Pair("Is it “Straße” no. 5?", "你好，世界！"), Pair("...", "Yes.")])
    assert evaluation.contains_side("is it STRASSE, NO 5", "x")
    assert evaluation.contains_side("x", "你好世界")
    assert evaluation.contains_side("你好 世界", "x")
    assert evaluation.contains_side("yes", "x")
    assert not evaluation.contains_side("Is it Straße no. 6?", "你好，世人！")
    assert not evaluation.contains_side("?!", "—")
    assert not evaluation.contains_side("", "")


def test_marks_tell_words_apart() -> None:
    assert normalize_for_matching("कि") != normalize_for_matching("का")
    assert normalize_for_matching("ก่อน") != normalize_for_matching("ก้อน")


@given(texts)
def test_a_key_is_its_own_key(text: str) -> None:
    assert normalize_for_matching(normalize_for_matching(text)) == normalize_for_matching(text)


@given(texts)
def test_a_key_knows_neither_composition_nor_punctuation(text: str) -> None:
    assert normalize_for_matching(unicodedata.normalize("NFD", text)) == normalize_for_matching(
        unicodedata.normalize("NFC", text)
    )
    assert normalize_for_matching(f"« {text} »!") == normalize_for_matching(text)


@given(st.text(st.characters(max_codepoint=127), max_size=20))
def test_plain_text_takes_no_other_way(text: str) -> None:
    assert normalize_for_matching(text) == normalize_for_matching(text + "ß").removesuffix("ss")
    assert normalize_for_matching(text.upper()) == normalize_for_matching(text)


def test_evaluation_texts_travel_and_stay_small() -> None:
    evaluation = EvaluationTexts.from_pairs(Pair(f"sentence {number} " * 10, f"Satz {number}") for number in range(3000))
    sent = pickle.dumps(evaluation)
    assert len(sent) < 80_000
    assert pickle.loads(sent).overlap("x", "satz 2999")


# Duplicates


def seen_before(digests: Digests) -> list[bool]:
    rows = list(map(tuple, digests.tolist()))
    seen, marks = set(), []
    for row in rows:
        marks.append(row in seen)
        seen.add(row)
    return marks


def search(folder: Path, digests: Digests, rows_at_once: int, step: int) -> list[bool]:
    with DuplicateFinder(folder, max_rows_in_memory=rows_at_once) as found:
        for start in range(0, len(digests), step):
            found.add(digests[start : start + step])
        marks = found.find_repeated().tolist()
    assert not folder.exists()
    return list(marks)


KINDS: dict[str, Callable[[np.random.Generator, int], Digests]] = {
    "random": lambda chance, rows: chance.integers(0, 2**64, (rows, 2), np.uint64),
    "few": lambda chance, rows: chance.integers(0, 2**64, (20, 2), np.uint64)[chance.integers(0, 20, rows)],
    "all equal": lambda chance, rows: np.full((rows, 2), 7, np.uint64),
    "equal high": lambda chance, rows: np.stack([np.full(rows, 9, np.uint64), chance.integers(0, 200, rows, np.uint64)], 1),
    "equal low": lambda chance, rows: np.stack([chance.integers(0, 200, rows, np.uint64), np.zeros(rows, np.uint64)], 1),
    "one bucket": lambda chance, rows: chance.integers(2**56, 2**57, (rows, 2), np.uint64) >> np.uint64(50) << np.uint64(50),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows_at_once", "step"), [(1, 7), (5, 3), (16, 64), (64, 1000), (10_000, 100)])
def test_duplicates_are_those_of_a_set(kind: str, rows_at_once: int, step: int, tmp_path: Path) -> None:
    rows = 60 if rows_at_once == 1 else 600
    digests = KINDS[kind](np.random.default_rng(3), rows)
    assert search(tmp_path / "work", digests, rows_at_once, step) == seen_before(digests)


def test_repeats_are_found_across_many_spills(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    digests = chance.integers(0, 2**64, (40_000, 2), np.uint64)
    digests[30_000:] = digests[chance.integers(0, 30_000, 10_000)]
    assert search(tmp_path / "work", digests, 1000, 777) == seen_before(digests)


def test_no_rows(tmp_path: Path) -> None:
    assert search(tmp_path / "work", np.empty((0, 2), np.uint64), 10, 1) == []


def test_no_more_rows_are_read_at_once_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.cleaning import deduplication as duplicates

    sorted_at_once: list[int] = []
    first_ones = duplicates._mark_repeats

    def watched(records: duplicates.Records, marks: NDArray[np.bool_]) -> duplicates.Records:
        sorted_at_once.append(len(records))
        return first_ones(records, marks)

    monkeypatch.setattr(duplicates, "_first_ones", watched)
    search(tmp_path / "work", KINDS["random"](np.random.default_rng(1), 2000), 5, 50)
    assert 1 <= max(sorted_at_once) <= 5


def test_what_a_broken_search_left_is_cleared_and_strangers_are_refused(tmp_path: Path) -> None:
    digests = KINDS["random"](np.random.default_rng(2), 100)
    broken = DuplicateFinder(tmp_path / "work", max_rows_in_memory=10)
    broken.add(digests)
    assert any((tmp_path / "work").iterdir())
    assert not any(search(tmp_path / "work", digests, 10, 10))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(OutputError, match=r"thesis\.txt"):
        DuplicateFinder(tmp_path / "work")
    with pytest.raises(OutputError, match="cannot be written"):
        DuplicateFinder(tmp_path / "work" / "thesis.txt")


def test_digests_are_blake2b_of_128_bits() -> None:
    assert digest_sources(["Haus", ""]).tobytes() == b"".join(
        hashlib.blake2b(text, digest_size=16).digest() for text in (b"Haus", b"")
    )
    assert digest_sources([]).shape == digest_pairs([], []).shape == (0, 2)


@given(st.lists(st.tuples(st.text("ab:1", max_size=3), st.text("ab:1", max_size=3)), max_size=30))
def test_pairs_have_equal_digests_where_they_are_equal(pairs: list[tuple[str, str]]) -> None:
    rows = list(map(tuple, digest_pairs([one for one, _ in pairs], [other for _, other in pairs]).tolist()))
    for (one, digest), (other, digest2) in itertools.combinations(zip(pairs, rows, strict=True), 2):
        assert (one == other) == (digest == digest2)


def test_sides_of_unequal_length_have_no_digests() -> None:
    with pytest.raises(ValueError, match="shorter"):
        digest_pairs(["a", "b"], ["c"])


# Tally


def odd(source: str, target: str) -> bool:
    return len(source) % 2 == 1


PARITY = [PairFilter("odd", "The source is of odd length.", odd), PairFilter("long", "Over twelve.", lambda source, _: len(source) > 12)]


def corpus(rows: int) -> list[Pair]:
    return [Pair("x" * (number % 17), f"target {number}", f"corpus.tsv:{number}") for number in range(rows)]


def test_sifting_keeps_order_and_counts_under_the_first_rule() -> None:
    pairs = corpus(17)
    kept, tally = apply_filters(pairs, PARITY)
    assert kept == [pair for pair in pairs if len(pair.source) in (0, 2, 4, 6, 8, 10, 12)]
    assert {name: dropped.num_dropped for name, dropped in tally.filter_stats.items()} == {"odd": 8, "long": 2}
    assert (tally.num_read, tally.num_kept) == (17, 7)


def test_examples_are_those_of_the_smallest_digests() -> None:
    pairs = corpus(2000)
    _, tally = apply_filters(pairs, PARITY)
    dropped = [pair for pair in pairs if odd(pair.source, "")]
    by_lot = sorted(dropped, key=lambda pair: hashlib.blake2b(pair.origin.encode(), digest_size=8).digest())
    assert tally.filter_stats["odd"].examples == by_lot[:MAX_EXAMPLES]
    assert tally.filter_stats["odd"].num_dropped == len(dropped)


@given(st.lists(st.integers(0, 300), max_size=6), st.randoms(use_true_random=False))
def test_chunks_merged_in_any_order_are_the_whole(cuts: list[int], chance: random.Random) -> None:
    pairs = corpus(300)
    _, whole = apply_filters(pairs, PARITY)
    ends = [0, *sorted(cuts), 300]
    parts = [apply_filters(pairs[start:end], PARITY)[1] for start, end in itertools.pairwise(ends)]
    chance.shuffle(parts)
    while len(parts) > 1:
        one, other = parts.pop(chance.randrange(len(parts))), parts.pop(chance.randrange(len(parts)))
        parts.append(one.merge(other))
    assert parts[0] == whole
    assert parts[0].to_dict() == whole.to_dict()


def test_merging_leaves_its_parts_alone() -> None:
    one, other = apply_filters(corpus(50), PARITY)[1], apply_filters(corpus(90)[50:], PARITY)[1]
    before = json.dumps([one.to_dict(), other.to_dict()])
    one.merge(other)
    assert json.dumps([one.to_dict(), other.to_dict()]) == before
    assert CleaningStats.merge_all([]) == CleaningStats()
    assert CleaningStats.merge_all([one, other]) == apply_filters(corpus(90), PARITY)[1]


def test_a_pair_dropped_later_is_no_longer_kept() -> None:
    _, tally = apply_filters(corpus(17), PARITY)
    tally.count_drop("duplicate-pair", Pair("", "", "corpus.tsv:0"))
    assert (tally.num_read, tally.num_kept) == (17, 6)
    assert tally.filter_stats["duplicate-pair"] == FilterStats("An equal pair came before.", 1, [Pair("", "", "corpus.tsv:0")])


def test_long_examples_are_clipped_and_say_so() -> None:
    long = "ü" * 5000
    _, tally = apply_filters([Pair(long + "x", long, "a" * 400)], PARITY)
    (example,) = tally.filter_stats["odd"].examples
    for text in (example.source, example.target, example.origin):
        assert len(text) == MAX_EXAMPLE_CHARACTERS
        assert text.endswith("…")


def test_a_tally_goes_to_json_and_back() -> None:
    _, tally = apply_filters([*corpus(100), Pair("\u2028<é>\x00", "", "")], PARITY)
    assert CleaningStats.from_dict(json.loads(json.dumps(tally.to_dict()))) == tally


@pytest.mark.parametrize(
    "change",
    [
        {"read": None},
        {"kept": 3},
        {"dropped": []},
        {"dropped": {"odd": {}}},
        {"dropped": {"odd": {"sentence": "", "count": 1}}},
    ],
)
def test_what_is_no_tally_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DataError, match="not a tally"):
        CleaningStats.from_dict({**apply_filters(corpus(17), PARITY)[1].to_dict(), **change})


# Page

HOSTILE = ["<script>alert(1)</script>", "</table></body>", '"><img src=x onerror=y>', "a & b", "\u202egnirts", "\x00", "\ud800"]


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Seen:
    seen = Seen()
    seen.feed(page)
    return seen


def test_rows_for_the_terminal() -> None:
    _, tally = apply_filters(corpus(1700), PARITY)
    tally.count_drop("duplicate-source", Pair("", ""))
    assert format_rows(tally) == [
        ("read", "1,700", "100.00"),
        ("duplicate-source", "1", "0.06"),
        ("long", "200", "11.76"),
        ("odd", "800", "47.06"),
        ("kept", "699", "41.12"),
    ]
    assert all(len(row) == len(TABLE_HEADER) for row in format_rows(CleaningStats()))
    assert format_rows(CleaningStats())[0] == ("read", "0", "–")


def test_rows_stand_in_the_order_of_the_rules() -> None:
    _, tally = apply_filters([], rules(ALL))
    assert [name for name, *_ in format_rows(tally)][1:-1] == [name for name in FILTER_ORDER if "duplicate" not in name]


def test_the_page_shows_each_corpus_and_examples_in_turn() -> None:
    large = apply_filters(corpus(1000), PARITY)[1]
    small = apply_filters([Pair("abc", "def", "small.tsv:1")], PARITY)[1]
    seen = parsed(render_cleaning_report({"large": large, "small": small}))
    text = "\n".join(seen.text)
    for part in ("large", "small", "odd: The source is of odd length.", "small.tsv:1", "1,001"):
        assert part in text
    assert (
        text.count("corpus.tsv:") == MAX_EXAMPLES - 1 + MAX_EXAMPLES
    )  # of the rule that both corpora met, one is the small one's
    assert "Nothing was dropped" not in text


def test_the_page_names_rules_that_dropped_nothing() -> None:
    assert "Nothing was dropped by these rules." in render_cleaning_report({"none": apply_filters([], PARITY)[1]})


def test_the_page_is_inert_whatever_the_texts_hold() -> None:
    tally = CleaningStats(100)
    for number, text in enumerate(HOSTILE):
        tally.count_drop(text, Pair(text, text, f"{text}:{number}"))
    tame = CleaningStats(100)
    for number in range(len(HOSTILE)):
        tame.count_drop(f"rule {number}", Pair("a", "b", "c"))
    page = render_cleaning_report(dict.fromkeys(HOSTILE, tally), title=HOSTILE[0])
    seen, harmless = (
        parsed(page),
        parsed(render_cleaning_report(dict.fromkeys(map(str, range(len(HOSTILE))), tame), title="tame")),
    )
    assert set(seen.tags) == set(harmless.tags)
    assert seen.attributes == harmless.attributes
    assert "script" not in seen.tags
    assert "<script>alert(1)</script>" in "".join(seen.text)
    page.encode()
