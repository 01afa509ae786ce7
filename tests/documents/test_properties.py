"""Property files of Java and string files of Apple: escapes, continuation lines and encodings."""

from __future__ import annotations

from document_checks import check_laws

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.properties import parse_properties, parse_strings

PROPERTIES = r"""# a comment = x
! another
title = Hello\nworld
key\ with\:space:Caf\u00e9 {0}
long = one \
       two\\
empty =
bare
 spaced  \ value
number = 42
"""
STRINGS = r"""/* A "comment" */
"Open \"file\"" = "Open \"%@\"\n";
// "kept" = "kept";
plain.key = "Text";
"empty" = "";
"""


def test_units_of_properties() -> None:
    units = {unit.context: unit.source for unit in check_laws(parse_properties, PROPERTIES.encode()).units}
    assert units == {
        "title": "Hello\nworld",
        "key with:space": "Café {0}",
        "long": "one two\\",
        "spaced": " value",
    }


def test_units_of_strings() -> None:
    assert [unit.source for unit in check_laws(parse_strings, STRINGS.encode()).units] == ['Open "%@"\n', "Text"]


def test_carriage_return_ends_a_line_among_others() -> None:
    content = b"a=x\nb=one \\\r  two\rc=y"
    assert [(unit.key, unit.source) for unit in parse_properties(content).units] == [("a", "x"), ("b", "one two"), ("c", "y")]


def test_letters_are_escaped_if_the_file_needs_it() -> None:
    texts = {"0": UnitTranslation("é🐉")}
    assert write_document(parse_properties(b"a = x"), texts) == rb"a = \u00e9\ud83d\udc09"
    assert write_document(parse_properties("a = ü".encode("latin-1")), texts) == b"a = \xe9\\ud83d\\udc09"
    assert write_document(parse_properties("a = ü".encode()), texts) == "a = é🐉".encode()
