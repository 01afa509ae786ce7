"""A parse tree: its brackets from the root downwards, the words in one row below.

Edges go across right below a bracket and then straight down, so that none crosses another, however far its word is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.views.svg import fitted, inert, label, number, picture, text_width

_LIGHT = {".edge": "stroke:#8c959f;fill:none", ".bracket": "fill:#08519c;font-weight:600"}
_DARK = {".edge": "stroke:#656c76;fill:none", ".bracket": "fill:#79b8ff;font-weight:600"}
_MARGIN, _TITLE_HEIGHT, _TITLE_SIZE = 16, 40, 16
_SIZE, _LEVEL, _GAP, _LONGEST_WORD = 13, 36, 14, 180


@dataclass(slots=True)
class _Node:
    """A bracket or a word: its text, its words from `start` up to `end`, and where it is drawn."""

    text: str
    start: int
    end: int
    level: int
    children: list[_Node] = field(default_factory=list)
    x: float = 0.0


def tree_picture(
    words: Sequence[str], brackets: Sequence[tuple[str, int, int]], *, tags: Sequence[str | None] = (), title: str = ""
) -> str:
    """An SVG of the tree whose brackets hold these words.

    brackets: label, first word and the word behind the last, those around others before them; empty ones are left out
    tags: of the words, None for a word without one
    Raises `ValueError` for brackets that cross or reach beyond the words, and for tags of another number than the words.
    """
    if tags and len(tags) != len(words):
        raise ValueError(f"tags: {len(tags)}, words: {len(words)}")
    texts = [fitted(word, _LONGEST_WORD, _SIZE) for word in words]
    tag_texts = [fitted(tag or "", _LONGEST_WORD, _SIZE) for tag in tags] or [""] * len(words)
    nodes = _nodes(brackets, len(words))
    _grow_leaves(nodes, len(words))
    right = _place(nodes, texts, tag_texts)
    deepest = max((node.level for node in nodes), default=-1)
    top = _MARGIN + _SIZE + (_TITLE_HEIGHT if title else 0)
    bottom = top + _LEVEL * (deepest + 1)

    body = [label(fitted(title, 560, _TITLE_SIZE), _MARGIN, 26, _TITLE_SIZE, extra=' font-weight="600"')] if title else []
    for node in nodes:
        y = top + _LEVEL * node.level
        for child in node.children:
            below = (bottom if child.level < 0 else top + _LEVEL * child.level) - _SIZE - 2
            line = f"M{number(node.x)} {number(y + 4)}V{number(y + 11)}H{number(child.x)}V{number(below)}"
            body.append(f'<path class="edge" d="{line}"/>')
        hint = f"<title>{inert(node.text or '(no label)')}: words {node.start + 1} to {node.end}</title>"
        body.append(f"<g>{hint}{label(node.text, node.x, y, _SIZE, kind='bracket', anchor='middle')}</g>")
    for place, (x, word, tag) in enumerate(zip(_centres(texts, tag_texts), texts, tag_texts, strict=True)):
        body.append(label(tag, x, bottom, _SIZE, kind="muted", anchor="middle") if tag else "")
        hint = f"<title>{inert(words[place])}</title>"
        body.append(f"<g>{hint}{label(word, x, bottom + (_SIZE + 7 if any(tag_texts) else 0), _SIZE, anchor='middle')}</g>")
    width = max(right, _MARGIN + text_width(fitted(title, 560, _TITLE_SIZE), _TITLE_SIZE)) + _MARGIN
    return picture(
        "dragoman-tree",
        width=width,
        height=bottom + (_SIZE + 7 if any(tag_texts) else 0) + _MARGIN,
        title=title or "A parse tree",
        description=f"A parse tree of {len(nodes)} brackets over {len(words)} words: {' '.join(words)}",
        body="\n".join(mark for mark in body if mark),
        light=_LIGHT,
        dark=_DARK,
    )


def _nodes(brackets: Sequence[tuple[str, int, int]], length: int) -> list[_Node]:
    """The brackets that hold words, each in the children of the one around it."""
    nodes: list[_Node] = []
    path: list[_Node] = []
    for text, start, end in brackets:
        if not 0 <= start <= end <= length:
            raise ValueError(f"the bracket {text!r} is from word {start} up to {end}, but there are {length}")
        if start == end:
            continue
        while path and path[-1].end <= start:
            path.pop()
        if path and not (path[-1].start <= start and end <= path[-1].end):
            raise ValueError(f"the brackets {path[-1].text!r} and {text!r} cross at word {start}")
        node = _Node(text, start, end, len(path))
        if path:
            path[-1].children.append(node)
        nodes.append(node)
        path.append(node)
    return nodes


def _grow_leaves(nodes: Sequence[_Node], length: int) -> None:
    """Put each word into the innermost bracket that holds it; a word's level is -1."""
    inner: list[_Node | None] = [None] * length
    for node in nodes:
        inner[node.start : node.end] = [node] * (node.end - node.start)
    for place, around in enumerate(inner):
        if around is not None:
            around.children.append(_Node("", place, place + 1, -1))
    for node in nodes:
        node.children.sort(key=lambda child: child.start)


def _centres(words: Sequence[str], tags: Sequence[str]) -> list[float]:
    centres: list[float] = []
    left = float(_MARGIN)
    for word, tag in zip(words, tags, strict=True):
        width = max(text_width(word, _SIZE), text_width(tag, _SIZE), 2 * _SIZE)
        centres.append(left + width / 2)
        left += width + _GAP
    return centres


def _place(nodes: Sequence[_Node], words: Sequence[str], tags: Sequence[str]) -> float:
    """Set each x, a bracket's between its first and its last child; the right end of all."""
    centres = _centres(words, tags)
    right = centres[-1] + max(text_width(words[-1], _SIZE), text_width(tags[-1], _SIZE)) / 2 if centres else float(_MARGIN)
    for node in reversed(nodes):  # children come after what is around them
        for child in node.children:
            if child.level < 0:
                child.x = centres[child.start]
        node.x = (node.children[0].x + node.children[-1].x) / 2
        right = max(right, node.x + text_width(node.text, _SIZE) / 2)
    return right
