"""Cleaning filters, duplicates compared with a set, merged statistics, warnings, and a report that escapes its texts."""

# The tests need texts of many scripts.
# ruff: noqa: RUF001

from __future__ import annotations

import gzip
import hashlib
import itertools
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.cleaning import filters
from dragoman.cleaning.cleaned_corpus import FilterPipeline
from dragoman.cleaning.cleaning_report import TABLE_HEADER, find_warnings, format_rows, render_cleaning_report
from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.deduplication import Digests, DuplicateFinder
from dragoman.cleaning.enabled_filters import FILTER_KEYS, FILTER_ORDER, PairFilter
from dragoman.cleaning.language_id import make_language_filter, make_script_filter
from dragoman.cleaning.statistics import MAX_EXAMPLE_CHARACTERS, MAX_EXAMPLES, CleaningStats, FilterStats, apply_filters
from dragoman.config import CleaningConfig, FilterName
from dragoman.formats.pair import Pair
from expected_errors import raises_code

DATA = Path(__file__).parents[3] / "shared" / "data"
ALL = CleaningConfig(
    max_words=100, max_characters=600, max_ratio=3.0, source_equals_target=True, duplicate_pairs=True, duplicate_sources=True,
    control_characters=True, mojibake=True, markup=True, min_script_ratio=0.5, min_language_probability=0.5, numbers=True,
    urls=True, eval_overlap=True,
)  # fmt: skip
texts = st.text(max_size=30)


def read_corpus(name: str, split: str = "train") -> list[Pair]:
    path = DATA / name / f"{split}.tsv.gz"
    if not path.exists():
        pytest.skip(f"the corpus {name} is not here")
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream]
    return [Pair(source, target, f"{name}:{number}") for number, (source, target) in enumerate(rows, start=1)]


def make_filters(config: CleaningConfig = ALL, *skipped: str, source: str = "en", target: str = "de") -> list[PairFilter]:
    evaluation = EvaluationTexts.from_pairs([Pair("Where is the library?", "Wo ist die Bibliothek?")])
    return FilterPipeline(config, source, target, evaluation, skipped).filters  # type: ignore[arg-type]


# Enabled filters


def test_pair_counts_under_its_filter(subtests: pytest.Subtests) -> None:
    for name, source, target in [
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
    ]:
        with subtests.test(name=name, source=source, target=target):
            good = Pair("This is my house.", "Dies ist mein Haus.", "a:1")
            kept, stats = apply_filters([good, Pair(source, target, "a:2")], make_filters())
            assert kept == [good]
            assert (stats.num_read, stats.num_kept) == (2, 1)
            assert [filter_name for filter_name, filter_stats in stats.filter_stats.items() if filter_stats.num_dropped] == [
                name
            ]


def test_missing_language_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], tuple[str, str], str, str]] = [
        ({"min_script_ratio": 0.5}, ("", "de"), "missing-key", "task.source_language"),
        ({"min_script_ratio": 0.5}, ("en", "qqq"), "invalid-recipe", "task.target_language = 'qqq'"),
        ({"min_script_ratio": 0.5}, ("en", "en-Xxxx"), "invalid-recipe", "does not know its script Xxxx"),
        ({"min_script_ratio": 0.5}, ("en", "to be"), "invalid-recipe", "not a language code"),
        ({"min_language_probability": 0.5}, ("", "de"), "missing-key", "task.source_language"),
        ({"min_language_probability": 0.5}, ("en", "tlh"), "invalid-recipe", "task.target_language = 'tlh'"),
    ]
    for settings, languages, code, name in cases:
        with subtests.test(settings=settings, languages=languages, code=code, name=name), raises_code(code, name):
            _ = FilterPipeline(CleaningConfig(**settings), *languages).filters


def test_overlap_filter_needs_evaluation_data() -> None:
    with raises_code("missing-key", "data.valid", "data.test"):
        _ = FilterPipeline(CleaningConfig(eval_overlap=True)).filters


