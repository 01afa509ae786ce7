"""What somebody asks of a translation's wording, and how a translation may go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman
from dragoman import TranslationConstraints, Translator
from dragoman.cli.main import cli
from dragoman.errors import DataError, RecipeError
from dragoman.inference.constraints import parse_constraints

pytestmark = pytest.mark.usefixtures("one_core")

LINES = ["one two three", "ten", "", "big small"]


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    opened: Translator = dragoman.load(bundle, device="cpu", precision="float32")
    return opened


def test_nothing_asked_changes_nothing(translator: Translator) -> None:
    plain = translator.translate(LINES)
    assert translator.translate(LINES, constraints=[None] * 4) == plain
    assert translator.translate(LINES, constraints=[TranslationConstraints()] * 4) == plain


def test_a_translation_begins_as_is_asked(translator: Translator) -> None:
    asked = [
        TranslationConstraints(prefix="grün blau"),
        None,
        TranslationConstraints(prefix="rot"),
        TranslationConstraints(prefix="zwei"),
    ]
    for method in ("beam", "greedy", "sample"):
        results = translator.translate(LINES, constraints=asked, method=method)
        assert results[0].text.startswith("grün blau")
        assert results[2].status == "empty"
        assert results[3].text.startswith("zwei")
        assert len(results[0].token_log_probs) >= len(results[0].tokens)


def test_phrases_are_there_or_named(translator: Translator) -> None:
    asked = [
        TranslationConstraints(include=("rot", "sieben")),
        TranslationConstraints(include=("grün",)),
        None,
        TranslationConstraints(exclude=("groß",)),
    ]
    results = translator.translate(LINES, constraints=asked)
    assert results[0].unmet_constraints == results[1].unmet_constraints == ()
    assert "grün" in results[1].text
    assert "rot" in results[0].text
    assert "sieben" in results[0].text
    free = translator.translate(["big"])[0]
    banned = translator.translate(["big"], constraints=[TranslationConstraints(exclude=(free.text,))])[0]
    assert banned.text != free.text


def test_batches_never_change_what_is_asked_for(translator: Translator) -> None:
    asked = [
        TranslationConstraints(include=("rot",)),
        TranslationConstraints(prefix="zwei"),
        None,
        TranslationConstraints(exclude=("groß",)),
    ] * 3
    whole = translator.translate(LINES * 3, constraints=asked)
    alone = [translator.translate([line], constraints=[wording])[0] for line, wording in zip(LINES * 3, asked, strict=True)]
    assert [one.tokens for one in whole] == [one.tokens for one in alone]
    streamed = translator.stream(LINES * 3, constraints=asked, window=5)
    assert [one.tokens for one in streamed] == [one.tokens for one in whole]


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_what_is_asked_of_one_line_changes_no_other(beam_size: int, translator: Translator) -> None:
    lines = [line for line in LINES if line] * 3
    plain = translator.translate(lines, beam_size=beam_size)
    asked = translator.translate(
        lines, beam_size=beam_size, constraints=[None] * 8 + [TranslationConstraints(include=("rot",))]
    )
    assert [one.tokens for one in asked[:8]] == [one.tokens for one in plain[:8]]


def test_a_prefix_may_repeat_itself(translator: Translator) -> None:
    (one,) = translator.translate(["one"], constraints=[TranslationConstraints(prefix="eins " * 40)], max_extra_tokens=200)
    assert one.text.startswith("eins " * 39 + "eins")


def test_what_a_line_without_translation_lacks_is_named(translator: Translator) -> None:
    asked = TranslationConstraints(include=("rot",))
    blank, refused = translator.translate(
        ["", "one " * 20], constraints=[asked, asked], max_source_tokens=9, long_input="error"
    )
    assert blank.unmet_constraints == refused.unmet_constraints == ("rot",)


def test_a_stream_drops_nothing_in_silence(translator: Translator) -> None:
    with pytest.raises(ValueError, match="window = 0"):
        translator.stream(LINES, window=0)
    with pytest.raises(TypeError, match=r"write stream\(\[text\]\)"):
        translator.stream("one two")
    with pytest.raises(DataError, match="more wordings than lines, of which there are 4"):
        list(translator.stream(LINES, constraints=[None] * 5, window=2))
    with pytest.raises(DataError, match="more lines than wordings, of which there are 3"):
        list(translator.stream(LINES, constraints=[None] * 3, window=2))


def test_a_phrase_is_no_list_of_phrases(translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"write include=\('rot',\)"):
        TranslationConstraints(include="rot")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"line 1: \{\} is no Wording"):
        translator.translate(["one"], constraints=[{}])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("wordings", "knobs", "says"),
    [
        ([None], {}, "4 lines but 1 wordings"),
        ([TranslationConstraints(prefix=" "), None, None, None], {}, "line 1: prefix: ' ' holds no text"),
        ([None, TranslationConstraints(include=("語",)), None, None], {}, "line 2: include: '語' holds characters"),
        (
            [None, TranslationConstraints(include=("rot",)), None, None],
            {"method": "greedy"},
            "line 2: include needs method = 'beam'",
        ),
        ([TranslationConstraints(prefix="rot"), None, None, None], {"max_source_tokens": 6}, "line 1: is translated in parts"),
        (
            [TranslationConstraints(include=("rot",)), None, None, None],
            {"num_beam_groups": 2},
            "line 1: include needs groups = 1",
        ),
    ],
)
def test_what_nobody_could_fulfil(
    wordings: list[TranslationConstraints | None], knobs: dict[str, Any], says: str, translator: Translator
) -> None:
    with pytest.raises(DataError) as caught:
        translator.translate(LINES, constraints=wordings, **knobs)
    assert str(caught.value).startswith(says)


def test_alternatives_part_where_the_prefix_ends(translator: Translator) -> None:
    ways = translator.list_alternatives("one two three", "eins", count=4)
    assert len(ways) == 4
    prefix = tuple(translator.bundle.tokenizer.target.ids_to_pieces(translator.bundle.tokenizer.target.encode("eins")))
    assert all(one.tokens[: len(prefix)] == prefix for one in ways)
    after = [one.tokens[len(prefix)] if len(one.tokens) > len(prefix) else "the end" for one in ways]
    assert len(set(after)) == 4
    # They come in order of the token that they part with, whose log-probability each of them holds.
    parting = [one.token_log_probs[len(prefix)] for one in ways]
    assert parting == sorted(parting, reverse=True)
    assert all(one.alternatives == () for one in ways)
    assert translator.list_alternatives("", count=2) == []
    wide = translator.list_alternatives("one two three", "eins", count=2, beam_size=3)
    assert [one.tokens[: len(prefix) + 1] for one in wide] == [one.tokens[: len(prefix) + 1] for one in ways[:2]]


def test_alternatives_of_the_impossible(translator: Translator) -> None:
    with pytest.raises(RecipeError, match="count = 0"):
        translator.list_alternatives("one", count=0)
    with pytest.raises(RecipeError, match="nbest = 2: alternatives have their own"):
        translator.list_alternatives("one", nbest=2)
    with pytest.raises(DataError, match="more than the 5 tokens"):
        translator.list_alternatives("one two three", max_source_tokens=5)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "here: []: an object with prefix, include, exclude is allowed"),
        ({"includes": []}, "here: key 'includes': an object"),
        ({"prefix": 3}, "here: prefix = 3: a text is allowed"),
        ({"include": "rot"}, "here: include = 'rot': a list of texts is allowed"),
        ({"exclude": [1]}, "here: exclude = [1]"),
    ],
)
def test_wordings_that_are_none(document: object, says: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_constraints(document, location="here")
    assert str(caught.value).startswith(says)


def test_the_command(bundle: Path, tmp_path: Path, translator: Translator) -> None:
    asked = [{"include": ["rot"]}, {}, {}, {"prefix": "zwei"}]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    (tmp_path / "asked").write_text("".join(json.dumps(one) + "\n" for one in asked), encoding="utf-8")
    words = ["translate", str(bundle), str(tmp_path / "in"), "--precision", "float32", "--wordings", str(tmp_path / "asked")]
    result = CliRunner().invoke(cli, words)
    wanted = translator.translate(LINES, constraints=[parse_constraints(one, location="") for one in asked])
    assert result.stdout.splitlines() == [one.text for one in wanted]
    (tmp_path / "asked").write_text('{"include": ["rot"]}\n{\n', encoding="utf-8")
    with pytest.raises(DataError, match="asked, line 2: is not JSON"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    (tmp_path / "asked").write_text("{}\n", encoding="utf-8")
    with pytest.raises(DataError, match="asked: 1 wordings for 4 lines"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
