"""Command `translate-file` with the tiny bundle."""

from __future__ import annotations

import json
from pathlib import Path

import polib
import pytest
from click.testing import CliRunner, Result

import dragoman
from dragoman.cli.translate_file import translate_file

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
