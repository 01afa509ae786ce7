"""A parse tree: its brackets from the root downwards, the words in one row below.

Edges go across right below a bracket and then straight down, so that none crosses another, however far its word is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.viz.svg import fitted, inert, label, number, picture, text_width

_LIGHT = {".edge": "stroke:#8c959f;fill:none", ".bracket": "fill:#08519c;font-weight:600"}
_DARK = {".edge": "stroke:#656c76;fill:none", ".bracket": "fill:#79b8ff;font-weight:600"}
MARGIN, SIZE = 16, 13
_TITLE_HEIGHT, _TITLE_SIZE, _LEVEL, _GAP, _LONGEST_WORD = 40, 16, 36, 14, 180


@dataclass(slots=True)
class _Node:
    """A bracket or a word: its text, its words from `start` up to `end`, and where it is drawn."""

    text: str
    start: int
    end: int
    level: int
    children: list[_Node] = field(default_factory=list)
    x: float = 0.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """A tree to draw: see `tree_picture`."""

    words: Sequence[str]
    brackets: Sequence[tuple[str, int, int]]
    tags: Sequence[str | None] = ()
    title: str = ""


def tree_picture(
    words: Sequence[str], brackets: Sequence[tuple[str, int, int]], *, tags: Sequence[str | None] = (), title: str = ""
) -> str:
    """An SVG of the tree whose brackets hold these words.

    brackets: label, first word and the word behind the last, those around others before them; empty ones are left out
    tags: of the words, None for a word without one
    Raises `ValueError` for brackets that cross or reach beyond the words, and for tags of another number than the words.
    """
    return trees_picture([Drawing(words, brackets, tags, title)])


def trees_picture(drawings: Sequence[Drawing], *, title: str = "") -> str:
    """An SVG of several trees, one below the other; `title` is what a reader without pictures is told. Raises as above."""
    body: list[str] = []
    width, top, told = 0.0, 0.0, []
    for drawing in drawings:
        marks, right, bottom, count = _drawn(drawing, top)
        body += marks
        width, top = max(width, right), bottom
        told.append(f"A parse tree of {count} brackets over {len(drawing.words)} words: {' '.join(drawing.words)}")
    return picture(
        "dragoman-tree",
        width=width,
        height=top,
        title=title or (drawings[0].title if len(drawings) == 1 else "") or "A parse tree",
        description="\n".join(told),
        body="\n".join(mark for mark in body if mark),
        light=_LIGHT,
        dark=_DARK,
    )


def _drawn(drawing: Drawing, above: float) -> tuple[list[str], float, float, int]:
    """The marks of a tree drawn from this height on, how far they reach, and how many brackets there are."""
    head = fitted(drawing.title, 560, _TITLE_SIZE)
    body = [label(head, MARGIN, above + 26, _TITLE_SIZE, extra=' font-weight="600"')] if head else []
    laid = laid_out(drawing, above + MARGIN + (_TITLE_HEIGHT if head else 0))
    body += laid.marks(edge="edge", bracket="bracket")
    width = max(laid.right, MARGIN + text_width(head, _TITLE_SIZE)) + MARGIN
    return body, width, laid.bottom + MARGIN, len(laid.nodes)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tree's brackets and words are drawn.

    centres: of the words; widths: the room that each has
    top, bottom: of the brackets' first row and of the words
    """

    drawing: Drawing
    nodes: Sequence[_Node]
    words: Sequence[str]
    tags: Sequence[str]
    centres: Sequence[float]
    widths: Sequence[float]
    top: float
    bottom: float
    right: float

    def marks(self, *, edge: str, bracket: str) -> list[str]:
        """The picture's marks, with these classes for lines and labels."""
        leaves = self.bottom - (SIZE + 7 if any(self.tags) else 0)
        marks = []
        for node in self.nodes:
            y = self.top + _LEVEL * node.level
            for child in node.children:
                below = (leaves if child.level < 0 else self.top + _LEVEL * child.level) - SIZE - 2
                line = f"M{number(node.x)} {number(y + 4)}V{number(y + 11)}H{number(child.x)}V{number(below)}"
                marks.append(f'<path class="{edge}" d="{line}"/>')
            hint = f"<title>{inert(node.text or '(no label)')}: words {node.start + 1} to {node.end}</title>"
            marks.append(f"<g>{hint}{label(node.text, node.x, y, SIZE, kind=bracket, anchor='middle')}</g>")
        for place, (x, word, tag) in enumerate(zip(self.centres, self.words, self.tags, strict=True)):
            marks.append(label(tag, x, leaves, SIZE, kind="muted", anchor="middle") if tag else "")
            hint = f"<title>{inert(self.drawing.words[place])}</title>"
            marks.append(f"<g>{hint}{label(word, x, self.bottom, SIZE, anchor='middle')}</g>")
        return marks


def laid_out(drawing: Drawing, above: float, left: float = MARGIN) -> Layout:
    """A tree from this height on, its first word from this place on. Raises ValueError as `tree_picture` does."""
    words, tags = drawing.words, drawing.tags
    if tags and len(tags) != len(words):
        raise ValueError(f"tags: {len(tags)}, words: {len(words)}")
    texts = [fitted(word, _LONGEST_WORD, SIZE) for word in words]
    tag_texts = [fitted(tag or "", _LONGEST_WORD, SIZE) for tag in tags] or [""] * len(words)
    widths = [max(text_width(word, SIZE), text_width(tag, SIZE), 2 * SIZE) for word, tag in zip(texts, tag_texts, strict=True)]
    nodes = _nodes(drawing.brackets, len(words))
    _grow_leaves(nodes, len(words))
    centres = _centres(widths, left)
    right = _place(nodes, centres, widths, left)
    deepest = max((node.level for node in nodes), default=-1)
    top = above + SIZE
    bottom = top + _LEVEL * (deepest + 1) + (SIZE + 7 if any(tag_texts) else 0)
    return Layout(drawing, nodes, texts, tag_texts, centres, widths, top, bottom, right)


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


def _centres(widths: Sequence[float], left: float) -> list[float]:
    centres: list[float] = []
    for width in widths:
        centres.append(left + width / 2)
        left += width + _GAP
    return centres


def _place(nodes: Sequence[_Node], centres: Sequence[float], widths: Sequence[float], left: float) -> float:
    """Set each x, a bracket's between its first and its last child; the right end of all."""
    right = centres[-1] + widths[-1] / 2 if centres else left
    for node in reversed(nodes):  # children come after what is around them
        for child in node.children:
            if child.level < 0:
                child.x = centres[child.start]
        node.x = (node.children[0].x + node.children[-1].x) / 2
        right = max(right, node.x + text_width(node.text, SIZE) / 2)
    return right