@pytest.mark.parametrize(
    ("settings", "module"),
    [
        ({"mojibake": True}, "ftfy.badness"),
        ({"min_script_ratio": 0.5}, "regex"),
        ({"min_language_probability": 0.5}, "py3langid.langid"),
    ],
)
def test_missing_library_is_named_with_extra(settings: dict[str, float], module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.cleaning import language_id
    from dragoman.text import language_identifier

    language_id._load_identifier.cache_clear()
    monkeypatch.setattr(language_identifier, "_TABLES", language_identifier._Tables())
    monkeypatch.setitem(sys.modules, module, None)
    with raises_code("missing-dependency", "dragoman[cleaning]"):
        make_filters(CleaningConfig(**settings))  # type: ignore[arg-type]


# Length and ratio


def test_words_of_unspaced_scripts_are_letters(subtests: pytest.Subtests) -> None:
    for text, count in [
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
    ]:
        with subtests.test(text=text, count=count):
            assert filters.count_words(text) == count


def test_length_ratio_ignores_ten_characters() -> None:
    assert not filters.is_out_of_ratio("x" * 30, "y" * 10, 3.0)
    assert filters.is_out_of_ratio("x" * 31, "y" * 10, 3.0)
    assert not filters.is_out_of_ratio("x" * 10, "y", 3.0)
    assert filters.is_out_of_ratio("x" * 11, "y", 3.0)


def test_control_and_unassigned_characters_are_found(subtests: pytest.Subtests) -> None:
    for text in ["a\x00", "\x1b[0m", "a\x85b", "\ufffd", "\ue000", "\U0010ffff", "\ufdd0", "\u0378"]:
        with subtests.test(text=text):
            assert filters.has_control_characters(text, "")
            assert filters.has_control_characters("", text)


# Characters


def test_ordinary_characters_are_kept(subtests: pytest.Subtests) -> None:
    for text in ["a\tb\n", "soft\u00adhyphen", "\u200dز\u200c", "\u00a0\u202f", "\ufeffa", "👩\u200d👧", "e\u0301"]:
        with subtests.test(text=text):
            assert not filters.has_control_characters(text, text)


def test_mojibake_differs_from_original(subtests: pytest.Subtests) -> None:
    for text in ["für", "C’est l’été – déjà !", "Příliš žluťoučký kůň", "Tiếng Việt", "我会见到你。", "Ünïcödé", "3 × 4"]:
        with subtests.test(text=text):
            has_mojibake = filters.make_mojibake_filter()
            assert not has_mojibake(text, text)
            assert has_mojibake("", text.encode().decode("latin-1"))
            assert has_mojibake(text.encode().decode("latin-1"), "")


def test_markup_is_found(subtests: pytest.Subtests) -> None:
    for text in [
        "a <b>word</b>",
        "line<BR>",
        "x<br />y",
        "</whatever>",
        "<!-- note",
        "<?xml version",
        "a&nbsp;b",
        "&#x2019;",
        "<![CDATA[x",
        "[[Berlin|the city]]",
        "'''bold'''",
        "== History ==",
        "{{cite web}}",
        "{% if x %}",
        "<%= name %>",
        '{| class="wikitable"',
    ]:
        with subtests.test(text=text):
            assert filters.has_markup(text, "")
            assert filters.has_markup("", f"Text with {text}")


def test_text_similar_to_markup_is_kept(subtests: pytest.Subtests) -> None:
    for text in [
        "Press <Ctrl>+<F4>.",
        "copy <file> to <folder>",
        "a < b and c > d",
        "Q&A; R&D; AT&T",
        "a ==> b",
        "========",
        "if [[ -f x ]]",
        "don''t",
        "{0} of %s",
        "<https://example.org>",
        "i <3 you",
    ]:
        with subtests.test(text=text):
            assert not filters.has_markup(text, text)


# Numbers and addresses


def test_equal_numbers_match(subtests: pytest.Subtests) -> None:
    for source, target in [
        ("3,000.50", "3.000,50"),
        ("3,000.50", "3 000,50"),
        ("3,000", "3000"),
        ("1'000'000", "1\u202f000\u202f000"),
        ("٣٬٠٠٠٫٥", "3,000.5"),
        ("2001-03-31", "31.03.2001"),
        ("1,2,3", "1, 2 und 3"),
        ("In 2019 100 people", "2019 kamen 100"),
        ("１２", "12"),
        ("x²", "x"),
    ]:
        with subtests.test(source=source, target=target):
            assert not filters.has_number_mismatch(source, target)


def test_different_numbers_do_not_match(subtests: pytest.Subtests) -> None:
    for source, target in [("2", "two"), ("12", "21"), ("3.50", "3.5"), ("5", "5 5"), ("1999", "1998"), ("٣", "4")]:
        with subtests.test(source=source, target=target):
            assert filters.has_number_mismatch(source, target)


def test_equal_addresses_match(subtests: pytest.Subtests) -> None:
    for source, target in [
        ("see http://a.example/x?y=1#z.", "请访问http://a.example/x?y=1#z。"),
        ("(https://a.example/)", "„https://a.example“"),
        ("WWW.A.example!", "www.a.example"),
        ("mail me@a.example, now", "Post an <Me@a.example>"),
        ("https://a.example", "http://a.example"),
        ("https://a.example/b_(c)", "https://a.example/b_(c)."),
        ("a@b", "c@d"),
        ("no address", "keine"),
        ("www. is short", "www."),
    ]:
        with subtests.test(source=source, target=target):
            assert not filters.has_address_mismatch(source, target)


def test_different_addresses_do_not_match() -> None:
    assert filters.has_address_mismatch("http://a.example/b", "http://a.example/c")
    assert filters.has_address_mismatch("me@a.example", "you@a.example")
    assert filters.has_address_mismatch("", "www.a.de")


# Script and language


def test_script_follows_the_language(subtests: pytest.Subtests) -> None:
    for language, text in [
        ("de", "Größe"),
        ("ru", "Привет"),
        ("zh", "你好"),
        ("zh-TW", "你們"),
        ("ja", "東京タワーへ"),
        ("ko", "한국어 漢字"),
        ("sr-Latn", "zdravo"),
        ("zho", "你好"),
        ("pt_BR", "ação"),
        ("en", "123 – !"),
        ("de", "µ 5"),
    ]:
        with subtests.test(language=language, text=text):
            is_foreign_script = make_script_filter(1.0, source_language=language, target_language="en")
            assert not is_foreign_script(text, "fine")
            assert is_foreign_script("ꦗꦮ", "fine")
            assert is_foreign_script(text, "ꦗꦮ")


def test_script_ratio_counts_letters() -> None:
    is_foreign_script = make_script_filter(0.5, source_language="zh", target_language="en")
    assert not is_foreign_script("用 Ctrl 打开它", "fine")  # four of eight letters
    assert is_foreign_script("用 Ctrl+V 打开它", "fine")  # four of nine


def test_short_texts_pass_language_filter() -> None:
    is_foreign = make_language_filter(0.5, source_language="en", target_language="de")
    for text in ("", "OK", "Tom", "12:30", "0x7fffd3a2 0x00000000", "C:\\Users\\x.txt", "Hotel", "?", "\ud800"):
        assert not is_foreign(text, text), text


@pytest.mark.slow
def test_language_varieties_pass() -> None:
    is_foreign = make_language_filter(0.3, source_language="zh-Hant", target_language="nb")
    assert not is_foreign("請你開門好嗎?", "Dette er huset mitt.")
    assert not is_foreign("请向服务台询问。", "Eg veit ikkje kva dette er.")
    assert is_foreign("This is my house, and that is yours.", "Dette er huset mitt.")
    is_not_cantonese = make_language_filter(0.3, source_language="zh", target_language="yue")
    assert is_not_cantonese("呢個係我屋企,你知唔知佢喺邊度?", "呢個係我屋企,你知唔知佢喺邊度?")


@pytest.mark.parametrize(("corpus", "min_share"), [("tatoeba", 0.90), ("libreoffice-help", 0.68)])
def test_language_filter_on_short_sentences(corpus: str, min_share: float) -> None:
    """The filter at 0.5 drops no correct sentence of Tatoeba and under 0.5 % of the correct lines of software help."""
    pairs = read_corpus(f"{corpus}/en-de", "test")[:400]
    is_foreign = make_language_filter(0.5, source_language="en", target_language="de")
    english = "This is an ordinary sentence of the English language."
    assert sum(is_foreign(pair.source, pair.target) for pair in pairs) <= 0.005 * len(pairs)
    assert sum(is_foreign(pair.target, pair.target) for pair in pairs) >= min_share * len(pairs)
    is_foreign_reversed = make_language_filter(0.5, source_language="de", target_language="en")
    assert sum(is_foreign_reversed(pair.source, english) for pair in pairs) >= min_share * len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "max_shares"),
    [
        ("tatoeba/en-de", {"numbers": 0.01}),
        ("tatoeba/en-fr", {"numbers": 0.01}),
        ("libreoffice-help/en-de", {"numbers": 0.015, "source-equals-target": 0.02, "ratio": 0.005, "length": 0.005}),
    ],
)
def test_few_pairs_of_good_corpus_are_dropped(corpus: str, max_shares: dict[str, float]) -> None:
    """The shares dropped of the whole corpora are below these limits. Other filters drop less than one pair in a thousand."""
    pairs = read_corpus(corpus)[::8]
    for pair_filter in make_filters(ALL, "language", target=corpus[-2:]):
        num_dropped = sum(pair_filter.is_faulty(pair.source, pair.target) for pair in pairs)
        assert num_dropped <= max_shares.get(pair_filter.name, 0.001) * len(pairs), pair_filter.name


