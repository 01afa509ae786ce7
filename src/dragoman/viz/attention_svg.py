"""The attention page's pictures of weights: lines from token to token, all heads side by side, words, one head's numbers.

All pictures of the page are of one kind, so that one style, and one hash in its policy, serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.viz.explanation import SPACE, Explanation, Kind, word_texts, word_weights
from dragoman.viz.svg import fitted, label, number, picture, text_width

if TYPE_CHECKING:
    from dragoman.viz.explanation import Numbers

# Chosen so that no two are nearer to each other than 15 in CIELAB, to any eye, and each stands out from its paper. Ninth and
# later heads begin again: their numbers stand beside them, and their places differ.
HUES = ["#0072b2", "#d55e00", "#009e73", "#b200ff", "#661900", "#191999", "#661966", "#e5004c"]
HUES_IN_THE_DARK = ["#58a6ff", "#ff8c42", "#2dc99a", "#ffccff", "#b2197f", "#7f00ff", "#cc0033", "#4c66e5"]

OPACITIES = 8
SHADES = 16
FAINTEST = 0.04
ROW, SIZE, MARGIN = 20, 13, 12
_REACH, _BESIDE, _SHORTEST, _LONGEST, _HEADING = 150, 7, 64.0, 132, 44
_BOX, _BOXES = 11.0, 88.0
_INSIDE, _MOST_ROWS = 560.0, 12

KIND = "dragoman-attention"
_SHARED = {".line": "fill:none;stroke-width:1.6", ".bold": "font-weight:600", ".won": "stroke-width:2.4;fill:none"}


def _rules(hues: Sequence[str], *, cell: str, accent: str, box: str) -> dict[str, str]:
    heads = {f".h{index}": f"stroke:{hue}" for index, hue in enumerate(hues)}
    fills = {f".f{index}": f"fill:{hue}" for index, hue in enumerate(hues)}
    own = {
        ".cell": f"fill:{cell}",
        ".won": f"{_SHARED['.won']};stroke:{accent}",
        ".box": f"fill:{box}",
    }
    return _SHARED | heads | fills | own


LIGHT_RULES = _rules(HUES, cell="#08519c", accent="#0550ae", box="#eef2f6")
DARK_RULES = _rules(HUES_IN_THE_DARK, cell="#79b8ff", accent="#79b8ff", box="#1c232c")

NAMES: dict[Kind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Attention from decoder to encoder",
}
SIDES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "looks at source"),
    "decoder": ("saying", "looks back at"),
    "cross": ("saying", "looks at source"),
}


def drawing(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    """One of the page's pictures."""
    return picture(
        KIND,
        width=width,
        height=height,
        title=title,
        description=description,
        body="\n".join(part for part in parts if part),
        light=LIGHT_RULES,
        dark=DARK_RULES,
    )


def shown(token: str) -> str:
    """A token as a label: one that is nothing but the mark of a space stays visible."""
    return token.removeprefix(SPACE) or token


def chosen(explanation: Explanation, kind: Kind) -> str:
    """Which layer and heads a picture shows, in words."""
    focus, heads = explanation.focus[kind], explanation.heads(kind).shape[1]
    several = ", ".join(str(head + 1) for head in focus.heads)
    named = "all heads" if len(focus.heads) == heads else f"head{'s' if len(focus.heads) > 1 else ''} {several}"
    return f"layer {focus.layer + 1}, {named}"


def heading(title: str, remark: str, width: float) -> list[str]:
    return [
        label(fitted(title, width - 2 * MARGIN, 15), MARGIN, 20, 15, kind="ink bold"),
        label(fitted(remark, width - 2 * MARGIN, 12), MARGIN, 37, 12, kind="muted"),
    ]


# Lines


@dataclass(frozen=True)
class Columns:
    """Two columns of tokens: where the labels end and begin, how wide all is, and how wide a head's box beside a label."""

    left: float
    right: float
    width: float
    box: float

    @staticmethod
    def of(looking: Sequence[str], looked_at: Sequence[str], heads: int) -> Columns:
        boxes = min(_BOX * heads, _BOXES)
        wide = [max(_SHORTEST, *(_label_width(token) for token in some)) for some in (looking, looked_at)]
        left = MARGIN + boxes + wide[0]
        right = left + 2 * _BESIDE + _REACH
        return Columns(left, right, right + wide[1] + _BESIDE + boxes + MARGIN, boxes / heads)


