"""Command `translate-file` with the tiny bundle."""

from __future__ import annotations

import json
from pathlib import Path

import polib
import pytest
from click.testing import CliRunner, Result

import dragoman
from dragoman.cli.translate_file import translate_file
from dragoman.errors import OutputError

pytestmark = pytest.mark.usefixtures("one_core")

CATALOG = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: de\\n"

msgid "one two red"
msgstr ""

msgid "big"
msgstr "groß"
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(translate_file, [str(argument) for argument in arguments])


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "a.po"
    path.write_text(CATALOG, encoding="utf-8")
    return path


def test_file_is_translated_and_a_second_run_changes_nothing(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    result = run(bundle, catalog, "-o", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    (translation,) = dragoman.load(bundle, task="translation").translate(["one two red"])
    written = tmp_path / "out" / "a.po"
    entry = polib.pofile(str(written)).find("one two red")
    assert (entry.msgstr, entry.fuzzy) == (translation.text, True)
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["status"], report["texts"], report["translated"]) == ("ok", 2, 1)
    assert catalog.read_text(encoding="utf-8") == CATALOG
    assert run(bundle, written, "-o", tmp_path / "again").exit_code == 0
    assert (tmp_path / "again" / "a.po").read_bytes() == written.read_bytes()


def test_translation_is_written_beside_the_file(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n", encoding="utf-8")
    assert run(bundle, tmp_path / "a.txt").exit_code == 0
    assert (tmp_path / "a.de.txt").read_text(encoding="utf-8").endswith("\n")


def test_memory_is_taken_first(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.tsv").write_text("one two red\taus dem Speicher\n", encoding="utf-8")
    assert run(bundle, catalog, "--memory", tmp_path / "memory.tsv").exit_code == 0
    entry = polib.pofile(str(tmp_path / "a.de.po")).find("one two red")
    assert (entry.msgstr, entry.fuzzy) == ("aus dem Speicher", False)


def test_similar_texts_of_the_memory_are_marked_for_review(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.tsv").write_text("one two reds\taus dem Speicher\n", encoding="utf-8")
    result = run(bundle, catalog, "--memory", tmp_path / "memory.tsv", "--fuzzy", "0.85", "--accept", "--json")
    assert result.exit_code == 0, result.output
    entry = polib.pofile(str(tmp_path / "a.de.po")).find("one two red")
    assert (entry.msgstr, entry.fuzzy, entry.previous_msgid) == ("aus dem Speicher", True, "one two reds")
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["translated"], report["from_memory"], report["fuzzy_matches"]) == (1, 1, 1)
    assert run(bundle, catalog, "--fuzzy", "0.85").exit_code == 2


def test_file_is_translated_from_python(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    translator = dragoman.load(bundle, task="translation")
    steps: list[tuple[int, int]] = []
    result = dragoman.translate_file(
        translator, catalog, tmp_path / "out" / "b.po", accept=True, on_progress=lambda *step: steps.append(step)
    )
    assert (result.output, result.num_texts, len(result.results), result.flagged) == (tmp_path / "out" / "b.po", 2, 1, [])
    assert not polib.pofile(str(result.output)).find("one two red").fuzzy
    assert steps[-1] == (1, 1)
    for output, code in (
        (result.output, "output-exists"),
        (catalog, "output-is-input"),
        (tmp_path / "b.txt", "invalid-output"),
    ):
        with pytest.raises(OutputError) as caught:
            dragoman.translate_file(translator, catalog, output)
        assert caught.value.code == code


def test_refused_file_leaves_the_others(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("not JSON", encoding="utf-8")
    result = run(bundle, tmp_path / "bad.json", tmp_path / "missing.po", catalog, "-o", tmp_path / "out", "--json")
    assert result.exit_code == 4
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [report.get("code") for report in reports] == ["invalid-format", "file-not-found", None]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.po"]


def test_check_needs_no_bundle(catalog: Path, tmp_path: Path) -> None:
    assert run("--check", catalog).exit_code == 0
    catalog.write_text(CATALOG.replace('"big"', '"big %s 1234"'), encoding="utf-8")
    result = run("--check", catalog, "--json")
    assert result.exit_code == 3
    (flagged,) = json.loads(result.stdout.splitlines()[0])["flagged"]
    assert flagged["flags"] == ["numbers", "printf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.po"]


@pytest.mark.parametrize("arguments", [["only-a-bundle"], ["--check", "a.po", "-o", "out"]])
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
