"""Catalogs with plural forms as Ruby's i18n and Qt's lrelease read them, and subtitles as ffmpeg reads them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from document_checks import make_stub

from dragoman.documents.document import Unit, UnitTranslation, add_plural_forms, write_document
from dragoman.documents.plural_rules import list_qt_forms
from dragoman.documents.qt_ts import parse_qt_ts
from dragoman.documents.subtitles import parse_srt, parse_vtt
from dragoman.documents.translate_document import DocumentOptions, translate_document
from dragoman.documents.yaml_file import parse as parse_yaml

pytestmark = pytest.mark.slow

# Each form names its category, and Ruby gets the rule of CLDR from Babel for the numbers that are asked.
RAILS = b"en:\n  inbox:\n    one: one message\n    other: '%{count} messages'\n  title: Inbox\n"
RUBY = """
require "i18n"
require "json"
language, path, categories = ARGV
rule = JSON.parse(categories)
I18n::Backend::Simple.include(I18n::Backend::Pluralization)
form = ->(n) { rule[n.to_s].to_sym }
plural = { keys: rule.values.uniq.map(&:to_sym), rule: form }
I18n.backend.store_translations(language.to_sym, i18n: { plural: plural })
I18n.load_path << path
I18n.enforce_available_locales = false
puts rule.keys.map { |n| I18n.t("inbox", count: n.to_i, locale: language.to_sym, raise: true) }.to_json
"""
TS = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="{}" sourcelanguage="en"><context><name>A</name>
<message numerus="yes"><source>%n day(s)</source><translation type="unfinished"><numerusform/></translation></message>
<message><source>Open &amp;file</source><translation type="unfinished"/></message>
</context></TS>
"""
SRT = (
    "1\n00:00:01,000 --> 00:00:03,000\n<i>Open the door</i>\nof the house.\n\n"
    "2\n00:00:04,000 --> 00:00:06,500\n- Come in.\n- Thank you.\n"
)
VTT = (
    "WEBVTT - Words\n\nNOTE no text\n\nfirst\n00:01.000 --> 00:03.000 align:start\n"
    "<v Ann>Open the <c.red>door</c></v>\n\n00:04.000 --> 00:06.500\nCome <00:05.000>in &amp; out.\n"
)


def name_form(unit: Unit) -> UnitTranslation:
    """Return a translation that names its plural form, with the codes of the source."""
    codes = re.findall(r"%\{count\}|%n", unit.source)
    return UnitTranslation(" ".join([unit.plural_form, *codes]).strip() or "ü")


@pytest.mark.parametrize("language", ["ru", "pl", "ar"])
def test_ruby_finds_the_form_of_each_number(language: str, tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "ruby -e 'require \"i18n\"'"], capture_output=True, check=False).returncode:
        pytest.skip("Ruby's i18n is not installed")
    rule = pytest.importorskip("babel").Locale.parse(language).plural_form
    categories = {number: rule(number) for number in (0, 1, 2, 5, 11, 21, 100)}
    document = add_plural_forms(parse_yaml(RAILS), parse_yaml, language)
    translations = {unit.id: name_form(unit) for unit in document.units}
    path = tmp_path / f"{language}.yml"
    path.write_bytes(write_document(document, translations, language))
    command = ["ruby", "-e", RUBY, language, str(path), json.dumps(categories)]
    texts = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for (number, category), text in zip(categories.items(), texts, strict=True):
        assert text.split() in ([category], [category, str(number)])


@pytest.mark.skipif(not shutil.which("lrelease"), reason="lrelease of Qt is not installed")
@pytest.mark.parametrize("language", ["ja", "ru", "ar"])
def test_lrelease_takes_all_forms(language: str, tmp_path: Path) -> None:
    document = add_plural_forms(parse_qt_ts(TS.format(language).encode()), parse_qt_ts, language)
    path = tmp_path / "a.ts"
    path.write_bytes(write_document(document, {unit.id: name_form(unit) for unit in document.units}, language))
    command = ["lrelease", str(path), "-qm", str(tmp_path / "a.qm")]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "Generated 2 translation(s) (2 finished and 0 unfinished)" in run.stdout
    assert "warning" not in (run.stdout + run.stderr).lower()
    compiled = (tmp_path / "a.qm").read_bytes()
    assert all(f"{form} %n".encode("utf-16-be") in compiled for form in list_qt_forms(language))


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")
def test_ffmpeg_reads_translated_subtitles(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, text, parse in (("a.srt", SRT, parse_srt), ("a.vtt", VTT, parse_vtt)):
        with subtests.test(name):
            result = translate_document(parse(text.encode()), parse, make_stub(str.upper), DocumentOptions("en", "de"))
            outputs = []
            for folder, content in (("old", text.encode()), ("new", result.content)):
                (tmp_path / folder).mkdir(exist_ok=True)
                (tmp_path / folder / name).write_bytes(content)
                command = ["ffmpeg", "-v", "error", "-i", name, "-f", "webvtt", "-"]
                run = subprocess.run(command, cwd=tmp_path / folder, check=True, capture_output=True, text=True)
                assert not run.stderr
                outputs.append(run.stdout)
            old, new = ([line for line in output.splitlines() if "-->" in line] for output in outputs)
            assert old == new
            assert len(new) == 2
            assert [" ".join(output.upper().split()) for output in outputs[:1]] == [" ".join(outputs[1].upper().split())]
            assert "OPEN THE" in outputs[1]