def _label_width(token: str) -> float:
    return text_width(fitted(shown(token), _LONGEST, SIZE), SIZE)


def row_middle(row: int) -> float:
    return _HEADING + 34 + ROW * (row + 0.5)


def line_view(explanation: Explanation, kind: Kind, *, most: int | None = None) -> str:
    """The paper's picture (figures 3 to 5): from each token a line to those that it looks at, the stronger the more it does.

    most: draw only so many lines, the strongest
    """
    looking, looked_at = explanation.looking(kind), explanation.looked_at(kind)
    columns = Columns.of(looking, looked_at, explanation.heads(kind).shape[1])
    parts = heading(NAMES[kind], chosen(explanation, kind), columns.width)
    for (x, anchor), text in zip(((columns.left, "end"), (columns.right, "start")), SIDES[kind], strict=True):
        parts.append(label(text, x, row_middle(0) - ROW, 11, kind="muted", anchor=anchor))
    parts.append(f'<g class="lines" data-box="{number(columns.box)}">{_lines(explanation, kind, columns, most)}</g>')
    for side, x, anchor, tokens in (("q", columns.left, "end", looking), ("k", columns.right, "start", looked_at)):
        parts += [
            label(fitted(shown(token), _LONGEST, SIZE), x, row_middle(row) + 4.5, SIZE, kind=f"ink {side}", anchor=anchor)
            for row, token in enumerate(tokens)
        ]
    height = row_middle(max(len(looking), len(looked_at))) + MARGIN / 2
    told = f"Lines from {len(looking)} tokens to {len(looked_at)} tokens; {chosen(explanation, kind)}."
    return drawing(columns.width, height, NAMES[kind], told, parts)


def _lines(explanation: Explanation, kind: Kind, columns: Columns, most: int | None) -> str:
    focus = explanation.focus[kind]
    strong = []
    for place, head in enumerate(focus.heads):
        weights = explanation.heads(kind).weights_LHTS[focus.layer, head]
        found = weights >= FAINTEST
        spots = zip(weights[found].tolist(), *(axis.tolist() for axis in found.nonzero()), strict=True)
        strong += [(weight, place, head, row, column) for weight, row, column in spots]
    strong.sort(reverse=True)
    paths: dict[tuple[int, int], list[str]] = {}
    for weight, place, head, row, column in strong[:most]:
        shift = (place - (len(focus.heads) - 1) / 2) * min(1.8, ROW * 0.7 / len(focus.heads))
        y, end = row_middle(row) + shift, row_middle(column) + shift
        step = f"M{number(columns.left + _BESIDE)} {number(y)}L{number(columns.right - _BESIDE)} {number(end)}"
        paths.setdefault((head, math.ceil(min(weight, 1.0) * OPACITIES)), []).append(step)
    return "".join(
        f'<path class="line h{head % len(HUES)}" stroke-opacity="{number(level / OPACITIES)}" d="{"".join(steps)}"/>'
        for (head, level), steps in sorted(paths.items())
    )


# All heads


def head_grid(explanation: Explanation, kind: Kind) -> str:
    """Layers below each other, heads beside each other: a thumbnail each, drawn with lines."""
    heads = explanation.heads(kind)
    layers, count, rows, columns = heads.shape
    unit = max(1.0, 76 / max(rows, columns))
    wide, high = unit * columns, unit * rows
    left, top, gap = 66.0, _HEADING + 26.0, 9.0
    width = max(left + count * (wide + gap) + MARGIN, 300)
    parts = heading(NAMES[kind], "all layers and heads; rows look at columns", width)
    for head in range(count):
        parts.append(
            label(f"head {head + 1}", left + head * (wide + gap) + wide / 2, top - 6, 11, kind="muted", anchor="middle")
        )
    for layer in range(layers):
        y = top + layer * (high + gap)
        parts.append(label(f"layer {layer + 1}", left - 8, y + high / 2 + 4, 11, kind="muted", anchor="end"))
        for head in range(count):
            x = left + head * (wide + gap)
            parts.append(f'<path class="grid" d="M{number(x)} {number(y)}h{number(wide)}v{number(high)}h-{number(wide)}z"/>')
            parts.append(_cells(_shaded(heads.weights_LHTS[layer, head]), x, y, unit))
    return drawing(width, top + layers * (high + gap) + MARGIN, NAMES[kind], f"{layers} layers of {count} heads.", parts)


