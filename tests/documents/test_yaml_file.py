"""YAML files: scalars of each style, and the language key of Rails."""

from __future__ import annotations

import pytest

pytest.importorskip("ruamel.yaml")

from document_checks import check_laws
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import yaml_file
from dragoman.documents.document import UnitTranslation, check_written, write_document

FILE = """# a comment
en:
  plain: Hello there # kept
  single: 'It''s %{name}'
  double: "A \\"quoted\\" text\\n"
  literal: |
    First line
      second line

    third line

  folded: >-
    Some folded
    text

    and more
  count: 42
  flag: yes
  list: [One, "Two", {a: Three}]
  anchor: &name Shared text
  alias: *name
  tagged: !!str Tagged text
  multi: several
    lines
  keep: |+
    Kept

  last: end
"""


def test_units_are_texts() -> None:
    document = check_laws(yaml_file.parse, FILE.replace("\n", "\r\n").encode())
    document = check_laws(yaml_file.parse, FILE.encode(), lambda text: text.replace("e", "é"))
    assert {unit.context.removeprefix("en."): unit.source for unit in document.units} == {
        "plain": "Hello there",
        "single": "It's %{name}",
        "double": 'A "quoted" text\n',
        "literal": "First line\n  second line\n\nthird line\n",
        "folded": "Some folded text\nand more",
        "list.0": "One",
        "list.1": "Two",
        "list.2.a": "Three",
        "anchor": "Shared text",
        "tagged": "Tagged text",
        "multi": "several lines",
        "keep": "Kept\n\n",
        "last": "end",
    }
    assert document.source_language == "en"


def test_styles_and_language_key_are_written() -> None:
    document = yaml_file.parse(FILE.encode())
    texts = {unit.id: UnitTranslation(unit.source.replace("e", "é")) for unit in document.units}
    written = write_document(document, texts, "fr").decode()
    assert "\nfr:\n  plain: Héllo théré # kept\n  single: 'It''s %{namé}'\n" in written
    assert (
        "  literal: |\n    First liné\n      sécond liné\n\n    third liné\n\n"
        "  folded: >-\n    Somé foldéd téxt\n\n    and moré\n" in written
    )
    assert '  list: [Oné, "Two", {a: Thréé}]\n  anchor: &name Sharéd téxt\n  alias: *name\n' in written
    assert "  flag: yes\n" in written


@given(
    st.text(st.sampled_from("ab :#-'\"\n{}[],&*!|>%@`\\?=~1é\t") | st.characters(codec="utf-8"), min_size=1, max_size=15),
    st.integers(0, 12),
)
def test_any_text_reads_as_written(text: str, number: int) -> None:
    document = yaml_file.parse(FILE.encode())
    translations = {document.units[number].id: UnitTranslation(f"{text}x{text}")}
    check_written(document, translations, write_document(document, translations), yaml_file.parse)


def test_anchor_may_be_set_again() -> None:
    """YAML 1.2.2, example 7.1, sets an anchor twice. A warning of the library would fail this test."""
    document = yaml_file.parse(b"first: &anchor Foo\nsecond: *anchor\nnew: &anchor Bar\nreuse: *anchor\n")
    assert [unit.source for unit in document.units] == ["Foo", "Bar"]


@pytest.mark.parametrize(
    ("key", "language", "written"),
    [("en", "de", "de"), ('"en"', "de", '"de"'), ("'en-US'", "nb", "'nb'"), ("en", "no", '"no"'), ("'en'", "no", "'no'")],
)
def test_root_key_is_the_language_of_the_translation(key: str, language: str, written: str) -> None:
    """A plain `no` is false in the YAML 1.1 that Ruby reads."""
    document = yaml_file.parse(f"{key}: # note\n  a: Text\n".encode())
    assert document.source_language == key.strip("'\"")
    content = write_document(document, {unit.id: UnitTranslation("Neu") for unit in document.units}, language)
    assert content.decode() == f"{written}: # note\n  a: Neu\n"