# Overlap


def test_overlap_ignores_case_and_punctuation_only() -> None:
    evaluation = EvaluationTexts.from_pairs([Pair("Is it “Straße” no. 5?", "你好，世界！"), Pair("...", "Yes.")])
    assert evaluation.contains_side("is it STRASSE, NO 5", "x")
    assert evaluation.contains_side("x", "你好世界")
    assert evaluation.contains_side("你好 世界", "x")
    assert evaluation.contains_side("yes", "x")
    assert not evaluation.contains_side("Is it Straße no. 6?", "你好，世人！")
    assert not evaluation.contains_side("?!", "—")
    assert not evaluation.contains_side("", "")


# Duplicates


def mark_with_set(digests: Digests) -> list[bool]:
    rows = list(map(tuple, digests.tolist()))
    seen, mask = set(), []
    for row in rows:
        mask.append(row in seen)
        seen.add(row)
    return mask


def find_duplicates(folder: Path, digests: Digests, max_rows: int, step: int) -> list[bool]:
    with DuplicateFinder(folder, max_rows_in_memory=max_rows) as finder:
        for start in range(0, len(digests), step):
            finder.add(digests[start : start + step])
        mask = finder.find_repeated().tolist()
    assert not folder.exists()
    return list(mask)


KINDS: dict[str, Callable[[np.random.Generator, int], Digests]] = {
    "random": lambda rng, rows: rng.integers(0, 2**64, (rows, 2), np.uint64),
    "few": lambda rng, rows: rng.integers(0, 2**64, (20, 2), np.uint64)[rng.integers(0, 20, rows)],
    "all equal": lambda rng, rows: np.full((rows, 2), 7, np.uint64),
    "equal high": lambda rng, rows: np.stack([np.full(rows, 9, np.uint64), rng.integers(0, 200, rows, np.uint64)], 1),
    "equal low": lambda rng, rows: np.stack([rng.integers(0, 200, rows, np.uint64), np.zeros(rows, np.uint64)], 1),
    "one bucket": lambda rng, rows: rng.integers(2**56, 2**57, (rows, 2), np.uint64) >> np.uint64(50) << np.uint64(50),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("max_rows", "step"), [(1, 7), (5, 3), (16, 64), (64, 1000), (10_000, 100)])