def _shaded(weights_TS: Numbers) -> Iterator[tuple[int, int, int]]:
    """Row, column and shade of each weight that is not too faint for any."""
    shades = (weights_TS * SHADES).round().clip(0, SHADES).astype("u1")
    rows, columns = shades.nonzero()
    return zip(rows.tolist(), columns.tolist(), shades[rows, columns].tolist(), strict=True)


def _cells(shaded: Iterable[tuple[int, int, int]], left: float, top: float, unit: float) -> str:
    """A matrix as one path for each shade."""
    paths: dict[int, list[str]] = {}
    side = number(unit * 0.96 if unit > 8 else unit)
    for row, column, shade in shaded:
        place = f"M{number(left + unit * column)} {number(top + unit * row)}"
        paths.setdefault(shade, []).append(f"{place}h{side}v{side}h-{side}z")
    return "".join(
        f'<path class="cell" fill-opacity="{number(shade / SHADES)}" d="{"".join(cells)}"/>'
        for shade, cells in sorted(paths.items())
    )


# Words


def word_matrix(explanation: Explanation) -> str:
    """Which word of the output looked at which of the source: sub-words merged, the mean of the chosen heads."""
    focus = explanation.focus["cross"]
    mean = explanation.cross.weights_LHTS[focus.layer, list(focus.heads)].mean(axis=0)
    rows = word_texts(explanation.said, explanation.said_words)
    columns = word_texts(explanation.source_tokens, explanation.source_words)
    weights = word_weights(mean, explanation.said_words, explanation.source_words)
    shaded = [
        (row, column, shade)
        for row, values in enumerate(weights)
        for column, weight in enumerate(values)
        if (shade := round(min(weight, 1.0) * SHADES))
    ]
    unit = max(14.0, min(42.0, 620 / max(len(rows), len(columns))))
    size = min(SIZE, unit - 3)
    slant = math.radians(55)
    labels = [fitted(word, _LONGEST, size) for word in columns]
    beside = [fitted(word, _LONGEST, size) for word in rows]
    left = MARGIN + _BESIDE + max(text_width(word, size) for word in beside)
    top = _HEADING + 14 + max(text_width(word, size) for word in labels) * math.sin(slant)
    reach = max(
        left + unit * (place + 0.6) + text_width(word, size) * math.cos(slant) + size for place, word in enumerate(labels)
    )
    width = max(reach, left + unit * len(columns)) + MARGIN
    width = max(width, 300.0)
    parts = heading("Words", f"mean of {chosen(explanation, 'cross')}", width)
    w, h = unit * len(columns), unit * len(rows)
    parts.append(f'<path class="grid" d="M{number(left)} {number(top)}h{number(w)}v{number(h)}h-{number(w)}z"/>')
    frame = f'data-left="{number(left)}" data-top="{number(top)}" data-unit="{number(unit)}"'
    parts.append(f'<g class="cells" {frame}>{_cells(shaded, left, top, unit)}</g>')
    for row, word in enumerate(beside):
        parts.append(label(word, left - _BESIDE, top + unit * (row + 0.5) + size * 0.35, size, anchor="end"))
    for column, word in enumerate(labels):
        x, y = left + unit * (column + 0.5) + size * 0.3, top - 6
        parts.append(label(word, x, y, size, extra=f' transform="rotate(-55 {number(x)} {number(y)})"'))
    told = f"{len(rows)} words of the output, each a row, look at {len(columns)} words of the source."
    return drawing(width, top + h + MARGIN, "Words", told, parts)


# Inside one head


def strongest_pair(explanation: Explanation, kind: Kind) -> tuple[int, int]:
    """Where the first head in view looks hardest: from word to word where there are such, since commas and ends are dull."""
    focus = explanation.focus[kind]
    weights = explanation.heads(kind).weights_LHTS[focus.layer, focus.heads[0]]
    rows, columns = (
        [place for place, token in enumerate(tokens) if shown(token).isalpha()] or list(range(len(tokens)))
        for tokens in (explanation.looking(kind), explanation.looked_at(kind))
    )
    words = weights[rows][:, columns]
    row, column = divmod(int(words.argmax()), words.shape[1])
    return rows[row], columns[column]


