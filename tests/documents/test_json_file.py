"""JSON files: dialects, escapes and comments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from document_checks import check_laws
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import json_file
from dragoman.documents.document import UnitTranslation, add_plural_forms, write_document
from dragoman.errors import DataError

FILE = r"""{
  // a comment
  "greeting" : "Hello, {{name}}!",
  "menu": { "open": "Open \"file\"\n", "count": 3, "none": "42", "list": ["One", "Two", null,] },
  /* more */ "items_one": "{{count}} item", "html": "<b>x<\/b>",
  "icu": "{count, plural, one {a file} other {files}}"
}
"""


def read_units(text: str) -> dict[str, str]:
    return {unit.context: unit.source for unit in check_laws(json_file.parse, text.encode()).units}


def test_units_are_values_with_letters() -> None:
    assert read_units(FILE) == {
        "greeting": "Hello, {{name}}!",
        "menu.open": 'Open "file"\n',
        "menu.list.0": "One",
        "menu.list.1": "Two",
        "items_one": "{{count}} item",
        "html": "<b>x</b>",
        "icu": "{count, plural, one {a file} other {files}}",
    }


def test_notes_for_translators_are_kept_and_locale_changes() -> None:
    arb = {"@@locale": "en", "title": "A title", "@title": {"description": "A note"}}
    assert read_units(json.dumps(arb)) == {"title": "A title"}
    document = json_file.parse(json.dumps(arb).encode())
    written = write_document(document, {unit.id: UnitTranslation("Título") for unit in document.units}, "pt-BR")
    assert json.loads(written) == arb | {"@@locale": "pt_BR", "title": "Título"}
    chrome = {"name": {"message": "A name", "description": "A note", "placeholders": {"a": {"content": "$1"}}}}
    assert read_units(json.dumps(chrome)) == {"name.message": "A name"}


def test_file_in_ascii_stays_in_ascii() -> None:
    document = json_file.parse(rb'{"a": "\u00e9t\u00e9", "b": "x"}')
    assert write_document(document, {"1": UnitTranslation("é🐉")}) == rb'{"a": "\u00e9t\u00e9", "b": "\u00e9\ud83d\udc09"}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
    max_leaves=12,
)


def list_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if any(map(str.isalpha, value)) else []
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in parts for text in list_texts(part)]


@given(
    st.lists(JSON, max_size=4) | st.dictionaries(st.text("abc", max_size=5), JSON, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_texts_are_those_of_the_json_module(value: Any, is_ascii: bool, indent: int | None) -> None:
    content = json.dumps([value], ensure_ascii=is_ascii, indent=indent).encode()
    document = json_file.parse(content)
    keyed = {unit.source for unit in document.units}
    assert {text for text in keyed if any(map(str.isalpha, text))} <= set(list_texts(value))
    check_laws(json_file.parse, content)


@pytest.mark.parametrize("numbers", ["1", "1 ,\n\t-2.5e3, null,true", '{"b":1, "c" : null}'])
def test_numbers_between_texts_count(numbers: str) -> None:
    """Numbers are read many at a time. The context of a text in a list has its number."""
    document = json_file.parse(f'{{"k": [{numbers}, "Hi", 3, "you"], "a": 1, "b": 2, "c": "it", "d": 4}}'.encode())
    first = len(json.loads(f"[{numbers}]"))
    assert [unit.context for unit in document.units] == [f"k.{first}", f"k.{first + 2}", "c"]
    assert check_error(b'{"a": 1, "b": 2 "c": 3}') == check_error(b"[1, 2 3]") == "invalid-format"


def check_error(content: bytes) -> str:
    with pytest.raises(DataError) as caught:
        json_file.parse(content)
    return caught.value.code


JSON5 = r"""// comment
{
  title: 'It\'s "new"', $ok_1: "a 'b'", 'quoted key': 'one\
 two', more: {deep: ["x y", .5, +1, 0xFF, Infinity, -NaN, 'end',],},
  escapes: 'caf\xe9 \u00e9 \v\q', items_one: '{{count}} item', items_other: '{{count}} items', /* last */
}
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_json5_is_read_and_written_in_its_own_style(encoding: str) -> None:
    document = check_laws(json_file.parse_json5, JSON5.encode(encoding))
    assert {unit.key: unit.source for unit in document.units} == {
        "title": "It's \"new\"", "$ok_1": "a 'b'", "quoted key": "one two", "more.deep.0": "x y", "more.deep.6": "end",
        "escapes": "café é \vq", "items_one": "{{count}} item", "items_other": "{{count}} items",
    }  # fmt: skip
    written = write_document(document, {document.units[0].id: UnitTranslation("\\ ' \" \n é")})
    assert written.decode(encoding) == JSON5.replace('It\\\'s "new"', "\\\\ \\' \" \\n \\u00e9")


def test_json5_has_plural_forms_with_keys_like_the_others() -> None:
    document = add_plural_forms(json_file.parse_json5(JSON5.encode()), json_file.parse_json5, "pl")
    assert b"items_few: '{{count}} items', items_many: '{{count}} items', items_other:" in document.content


def test_json5_package_reads_the_same_texts() -> None:
    json5 = pytest.importorskip("json5", reason="the package json5 is not installed")
    document = json_file.parse_json5(JSON5.encode())
    translations = {unit.id: UnitTranslation(f"«'{unit.source}'\\»") for unit in document.units}
    values = json5.loads(write_document(document, translations).decode())
    assert values["title"] == "«'It's \"new\"'\\»"
    assert values["more"]["deep"][0] == "«'x y'\\»"


@pytest.mark.parametrize("text", [r"The \ud83d cat", r"The \\ud83d cat", r"The \\\ud83d cat", r"A \ud83d\ude00 and \udc00 é"])
def test_halves_of_surrogate_pairs_stay(text: str) -> None:
    document = json_file.parse(f'{{"a": "{text}"}}'.encode())
    written = write_document(document, {"0": UnitTranslation(document.units[0].source + "!")})
    assert json.loads(written)["a"] == json.loads(f'"{text}"') + "!"
