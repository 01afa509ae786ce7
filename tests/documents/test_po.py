"""PO files: units, flags, plural forms and wrapping."""

from __future__ import annotations

import os
from pathlib import Path

import polib
import pytest
from document_checks import check_laws
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import po
from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.translation_memory import MemoryMatch

HEADER = (
    'msgid ""\nmsgstr ""\n"Language: ru\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : 1);\\n"\n\n'
)
CATALOG = (
    HEADER
    + """#. A note
#: a.py:1
#, python-format
msgid "Delete %s?"
msgstr ""

#, fuzzy
#| msgid "Opened"
msgid "Open"
msgstr "Alt"

#, fuzzy, c-format
msgctxt "menu"
msgid ""
"First line\\n"
"second \\"line\\"\\n"
msgstr "Zeile\\n"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "Gone"
#~ msgstr "Weg"
"""
)


def test_units_have_state_and_plural_forms() -> None:
    document = check_laws(po.parse, CATALOG.encode())
    assert {unit.id: (unit.source, unit.target, unit.state) for unit in document.units} == {
        "1": ("Delete %s?", "", "untranslated"),
        "2": ("Open", "Alt", "fuzzy"),
        "3": ('First line\nsecond "line"\n', "Zeile\n", "fuzzy"),
        "4[0]": ("%d file", "", "untranslated"),
        "4[1]": ("%d files", "", "untranslated"),
        "4[2]": ("%d files", "", "untranslated"),
    }
    assert document.target_language == "ru"


def test_singular_without_number_is_not_used_for_21() -> None:
    units = po.parse(CATALOG.replace('%d file"', 'One file"').encode()).units
    assert [unit.source for unit in units][3:] == ["%d files"] * 3


def test_fuzzy_is_set_and_removed() -> None:
    document = po.parse(CATALOG.encode())
    states = {"1": "fuzzy", "2": "translated", "3": "translated", "4[0]": "translated", "4[1]": "fuzzy"}
    translations = {name: UnitTranslation(f"T{name}\n" if name == "3" else f"T{name}", state) for name, state in states.items()}  # type: ignore[arg-type]
    written = write_document(document, translations).decode()
    assert '#, fuzzy, python-format\nmsgid "Delete' in written
    assert '\n\nmsgid "Open"\nmsgstr "T2"\n' in written  # the previous source belongs to the old translation
    assert '\n\n#, c-format\nmsgctxt "menu"' in written
    assert '#, fuzzy\nmsgid "%d file"' in written
    assert written.endswith('#~ msgid "Gone"\n#~ msgstr "Weg"\n')
    assert [entry.fuzzy for entry in polib.pofile(written)] == [True, False, False, True, False]


def test_source_of_a_similar_text_is_written_as_previous() -> None:
    match = MemoryMatch("Opened\nfile", "T", 0.9)
    texts = {"2": UnitTranslation("T", "fuzzy", match=match), "4[0]": UnitTranslation("T", "fuzzy", match=match)}
    written = write_document(po.parse(CATALOG.encode()), texts).decode()
    previous = '#, fuzzy\n#| msgid ""\n#| "Opened\\n"\n#| "file"\nmsgid "'
    assert previous + 'Open"' in written
    assert previous + '%d file"' in written
    assert polib.pofile(written).find("Open").previous_msgid == "Opened\nfile"


def test_long_translation_is_wrapped_as_the_file_is() -> None:
    text = "word " * 40 + "end"
    written = write_document(po.parse(CATALOG.encode()), {"1": UnitTranslation(text)}).decode()
    assert max(map(len, written.splitlines())) <= 79
    long_line = CATALOG + f'\nmsgid "{text}"\nmsgstr ""\n'
    assert f'msgstr "{text}"' in write_document(po.parse(long_line.encode()), {"1": UnitTranslation(text)}).decode()


# polib reads other line breaks of Unicode, such as U+001E, as ends of lines.
LETTERS = st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp"), include_characters="\n\t")


@given(st.lists(st.tuples(st.text(LETTERS, min_size=1), st.text(LETTERS)), max_size=4))
def test_texts_are_those_of_polib(pairs: list[tuple[str, str]]) -> None:
    catalog = polib.POFile(wrapwidth=40)
    catalog.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    for number, (source, target) in enumerate(pairs):
        catalog.append(polib.POEntry(msgctxt=str(number), msgid=source, msgstr=target))
    document = po.parse(str(catalog).encode())
    assert [(unit.source, unit.target) for unit in document.units] == pairs


def test_catalog_in_ascii_with_other_letters_states_utf_8() -> None:
    content = CATALOG.replace("UTF-8", "us-ascii").encode()
    assert write_document(po.parse(content), {"1": UnitTranslation("x", "translated")}).count(b"charset=us-ascii") == 1
    assert b"charset=UTF-8" in write_document(po.parse(content), {"1": UnitTranslation("\u00fc", "translated")})


@pytest.mark.parametrize(("charset", "text"), [("ISO-8859-1", "Открыть"), ("KOI8-R", "Öffnen")])
def test_catalog_becomes_utf_8_if_its_encoding_lacks_a_character(charset: str, text: str) -> None:
    header, entries = CATALOG.split("\n\n", 1)
    catalog = f'{header.replace("UTF-8", charset)}\n\nmsgid "Close"\nmsgstr "Ё"\n\n{entries}'
    document = po.parse(catalog.encode(charset, "replace"))
    assert f"charset={charset}".encode() in write_document(document, {"2": UnitTranslation("Open")})
    written = write_document(document, {"2": UnitTranslation(text)})
    check_written(document, {"2": UnitTranslation(text)}, written, po.parse)
    assert b"charset=UTF-8" in written
    assert [unit.target for unit in po.parse(written).units][:2] == [document.units[0].target, text]


@pytest.mark.slow
def test_catalogs_of_django_obey_the_laws() -> None:
    django = pytest.importorskip("django")
    paths = sorted(Path(os.path.dirname(django.__file__)).rglob("*.po"))
    assert len(paths) > 100
    for path in paths:
        check_laws(po.parse, path.read_bytes())