def test_duplicates_equal_those_of_set(max_rows: int, step: int, tmp_path: Path) -> None:
    for kind, make_digests in KINDS.items():
        digests = make_digests(np.random.default_rng(3), 60 if max_rows == 1 else 600)
        assert find_duplicates(tmp_path / kind, digests, max_rows, step) == mark_with_set(digests), kind


def test_rows_in_memory_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.cleaning import deduplication

    batch_sizes: list[int] = []
    mark_repeats = deduplication._mark_repeats

    def record_size(records: deduplication.Records, mask: NDArray[np.bool_]) -> deduplication.Records:
        batch_sizes.append(len(records))
        return mark_repeats(records, mask)

    monkeypatch.setattr(deduplication, "_mark_repeats", record_size)
    find_duplicates(tmp_path / "work", KINDS["random"](np.random.default_rng(1), 2000), 5, 50)
    assert 1 <= max(batch_sizes) <= 5


def test_leftover_buckets_are_cleared_and_other_files_refused(tmp_path: Path) -> None:
    digests = KINDS["random"](np.random.default_rng(2), 100)
    interrupted = DuplicateFinder(tmp_path / "work", max_rows_in_memory=10)
    interrupted.add(digests)
    assert any((tmp_path / "work").iterdir())
    assert not any(find_duplicates(tmp_path / "work", digests, 10, 10))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with raises_code("not-replaceable", "thesis.txt"):
        DuplicateFinder(tmp_path / "work")
    with raises_code("write-failed"):
        DuplicateFinder(tmp_path / "work" / "thesis.txt")


