"""YAML files with texts, such as those of Ruby on Rails: the value of each key, in the style of its scalar.

The library finds the scalars and their places; no object is made from them. A root key that is the code of a language, as in
Rails, becomes the code of the translation's language.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode
from dragoman.documents.known_layouts import find_layout
from dragoman.documents.plural_forms import CATEGORIES, KeyTree, find_plural_form, list_missing_categories
from dragoman.documents.reading import check_goes_on, check_parts, join_keys
from dragoman.errors import DataError, MissingDependencyError
from dragoman.text.unicode_forms import join_surrogates

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node, ScalarNode

MAX_DEPTH = 200
"""Most lists and maps in each other."""

_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
_PROPERTIES = re.compile(r"(?:[&!]\S*+\s++)*+")
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\n]*)?\r?\n")
# What YAML 1.1 reads as another type than a text.
_WORDS = re.compile(r"(?:y|yes|n|no|on|off|true|false|null)", re.IGNORECASE)
_PLAIN = re.compile(r"[^\W\d_](?:[^\s:#\[\]{},&*!|>'\"%@`\\=<~?-]|[-?!'%=&](?=\w)|(?<=\w)[?!']| (?=\w))*+")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(frozen=True)
class YamlScalar:
    """Text of a file.

    path: its keys
    style: `|`, `>`, a quotation mark, or empty
    key_start, key_end: place of its key; both are 0 in a list
    is_inline: whether its map is written in braces
    is_string: whether its type is that of a text
    """

    path: tuple[str, ...]
    value: str
    start: int
    end: int
    style: str
    key_start: int = 0
    key_end: int = 0
    is_inline: bool = False
    is_string: bool = True

    @property
    def is_text(self) -> bool:
        """Return whether the value is not blank, and no number or word for a truth value."""
        return self.is_string and bool(self.value.strip()) and (self.style != "" or not _WORDS.fullmatch(self.value))


def read_scalars(text: str) -> list[YamlScalar]:
    """Return the values of YAML that are texts. Raises the errors of `parse`."""
    return [scalar for root in _compose(text) for scalar in _iter_scalars(root, text) if scalar.is_text]


def _compose(text: str) -> list[Node]:
    """Return the nodes of the documents in a file. No object is made from them."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.composer import Composer
        from ruamel.yaml.error import YAMLError
    except ImportError:
        raise MissingDependencyError("ruamel.yaml", "documents", "YAML") from None
    if _UNPRINTABLE.search(text.replace("\ufeff", "").replace("\r", "")):
        raise DataError("the file has control characters, so it is no YAML", code="invalid-format")

    class CountingComposer(Composer):
        """Composer that reads no more nodes than the limits allow."""

        num_nodes = depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.num_nodes += 1
            self.depth += 1
            check_goes_on()
            check_parts(2 * self.num_nodes)  # nodes of this library are large
            if self.depth > MAX_DEPTH:
                raise DataError(f"more than {MAX_DEPTH} lists and maps are in each other", code="invalid-format")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    reader = YAML(typ="safe", pure=True)
    reader.Composer = CountingComposer
    reader.composer.warn_double_anchors = False  # YAML 1.2, section 7.1, allows an anchor to be set again
    try:
        return list(reader.compose_all(text))
    except (YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"is not YAML: {' '.join(str(error).split())[:200]}", code="invalid-format") from None


def parse(content: bytes) -> Document:
    """Return the document of a YAML file.

    Raises MissingDependencyError without ruamel.yaml, and DataError for a file that is not YAML or is a single value.
    """
    text = decode(content)
    roots = _compose(text.text)
    if not any(hasattr(root, "flow_style") for root in roots):
        raise DataError("the file has no key, so it is no YAML file with texts", code="invalid-format")
    scalars = [scalar for root in roots for scalar in _iter_scalars(root, text.text)]
    language = _find_language_key(roots)
    holds_language = find_layout([scalar.path for scalar in scalars if scalar.is_string])
    keys = KeyTree(scalar.path for scalar in scalars if scalar.is_string)
    units: list[Unit] = []
    places: dict[str, YamlScalar] = {}
    for number, scalar in enumerate(scalars):
        if scalar.is_text and (holds_language is None or holds_language(scalar.path)):
            key = join_keys(scalar.path)
            unit = Unit(str(number), scalar.value, context=key, plural_form=find_plural_form(scalar.path, keys), key=key)
            units.append(unit)
            places[unit.id] = scalar

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        scalar = places[unit.id]
        return [text.make_edit(scalar.start, scalar.end, write_scalar(text, scalar, translation.text))]

    def make_language_edits(translations: Mapping[str, UnitTranslation], code: str) -> Sequence[Edit]:
        if not code or language is None:
            return []
        return [text.make_edit(language.start, language.end, write_scalar(text, language, code))]

    def make_plural_edits(code: str) -> Sequence[Edit]:
        """Return the edits that add the keys of missing plural forms before each key of `other`."""
        edits: list[Edit] = []
        for scalar in scalars:
            if find_plural_form(scalar.path, keys) != "other" or not scalar.key_end:
                continue
            name, behind_key = scalar.path[-1], text.text[scalar.key_end : scalar.end]
            present = {category for category in CATEGORIES if (*scalar.path[:-1], name[: -len("other")] + category) in keys}
            line_start = text.text.rfind("\n", 0, scalar.key_start) + 1
            indent = ", " if scalar.is_inline else text.newline + " " * (scalar.key_start - line_start)
            added = [
                f"{name[: -len('other')]}{category}{behind_key}{indent}" for category in list_missing_categories(code, present)
            ]
            edits += [text.make_edit(scalar.key_start, scalar.key_start, "".join(added))] if added else []
        return edits

    def find_values() -> dict[str, Edit]:
        values: dict[str, Edit] = {}
        for scalar in () if holds_language else scalars:
            start, end = scalar.start, scalar.end
            if start >= end:  # an empty value stands behind the colon, wherever the next one begins
                start = end = text.text.find(":", scalar.key_end) + 1
            if not scalar.is_text and start:
                values[join_keys(scalar.path)] = text.make_edit(start, end, text.text[start:end])
        return values

    texts, others = divide_units(units)
    return Document(
        content,
        texts,
        "yaml",
        make_edits,
        make_plural_edits=make_plural_edits,
        other_units=others,
        source_language=language.value if language else "",
        make_document_edits=make_language_edits,
        find_values=find_values,
    )


