"""Fluent files: patterns, attributes, selectors, added variants, and files that are none."""

from __future__ import annotations

import pytest
from document_checks import check_document, translate_content

from dragoman.documents.document import UnitTranslation, add_plural_forms, write_document
from dragoman.documents.fluent import parse_ftl
from dragoman.documents.reading import ended_by
from dragoman.documents.translate_document import DocumentOptions

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
    document = check_document(parse_ftl, FILE.encode())
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


def test_blank_line_of_a_text_has_no_spaces() -> None:
    document = parse_ftl(b"a =\n  x\n\n  y\n")
    assert write_document(document, {document.units[0].id: UnitTranslation("p\n\nq")}) == b"a =\n  p\n\n  q\n"


def test_arrow_outside_of_braces_is_a_text() -> None:
    document = parse_ftl(b'a = File -> Open { $x }\nb = { "->" } c\nd = e { $n ->\n    [one] f\n   *[other] g\n}\n')
    assert [unit.source for unit in document.units] == ["File -> Open { $x }", '{ "->" } c']


def test_line_that_would_be_syntax_is_a_placeable() -> None:
    document = parse_ftl(b"a = One\n    two\nb = Three\n")
    translations = {"0": UnitTranslation("One\n[two]\n.three\n*four"), "1": UnitTranslation("[x] y")}
    written = write_document(document, translations).decode()
    assert written == 'a = One\n    {"["}two]\n    {"."}three\n    {"*"}four\nb = [x] y\n'


def test_attributes_of_terms_stay() -> None:
    """They are private, and messages select by them: https://projectfluent.org/fluent/guide/terms.html"""
    document = parse_ftl(b"-brand = Red House\n    .gender = male\nopen = Open\n    .title = Window\n")
    assert [unit.source for unit in document.units] == ["Red House", "Open", "Window"]


MIXED = """\
a = You have { $n ->
        [0] no message
        [one] one message
       *[other] { $n } messages
    } in { $folder }.
b =
    First line { $n ->
        [one] one
       *[other]
            many
              lines
    } and { $n ->
        [one] is
       *[other] are
    }
      indented.
    Third line.
c = { $folder ->
    [one] [x] of
   *[other] { $n ->
        [one] a file
       *[other] { $n } files
    } in
} the { NUMBER($n,
    minimumFractionDigits: 1) } house
    .title = { $n ->
        [one] One { $folder }
       *[other] { $n } of { $folder ->
            [home] home
           *[town] { "}" } town
        } now
    }
-term = { $case ->
   *[plain] Fire
    [other] Water
}fox { $case ->
    [other] it is
   *[plain] it was
}
d = { -term } and { -term(case: "other") }
"""


def test_selectors_inside_texts_become_sentences() -> None:
    document = parse_ftl(MIXED.encode())
    assert document.skipped == {"messages with a selector inside a text": 5}
    document = add_plural_forms(document, parse_ftl, "pl")
    assert not document.skipped
    assert document.content.decode().startswith(
        "a = { $n ->\n    [0] You have no message in { $folder }.\n    [one] You have one message in { $folder }.\n"
        "    [few] You have { $n } messages in { $folder }.\n    [many] You have { $n } messages in { $folder }.\n"
        "   *[other] You have { $n } messages in { $folder }.\n}\nb =\n    { $n ->\n        [one]\n"
        "            First line one and is\n              indented.\n            Third line.\n"
    )
    units = {unit.key: (unit.source, unit.plural_form) for unit in document.units}
    assert units["a[few]"] == ("You have { $n } messages in { $folder }.", "few")
    assert units["b[few]"] == ("First line many\n  lines and are\n  indented.\nThird line.", "few")
    assert units["c[other.few]"] == (
        "{ $n } files in the { NUMBER($n, minimumFractionDigits: 1) } house", "few",
    )  # fmt: skip
    assert units["c.title[other.home]"] == ("{ $n } of home now", "other")
    assert units["-term[other]"] == ("Waterfox it is", "other")
    assert add_plural_forms(document, parse_ftl, "pl") is document


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_sentences_have_the_results_of_the_original(newline: str) -> None:
    """Fluent's own library gives the same text for each number and place."""
    runtime = pytest.importorskip("fluent.runtime")

    def list_results(content: bytes) -> list[str]:
        bundle = runtime.FluentBundle(["en"], use_isolating=False)
        bundle.add_resource(runtime.FluentResource(content.decode().replace("\r\n", "\n")))
        results = []
        for name in "abcd":
            message = bundle.get_message(name)
            for pattern in (message.value, *message.attributes.values()):
                for number in (0, 1, 2, 5, 21, 1.5):
                    for folder in ("home", "one", "Work"):
                        text, errors = bundle.format_pattern(pattern, {"n": number, "folder": folder})
                        assert not errors
                        results.append(text)
        return results

    content = MIXED.replace("\n", newline).encode()
    original = list_results(content)
    assert "You have no message in home." in original
    assert len(original) == 90
    for language in ("en", "pl", "ar"):
        document = add_plural_forms(parse_ftl(content), parse_ftl, language)
        assert list_results(document.content) == original
        translations = {unit.id: UnitTranslation(unit.source) for unit in document.units}
        assert list_results(write_document(document, translations)) == original


def test_forms_are_translated_with_their_numbers() -> None:
    """Polish has `few` for 2 and `many` for 5: https://www.unicode.org/cldr/charts/latest/supplemental/language_plural_rules.html"""
    content = b"a = Has { $n ->\n    [one] { $n } file\n   *[other] { $n } files\n} now\n"
    numbers = {"Has 1 file now": "1 plik", "Has 2 files now": "2 pliki", "Has 5 files now": "5 x"}
    result = translate_content("a.ftl", content, lambda text: numbers.get(text, text), DocumentOptions("en", "pl"))
    assert result.content == (
        b"a = { $n ->\n    [one] { $n } plik\n    [few] { $n } pliki\n    [many] { $n } x\n"
        b"   *[other] Has { $n } files now\n}\n"
    )


def test_too_many_sentences_are_counted() -> None:
    plural = "{{ ${} ->\n    [one] x\n   *[other] y\n}}"
    two, three = (" and ".join(plural.format(name) for name in names) for names in ("ab", "abc"))
    deep = "{ $a ->\n   *[b] c " * 30 + "}" * 30
    reason = "messages whose selectors give more than 36 sentences or hold others that are not read"
    for text, number in ((two, 0), (three, 1), (plural.format("a") + "z" * 10_000, 1), (f"x {deep}", 1)):
        document = add_plural_forms(parse_ftl(f"a = {text} z\nb = Text\n".encode()), parse_ftl, "ar")
        assert document.skipped == ({reason: 1} if number else {})
        assert len(document.units) == (1 if number else 37), "two plurals have 6 * 6 sentences in Arabic"


def test_calls_of_terms_and_functions_stay() -> None:
    calls = '{ -brand(case: "genitive (old)") }', '{ DATE_TIME($d, style: "long (x)") }', "{ NUMBER($n, digits: 2) }"
    result = translate_content("a.ftl", f"a = Open {calls[0]} at {calls[1]} with {calls[2]} files\n")
    assert result.content.decode() == f"a = OPEN {calls[0]} AT {calls[1]} WITH {calls[2]} FILES\n"
