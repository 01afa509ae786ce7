"""Fluent files: patterns, attributes, selectors, added variants, and files that are none."""

from __future__ import annotations

from document_checks import check_document

from dragoman.documents.document import UnitTranslation, add_plural_forms, check_written, write_document
from dragoman.documents.fluent import parse_ftl
from dragoman.documents.reading import ended_by
from expected_errors import raises_code

FILE = """\
# A comment
### Another one

-brand = Firefox
hello = Hello, { $user }!
empty =
    .label = A label
    .title = { -brand } title
long =
    First line
      indented line

    last line
files =
    { $count ->
        [0] No file
        [one] One file
       *[other] { $count } files in { $place ->
            [home] the house
           *[other] a town
        }
    }
choice = { PLATFORM() ->
    [macos] Open "{ "{" }" settings
   *[other] Open options
}
key = Press { "}" } now
"""


def test_patterns_and_variants_are_texts() -> None:
    document = check_document(parse_ftl, FILE.encode(), is_bilingual=False)
    assert [(unit.key, unit.source) for unit in document.units] == [
        ("-brand", "Firefox"),
        ("hello", "Hello, { $user }!"),
        ("empty.label", "A label"),
        ("empty.title", "{ -brand } title"),
        ("long", "First line\n  indented line\n\nlast line"),
        ("files[0]", "No file"),
        ("files[one]", "One file"),
        ("choice[macos]", 'Open "{ "{" }" settings'),
        ("choice[other]", "Open options"),
        ("key", 'Press { "}" } now'),
    ]
    assert document.skipped == {"messages with a selector inside a text": 1}


def test_variants_of_the_language_are_added() -> None:
    content = b"a = { $n ->\n    [one] { $n } file\n   *[other] { $n } files\n}\nb = Text\n"
    document = add_plural_forms(parse_ftl(content), parse_ftl, "pl")
    assert document.content == (
        b"a = { $n ->\n    [one] { $n } file\n   [few] { $n } files\n   [many] { $n } files\n   *[other] { $n } files\n}\n"
        b"b = Text\n"
    )
    assert [unit.plural_form for unit in document.units] == ["one", "few", "many", "other", ""]


def test_blank_lines_in_a_variant_are_one_step() -> None:
    def count_steps(content: str) -> int:
        calls: list[None] = []
        with ended_by(lambda: calls.append(None)):
            parse_ftl(content.encode())
        return len(calls)

    content = "a = { $n ->\n    [one] b{}   *[other] c\n}\n"
    assert count_steps(content.replace("{}", "\n" * 1000)) == count_steps(content.replace("{}", "\n")) > 5


def test_arrow_outside_of_braces_is_a_text() -> None:
    document = parse_ftl(b'a = File -> Open { $x }\nb = { "->" } c\nd = e { $n ->\n    [one] f\n   *[other] g\n}\n')
    assert [unit.source for unit in document.units] == ["File -> Open { $x }", '{ "->" } c']


def test_line_that_would_be_syntax_is_a_placeable() -> None:
    document = parse_ftl(b"a = One\n    two\nb = Three\n")
    translations = {"0": UnitTranslation("One\n[two]\n.three\n*four"), "1": UnitTranslation("[x] y")}
    written = write_document(document, translations).decode()
    assert written == 'a = One\n    {"["}two]\n    {"."}three\n    {"*"}four\nb = [x] y\n'


def test_other_content_is_refused() -> None:
    for content in (b"", b"# only a comment\n", b"no entry here\n", b"a = b\n}\n"):
        with raises_code("invalid-format"):
            parse_ftl(content)


def test_written_texts_are_read_again() -> None:
    document = parse_ftl(FILE.encode())
    translations = {unit.id: UnitTranslation(f"{unit.source} mehr\nund mehr") for unit in document.units}
    check_written(document, translations, write_document(document, translations), parse_ftl)


def test_attributes_of_terms_stay() -> None:
    """They are private, and messages select by them: https://projectfluent.org/fluent/guide/terms.html"""
    document = parse_ftl(b"-brand = Red House\n    .gender = male\nopen = Open\n    .title = Window\n")
    assert [unit.source for unit in document.units] == ["Red House", "Open", "Window"]
