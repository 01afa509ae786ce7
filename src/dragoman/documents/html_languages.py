"""Languages and directions that an HTML page states: which part is in which language, and how a translation states its own.

An attribute `lang` with the source language gets the target language. An attribute `dir` is written for a target language of
another direction than that of the page, and is removed from a page that becomes one from left to right. The property
`direction` of an attribute `style` is a `dir`. In a page without `html` and `body`, the outer blocks with texts have the
direction. A text that is in no block is put into an element `span` with one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

from dragoman.documents.document import Edit
from dragoman.documents.encoded_text import EncodedText
from dragoman.languages import get_direction, is_same_language
from dragoman.text.inline_codes import BLOCK_TAGS, OPAQUE_TAGS

ROOT_TAGS = frozenset(("html", "body"))
"""Elements that state the language and direction of the page."""
DIRECTION = re.compile(r"(?:^|(?<=;))\s*direction\s*:\s*(rtl|ltr)\b[^;]*(?:;|$)", re.IGNORECASE)
"""Property of an attribute `style`."""
_OWN_DIRECTION = OPAQUE_TAGS | {"bdo", "bdi", "pre", "textarea"}
_TABLE_PARTS = ("thead", "tbody", "tfoot")
_CONTAINERS = {
    "li": frozenset(("ul", "ol", "menu")),
    **dict.fromkeys(("dt", "dd"), frozenset(("dl",))),
    **dict.fromkeys(("option", "optgroup"), frozenset(("select",))),
    **dict.fromkeys((*_TABLE_PARTS, "tr", "td", "th"), frozenset(("table",))),
}
"""Elements whose end tag may be left out, and the elements that hold them."""
_NEXT = {
    "p": BLOCK_TAGS,
    "li": frozenset(("li",)),
    **dict.fromkeys(("dt", "dd"), frozenset(("dt", "dd"))),
    "option": frozenset(("option", "optgroup")),
    "optgroup": frozenset(("optgroup",)),
    **dict.fromkeys(_TABLE_PARTS, frozenset(_TABLE_PARTS)),
    "tr": frozenset((*_TABLE_PARTS, "tr")),
    **dict.fromkeys(("td", "th"), frozenset((*_TABLE_PARTS, "tr", "td", "th"))),
}
"""The same elements, and those before whose start they end."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Attribute with a language or a direction.

    Attributes:
        kind: "lang" or "dir"; "root" for the place in a tag `html` or `body` where a direction can be added
        name: name of the tag
        value: its value
        start, end: place of the value in the file
        left: place where the attribute begins, with the space before it
        right: place behind the attribute
        language: language of the part, if it is not that of the page
    """

    kind: str
    name: str
    value: str
    start: int
    end: int
    left: int
    right: int
    language: str


@dataclass(slots=True)
class _Scope:
    """Open element that states a language. counted: names of elements inside that are counted. depth: number of open ones"""

    name: str
    language: str
    counted: frozenset[str]
    depth: int = 0


class LanguageScopes:
    """Elements that state a language and are open. A tag takes constant time on average, with any nesting."""

    def __init__(self) -> None:
        self._scopes: list[_Scope] = []
        self._counting: dict[str, list[int]] = {}
        self._places: dict[str, list[int]] = {}

    @property
    def language(self) -> str:
        """Language that the innermost open element states; empty if none states one."""
        return self._scopes[-1].language if self._scopes else ""

    def read_start(self, name: str, language: str, *, is_void: bool) -> None:
        """Read a start tag. language: what it states, or an empty text"""
        if not (self._scopes or language):  # so are most tags of most pages
            return
        while self._scopes and self._ends_before(self._scopes[-1], name):
            self._end(len(self._scopes) - 1)
        if is_void or name in ROOT_TAGS:
            return
        counted = frozenset() if name == "p" else _CONTAINERS.get(name, frozenset((name,)))
        if (places := self._counting.get(name)) and not (language and name in counted):
            self._scopes[places[-1]].depth += 1
        if language:
            for key in counted:
                self._counting.setdefault(key, []).append(len(self._scopes))
            self._places.setdefault(name, []).append(len(self._scopes))
            self._scopes.append(_Scope(name, language, counted))

    def read_end(self, name: str) -> None:
        """Read an end tag."""
        if not self._scopes:
            return
        if self._scopes[-1].name == "p" != name and name in BLOCK_TAGS:
            self._end(len(self._scopes) - 1)
        while places := self._counting.get(name):
            scope = self._scopes[places[-1]]
            if scope.depth:
                scope.depth -= 1
                return
            self._end(places[-1])
            if scope.name == name:
                return
        if (places := self._places.get(name)) and not self._scopes[places[-1]].depth:
            self._end(places[-1])

    @staticmethod
    def _ends_before(scope: _Scope, name: str) -> bool:
        """Return whether an element, whose end tag may be left out, ends before the start of another."""
        return name in _NEXT.get(scope.name, ()) and (scope.name == "p" or not scope.depth)

    def _end(self, place: int) -> None:
        """End an element and those inside."""
        while len(self._scopes) > place:
            scope = self._scopes.pop()
            self._places[scope.name].pop()
            for key in scope.counted:
                self._counting[key].pop()


class OuterBlocks:
    """Blocks in no other block, of a page without `html` and `body`, and whether each has a direction of its own."""

    def __init__(self) -> None:
        self._name, self._depth, self._place, self._value = "", 0, 0, ""
        self.places = array("q")
        self.values: set[str] = set()
        self.has_bare_text = False

    def read_start(self, name: str, place: int, statements: Sequence[Statement]) -> None:
        """Read the start tag of a block. place: where an attribute can be added"""
        if name in _NEXT.get(self._name, ()) and self._depth == 1:
            self._name = ""
        if self._name and name in _CONTAINERS.get(self._name, (self._name,)):
            self._depth += 1
        elif not self._name:
            value = next((statement.value.lower() for statement in statements if statement.kind == "dir"), "")
            self._name, self._depth, self._place, self._value = name, 1, place, value

    def read_end(self, name: str) -> None:
        """Read an end tag. One of its own ends an element whose end tag may be left out, if none of its kind is open in it."""
        containers = _CONTAINERS.get(self._name, ())
        self._depth -= name in containers or (name == self._name and (not containers or self._depth == 1))
        if self._depth <= 0:
            self._name = ""

    def add_text(self, value: str) -> bool:
        """Add a text, which is in the present block. Return whether it is in one.

        value: direction that the text states at its start; empty if it states none
        """
        self.has_bare_text |= not self._name and not value
        stated = self._value if self._name else value
        if stated:
            self.values |= {stated} - {"auto"}
        elif self._name and self._place != (self.places[-1] if self.places else -1):
            self.places.append(self._place)
        return bool(self._name)


class PageLanguage:
    """Language and direction of a page and of its parts.

    statements: those of the tags outside of texts, in order
    outer_blocks: the outer blocks, which count without `html` and `body`
    """

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.outer_blocks = OuterBlocks()
        self._roots: list[Statement] = []

    def add(self, statements: Sequence[Statement]) -> None:
        """Add the statements of a tag outside of texts."""
        self.statements += statements
        self._roots += [statement for statement in statements if statement.name in ROOT_TAGS]

    @property
    def language(self) -> str:
        """Language that the page states; empty if it states none."""
        return next((root.value for root in self._roots if root.kind == "lang" and root.value), "")

    @property
    def direction(self) -> str:
        """Direction of the page, `ltr` if it states none."""
        if not self._roots:
            blocks = self.outer_blocks
            return "rtl" if not (blocks.places or blocks.has_bare_text) and blocks.values == {"rtl"} else "ltr"
        stated = (root.value.lower() for root in self._roots if root.kind == "dir")
        return next((value for value in stated if value in ("ltr", "rtl")), "ltr")

    def direct_text(self, text: str, language: str, *, is_directed: bool) -> str:
        """Return a translation that is in no block, in a span with its direction, or without a span that has lost its one.

        is_directed: an element with a direction holds the text
        """
        if self._states_directions(language):
            return text if is_directed else f'<span dir="rtl">{text}</span>'
        has_lost = is_directed and text.startswith("<span>") and text.endswith("</span>")
        return text[len("<span>") : -len("</span>")] if has_lost else text

    def _states_directions(self, language: str) -> bool:
        """Return whether translations have to state their directions one by one."""
        return not self._roots and get_direction(language) == "rtl"

    def make_edits(self, text: EncodedText, source_language: str, language: str) -> Iterator[Edit]:
        """Yield the edits of the tags outside of texts, in order."""
        blocks = self.outer_blocks.places if self._states_directions(language) else ()
        added = (text.make_edit(place, place, ' dir="rtl"') for place in blocks)
        return merge(self._edit_statements(text, source_language, language), added, key=lambda edit: edit.start)

    def _edit_statements(self, text: EncodedText, source_language: str, language: str) -> Iterator[Edit]:
        is_changed = get_direction(language) not in ("", self.direction)
        place = next((root for root in self._roots if root.kind == "root"), None)
        if any(root.kind == "dir" and place is not None and root.name == place.name for root in self._roots):
            place = None
        for statement in self.statements:
            if statement is place and is_changed and get_direction(language) == "rtl":
                yield text.make_edit(statement.start, statement.end, ' dir="rtl"')
            elif (edit := self._make_edit(statement, source_language, language)) is not None:
                yield text.make_edit(*edit)

    def list_edits(
        self, statements: Sequence[Statement], source_language: str, language: str
    ) -> Iterator[tuple[int, int, str]]:
        """Yield the edits of a tag in a text: start, end and the new part."""
        edits = (self._make_edit(statement, source_language, language) for statement in statements)
        yield from (edit for edit in edits if edit is not None)

    def _make_edit(self, statement: Statement, source_language: str, language: str) -> tuple[int, int, str] | None:
        """Return the edit of one attribute, or None if it stays."""
        source_language = source_language or self.language
        if not language or (statement.language and not is_same_language(statement.language, source_language)):
            return None
        if statement.kind == "lang":
            is_root = statement.name in ROOT_TAGS
            if is_same_language(statement.value, language) or not (
                is_root or (statement.value and is_same_language(statement.value, source_language))
            ):
                return None
            return statement.start, statement.end, language
        direction = get_direction(language)
        if statement.kind != "dir" or direction == self.direction or statement.name in _OWN_DIRECTION:
            return None
        if statement.value.lower() != self.direction:
            return None
        return (statement.left, statement.right, "") if direction == "ltr" else (statement.start, statement.end, direction)
