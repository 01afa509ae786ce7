"""Division into sentences, by hand-made texts of many languages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.sentences import split_sentences


def sentences(text: str, language: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text, language)]


@pytest.mark.parametrize(
    ("language", "parts"),
    [
        ("en", ["It is 3.5 km, e.g. by bus.", "Dr. Smith knows No. 5!", "“Really?” she asked.", "So do I.", "Yes..."]),
        ("en", ["J. R. R. Tolkien wrote it.", "Who read it?", "(Everybody did.)", "“Yes.”", "Good"]),
        ("de", ["Am 3. Mai kam Dr. Huber.", "Es war 2019.", "Er sagte: „Gut.“", "Das gilt z.B. hier, vgl. S. 12."]),
        ("fr", ["Il dit : « Oui. »", "M. Durand est là !", "Vraiment ?"]),
        ("es", ["¿Qué pasa?", "¡Nada!", "El Sr. López lo sabe."]),
        ("cs", ["Dne 3. května přišel.", "Bylo mu 40 let."]),
        ("el", ["Τι κάνεις;", "Καλά."]),
        ("hi", ["यह एक है।", "वह दो है।"]),
        ("ar", ["هل أنت بخير؟", "نعم."]),
    ],
)
def test_sentences_of_a_paragraph(language: str, parts: list[str]) -> None:
    assert sentences(" ".join(parts), language) == parts


@pytest.mark.parametrize(
    ("language", "parts"), [("zh", ["他说：“好。”", "真的吗？", "是的！"]), ("ja", ["元気ですか。", "はい！", "（了）"])]
)
def test_sentences_without_spaces(language: str, parts: list[str]) -> None:
    assert sentences("".join(parts), language) == parts


def test_list_numbers_stay_with_their_items() -> None:
    assert sentences("1. Open the file. Close it.", "en") == ["1. Open the file.", "Close it."]


def test_region_of_a_language_code_does_not_matter() -> None:
    assert sentences("Am 3. Mai. Gut.", "de_AT") == ["Am 3. Mai.", "Gut."]


def test_no_sentence_ends_inside_a_protected_span() -> None:
    text = "See <b>This. And that.</b> Then go."
    start, end = text.index("<b>"), text.index(" Then")
    assert [text[a:b] for a, b in split_sentences(text, "en", [(start, end)])] == [text]
    assert len(split_sentences(text, "en")) == 2


@given(st.text(alphabet="aB1.!? \n«»“”。", max_size=60), st.sampled_from(["en", "de", "zh", ""]))
def test_sentences_and_white_space_are_the_text(text: str, language: str) -> None:
    spans = split_sentences(text, language)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert all(not text[end:start].strip() for end, start in zip(edges[::2], edges[1::2], strict=True))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)


def test_time_grows_with_the_text_only() -> None:
    """A search that looks back without limit takes hours here."""
    text = "a" * 200_000 + ". " + ". " * 100_000 + "B"
    assert sentences(text, "en")[-1] == "B"
