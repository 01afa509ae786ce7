"""Drawings of parse trees: brackets from the root downwards, and the words in one row at the bottom.

An edge goes horizontally below a bracket and then straight down, so that edges never cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.runtime.counts import format_count
from dragoman.viz.svg import escape_text, estimate_text_width, format_number, render_label, render_svg, truncate_text

_LIGHT = {".edge": "stroke:#8c959f;fill:none", ".bracket": "fill:#08519c;font-weight:600"}
_DARK = {".edge": "stroke:#656c76;fill:none", ".bracket": "fill:#79b8ff;font-weight:600"}
MARGIN, FONT_SIZE = 16, 13
_TITLE_HEIGHT, _TITLE_FONT_SIZE, _LEVEL_HEIGHT, _WORD_GAP, _MAX_WORD_WIDTH = 40, 16, 36, 14, 180


@dataclass(slots=True)
class _TreeNode:
    """Bracket or word: its text, its words from `start` to before `end`, and its position."""

    text: str
    start: int
    end: int
    level: int
    children: list[_TreeNode] = field(default_factory=list)
    x: float = 0.0


@dataclass(frozen=True, slots=True)
class TreeDrawing:
    """Tree to draw. `render_tree` describes the fields."""

    words: Sequence[str]
    brackets: Sequence[tuple[str, int, int]]
    tags: Sequence[str | None] = ()
    title: str = ""


def render_tree(
    words: Sequence[str], brackets: Sequence[tuple[str, int, int]], *, tags: Sequence[str | None] = (), title: str = ""
) -> str:
    """Draw the tree of these words and brackets as an SVG.

    brackets: label, first word, and the word after the last; outer brackets before inner ones; empty ones are left out
    tags: part-of-speech tags of the words, None for a word without a tag

    Raises `ValueError` if brackets cross or reach beyond the words, or if the number of tags is not that of the words.
    """
    return render_trees([TreeDrawing(words, brackets, tags, title)])


def render_trees(drawings: Sequence[TreeDrawing]) -> str:
    """Draw several stacked trees as an SVG. Raises ValueError as `render_tree` does."""
    body: list[str] = []
    width, top, descriptions = 0.0, 0.0, []
    for drawing in drawings:
        elements, right, bottom, count = _render_drawing(drawing, top)
        body += elements
        width, top = max(width, right), bottom
        counts = f"{format_count(count, 'bracket')} over {format_count(len(drawing.words), 'word')}"
        descriptions.append(f"A parse tree of {counts}: {' '.join(drawing.words)}")
    return render_svg(
        "dragoman-tree",
        width=width,
        height=top,
        title=(drawings[0].title if len(drawings) == 1 else "") or "A parse tree",
        description="\n".join(descriptions),
        body="\n".join(element for element in body if element),
        light=_LIGHT,
        dark=_DARK,
    )


def _render_drawing(drawing: TreeDrawing, start_y: float) -> tuple[list[str], float, float, int]:
    """Return the elements of a tree below `start_y`, its right and bottom end, and its number of brackets."""
    title_text = truncate_text(drawing.title, 560, _TITLE_FONT_SIZE)
    body = (
        [render_label(title_text, MARGIN, start_y + 26, _TITLE_FONT_SIZE, attributes=' font-weight="600"')]
        if title_text
        else []
    )
    layout = lay_out_tree(drawing, start_y + MARGIN + (_TITLE_HEIGHT if title_text else 0))
    body += layout.render(edge_class="edge", bracket_class="bracket")
    width = max(layout.right, MARGIN + estimate_text_width(title_text, _TITLE_FONT_SIZE)) + MARGIN
    return body, width, layout.bottom + MARGIN, len(layout.nodes)


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """Positions of the brackets and words of a tree.

    centers: x of the words
    widths: widths of the words
    top: y of the first row of brackets
    bottom: y of the words
    """

    drawing: TreeDrawing
    nodes: Sequence[_TreeNode]
    words: Sequence[str]
    tags: Sequence[str]
    centers: Sequence[float]
    widths: Sequence[float]
    top: float
    bottom: float
    right: float

    def render(self, *, edge_class: str, bracket_class: str) -> list[str]:
        """Return the elements of the drawing, with these classes for edges and labels."""
        word_y = self.bottom - (FONT_SIZE + 7 if any(self.tags) else 0)
        elements = []
        for node in self.nodes:
            y = self.top + _LEVEL_HEIGHT * node.level
            for child in node.children:
                child_y = (word_y if child.level < 0 else self.top + _LEVEL_HEIGHT * child.level) - FONT_SIZE - 2
                edge_path = (
                    f"M{format_number(node.x)} {format_number(y + 4)}V{format_number(y + 11)}"
                    f"H{format_number(child.x)}V{format_number(child_y)}"
                )
                elements.append(f'<path class="{edge_class}" d="{edge_path}"/>')
            tooltip = f"<title>{escape_text(node.text or '(no label)')}: words {node.start + 1} to {node.end}</title>"
            elements.append(
                f"<g>{tooltip}{render_label(node.text, node.x, y, FONT_SIZE, css_class=bracket_class, anchor='middle')}</g>"
            )
        for index, (x, word, tag) in enumerate(zip(self.centers, self.words, self.tags, strict=True)):
            elements.append(render_label(tag, x, word_y, FONT_SIZE, css_class="muted", anchor="middle") if tag else "")
            tooltip = f"<title>{escape_text(self.drawing.words[index])}</title>"
            elements.append(f"<g>{tooltip}{render_label(word, x, self.bottom, FONT_SIZE, anchor='middle')}</g>")
        return elements


def lay_out_tree(drawing: TreeDrawing, start_y: float, left: float = MARGIN) -> TreeLayout:
    """Return the layout of a tree below `start_y` and right of `left`. Raises ValueError as `render_tree` does."""
    words, tags = drawing.words, drawing.tags
    if tags and len(tags) != len(words):
        raise ValueError(f"tags: {len(tags)} for {len(words)} words; give one for each word")
    texts = [truncate_text(word, _MAX_WORD_WIDTH, FONT_SIZE) for word in words]
    tag_texts = [truncate_text(tag or "", _MAX_WORD_WIDTH, FONT_SIZE) for tag in tags] or [""] * len(words)
    widths = [
        max(estimate_text_width(word, FONT_SIZE), estimate_text_width(tag, FONT_SIZE), 2 * FONT_SIZE)
        for word, tag in zip(texts, tag_texts, strict=True)
    ]
    nodes = _build_nodes(drawing.brackets, len(words))
    _add_leaves(nodes, len(words))
    centers = _compute_centers(widths, left)
    right = _assign_positions(nodes, centers, widths, left)
    max_level = max((node.level for node in nodes), default=-1)
    top = start_y + FONT_SIZE
    bottom = top + _LEVEL_HEIGHT * (max_level + 1) + (FONT_SIZE + 7 if any(tag_texts) else 0)
    return TreeLayout(drawing, nodes, texts, tag_texts, centers, widths, top, bottom, right)


def _build_nodes(brackets: Sequence[tuple[str, int, int]], length: int) -> list[_TreeNode]:
    """Return the non-empty brackets as nodes. Each is a child of the bracket around it."""
    nodes: list[_TreeNode] = []
    open_nodes: list[_TreeNode] = []
    for text, start, end in brackets:
        if not 0 <= start <= end <= length:
            raise ValueError(
                f"bracket {text!r}: is from word {start} to {end}, but there are {length} words; give a span of words"
            )
        if start == end:
            continue
        while open_nodes and open_nodes[-1].end <= start:
            open_nodes.pop()
        if open_nodes and not (open_nodes[-1].start <= start and end <= open_nodes[-1].end):
            raise ValueError(f"brackets {open_nodes[-1].text!r} and {text!r}: cross at word {start}; give nested brackets")
        node = _TreeNode(text, start, end, len(open_nodes))
        if open_nodes:
            open_nodes[-1].children.append(node)
        nodes.append(node)
        open_nodes.append(node)
    return nodes


def _add_leaves(nodes: Sequence[_TreeNode], length: int) -> None:
    """Add each word to its innermost bracket. The level of a word is -1."""
    innermost: list[_TreeNode | None] = [None] * length
    for node in nodes:
        innermost[node.start : node.end] = [node] * (node.end - node.start)
    for index, parent in enumerate(innermost):
        if parent is not None:
            parent.children.append(_TreeNode("", index, index + 1, -1))
    for node in nodes:
        node.children.sort(key=lambda child: child.start)


def _compute_centers(widths: Sequence[float], left: float) -> list[float]:
    centers: list[float] = []
    for width in widths:
        centers.append(left + width / 2)
        left += width + _WORD_GAP
    return centers


def _assign_positions(nodes: Sequence[_TreeNode], centers: Sequence[float], widths: Sequence[float], left: float) -> float:
    """Set the x of each node; return the right end of the tree. A bracket is between its first and last child."""
    right = centers[-1] + widths[-1] / 2 if centers else left
    for node in reversed(nodes):  # children come after their parents
        for child in node.children:
            if child.level < 0:
                child.x = centers[child.start]
        node.x = (node.children[0].x + node.children[-1].x) / 2
        right = max(right, node.x + estimate_text_width(node.text, FONT_SIZE) / 2)
    return right
