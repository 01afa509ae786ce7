# ruff: noqa: RUF001  (the punctuation of many scripts looks like that of English)
"""Tests of noise: examples and laws of each type in several scripts, and determinism by seed, epoch and index."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import NoiseConfig
from dragoman.data.noise import (
    _PLACEHOLDER_NAMES,
    NOISE_TYPES,
    PairNoise,
    add_typos,
    concat_pairs,
    drop_final_punctuation,
    insert_placeholders,
    to_title_case,
    to_upper_case,
)

# Any characters of one line of UTF-8.
LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1).filter(str.strip)
SOUP = st.lists(
    st.sampled_from(
        [*"aZé ß.!?…:;\"»”)('%$@<>{}[]_&-/，。！？好あ한я5", "{0}", "%s", "https://a.b", "Tom", " 12 ", "word", "e\u0301"]
    ),
    min_size=1,
).map("".join)
TEXT = st.one_of(LINE, SOUP.filter(str.strip))


def make_noise(*seed: int, **probabilities: float) -> PairNoise:
    return PairNoise(NoiseConfig(**probabilities), seed=sum(seed))


# --- selection --------------------------------------------------------------------------------------------------------


def test_noise_frequency_matches_its_probability(subtests: pytest.Subtests) -> None:
    """Allow five standard deviations of the binomial distribution, in each of two epochs and in both."""
    for probability, name in product([0.01, 0.5, 1.0], NOISE_TYPES):
        with subtests.test(probability=probability, name=name):
            count = 20_000
            first, second = (make_noise(**{name: probability}).select_noisy(epoch, np.arange(count)) for epoch in (0, 1))
            for changed, expected in ((first, probability), (second, probability), (first & second, probability**2)):
                assert abs(changed.sum() - count * expected) <= 5 * (count * expected * (1 - expected)) ** 0.5


# --- determinism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["typos", "placeholders"])
def test_seed_epoch_and_index_change_the_noise(name: str) -> None:
    source, target = "Tom paid 1250 euros for these tickets, and Mary paid 70.", "Tom zahlte 1250 Euro, und Mary 70."

    def texts(seed: int, epoch: int, first: int) -> list[str]:
        noise = make_noise(seed, **{name: 1.0})
        return [noise.apply(epoch, index, source, target, lambda: ("", ""))[0] for index in range(first, first + 60)]

    reference = texts(1, 1, 0)
    assert len(set(reference)) > 25
    for changed in (texts(2, 1, 0), texts(1, 2, 0), texts(1, 1, 60)):
        assert sum(a == b for a, b in zip(reference, changed, strict=True)) < 12


# --- several noise types ----------------------------------------------------------------------------------------------


@given(source=TEXT, target=TEXT, next_source=TEXT, next_target=TEXT, index=st.integers(0, 2**50))
def test_noise_keeps_text_on_one_line(source: str, target: str, next_source: str, next_target: str, index: int) -> None:
    for noise in (make_noise(**dict.fromkeys(NOISE_TYPES, 0.6)), *(make_noise(**{name: 1.0}) for name in NOISE_TYPES)):
        for side in noise.apply(0, index, source, target, lambda: (next_source, next_target)):
            assert side.strip()
            assert not {"\r", "\n"} & set(side)


def test_noise_types_apply_in_order() -> None:
    """A copied source includes its changes; a concatenated pair is changed as one; new placeholders stay unchanged."""
    source, target = make_noise(copy_source=1.0, typos=1.0, concat_next=1.0, upper_case=1.0).apply(
        0, 0, "A little sentence.", "Ein Satz.", lambda: ("Another one!", "Noch einer!")
    )
    assert source == target == source.upper()
    assert source != "A LITTLE SENTENCE. ANOTHER ONE!"
    assert re.fullmatch(r"A [A-Z]+ [A-Z]+\. [A-Z]+ ONE!", source)
    for index in range(50):
        both = make_noise(placeholders=1.0, upper_case=1.0, drop_final_punctuation=1.0).apply(
            0, index, "It is here.", "好。", lambda: ("", "")
        )
        (placeholder,) = find_placeholders(both[0])
        assert both in (
            (f"{placeholder} IT IS HERE", f"{placeholder}好"),
            (f"IT IS HERE {placeholder}", f"好{placeholder}"),
        )


# --- single noise types -----------------------------------------------------------------------------------------------


def test_upper_and_title_case_follow_the_script(subtests: pytest.Subtests) -> None:
    for text, capitals, title in [
        ("the street", "THE STREET", "The Street"),
        ("l'été à Aix-en-Provence, don't", "L'ÉTÉ À AIX-EN-PROVENCE, DON'T", "L'été À Aix-En-Provence, Don't"),
        ("'tis d’accord «oui»", "'TIS D’ACCORD «OUI»", "'Tis D’accord «Oui»"),
        ("e\u0301te\u0301 ame\u0301lie", "E\u0301TE\u0301 AME\u0301LIE", "E\u0301te\u0301 Ame\u0301lie"),
        ("我喜欢python。", "我喜欢PYTHON。", "我喜欢python。"),
        ("the USA in 1990s", "THE USA IN 1990S", "The USA In 1990s"),
        ("open %s and {name} or <b>bold</b>", "OPEN %s AND {name} OR <b>BOLD</b>", "Open %s And {name} Or <b>Bold</b>"),
        ("see https://a.org/b, a@b.org", "SEE https://a.org/b, a@b.org", "See https://a.org/b, a@b.org"),
        ("", "", ""),
    ]:
        with subtests.test(text=text, capitals=capitals, title=title):
            assert to_upper_case(text) == capitals
            assert to_title_case(text) == title


def test_final_punctuation_is_dropped(subtests: pytest.Subtests) -> None:
    for text, stripped in [
        ("It rains.", "It rains"),
        ("It rains", "It rains"),
        ("Really?!", "Really"),
        ("Well …", "Well"),
        ("Attends-moi !", "Attends-moi"),
        ("你叫什么名字？！", "你叫什么名字"),
        ("他说：“等等！”", "他说：“等等”"),
        ("She said, “Wait!”", "She said, “Wait”"),
        ("She said, “Wait”.", "She said, “Wait”"),
        ("« Attends-moi ! »", "« Attends-moi »"),
        ("Version 2.5", "Version 2.5"),
        ("Hello :)", "Hello :)"),
        ("नमस्ते।", "नमस्ते"),
        ("Is it {0}?", "Is it {0}"),
        ('Look at <x id="1"/>.', 'Look at <x id="1"/>'),
    ]:
        with subtests.test(text=text, stripped=stripped):
            assert drop_final_punctuation(text, "x") == (stripped, "x")
            assert drop_final_punctuation("x!", text) == ("x", stripped)


def test_concatenated_pairs_are_joined_by_script(subtests: pytest.Subtests) -> None:
    for first, second, both in [
        ("One.", "Two.", "One. Two."),
        ("你好。", "再见。", "你好。再见。"),
        ("我喜欢Python", "真的", "我喜欢Python 真的"),  # six letters of eleven are Latin
        ("我很喜欢Linux。", "真的吗", "我很喜欢Linux。真的吗"),
        ("안녕하세요.", "감사합니다.", "안녕하세요. 감사합니다."),
        ("1.", "2.", "1. 2."),
    ]:
        with subtests.test(first=first, second=second, both=both):
            assert concat_pairs((first, "a"), (second, "b")) == (both, "a b")
            assert concat_pairs(("a", first), ("b", second)) == ("a b", both)


def test_all_typos_of_a_word_occur() -> None:
    """The keys are the neighbors on a QWERTY and on a Russian keyboard."""

    def list_typos(word: str, keys: dict[str, str]) -> set[str]:
        drops = {word[:i] + word[i + 1 :] for i in range(len(word))}
        doubles = {word[:i] + word[i] + word[i:] for i in range(len(word))}
        swaps = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
        return drops | doubles | swaps | {word[:i] + key + word[i + 1 :] for i in range(len(word)) for key in keys[word[i]]}

    latin = {"a": "qwsz", "B": "VGHN", "c": "xdfv", "g": "ftyhbv"}
    assert {add_typos("aBcg", Random(seed)) for seed in range(3000)} == list_typos("aBcg", latin)
    russian = {"м": "сапи", "е": "капн", "т": "ироь", "о": "рлгшть"}
    cyrillic = {add_typos("метро", Random(seed)) for seed in range(3000)}
    assert cyrillic == list_typos("метро", russian | {"р": "пнгоит"}) - {"метро"}


def test_one_typo_for_sixteen_letters(subtests: pytest.Subtests) -> None:
    for words, typos in [(1, 1), (2, 1), (4, 2), (8, 4), (20, 10)]:
        with subtests.test(words=words, typos=typos):
            text = " ".join(f"{'abcdefgh'[index % 8]}onderful"[:8] for index in range(words))  # words of eight letters
            for seed in range(50):
                changed = add_typos(text, Random(seed)).split()
                assert sum(a != b for a, b in zip(text.split(), changed, strict=True)) == typos


def test_protected_text_gets_no_typos(subtests: pytest.Subtests) -> None:
    for text in [
        "of the men",
        "12345 1st abcd5 x_abcd",
        "https://a.org/street jo.street@a.org",
        "{street} %(street)s <street/>",
        "我昨天买了很多书",
        "ありがとうございます",
        "__street__ [[street]] &nbsp;",
        "ame\u0301lie",
        "",
    ]:
        with subtests.test(text=text):
            assert all(add_typos(text, Random(seed)) == text for seed in range(50))
            mixed = f"{text} street"
            for seed in range(50):
                changed = add_typos(mixed, Random(seed))
                assert changed.startswith(f"{text} ")
                assert changed != mixed


# --- placeholders -----------------------------------------------------------------------------------------------------

PLACEHOLDER = re.compile(r'\$\{\w+\}|\{\{\w+\}\}|\{\w+\}|%\(\w+\)s|%\d\$s|%[sd]|<(?:x|ph) id="\d+"/>|__PH\d+__|\[\[\d+\]\]')


def find_placeholders(text: str) -> list[str]:
    return sorted(PLACEHOLDER.findall(text))


def test_shared_words_become_placeholders(subtests: pytest.Subtests) -> None:
    for pair, replaceable in [
        (("Tom paid 12.50 euros.", "Tom zahlte 12.50 Euro."), {"Tom", "12.50"}),
        (("Write to a.b@c.org!", "写信给a.b@c.org！"), {"a.b@c.org"}),
        (("I read 3 books about Python.", "我读了3本关于Python的书。"), {"3", "Python"}),
        (("Tom's house is Tom's.", "Das Haus von Tom gehört Tom."), {"Tom"}),
        (("COVID-19 came at 12:30.", "COVID-19 kam um 12:30."), {"COVID-19", "12:30"}),
    ]:
        with subtests.test(pair=pair, replaceable=replaceable):
            all_replaced = set()
            for seed in range(100):
                source, target = insert_placeholders(*pair, Random(seed))
                replaced = {name for name in replaceable if name not in source}
                assert replaced
                assert replaced == {name for name in replaceable if name not in target}
                pattern = re.compile("|".join(map(re.escape, sorted(replaceable, key=len, reverse=True))))
                for side, original in ((source, pair[0]), (target, pair[1])):  # everything else stays unchanged
                    assert pattern.sub("", PLACEHOLDER.sub("", side)) == pattern.sub("", original)
                all_replaced |= replaced
            assert all_replaced == replaceable


def test_placeholder_is_inserted_without_shared_words(subtests: pytest.Subtests) -> None:
    for pair in [
        ("It was in Rome.", "Es war in Rom."),  # In is too short, and Rome differs from Rom
        ("Tom and Tom.", "Tom und er."),  # different counts
        ("In it goes.", "In diesen."),
        ("MP3a 3a", "3 MP"),
        ("Ame\u0301lie is here.", "Ame\u0301lie est là."),  # a letter keeps its accent
        ("What is your name?", "你叫什么名字？"),
    ]:
        with subtests.test(pair=pair):
            at_start = set()
            for seed in range(60):
                source, target = insert_placeholders(*pair, Random(seed))
                (placeholder,) = find_placeholders(source)
                assert find_placeholders(target) == [placeholder]
                assert all(
                    side.replace(placeholder, "").replace(" ", "") == original.replace(" ", "")
                    for side, original in zip((source, target), pair, strict=True)
                )
                starts = {side.startswith(placeholder) for side in (source, target)}
                assert len(starts) == 1
                at_start |= starts
            assert at_start == {True, False}


MARK = re.compile(r"⟦\d+⟧")


def test_marks_replace_words_and_placeholders() -> None:
    source, target = "Tom read {0} of 12 files for Mary, %s.", "Tom las {0} von 12 Dateien für Mary, %s."
    marks, counts, replaced = set(), Counter[int](), set()
    for seed in range(300):
        changed = [insert_placeholders(source, target, Random(seed), use_marks=True)[side] for side in (0, 1)]
        used = [MARK.findall(side) for side in changed]
        assert sorted(used[0]) == sorted(used[1])
        assert len(set(used[0])) == len(used[0])
        counts[len(used[0])] += 1
        marks |= set(used[0])
        replaced |= {word for word in ("Tom", "{0}", "12", "Mary", "%s") if word not in changed[0]}
    assert set(counts) == {1, 2, 3, 4}
    assert marks == {f"⟦{number}⟧" for number in range(32)}
    assert replaced == {"Tom", "{0}", "12", "Mary", "%s"}
    assert insert_placeholders("See ⟦3⟧.", "Siehe ⟦3⟧.", Random(1), use_marks=True) == ("See ⟦3⟧.", "Siehe ⟦3⟧.")


def test_translations_of_terms_stay_unchanged() -> None:
    """Other noise changes a term but not its translation, and a copied source has no annotations."""

    def apply(seed: int, **probabilities: float) -> tuple[str, str]:
        noise = PairNoise(NoiseConfig(terminology=1.0, **probabilities), seed=seed, has_marks=True)
        return noise.apply(0, 0, "The network is old.", "Das Netz ist alt.", lambda: ("", "Katze"), lambda: [(4, 11, "Netz")])

    for seed in range(60):
        source, target = apply(seed, upper_case=1.0, typos=1.0, placeholders=1.0)
        assert re.search(r"⟦t⟧ [A-Z]+⟦=⟧ (Netz|Katze)⟦/t⟧", source)
        assert "Netz" not in target
        source, target = apply(seed, copy_source=1.0)
        assert source == target == "The network is old."
    sources = {apply(seed)[0] for seed in range(60)}
    assert sources == {f"The⟦t⟧ network⟦=⟧ {word}⟦/t⟧ is old." for word in ("Netz", "Katze")}


def test_placeholders_are_distinct_and_new() -> None:
    existing = "{0} {1} {2} {name} {{name}} ${name} %(name)s %1$s %s %d"
    for seed in range(200):
        source, target = insert_placeholders(f"{existing} Tom Mary 70", f"{existing} 70 Mary Tom", Random(seed))
        assert Counter(find_placeholders(source)) == Counter(find_placeholders(target))
        assert all(count == 1 for count in Counter(find_placeholders(source)).values())
    full = "%s %d " + " ".join(f"{{{i}}} {{{{{i}}}}} %{i}$s __PH{i}__ [[{i}]]" for i in range(30))
    names = " ".join(f"{{{name}}} {{{{{name}}}}} ${{{name}}} %({name})s" for name in _PLACEHOLDER_NAMES)
    tags = " ".join(f'<x id="{i}"/> <ph id="{i}"/>' for i in range(30))
    crowded = f"{full} {names} {tags}", f"{tags} {names} {full}"
    assert insert_placeholders(*crowded, Random(1)) == crowded  # the text holds all placeholders


UNITS = ["a", ".", " ", ";", "{", "好", "\u0301", "a.", "<a", "__", "[[a", "&a", "%(a", "1.", "A-", "www.", "a@", '"»', "{{"]


def test_long_lines_take_linear_time(subtests: pytest.Subtests) -> None:
    """Lines of 20,000 characters would take minutes with a backtracking pattern."""
    cases: list[Callable[[str], object]] = [
        to_upper_case,
        to_title_case,
        lambda text: drop_final_punctuation(text, text),
        lambda text: add_typos(text, Random(1)),
        lambda text: insert_placeholders(text, text, Random(1)),
    ]
    for transform in cases:
        with subtests.test(transform=transform):
            for unit in UNITS:
                transform(unit * (20_000 // len(unit)) + "a;.)")
