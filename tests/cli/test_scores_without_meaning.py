"""Scores that say nothing have a reason, and files without text are errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")


def run(*arguments: object) -> tuple[str, str]:
    """Return standard output and standard error of a command."""
    result = CliRunner().invoke(cli, [str(word) for word in arguments], catch_exceptions=False, standalone_mode=False)
    return result.stdout, result.stderr


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def blank(tmp_path: Path) -> Path:
    return write(tmp_path / "blank", "\u200b\u00ad", " ", "\u3000")


def test_score_of_short_outputs_says_why(tmp_path: Path) -> None:
    file = write(tmp_path / "terms.de", "Haus", "ein Haus", "das große Haus")
    out, err = run("score", file, "--ref", file)
    assert "100.00" in out
    assert err.splitlines() == ["BLEU counts 4-grams, and no output has 4 tokens, so it is 0; compare by chrF or exact match"]
    first, *others = json.loads(run("score", file, "--ref", file, "--json")[0])["scores"]
    assert (first["value"], first["note"]) == (0.0, err.strip())
    assert all("note" not in score for score in others)


def test_score_with_one_longer_output_has_no_note(tmp_path: Path) -> None:
    file = write(tmp_path / "terms.de", "Haus", "das ist ein Haus")
    assert run("score", file, "--ref", file)[1] == ""


def test_bleu_without_smoothing_says_why_it_is_zero(tmp_path: Path) -> None:
    hypotheses, reference = write(tmp_path / "out", "a b c d e"), write(tmp_path / "ref", "a b c x d e")
    assert "no 4-gram of the outputs is in a reference" in run("score", hypotheses, "--ref", reference, "--tokenized")[1]


def test_blank_lines_are_an_error(
    subtests: pytest.Subtests, bundle: Path, blank: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for words in [
        ["score", "{text}", "--ref", "{blank}"],
        ["score", "{text}", "--ref", "{text}", "--ref", "{blank}"],
        ["score", "{text}", "--bundle", "{bundle}", "--src", "{blank}"],
        ["compare", "{text}", "{text}", "--ref", "{blank}"],
        ["evaluate", "{bundle}", "--src", "{text}", "--ref", "{blank}"],
        ["model", "shortlist", "{bundle}", "{blank}", "{text}", "-o", "{tmp}/out"],
        ["model", "shortlist", "{bundle}", "{text}", "{blank}", "-o", "{tmp}/out"],
        ["model", "calibrate", "{bundle}", "{blank}"],
    ]:
        with subtests.test(words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            text = write(tmp_path / "text", "red ten", "ten", "one red")
            names = {"text": text, "blank": blank, "bundle": bundle, "tmp": tmp_path}
            with raises_code("empty-data"):
                run(*(word.format(**names) for word in words))
            assert not (tmp_path / "out").exists()


def test_blank_references_are_named(bundle: Path, tmp_path: Path) -> None:
    text, references = write(tmp_path / "text", "red", "ten", "one red"), write(tmp_path / "ref", "rot", "", "\u200b")
    line = f"{references}: blank references, which count as all others: 2 (2, 3)"
    for words in (["score", text], ["compare", text, text], ["evaluate", bundle, "--src", text]):
        assert run(*words, "--ref", references)[1].splitlines()[0] == line
    assert "blank" not in run("score", text, "--ref", text)[1]


def test_output_of_translate_json_is_scored_as_its_texts(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    """The reference is the score of the same output as lines of text."""
    source, reference = corpus / "test.en", corpus / "test.de"
    write(tmp_path / "out.jsonl", *run("translate", bundle, source, "--json")[0].splitlines())
    write(tmp_path / "out.de", *run("translate", bundle, source)[0].splitlines())
    options = ("--ref", reference, "--bundle", bundle, "--src", source, "--json")
    expected = run("score", tmp_path / "out.de", *options)[0]
    assert run("score", tmp_path / "out.jsonl", *options)[0] == expected
    difference = run("compare", tmp_path / "out.de", tmp_path / "out.jsonl", "--ref", reference, "--json")[0]
    assert (
        json.loads(difference)["a"]["value"]
        == json.loads(difference)["b"]["value"]
        == json.loads(expected)["scores"][0]["value"]
    )


@pytest.mark.parametrize("damage", ["cut", "missing", "text"])
def test_damaged_output_of_translate_json_is_refused(damage: str, tmp_path: Path) -> None:
    lines = [json.dumps({"line": number, "source": "one", "text": "eins"}) for number in (1, 2, 3)]
    lines[1:2] = {"cut": [lines[1][:-9]], "missing": [], "text": ["eins"]}[damage]
    file = write(tmp_path / "out.jsonl", *lines)
    with raises_code("invalid-data", f"{file}, line 2", "translate the file again"):
        run("score", file, "--ref", write(tmp_path / "ref.de", "eins", "eins", "eins"))


def test_text_that_is_json_is_scored_as_text(tmp_path: Path) -> None:
    file = write(tmp_path / "out.de", '{"line": 1}', '{"name": "eins zwei drei vier"}')
    assert json.loads(run("score", file, "--ref", file, "--json")[0])["scores"][0]["value"] == pytest.approx(100)
