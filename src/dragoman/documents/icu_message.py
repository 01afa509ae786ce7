"""Messages in ICU's and Java's syntax with branches, such as `{n, plural, one {# file} other {# files}}`.

Each branch is translated as a sentence of its own. Text around the branches is a part of every sentence, so it moves into the
branches, and the message means the same. An example is `Delete {n, plural, one {# file} other {# files}}?`. It becomes
`{n, plural, one {Delete # file?} other {Delete # files?}}`. Arguments, selectors, their order, and the white space between them
stay. Tags around the branches stay there if no words are beside them; otherwise each branch has them.

Java's `choice` has limits instead of selectors, as in `{0,choice,0#no file|1#one file|1<{0} files}`. `ChoiceFormat` and then
`MessageFormat` read such a branch, so an apostrophe is doubled once more than elsewhere.

The syntax is that of https://unicode-org.github.io/icu/userguide/format_parse/messages/.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from dragoman.documents.plural_forms import lacks_number, list_missing_categories

MAX_BRANCHES = 64
"""Most sentences of a message; one with more is left as it is."""
MAX_DEPTH = 16

_BRANCHES = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|select|selectordinal|choice)\s*+,")
_LIMIT = re.compile(r"\s*(?:[-+]?\d+(?:\.\d+)?|-?\u221e)\s*[#<\u2264]")
_REFERENCE = re.compile(r"&#?\w{1,31};")
_MESSAGE_TAG = re.compile(r"<[^<>]*+>")
_ARGUMENT_START = re.compile(r"\{\s*+[\w.-]++\s*+[,}]")
_ARGUMENT = re.compile(r"\{\s*([\w.-]+)\s*(?:,\s*(\w+)\s*)?")
_OFFSET = re.compile(r"\s*offset\s*:\s*\d+")
_SELECTOR = re.compile(r"\s*([^\s{}]+)\s*\{")
_KEY = re.compile(r"\{[^{}\s]*\}")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Branches(Generic[_T]):
    """Argument that selects one of several messages, or a choice among parts.

    head: the argument with its type, such as `{n, plural,`
    branches: selectors with their messages, in order
    openings: what stands before each message, from the end of the one before, such as ` one {`
    tail: what stands behind the last message
    is_choice: the argument is a `choice` of Java
    """

    head: str
    branches: tuple[tuple[str, _T], ...]
    is_plural: bool
    openings: tuple[str, ...]
    tail: str
    is_choice: bool = False


Node: TypeAlias = "str | Branches[Node]"
"""Sentence with keys such as `{name}` for arguments and `{#}` for the number, or a choice."""


@dataclass(frozen=True)
class IcuMessage:
    """Message with branches, or with arguments alone.

    codes: what the message has for each key of its sentences
    text: the message as it is written
    before, after: tags around the branches, as keys and text
    """

    root: Node
    codes: dict[str, str]
    text: str = ""
    before: str = ""
    after: str = ""

    @property
    def sentences(self) -> list[str]:
        """Sentences of all branches, in order."""
        return list(_iter_sentences(self.root))

    @property
    def plural_forms(self) -> list[str]:
        """Selector of the innermost plural of each sentence; empty for one in no plural."""
        return list(_iter_plural_forms(self.root, ""))

    def add_plural_forms(self, language: str) -> IcuMessage:
        """Return the message with a branch for each category that a language has and a plural lacks, with the text of `other`.

        A message with too many branches stays as it is.
        """
        root = _add_plural_forms(self.root, language)
        sentences = list(_iter_sentences(root))
        if root == self.root or len(sentences) > MAX_BRANCHES:
            return self
        return replace(self, root=root, text="")

    def put_number_in_one(self) -> IcuMessage:
        """Return the message with the text of `other` for each `one` that lacks its number."""
        root = _put_number_in_one(self.root)
        return self if root == self.root else replace(self, root=root, text="")

    def write(self, sentences: Sequence[str]) -> str:
        """Return the message with these sentences, one for each of `sentences`; the message itself if they are its own."""
        if self.text and list(sentences) == self.sentences:
            return self.text
        before, after = (self._write_sentence(part, special="{}") for part in (self.before, self.after))
        return before + self._write(self.root, iter(sentences), special="{}") + after

    def _write(self, node: Node, sentences: Iterator[str], *, special: str) -> str:
        if isinstance(node, str):
            return self._write_sentence(next(sentences), special=special)
        if node.is_choice:
            bodies = [_quote_choice(self._write(child, sentences, special="{}")) for _, child in node.branches]
        else:
            special = "{}#" if node.is_plural else special
            bodies = [self._write(child, sentences, special=special) + "}" for _, child in node.branches]
        return node.head + "".join(map("".join, zip(node.openings, bodies, strict=True))) + node.tail

    def _write_sentence(self, text: str, *, special: str) -> str:
        """Return a sentence with its arguments. Characters of the syntax are between apostrophes."""
        special = f"[{special}]"
        output: list[str] = []
        position = 0
        for match in [*_KEY.finditer(text), None]:
            plain = text[position : match.start() if match else len(text)]
            output.append(re.sub(special, r"'\g<0>'", plain.replace("'", "''")))
            if match:
                # A key that the message does not have is text, which a check refuses.
                output.append(self.codes.get(match[0]) or re.sub("[{}]", r"'\g<0>'", match[0]))
                position = match.end()
        return "".join(output)


def has_branches(text: str) -> bool:
    """Return whether a text has an argument with branches."""
    return "{" in text and _BRANCHES.search(text) is not None


def _quote_choice(body: str) -> str:
    """Return a message as a branch of a choice: its apostrophes are doubled, if it is a message of its own, once more."""
    body = body.replace("'", "''") if "{" in body else body
    outside = re.split(r"(\{[^{}]*\})", body)
    outside[::2] = [re.sub("[|#<\u2264]", r"'\g<0>'", part) for part in outside[::2]]
    return "".join(outside)


def has_argument(text: str) -> bool:
    """Return whether a text has an argument in braces."""
    return _ARGUMENT_START.search(text) is not None


def read_message(text: str, *, has_tags: bool = False) -> IcuMessage | None:
    """Return a message with branches or arguments; None for a text that cannot be written in the same way.

    has_tags: the text has tags and character references
    """
    reader = _Reader(text, has_tags)
    before = after = ""
    try:
        parts = reader.read_parts(in_plural=False, depth=0)
        if reader.position != len(text):
            return None
        if has_tags and any(isinstance(part, str) and _MESSAGE_TAG.search(part) for part in parts):
            before, after, parts = _cut_tags(parts)
        root = _expand(parts, reader)
    except _SyntaxError:
        return None
    if not any(_NUMBER in sentence for sentence in _iter_sentences(root)):
        reader.codes.pop(_NUMBER, None)
    return IcuMessage(root, reader.codes, text, before, after)


def _cut_tags(parts: _Parts) -> tuple[str, str, _Parts]:
    """Return the tags before and after the only choice, and the choice. Tags with words beside them stay with the words."""
    choices = [part for part in parts if isinstance(part, Branches)]
    if not choices:
        return "", "", parts
    context = " ".join(part for part in parts if isinstance(part, str))
    if len(choices) > 1 or any(map(str.isalnum, _KEY.sub("", _MESSAGE_TAG.sub("", context)))):
        return "", "", parts
    number = parts.index(choices[0])
    before, after = ("".join(map(str, side)) for side in (parts[:number], parts[number + 1 :]))
    return before, after, (choices[0],)


def pair_sentences(source: IcuMessage, translation: IcuMessage) -> list[tuple[str, str]] | None:
    """Return each sentence of a translation with that of its source; None if their arguments or selectors differ.

    A language may have other plural categories than its source, whose sentence is then that of `other`.
    """
    return None if source.codes.keys() != translation.codes.keys() else _pair(source.root, translation.root)


def _pair(source: Node, translation: Node) -> list[tuple[str, str]] | None:
    if isinstance(source, str) or isinstance(translation, str):
        return [(source, translation)] if isinstance(source, str) and isinstance(translation, str) else None
    sources, translations = dict(source.branches), dict(translation.branches)
    if source.head.split() != translation.head.split() or (not source.is_plural and sources.keys() != translations.keys()):
        return None
    pairs: list[tuple[str, str]] = []
    for selector, child in translations.items():
        inner = _pair(sources[selector if selector in sources else "other"], child)
        if inner is None:
            return None
        pairs += inner
    return pairs


def _iter_sentences(node: Node) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for _, child in node.branches:
            yield from _iter_sentences(child)


def _iter_plural_forms(node: Node, form: str) -> Iterator[str]:
    if isinstance(node, str):
        yield form if _NUMBER in node else ""
    else:
        for selector, child in node.branches:
            yield from _iter_plural_forms(child, selector if node.is_plural else form)


def _put_number_in_one(node: Node) -> Node:
    if isinstance(node, str):
        return node
    texts = dict(node.branches)
    singular, plural = texts.get("one"), texts.get("other")
    if _is_cardinal(node) and isinstance(singular, str) and isinstance(plural, str) and lacks_number(singular, plural):
        texts["one"] = plural
    return replace(node, branches=tuple((selector, _put_number_in_one(child)) for selector, child in texts.items()))


def _is_cardinal(node: Branches[Node]) -> bool:
    """Return whether a node is a plural whose number is written. Ordinal numbers have other categories."""
    return node.is_plural and "selectordinal" not in node.head and "offset" not in node.head


def _add_plural_forms(node: Node, language: str) -> Node:
    if isinstance(node, str):
        return node
    branches = [(selector, _add_plural_forms(child, language)) for selector, child in node.branches]
    openings = list(node.openings)
    names = [selector for selector, _ in branches]
    for name in list_missing_categories(language, set(names)) if _is_cardinal(node) else ():
        number = [selector for selector, _ in branches].index("other")
        opening = openings[number] if openings[number][0].isspace() or not number else f" {openings[number]}"
        position = number if number == len(branches) - 1 else len(branches)
        branches.insert(position, (name, branches[number][1]))
        openings.insert(position, opening.replace("other", name))
    return replace(node, branches=tuple(branches), openings=tuple(openings))


class _SyntaxError(Exception):
    """Text that is no message, or one whose branches cannot be sentences."""


_NUMBER = "{#}"


_Parts: TypeAlias = tuple["str | Branches[_Parts]", ...]
"""Text with keys, and choices before their context moves into them."""


@dataclass
class _Reader:
    """Reader of a message.

    codes: keys of the arguments with what the message has for them
    keys: key of each argument, by its name and its markup
    numbers: number that the next key of a name may have
    """

    text: str
    has_tags: bool = False
    position: int = 0
    codes: dict[str, str] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def read_parts(self, *, in_plural: bool, depth: int, in_choice: bool = False) -> _Parts:
        """Return the parts up to the end of a branch or of the text."""
        if depth > MAX_DEPTH:
            raise _SyntaxError
        parts: list[str | Branches[_Parts]] = []
        texts: list[str] = []  # of the part that has not ended
        ends = "|}" if in_choice else "}"
        while self.position < len(self.text) and self.text[self.position] not in ends:
            character = self.text[self.position]
            if character == "{":
                part = self._read_argument(in_plural=in_plural, depth=depth)
                if isinstance(part, Branches):
                    parts += ["".join(texts), part]
                    texts.clear()
                    continue
                text = part
            elif character == "#" and in_plural:
                text = self._add_key(_NUMBER, "#")
                self.position += 1
            elif character == "'":
                text = self._read_apostrophe(in_plural=in_plural, in_choice=in_choice)
            elif character == "&" and self.has_tags and (reference := _REFERENCE.match(self.text, self.position)):
                text = reference[0]
                self.position = reference.end()
            else:
                text = character
                self.position += 1
            texts.append(text)
        return (*parts, "".join(texts))

    def _read_apostrophe(self, *, in_plural: bool, in_choice: bool) -> str:
        """Return the text of an apostrophe: itself, or what stands between two of them."""
        if in_choice:
            if not (match := re.compile("(?:''){1,2}").match(self.text, self.position)):
                raise _SyntaxError  # text in quotation marks of a choice
            self.position = match.end()
            return "'"
        following = self.text[self.position + 1 : self.position + 2]
        if following == "'":
            self.position += 2
            return "'"
        if following not in ("{", "}", *(["#"] if in_plural else [])):
            self.position += 1
            return "'"
        match = re.compile("'((?:[^']++|'')*+)'?").match(self.text, self.position)
        assert match is not None  # the apostrophe is there
        self.position = match.end()
        if "{" in match[1] or "}" in match[1]:
            if " " in match[1] or not match[0].endswith("'"):
                raise _SyntaxError  # such a brace would be read as a part of a key
            return self._add_key(self._make_key("literal", match[0]), match[0])
        return match[1].replace("''", "'")

    def _read_argument(self, *, in_plural: bool, depth: int) -> str | Branches[_Parts]:
        """Return the key of an argument, or the choice."""
        start = self.position
        match = _ARGUMENT.match(self.text, start)
        if match is None:
            raise _SyntaxError
        if match[2] == "choice":
            self.position = match.end()
            return self._read_limits(start, depth=depth)
        if match[2] in ("plural", "select", "selectordinal"):
            self.position = match.end()
            return self._read_choice(start, match[2], in_plural=in_plural, depth=depth)
        end = self.text.find("}", start) + 1
        markup = self.text[start:end]
        if not end or "{" in markup[1:] or "'" in markup:
            raise _SyntaxError
        self.position = end
        return self._add_key(self._make_key(match[1], markup), markup)

    def name_number(self, head: str) -> str:
        """Return the key of the number of a plural with this head, for a plural inside; its `#` is another number."""
        match = _ARGUMENT.match(head)
        if match is None or "offset" in head:
            raise _SyntaxError
        markup = f"{{{match[1]}, number}}"
        return self._add_key(self._make_key(match[1], markup), markup)

    def _make_key(self, name: str, markup: str) -> str:
        """Return the key of an argument: the same for the same markup, and another one for each further markup of a name."""
        if (name, markup) not in self.keys:
            key, number = f"{{{name}}}", self.numbers.get(name, 2)
            while self.codes.get(key, markup) != markup:
                key = f"{{{name}_{number}}}"
                number += 1
            self.numbers[name], self.keys[name, markup] = number, key
        return self.keys[name, markup]

    def _read_limits(self, start: int, *, depth: int) -> Branches[_Parts]:
        """Return the choice of Java that begins there."""
        self._expect(",")
        head = self.text[start : self.position]
        branches: list[tuple[str, _Parts]] = []
        openings: list[str] = []
        while match := _LIMIT.match(self.text, self.position):
            openings.append(("|" if openings else "") + match[0])
            self.position = match.end()
            branches.append((match[0].strip(), self.read_parts(in_plural=False, depth=depth + 1, in_choice=True)))
            if self.text[self.position : self.position + 1] != "|":
                break
            self.position += 1
        self._expect("}")
        if not branches:
            raise _SyntaxError
        return Branches(head, tuple(branches), False, tuple(openings), "}", True)

    def _read_choice(self, start: int, kind: str, *, in_plural: bool, depth: int) -> Branches[_Parts]:
        is_plural = kind != "select"
        self._expect(",")
        offset = _OFFSET.match(self.text, self.position) if is_plural else None
        if offset:
            self.position = offset.end()
        head = self.text[start : self.position]
        branches: list[tuple[str, _Parts]] = []
        openings: list[str] = []
        while match := _SELECTOR.match(self.text, self.position):
            self.position = match.end()
            openings.append(match[0])
            branches.append((match[1], self.read_parts(in_plural=in_plural or is_plural, depth=depth + 1)))
            self._expect("}")
        end = self.position
        self._expect("}")
        selectors = [selector for selector, _ in branches]
        if "other" not in selectors or len(set(selectors)) < len(selectors):
            raise _SyntaxError
        return Branches(head, tuple(branches), is_plural, tuple(openings), self.text[end : self.position])

    def _expect(self, mark: str) -> None:
        """Read a mark with the white space before it."""
        match = re.compile(rf"\s*{re.escape(mark)}").match(self.text, self.position)
        if match is None:
            raise _SyntaxError
        self.position = match.end()

    def _add_key(self, key: str, markup: str) -> str:
        self.codes[key] = markup
        return key


def _expand(parts: _Parts, reader: _Reader, plural: str = "") -> Node:
    """Return the choices with the text around them moved into their branches. plural: head of the plural around them"""
    if _count_sentences(parts) > MAX_BRANCHES:
        raise _SyntaxError
    number = next((index for index, part in enumerate(parts) if isinstance(part, Branches)), None)
    if number is None:
        return "".join(map(str, parts))
    choice = parts[number]
    assert isinstance(choice, Branches)
    before, after = parts[:number], parts[number + 1 :]
    if choice.is_plural and any(map(_has_number, (*before, *after))):
        if any(_has_number(part) for part in after if isinstance(part, Branches)):
            raise _SyntaxError  # inside, the mark of the number would stand for that of the inner plural
        key = reader.name_number(plural)
        before, after = (tuple(_name_number(part, key) for part in side) for side in (before, after))
    plural = choice.head if choice.is_plural else plural
    branches = tuple((selector, _expand((*before, *inner, *after), reader, plural)) for selector, inner in choice.branches)
    return Branches(choice.head, branches, choice.is_plural, choice.openings, choice.tail, choice.is_choice)


def _name_number(part: str | Branches[_Parts], key: str) -> str | Branches[_Parts]:
    return part.replace(_NUMBER, key) if isinstance(part, str) else part


def _count_sentences(parts: _Parts) -> int:
    """Return the number of sentences that parts expand to."""
    return math.prod(sum(_count_sentences(inner) for _, inner in part.branches) for part in parts if isinstance(part, Branches))


def _has_number(part: str | Branches[_Parts]) -> bool:
    """Return whether a part has the mark of the number of a plural around it."""
    if isinstance(part, str):
        return _NUMBER in part
    return not part.is_plural and any(_has_number(child) for _, inner in part.branches for child in inner)