# Statistics


def has_odd_length(source: str, target: str) -> bool:
    return len(source) % 2 == 1


TEST_FILTERS = [
    PairFilter("odd", "The source is of odd length.", has_odd_length),
    PairFilter("long", "Over twelve.", lambda source, _: len(source) > 12),
]


def make_corpus(rows: int) -> list[Pair]:
    return [Pair("x" * (number % 17), f"target {number}", f"corpus.tsv:{number}") for number in range(rows)]


def test_filters_keep_order_and_count_first_match() -> None:
    pairs = make_corpus(17)
    kept, stats = apply_filters(pairs, TEST_FILTERS)
    assert kept == [pair for pair in pairs if len(pair.source) in (0, 2, 4, 6, 8, 10, 12)]
    assert {name: filter_stats.num_dropped for name, filter_stats in stats.filter_stats.items()} == {"odd": 8, "long": 2}
    assert (stats.num_read, stats.num_kept) == (17, 7)


def test_examples_have_smallest_digests() -> None:
    pairs = make_corpus(2000)
    _, stats = apply_filters(pairs, TEST_FILTERS)
    dropped = [pair for pair in pairs if has_odd_length(pair.source, "")]
    by_digest = sorted(dropped, key=lambda pair: hashlib.blake2b(pair.origin.encode(), digest_size=8).digest())
    assert stats.filter_stats["odd"].examples == by_digest[:MAX_EXAMPLES]
    assert stats.filter_stats["odd"].num_dropped == len(dropped)


@given(st.lists(st.integers(0, 300), max_size=6), st.randoms(use_true_random=False))
def test_chunks_merge_in_any_order(cuts: list[int], rng: random.Random) -> None:
    pairs = make_corpus(300)
    _, whole = apply_filters(pairs, TEST_FILTERS)
    ends = [0, *sorted(cuts), 300]
    parts = [apply_filters(pairs[start:end], TEST_FILTERS)[1] for start, end in itertools.pairwise(ends)]
    rng.shuffle(parts)
    while len(parts) > 1:
        left, right = parts.pop(rng.randrange(len(parts))), parts.pop(rng.randrange(len(parts)))
        parts.append(left.merge(right))
    assert parts[0] == whole
    assert parts[0].to_dict() == whole.to_dict()


def test_long_examples_end_with_ellipsis() -> None:
    long = "ü" * 5000
    _, stats = apply_filters([Pair(long + "x", long, "a" * 400)], TEST_FILTERS)
    (example,) = stats.filter_stats["odd"].examples
    for text in (example.source, example.target, example.origin):
        assert len(text) == MAX_EXAMPLE_CHARACTERS
        assert text.endswith("…")


