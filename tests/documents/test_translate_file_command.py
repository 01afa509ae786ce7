"""Command `translate-file` with the tiny bundle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polib
import pytest
from click.testing import CliRunner, Result

import dragoman
from dragoman.documents.command import translate_file
from dragoman.errors import DataError, OutputError
from expected_errors import raises_code

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
    assert (report["status"], report["texts"], report["translated"], report["for_review"]) == ("ok", 2, 1, 1)
    assert catalog.read_text(encoding="utf-8") == CATALOG
    assert run(bundle, written, "-o", tmp_path / "again").exit_code == 0
    assert (tmp_path / "again" / "a.po").read_bytes() == written.read_bytes()


def test_translation_is_written_beside_the_file(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n", encoding="utf-8")
    assert run(bundle, tmp_path / "a.txt").exit_code == 0
    assert (tmp_path / "a.de.txt").read_text(encoding="utf-8").endswith("\n")


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
        translator,
        catalog,
        tmp_path / "out" / "b.po",
        dragoman.FileOptions(accept=True),
        on_progress=lambda *step: steps.append(step),
    )
    assert (result.output, result.num_texts, len(result.results), result.flagged) == (tmp_path / "out" / "b.po", 2, 1, [])
    assert not polib.pofile(str(result.output)).find("one two red").fuzzy
    assert steps[-1] == (1, 1)
    for output, code in (
        (result.output, "output-exists"),
        (catalog, "output-is-input"),
        (tmp_path / "b.txt", "invalid-output"),
    ):
        with raises_code(code):
            dragoman.translate_file(translator, catalog, output)


def test_refused_file_leaves_the_others(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("not JSON", encoding="utf-8")
    result = run(bundle, tmp_path / "bad.json", tmp_path / "missing.po", catalog, "-o", tmp_path / "out", "--json")
    assert result.exit_code == 4
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [report.get("code") for report in reports] == ["invalid-format", "file-not-found", None]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.po"]


def test_output_folder_that_is_a_file_is_one_line(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    result = run(bundle, catalog, "-o", tmp_path / "file", "--json")
    assert result.exit_code == 4
    (report,) = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert (report["status"], report["code"]) == ("refused", "write-failed")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Yield a folder that other users can read, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run as a user without rights if the test runs as root, whom no permission stops."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users of POSIX")
def test_missing_permissions_are_one_line(bundle: Path, shared_folder: Path) -> None:
    translator = dragoman.load(bundle, task="translation")
    (shared_folder / "a.txt").write_text("one two\n", encoding="utf-8")
    (shared_folder / "secret.txt").write_text("one two\n", encoding="utf-8")
    (shared_folder / "secret.txt").chmod(0)
    (shared_folder / "out").mkdir(mode=0o500)
    shared_folder.chmod(0o555)
    with without_privileges():
        with pytest.raises(DataError, match=r"secret\.txt: cannot be read: Permission denied") as unreadable:
            dragoman.translate_file(translator, shared_folder / "secret.txt", shared_folder / "b.txt")
        assert unreadable.value.code == "file-unreadable"
        for output in ("b.txt", "out/a.txt", "new/a.txt"):
            with pytest.raises(OutputError, match="cannot be written: Permission denied") as unwritable:
                dragoman.translate_file(translator, shared_folder / "a.txt", shared_folder / output)
            assert unwritable.value.code == "write-failed"
    shared_folder.chmod(0o755)
    assert sorted(path.name for path in shared_folder.rglob("*")) == ["a.txt", "out", "secret.txt"]
    assert (shared_folder / "a.txt").read_text(encoding="utf-8") == "one two\n"


def test_check_needs_no_bundle(catalog: Path, tmp_path: Path) -> None:
    result = run("--check", catalog)
    assert (result.exit_code, result.stderr.strip()) == (0, f"{catalog}: 2 texts, 1 without a translation, 0 flagged")
    catalog.write_text(CATALOG.replace('"big"', '"big %s 1234"'), encoding="utf-8")
    result = run("--check", catalog, "--json")
    assert result.exit_code == 3
    (flagged,) = json.loads(result.stdout.splitlines()[0])["flagged"]
    assert flagged["flags"] == ["numbers", "printf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.po"]


def test_output_of_one_file_is_a_file_or_a_folder(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    assert run(bundle, catalog, "-o", tmp_path / "new.po").exit_code == 0
    (tmp_path / "folder.po").mkdir()
    for folder in ("folder.po", "folder.txt"):
        assert run(bundle, catalog, "-o", tmp_path / folder).exit_code == 0
        assert (tmp_path / folder / catalog.name).read_bytes() == (tmp_path / "new.po").read_bytes()


@pytest.mark.parametrize("arguments", [["only-a-bundle"], ["bundle", "a.po", "-o", "-"], ["--check", "a.po", "-o", "out"]])
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_missing_model_and_old_format_have_the_next_command(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    assert f"such as: dragoman translate-file en-de {catalog}" in run(catalog).stderr
    (tmp_path / "letter.doc").touch()
    result = run(bundle, tmp_path / "letter.doc", "-o", tmp_path / "out")
    assert "files that end with '.doc' cannot be translated; save it as .docx (refused)" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_output_has_the_permissions_of_the_original(bundle: Path, catalog: Path, tmp_path: Path, mode: int) -> None:
    catalog.chmod(mode)
    old_mask = os.umask(0o027)
    try:
        assert run(bundle, catalog, "-o", tmp_path / "out").exit_code == 0
    finally:
        os.umask(old_mask)
    assert (tmp_path / "out" / "a.po").stat().st_mode & 0o777 == mode


def test_two_outputs_of_one_name_are_refused(bundle: Path, catalog: Path, tmp_path: Path) -> None:
    template = catalog.rename(tmp_path / "a.pot")
    catalog.write_text(CATALOG, encoding="utf-8")
    for arguments in ((template, catalog), (catalog, "--report", tmp_path / "out" / "a.po")):
        result = run(bundle, *arguments, "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert "would be written as a.po" in result.output
    assert not (tmp_path / "out").exists()


def make_project(root: Path) -> Path:
    """Return a folder with files to translate, and with others."""
    folder = root / "docs"
    files = {
        "a.po": CATALOG.encode(), "guide/b.txt": b"one two\n", "guide/deep/c.JSON": b'{"a": "one two"}',
        "bad.json": b"{", "picture.png": b"\x89PNG", ".git/config.txt": b"one", "Makefile": b"all:\n", "de/a.po": b"",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link.txt").symlink_to(folder / "guide/b.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "itself.txt").symlink_to("itself.txt")
    return folder


def test_folder_is_translated_into_the_same_tree(bundle: Path, tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    output = folder / "de"
    result = run(bundle, folder, "-o", output, "--json", "--overwrite", "--report", folder / "report.html")
    assert result.exit_code == 4, result.output
    assert "Traceback" not in result.output
    reports = {
        report["file"]: report for report in map(json.loads, filter(lambda line: line[:1] == "{", result.stdout.splitlines()))
    }
    statuses = {str(Path(name).relative_to(folder)): report["status"] for name, report in reports.items()}
    assert {name for name, status in statuses.items() if status in ("ok", "flagged")} == {
        "a.po",
        "guide/b.txt",
        "guide/deep/c.JSON",
    }
    assert {name: status for name, status in statuses.items() if status not in ("ok", "flagged")} == {
        "bad.json": "refused",
        **dict.fromkeys(("picture.png", ".git", "Makefile", "link.txt", "itself.txt", "loop", "de"), "skipped"),
    }
    written = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert written == {"a.po", "guide/b.txt", "guide/deep/c.JSON"}
    assert (folder / "report.html").is_file()
    assert "3 files done, 1 refused, 7 skipped; " in result.stderr
    assert "link.txt: is a link (skipped)" in result.stderr.replace("\n", "")


def test_files_of_other_languages_beside_their_source_are_left_out(bundle: Path, tmp_path: Path) -> None:
    resources = '<resources><string name="a">one two</string></resources>'
    texts = {"json": '{"a": "one two"}', "po": CATALOG, "xml": resources, "txt": "one two\n"}
    sources = ["en.json", "texts.po", "values/a.xml", "values-night/a.xml", "docs/en/a.txt", "docs/en/fr.json", "notes.txt"]
    others = ["fr.json", "de.json", "texts.fr.po", "values-pt-rBR/a.xml", "docs/zh-Hans/b.txt", "notes.es.txt"]
    for name in (*sources, *others):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(texts[name.rpartition(".")[2]], encoding="utf-8")
    result = run(bundle, tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code in (0, 3), result.output
    written = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert written == set(sources)
    assert f"0 refused, {len(others)} skipped ({len(others)} in other languages); " in result.stderr.replace("\n", " ")
    assert "fr.po" not in result.stderr


def test_options_that_do_not_go_with_folders_are_named(bundle: Path, tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    (tmp_path / "empty").mkdir()
    for arguments, problem in (
        ((bundle, folder), "give -o DIR, or --project-names"),
        ((bundle, folder, "-o", folder), "is also the folder of -o"),
        ((bundle, folder, "-o", tmp_path / "out", "--translation-of", folder / "a.po"), "is for one file"),
        ((bundle, tmp_path / "empty", "-o", tmp_path / "out"), "holds no file that can be translated"),
    ):
        result = run(*arguments)
        assert (result.exit_code, problem in " ".join(result.output.split())) == (2, True), result.output


def test_names_of_a_project_and_checks_go_with_folders(bundle: Path, tmp_path: Path) -> None:
    for name in ("en", "fr"):
        (tmp_path / "locales" / name).mkdir(parents=True)
        (tmp_path / "locales" / name / "app.json").write_text('{"a": "one two"}', encoding="utf-8")
    result = run(bundle, tmp_path / "locales", "--project-names")
    assert result.exit_code in (0, 3), result.output
    assert (tmp_path / "locales/de/app.json").is_file()
    assert "1 file done, 0 refused, 1 skipped" in result.stderr
    check = run("--check", tmp_path / "locales", "--from", "en", "--to", "de")
    assert check.exit_code in (0, 3)
    assert "1 file done, 0 refused, 2 skipped; 1 translation checked, " in check.stderr  # the two files that are no translation
