"""Tests of sentences for flags, of counts, and of the page of the texts to check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.documents.document import Unit
from dragoman.documents.file_report import FileReport, FlaggedText, describe, report_translation
from dragoman.documents.reasons import _SENTENCES, describe_flags
from dragoman.documents.review_page import render_review
from dragoman.documents.subtitles import SubtitleLimits
from dragoman.documents.translate_document import _FAILED_STATUSES, DocumentOptions, UnitResult, check_unit
from dragoman.documents.translate_file import FileTranslation
from dragoman.text.code_check import CodeFlag
from dragoman.text.glossary import GlossaryEntry
from dragoman.text.guards import Check

PO = """msgid ""
msgstr "Language: de\\nContent-Type: text/plain; charset=UTF-8\\n"

#, c-format
msgid "Deleted %d files in 17 folders"
msgstr "%s Dateien in 18 Ordnern gelöscht"

msgid "in %d seconds"
msgstr "in %d"

msgid "Open <the> file"
msgstr "Öffne die Datei"

msgid "Close"
msgstr ""
"""


def test_each_flag_has_a_sentence() -> None:
    flags = {*get_args(Check), *get_args(CodeFlag), *_FAILED_STATUSES, "newlines", "max_length", "unwritable"}
    assert _SENTENCES.keys() == {*flags, *SubtitleLimits(1, 0.1).check("a\nb\nc", 1.0)}


def test_sentences_name_codes_and_limits() -> None:
    unit = Unit("1", "Deleted %d files", markup="none", max_length=5)
    assert describe_flags(unit, "%s Dateien", ("printf", "max_length")) == (
        "the translation lacks %d and has too many %s; the translation is longer than the 5 characters that the file allows"
    )
    assert describe_flags(unit, "%d Dateien", ()) == ""


@pytest.mark.parametrize(
    ("source", "translation", "flags"),
    [
        ("in %d seconds", "in %d", ("length",)),
        ("in %d seconds", "in %d Sek.", ()),
        ("Error: %s", "%s", ()),
        ("Please wait", "Bitte", ()),
        ("?list: %s and %s", "%s, %s", ("length",)),
    ],
)
def test_text_that_loses_its_words_is_flagged(source: str, translation: str, flags: tuple[str, ...]) -> None:
    options = DocumentOptions("en", "de")
    assert check_unit(Unit("1", source), translation, options) == flags
    assert check_unit(Unit("1", source), translation, DocumentOptions("en", "zh")) == ()


def test_report_shows_reasons_and_counts(tmp_path: Path) -> None:
    file, page = tmp_path / "a.po", tmp_path / "review.html"
    file.write_text(PO)
    result = CliRunner().invoke(cli, ["translate-file", "--check", str(file), "--report", str(page), "--json"])
    assert result.exit_code == 3, result.output
    flagged = json.loads(result.stdout)["flagged"]
    lost = "the translation is much shorter or longer than is usual for its source"
    assert [text["note"] for text in flagged] == [
        "the translation lacks %d and has too many %s; a number of the source is missing",
        lost,
        "the translation lacks <the>",
    ]
    assert f"a.po: 'in %d seconds': {lost}" in result.stderr
    content = page.read_text(encoding="utf-8")
    assert f'<td dir="auto">in %d</td><td dir="auto">{lost}</td>' in content
    assert "%s Dateien in 18 Ordnern gelöscht" in content


def test_missing_term_and_untranslated_text_are_named_once() -> None:
    unit = Unit("1", "Restart the server.")
    entries = [GlossaryEntry("server", ("Rechner", "Dienst")), GlossaryEntry("dragoman", do_not_translate=True)]
    assert describe_flags(unit, "Neu starten.", ("terminology",), entries) == (
        "'server' is not translated as 'Rechner' or 'Dienst', 'dragoman' is not translated as 'dragoman', "
        "which the glossary requires"
    )
    stays = "the source is in the target language already, so the text stays as it is"
    assert describe_flags(unit, unit.source, ("untranslated", "target_language")) == stays


def test_page_escapes_what_files_hold() -> None:
    text = FlaggedText("1", "<place>", "<b>a</b>", "", ("length",), "too <short>")
    page = render_review([FileReport("<file>.po", "flagged", flagged=[text]), FileReport("b.po", "refused", error="b.po: no")])
    assert "<b>" not in page
    assert "too &lt;short&gt;" in page
    assert "stays as it is" in page


def test_text_of_the_target_language_is_left() -> None:
    units = [Unit("1", "Anleitung"), Unit("2", "Manual")]
    results = [
        UnitResult(units[0], "Anleitung", "model", ("untranslated", "target_language")),
        UnitResult(units[1], "Anleitung", "model", ()),
    ]
    report = report_translation(FileTranslation(Path("a.md"), Path("b.md"), "markdown", 2, results))
    assert (report.translated, report.left) == (1, 1)


def test_last_line_counts_all_texts() -> None:
    skipped = {"names of sheets": 2, "texts in formulas": 1}
    report = FileReport("a.po", "ok", "a.de.po", "po", texts=9, translated=5, for_review=4, kept=3, left=1, skipped=skipped)
    (line,) = describe(report)
    fuzzy = "4 fuzzy, which msgfmt leaves out (see --accept)"
    assert line.startswith(f"a.po: 5 of 9 texts translated into a.de.po, {fuzzy}, 3 kept, 1 left, ")
    assert "not translated: names of sheets (2), texts in formulas (1)" in line
