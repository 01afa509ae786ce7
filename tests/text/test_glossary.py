"""Glossaries: where terms are found, which forms count, and entries that are refused."""

from __future__ import annotations

import pytest

from dragoman.text.glossary import Glossary, GlossaryEntry, get_lemmatizer
from expected_errors import raises_code


def lemmatize(word: str) -> str:
    """Return the word without a plural ending."""
    return word.removesuffix("s").removesuffix("e")


def make_glossary(*rows: tuple[str, str], **options: object) -> Glossary:
    """Return a glossary of sources and targets; `|` divides forms, and an empty target marks a term that is kept."""
    entries = [
        GlossaryEntry(source, tuple(target.split("|")) if target else (), do_not_translate=not target, **options)  # type: ignore[arg-type]
        for source, target in rows
    ]
    return Glossary(entries, lemmatize_source=lemmatize, lemmatize_target=lemmatize)


# Terms of a glossary, a text, and the parts of the text that are terms.
MATCHES = [
    (["dog"], "The dog, a Dog's dogma.", ["dog", "Dog"]),
    (["hot dog", "dog"], "hot  dog and dog", ["hot  dog", "dog"]),
    (["a b", "b c d"], "a b c d", ["b c d"]),
    (["cat"], "Two cats concatenate", ["cats"]),
    (["e-mail"], "e-mail but e - mail", ["e-mail"]),
    (["東京"], "東京都は大きい", ["東京"]),
    (["กา"], "มากาแฟ", ["กา"]),
    (["हिन्दी"], "हिन्दी में हिन्", ["हिन्दी"]),
    (["cafe\u0301"], "Café cafe", ["Café"]),
    (["C++"], "in C++, not C", ["C++"]),
    (["dog"], "see https://dog.example/dog or a dog", ["dog"]),
    (["Straße"], "STRASSE", ["STRASSE"]),
]


def test_terms_of_a_text(subtests: pytest.Subtests) -> None:
    for terms, text, expected in MATCHES:
        with subtests.test(terms=terms, text=text, expected=expected):
            matches = make_glossary(*((term, "x") for term in terms)).find(text)
            assert [text[match.start : match.end] for match in matches] == expected


def test_case_rule_selects_the_entry() -> None:
    entries = [GlossaryEntry("US", ("USA",), case_sensitive=True), GlossaryEntry("us", ("uns",))]
    glossary = Glossary(entries, lemmatize_source=lemmatize, lemmatize_target=lemmatize)
    assert [match.entry.targets for match in glossary.find("US us Us")] == [("USA",), ("uns",), ("uns",)]
    uses = glossary.check("US us", "Usa Uns")
    assert [(use.source, use.form) for use in uses] == [("US", None), ("us", "uns")]


# Rows of a glossary, a source, a translation, and the form of each term that the translation has.
USES = [
    ([("dog", "Hund|Hündin")], "the dog", "Die Hündin", ["Hündin"]),
    ([("dog", "Hund")], "dogs and a dog", "die Hunde", ["Hund"]),
    ([("dog", "Hund")], "the dog", "Hundehütte", [None]),
    ([("dog", "Hund"), ("cat", "Katze")], "cat, dog", "ein HUND", [None, "Hund"]),
    ([("linux", "")], "on Linux", "unter Linux-Servern", ["Linux"]),
    ([("linux", "")], "on Linux", "unter linux", [None]),
    ([("Tokyo", "東京")], "Tokyo", "東京都", ["東京"]),
    ([("dog", "Hund")], "no term", "Hund", []),
]


@pytest.mark.parametrize(("rows", "source", "translation", "expected"), USES)
def test_forms_of_a_translation(rows: list[tuple[str, str]], source: str, translation: str, expected: list[str | None]) -> None:
    assert [use.form for use in make_glossary(*rows).check(source, translation)] == expected


def test_case_rule_counts_for_forms() -> None:
    glossary = make_glossary(("apple", "Apple"), case_sensitive=True)
    assert [use.form for text in ("Apple", "apple") for use in glossary.check("apple", text)] == ["Apple", None]
    assert glossary.entries[0].list_phrases() == ("Apple",)
    assert GlossaryEntry("green", ("grün", "Grün")).list_phrases() == ("grün", "Grün")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(" ", ("x",), False)], "the source term ' ' is empty"),
        ([("a", ("",), False)], "the target term '' is empty"),
        ([("a", ("x" * 1001,), False)], "has 1001 characters, more than 1000"),
        ([("a\tb", ("x",), False)], "holds a tab"),
        ([("a", (), False)], "'a' has no target term"),
        ([("a", ("x",), True)], "'a' is not to be translated, but has the target term 'x'"),
        ([("A", ("x",), False), ("a", ("y",), False)], "'a' has the target 'y', but the glossary has the target 'x'"),
        ([("A", ("x",), False), ("a", (), True)], "'a' is not translated, but the glossary has the target 'x'"),
    ],
)
def test_wrong_entries_are_refused(entries: list[tuple[str, tuple[str, ...], bool]], message: str) -> None:
    with raises_code("invalid-glossary", message):
        Glossary(GlossaryEntry(source, targets, do_not_translate=kept) for source, targets, kept in entries)


def test_dictionary_of_a_language_gives_lemmas() -> None:
    pytest.importorskip("simplemma")
    find_lemma = get_lemmatizer("en-GB")
    assert find_lemma is not None
    assert [find_lemma(word) for word in ("dogs", "went")] == ["dog", "go"]
    assert get_lemmatizer("") is get_lemmatizer("xx") is None
