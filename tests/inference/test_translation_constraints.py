"""Lexical constraints on translations, and alternatives after a prefix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman import TranslationConstraints, Translator
from dragoman.cli.main import cli
from dragoman.errors import DataError, RecipeError
from dragoman.inference.translation_constraints import parse_constraints

pytestmark = pytest.mark.usefixtures("one_core")

LINES = ["one two three", "ten", "", "big small"]


def test_empty_constraints_change_nothing(translator: Translator) -> None:
    plain = translator.translate(LINES)
    assert translator.translate(LINES, constraints=[None] * 4) == plain
    assert translator.translate(LINES, constraints=[TranslationConstraints()] * 4) == plain


def test_translation_starts_with_prefix(translator: Translator) -> None:
    constraints = [
        TranslationConstraints(prefix="grün blau"),
        None,
        TranslationConstraints(prefix="rot"),
        TranslationConstraints(prefix="zwei"),
    ]
    for method in ("beam", "greedy", "sample"):
        results = translator.translate(LINES, constraints=constraints, method=method)
        assert results[0].text.startswith("grün blau")
        assert results[2].status == "empty"
        assert results[3].text.startswith("zwei")
        assert len(results[0].token_log_probs) >= len(results[0].tokens)


def test_included_phrases_are_placed_or_unmet(translator: Translator) -> None:
    constraints = [
        TranslationConstraints(include=("rot", "sieben")),
        TranslationConstraints(include=("grün",)),
        None,
        TranslationConstraints(exclude=("groß",)),
    ]
    results = translator.translate(LINES, constraints=constraints)
    assert results[0].unmet_constraints == results[1].unmet_constraints == ()
    assert "grün" in results[1].text
    assert "rot" in results[0].text
    assert "sieben" in results[0].text
    free = translator.translate(["big"])[0]
    banned = translator.translate(["big"], constraints=[TranslationConstraints(exclude=(free.text,))])[0]
    assert banned.text != free.text


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_constraints_of_a_line_change_no_other(beam_size: int, translator: Translator) -> None:
    lines = [line for line in LINES if line] * 3
    plain = translator.translate(lines, beam_size=beam_size)
    constraints = translator.translate(
        lines, beam_size=beam_size, constraints=[None] * 8 + [TranslationConstraints(include=("rot",))]
    )
    assert [translation.tokens for translation in constraints[:8]] == [translation.tokens for translation in plain[:8]]


def test_prefix_may_repeat_itself(translator: Translator) -> None:
    (translation,) = translator.translate(
        ["one"], constraints=[TranslationConstraints(prefix="eins " * 40)], max_extra_tokens=200
    )
    assert translation.text.startswith("eins " * 39 + "eins")


def test_untranslated_lines_have_unmet_constraints(translator: Translator) -> None:
    constraints = TranslationConstraints(include=("rot",))
    blank, too_long = translator.translate(
        ["", "one " * 20], constraints=[constraints, constraints], max_source_tokens=9, long_input="error"
    )
    assert blank.unmet_constraints == too_long.unmet_constraints == ("rot",)


def test_stream_checks_number_of_constraints(translator: Translator) -> None:
    with pytest.raises(ValueError, match="window = 0"):
        translator.stream(LINES, window=0)
    with pytest.raises(TypeError, match=r"write stream\(\[text\]\)"):
        translator.stream("one two")
    with pytest.raises(DataError, match="lines end after line 4, before the constraints"):
        list(translator.stream(LINES, constraints=[None] * 5, window=2))
    with pytest.raises(DataError, match="constraints end after line 3, before the lines"):
        list(translator.stream(LINES, constraints=[None] * 3, window=2))


def test_include_must_be_a_sequence_of_phrases(translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"write include=\('rot',\)"):
        TranslationConstraints(include="rot")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"line 1: \{\} is not a TranslationConstraints"):
        translator.translate(["one"], constraints=[{}])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("constraints", "options", "message"),
    [
        ([None], {}, "4 lines but 1 constraint"),
        ([TranslationConstraints(prefix=" "), None, None, None], {}, "line 1: prefix: ' ' has no text"),
        ([None, TranslationConstraints(include=("語",)), None, None], {}, "line 2: include: '語' has characters"),
        (
            [None, TranslationConstraints(include=("rot",)), None, None],
            {"method": "greedy"},
            "line 2: include needs method = 'beam'",
        ),
        (
            [TranslationConstraints(prefix="rot"), None, None, None],
            {"max_source_tokens": 6},
            "line 1: has constraints, but is longer",
        ),
        (
            [TranslationConstraints(include=("rot",)), None, None, None],
            {"num_beam_groups": 2},
            "line 1: include needs num_beam_groups = 1",
        ),
    ],
)
def test_infeasible_constraints_raise_error(
    constraints: list[TranslationConstraints | None], options: dict[str, Any], message: str, translator: Translator
) -> None:
    with pytest.raises(DataError) as error:
        translator.translate(LINES, constraints=constraints, **options)
    assert str(error.value).startswith(message)


def test_alternatives_differ_after_the_prefix(translator: Translator) -> None:
    alternatives = translator.list_alternatives("one two three", "eins", count=4)
    assert len(alternatives) == 4
    prefix = tuple(translator.bundle.tokenizer.target.ids_to_pieces(translator.bundle.tokenizer.target.encode("eins")))
    assert all(translation.tokens[: len(prefix)] == prefix for translation in alternatives)
    after = [
        translation.tokens[len(prefix)] if len(translation.tokens) > len(prefix) else "the end" for translation in alternatives
    ]
    assert len(set(after)) == 4
    # They are in the order of the log-probability of the token after the prefix.
    parting = [translation.token_log_probs[len(prefix)] for translation in alternatives]
    assert parting == sorted(parting, reverse=True)
    assert all(translation.alternatives == () for translation in alternatives)
    assert translator.list_alternatives("", count=2) == []
    wide = translator.list_alternatives("one two three", "eins", count=2, beam_size=3)
    assert [translation.tokens[: len(prefix) + 1] for translation in wide] == [
        translation.tokens[: len(prefix) + 1] for translation in alternatives[:2]
    ]


def test_alternatives_check_their_options(translator: Translator) -> None:
    with pytest.raises(RecipeError, match="count = 0"):
        translator.list_alternatives("one", count=0)
    with pytest.raises(RecipeError, match="list_alternatives sets nbest itself"):
        translator.list_alternatives("one", nbest=2)
    with pytest.raises(DataError, match="more than the 5 tokens"):
        translator.list_alternatives("one two three", max_source_tokens=5)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "here: [] is not allowed; give an object with prefix, include, exclude"),
        ({"includes": []}, "here: key 'includes' is not allowed; give an object"),
        ({"prefix": 3}, "here: prefix = 3 is not a text"),
        ({"include": "rot"}, "here: include = 'rot' is not a list of texts"),
        ({"exclude": [1]}, "here: exclude = [1]"),
    ],
)
def test_parse_constraints_rejects_wrong_documents(document: object, message: str) -> None:
    with pytest.raises(DataError) as error:
        parse_constraints(document, location="here")
    assert str(error.value).startswith(message)


def test_translate_command_reads_constraints(bundle: Path, tmp_path: Path, translator: Translator) -> None:
    constraints = [{"include": ["rot"]}, {}, {}, {"prefix": "zwei"}]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    (tmp_path / "constraints").write_text(
        "".join(json.dumps(translation) + "\n" for translation in constraints), encoding="utf-8"
    )
    arguments = [
        "translate",
        str(bundle),
        str(tmp_path / "in"),
        "--precision",
        "float32",
        "--constraints",
        str(tmp_path / "constraints"),
    ]
    result = CliRunner().invoke(cli, arguments)
    expected = translator.translate(
        LINES, constraints=[parse_constraints(translation, location="") for translation in constraints]
    )
    assert result.stdout.splitlines() == [translation.text for translation in expected]
    (tmp_path / "constraints").write_text('{"include": ["rot"]}\n{\n', encoding="utf-8")
    with pytest.raises(DataError, match="constraints, line 2: is not JSON"):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
    (tmp_path / "constraints").write_text("{}\n", encoding="utf-8")
    with pytest.raises(DataError, match="constraints: has 1 constraint for 4 lines"):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
