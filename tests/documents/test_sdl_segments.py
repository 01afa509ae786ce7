"""SDLXLIFF: segments with states, targets that are missing, and segments that are locked."""

from __future__ import annotations

from document_checks import check_laws

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.translation_memory import MemoryMatch
from dragoman.documents.xliff_document import parse_xliff

FILE = """\ufeff<?xml version="1.0" encoding="utf-8"?>
<xliff xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0" xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2" \
sdl:version="1.0">
<file original="a.docx" source-language="en-US" datatype="x-sdlfilterframework2" target-language="de-DE"><body>
<trans-unit id="s" translate="no"><source>Structure</source></trans-unit>
<trans-unit id="u1">
  <source><g id="1">First sentence. Second &amp; <x id="2"/> third.</g></source>
  <seg-source><g id="1"><mrk mtype="seg" mid="1">First sentence.</mrk> \
<mrk mtype="seg" mid="2">Second &amp; <x id="2"/> third.</mrk></g></seg-source>
  <sdl:seg-defs><sdl:seg id="1" conf="Draft" percent="80" text-match="Source"/><sdl:seg id="2"/></sdl:seg-defs>
</trans-unit>
<trans-unit id="u2">
  <source>Old. Kept. New.</source>
  <seg-source><mrk mtype="seg" mid="3">Old.</mrk> <mrk mtype="seg" mid="4">Kept.</mrk> <mrk mtype="seg" mid="5">New.</mrk>\
</seg-source>
  <target><mrk mtype="seg" mid="3">Alt.</mrk> <mrk mtype="seg" mid="4">Bleibt.</mrk> <mrk mtype="seg" mid="5"/></target>
  <sdl:seg-defs><sdl:seg id="3" conf="ApprovedSignOff"/><sdl:seg id="4" locked="true"/><sdl:seg id="5"/></sdl:seg-defs>
</trans-unit>
</body></file></xliff>
"""


def test_segments_have_their_own_states() -> None:
    document = check_laws(parse_xliff, FILE.encode())
    assert [(unit.id, unit.source, unit.target, unit.state) for unit in document.units] == [
        ("u1/1", "First sentence.", "", "untranslated"),
        ("u1/2", "Second &amp; <x1/> third.", "", "untranslated"),
        ("u2/3", "Old.", "Alt.", "translated"),
        ("u2/4", "Kept.", "Bleibt.", "locked"),
        ("u2/5", "New.", "", "untranslated"),
    ]
    assert (document.source_language, document.target_language) == ("en-US", "de-DE")


def test_missing_target_gets_the_segments_of_the_source() -> None:
    document = parse_xliff(FILE.encode())
    match = MemoryMatch("Second.", "Zweites", 0.92)
    written = write_document(
        document,
        {
            "u1/2": UnitTranslation("Zweites &amp; <x1/> drittes.", "fuzzy", match=match),
            "u2/5": UnitTranslation("Neu & gut."),
        },
    ).decode()
    expected = FILE.replace(
        '</seg-source>\n  <sdl:seg-defs><sdl:seg id="1"',
        '</seg-source>\n  <target><g id="1"><mrk mtype="seg" mid="1"></mrk> <mrk mtype="seg" mid="2">Zweites &amp; <x id="2"/> '
        'drittes.</mrk></g></target>\n  <sdl:seg-defs><sdl:seg id="1"',
    )
    expected = expected.replace('<sdl:seg id="2"/>', '<sdl:seg id="2" conf="Draft" origin="tm" percent="92"/>')
    expected = expected.replace('mid="5"/></target>', 'mid="5">Neu &amp; gut.</mrk></target>')
    assert written == expected.replace('<sdl:seg id="5"/>', '<sdl:seg id="5" conf="Translated" origin="mt"/>')