def _iter_scalars(root: Node, text: str) -> Iterator[YamlScalar]:
    """Yield the values that are texts. A node with several names is read once."""
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    seen: set[int] = set()
    stack: list[tuple[tuple[str, ...], Node, tuple[int, int, bool]]] = [((), root, (0, 0, False))]
    while stack:
        path, node, key_place = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            stack += [
                ((*path, str(key.value)[:100]), value, (key.start_mark.index, key.end_mark.index, bool(node.flow_style)))
                for key, value in reversed(node.value)
            ]
        elif isinstance(node, SequenceNode):
            items = reversed(list(enumerate(node.value)))
            stack += [((*path, str(number)), value, (0, 0, False)) for number, value in items]
        elif isinstance(node, ScalarNode):
            yield _make_scalar(node, path, text, key_place)


def _make_scalar(node: ScalarNode, path: tuple[str, ...], text: str, key_place: tuple[int, int, bool]) -> YamlScalar:
    """Return a scalar without what stands before it, an anchor or a tag, and behind it, line breaks."""
    start, end = node.start_mark.index, node.end_mark.index
    match = _PROPERTIES.match(text, start, end)
    start = match.end() if match else start
    end = start + len(text[start:end].rstrip())
    value = join_surrogates(node.value) if node.style == '"' else node.value
    return YamlScalar(path, value, start, end, node.style or "", *key_place, str(node.tag) == "tag:yaml.org,2002:str")


def _find_language_key(roots: Sequence[Node]) -> YamlScalar | None:
    """Return the only key of the file if it is the code of a language and has keys itself."""
    from ruamel.yaml.nodes import MappingNode, ScalarNode

    if len(roots) != 1 or not isinstance(roots[0], MappingNode) or len(roots[0].value) != 1:
        return None
    key, value = roots[0].value[0]
    if not isinstance(key, ScalarNode) or not isinstance(value, MappingNode) or key.style not in (None, "'", '"'):
        return None
    if not _LANGUAGE.fullmatch(key.value):
        return None
    return YamlScalar((), key.value, key.start_mark.index, key.end_mark.index, key.style or "")


def write_scalar(text: EncodedText, scalar: YamlScalar, value: str) -> str:
    """Return a text in the style of its scalar, or in double quotation marks if that style cannot write it."""
    is_printable = not _UNPRINTABLE.search(value)
    if is_printable and scalar.style in ("|", ">") and (block := _write_block(text, scalar, value)):
        return block
    if is_printable and scalar.style == "'" and "\n" not in value:
        return "'" + value.replace("'", "''") + "'"
    word = value.removeprefix(":") if scalar.value.startswith(":") else value  # Ruby reads a symbol
    if is_printable and not scalar.style and _PLAIN.fullmatch(word) and not _WORDS.fullmatch(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def _write_block(text: EncodedText, scalar: YamlScalar, value: str) -> str:
    """Return a text as a block with the header and the indent of its scalar, or an empty text if it does not fit."""
    raw = text.text[scalar.start : scalar.end]
    header = _BLOCK_HEADER.match(raw)
    body, old_body = value.rstrip("\n"), scalar.value.rstrip("\n")
    lines = body.split("\n")
    if header is None or len(value) - len(body) != len(scalar.value) - len(old_body):
        return ""
    if any(line != line.strip() for line in (lines if scalar.style == ">" else (lines[0], lines[-1]))) or not lines[0]:
        return ""
    first = raw[header.end() :]
    indent = first[: len(first) - len(first.lstrip(" "))]
    separator = "\n\n" if scalar.style == ">" else "\n"
    block = separator.join(lines).replace("\n", f"\n{indent}")
    block = "\n".join(line if line.strip() else "" for line in f"{indent}{block}".split("\n"))
    return header[0] + block.replace("\n", text.newline)