def test_invalid_statistics_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, object]] = [
        {"num_read": None},
        {"num_kept": 3},
        {"filters": []},
        {"filters": {"odd": {}}},
        {"filters": {"odd": {"description": "", "num_dropped": 1}}},
    ]
    for change in cases:
        with subtests.test(change=change), raises_code("invalid-format"):
            CleaningStats.from_dict({**apply_filters(make_corpus(17), TEST_FILTERS)[1].to_dict(), **change})


# Report

HOSTILE = ["<script>alert(1)</script>", "</table></body>", '"><img src=x onerror=y>', "a & b", "\u202egnirts", "\x00", "\ud800"]


def test_table_rows_have_counts_and_percentages() -> None:
    _, stats = apply_filters(make_corpus(1700), TEST_FILTERS)
    stats.count_drop("duplicate-source", Pair("", ""))
    assert format_rows(stats) == [
        ("read", "1,700", "100.00"),
        ("duplicate-source", "1", "0.06"),
        ("long", "200", "11.76"),
        ("odd", "800", "47.06"),
        ("kept", "699", "41.12"),
    ]
    assert all(len(row) == len(TABLE_HEADER) for row in format_rows(CleaningStats()))
    assert format_rows(CleaningStats())[0] == ("read", "0", "–")


def make_stats(num_read: int, **num_dropped: int) -> CleaningStats:
    return CleaningStats(num_read, {name.replace("_", "-"): FilterStats("", count) for name, count in num_dropped.items()})


def test_warnings_name_filter_and_recipe_keys() -> None:
    corpora = {"a": make_stats(1000, length=900), "b": make_stats(10, empty=9), "c": make_stats(0)}
    assert find_warnings(corpora) == [
        "a: the filter length dropped 900 of 1,000 pairs (90.0 %); check data.cleaning.max_words and "
        "data.cleaning.max_characters, or set skip_filters = ['length'] for this corpus",
        "b: the filter empty dropped 9 of 10 pairs (90.0 %); check its files and columns",
        "c: no pair was read; check its files",
    ]
    assert find_warnings({"a": make_stats(1000, ratio=899), "b": make_stats(5)}) == []


def test_every_filter_has_recipe_keys() -> None:
    assert FILTER_KEYS.keys() == set(get_args(FilterName)) == set(FILTER_ORDER) - {"empty"}
    keys = [key for filter_keys in FILTER_KEYS.values() for key in filter_keys]
    assert sorted(keys) == sorted(CleaningConfig.model_fields)


def test_report_shows_corpora_and_examples_in_turn() -> None:
    large = apply_filters(make_corpus(1000), TEST_FILTERS)[1]
    small = apply_filters([Pair("abc", "def", "small.tsv:1")], TEST_FILTERS)[1]
    text = render_cleaning_report({"large": large, "small": small})
    for part in ("large", "small", "odd: The source is of odd length.", "small.tsv:1", "1,001"):
        assert part in text
    # One of the examples of the filter that dropped pairs of both corpora is from the small corpus.
    assert text.count("corpus.tsv:") == MAX_EXAMPLES - 1 + MAX_EXAMPLES
    assert "These filters dropped nothing." not in text


def test_report_escapes_texts() -> None:
    """A report of hostile names and texts has the tags of a report of numbers."""

    def render(texts: Sequence[str]) -> str:
        stats = CleaningStats(100)
        for number, text in enumerate(texts):
            stats.count_drop(text, Pair(text, text, f"{text}:{number}"))
        return render_cleaning_report(dict.fromkeys(texts, stats))

    def find_tags(page: str) -> list[str]:
        return re.findall("<[^>]*>", re.sub('"[^"]*"', "", page))

    page = render(HOSTILE)
    assert find_tags(page) == find_tags(render([f"filter {number}" for number in range(len(HOSTILE))]))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    page.encode()
