"""A parse and its attention: the tree, and below each word how much each bracket's token looked at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.viz.attention_svg import MARGIN, SHADES, chosen, drawing, heading
from dragoman.viz.explanation import Bracketed, Explanation, word_weights
from dragoman.viz.svg import fitted, inert, label, number, text_width
from dragoman.viz.tree_diagram import SIZE, Drawing, Layout, laid_out

_HEADING, _ROW, _INDENT, _LONGEST = 44, 20.0, 9.0, 150.0


def tree_view(explanation: Explanation) -> str:
    """The tree of a parse, and a row for each of its brackets, in the order in which they opened.

    A row's cells stand below the words: the more its opening token looked at one (mean of the heads in view, pieces of a word
    summed), the darker. The frame is what the bracket holds; a triangle stands before the word that the decoder was shown.

    Raises ValueError for an explanation without a tree.
    """
    tree = explanation.tree
    if tree is None:
        raise ValueError("the explanation is of no parse, so it has no tree")
    names = [fitted(text or "(no label)", _LONGEST, SIZE) for text, _, _ in tree.brackets]
    levels = _levels(tree.brackets)
    beside = max(text_width(name, SIZE) + _INDENT * level for name, level in zip(names, levels, strict=True))
    left = MARGIN + beside + 16
    laid = laid_out(Drawing(tree.words, tree.brackets, tree.tags), _HEADING, left)
    end = laid.right + 40
    remark = f"{chosen(explanation, 'cross')}; rows are brackets, in the order in which they opened"
    width = max(end + 30, left + text_width(remark, 12) * 0.5)
    parts = heading("The tree and its attention", remark, width)
    parts += laid.marks(edge="grid", bracket="ink bold")
    weights = _weights(explanation, tree)
    top = laid.bottom + 18
    parts.append(label("end", end, laid.bottom, 11, kind="muted", anchor="middle"))
    for row, (name, level) in enumerate(zip(names, levels, strict=True)):
        middle = top + _ROW * (row + 0.5)
        parts.append(label(name, MARGIN + _INDENT * level, middle + 4.5, SIZE, kind="ink"))
        parts.append(_row(laid, tree, row, weights[row], middle, end))
        if tree.points:
            x = laid.centres[tree.brackets[row][1]] - laid.widths[tree.brackets[row][1]] / 2 - 8
            parts.append(f'<path class="ink" d="M{number(x)} {number(middle - 4)}l6 4l-6 4z"/>')
    height = top + _ROW * len(names) + MARGIN
    told = f"{len(names)} brackets over {len(tree.words)} words; each row is what a bracket's token looked at."
    return drawing(width, height, "The tree and its attention", told, parts)


def _weights(explanation: Explanation, tree: Bracketed) -> list[list[float]]:
    """For each bracket what its opening token looked at, word by word, the source's end token last."""
    focus = explanation.focus["cross"]
    mean_TS = explanation.cross.weights_LHTS[focus.layer, list(focus.heads)].mean(axis=0)
    return word_weights(mean_TS[list(tree.openers)], range(len(tree.openers)), explanation.source_words)


def _row(laid: Layout, tree: Bracketed, row: int, weights: Sequence[float], middle: float, end: float) -> str:
    name, first, last = tree.brackets[row]
    high = _ROW - 4
    places = [(x, wide) for x, wide in zip(laid.centres, laid.widths, strict=True)]
    places += [(end, 26.0)] * (len(weights) - len(places))
    cells = "".join(_cells(weights, places, middle - high / 2, high))
    x, right = laid.centres[first] - laid.widths[first] / 2, laid.centres[last - 1] + laid.widths[last - 1] / 2
    box = f"M{number(x)} {number(middle - high / 2)}H{number(right)}v{number(high)}H{number(x)}z"
    frame = f'<path class="line h0" stroke-opacity="0.7" d="{box}"/>'
    best = max(range(len(weights)), key=weights.__getitem__)
    word = tree.words[best] if best < len(tree.words) else "the end"
    hint = f"{name or '(no label)'}, words {first + 1} to {last}: most at {word}, {weights[best]:.3f}"
    return f"<g><title>{inert(hint)}</title>{cells}{frame}</g>"


def _cells(weights: Sequence[float], places: Sequence[tuple[float, float]], top: float, high: float) -> Iterator[str]:
    for weight, (x, wide) in zip(weights, places, strict=True):
        if shade := round(min(weight, 1.0) * SHADES):
            box = f"M{number(x - wide / 2)} {number(top)}h{number(wide)}v{number(high)}h-{number(wide)}z"
            yield f'<path class="cell" fill-opacity="{number(shade / SHADES)}" d="{box}"/>'


def _levels(brackets: Sequence[tuple[str, int, int]]) -> list[int]:
    """How many brackets are around each."""
    levels: list[int] = []
    path: list[int] = []
    for _, start, end in brackets:
        while path and path[-1] <= start:
            path.pop()
        levels.append(len(path))
        path.append(end)
    return levels