def inside_view(explanation: Explanation, kind: Kind) -> str:
    """Equation 1 for one pair of tokens, as numbers: products, their sum, the division, the softmax, the weighted values."""
    focus = explanation.focus[kind]
    head, (row, column) = focus.heads[0], strongest_pair(explanation, kind)
    heads = explanation.heads(kind)
    query, key = heads.query_LHTK[focus.layer, head, row], heads.key_LHSK[focus.layer, head, column]
    product, root = float((query * key).sum()), math.sqrt(len(query))
    asked, answered = shown(explanation.looking(kind)[row]), shown(explanation.looked_at(kind)[column])
    parts = heading(f"Inside layer {focus.layer + 1}, head {head + 1}", f"{NAMES[kind]}: {asked} → {answered}", _INSIDE)
    y = _HEADING + 28.0
    for name, values in (("query q", query), ("key k", key), ("q × k", query * key)):
        parts += _bars(name, values.tolist(), y)
        y += 34
    weight = float(heads.weights_LHTS[focus.layer, head, row, column])
    sums = f"q · k = {product:.3f}  →  ÷ √{len(query)} = {product / root:.3f}  →  softmax = {weight:.3f}"
    parts.append(label(sums, MARGIN, y + 6, SIZE, kind="ink bold"))
    y = _softmax_rows(explanation, kind, row, y + 28, parts)
    return drawing(_INSIDE, y + 20, "Inside one head", f"{asked} looks at {answered}: {sums}", parts)


def _softmax_rows(explanation: Explanation, kind: Kind, row: int, y: float, parts: list[str]) -> float:
    """What one place looks at, the strongest if there are many: score, weight, and the length of the weighted value."""
    heads, focus = explanation.heads(kind), explanation.focus[kind]
    layer, head = focus.layer, focus.heads[0]
    keys, weights = heads.key_LHSK[layer, head], heads.weights_LHTS[layer, head, row]
    scores = (keys * heads.query_LHTK[layer, head, row]).sum(axis=1) / math.sqrt(keys.shape[1])
    sizes = (heads.value_LHSU[layer, head] ** 2).sum(axis=1) ** 0.5
    tokens = explanation.looked_at(kind)
    parts.append(label("looks at", 128, y, 11, kind="muted", anchor="end"))
    parts += [label(name, x, y, 11, kind="muted") for x, name in ((140, "q · k ÷ √d"), (230, "weight"), (440, "weight × |v|"))]
    strongest = (-weights).argsort(kind="stable")[:_MOST_ROWS].tolist()
    for place in sorted(strongest):
        y += ROW
        weight = float(weights[place])
        seen = explanation.sees(kind, row, place)
        parts.append(label(fitted(shown(tokens[place]), 112, 12), 128, y, 12, anchor="end"))
        parts.append(label(f"{float(scores[place]):.3f}" if seen else "hidden", 140, y, 12, kind="ink" if seen else "muted"))
        parts.append(bar(230, y - 10, max(150 * weight, 0.5), 12))
        parts.append(label(f"{weight:.3f}", 236 + 150 * weight, y, 12))
        parts.append(label(f"{weight * float(sizes[place]):.3f}", 440, y, 12))
    if len(strongest) < len(tokens):
        y += ROW
        parts.append(label(f"and {len(tokens) - len(strongest)} more with smaller weights", 128, y, 11, kind="muted"))
    return y


def bar(x: float, y: float, width: float, height: float, *, opacity: float = 1.0) -> str:
    """A filled box."""
    size = f'width="{number(width)}" height="{number(height)}"'
    return f'<rect class="cell" fill-opacity="{number(opacity)}" x="{number(x)}" y="{number(y)}" {size}/>'


def _bars(name: str, values: Sequence[float], y: float) -> Iterator[str]:
    """A vector as bars up and down from a line, its largest number 12 high."""
    largest = max(max(map(abs, values)), 1e-9)
    step = 460 / len(values)
    path = "".join(
        f"M{number(80 + step * place)} {number(y)}v{number(-12 * value / largest)}h{number(step * 0.8)}V{number(y)}z"
        for place, value in enumerate(values)
    )
    yield label(name, 68, y + 4, 12, anchor="end", kind="muted")
    yield f'<path class="cell" d="{path}"/>'
    yield f'<path class="grid" d="M80 {number(y)}h460"/>'
