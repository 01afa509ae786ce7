"""Drawings of attention weights: lines between tokens, all heads, words, and the computation of one head.

All drawings share one style, so that the security policy of the page needs one hash for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.runtime.counts import format_count
from dragoman.viz.explanation import WHITESPACE_SYMBOL, AttentionKind, Explanation, merge_tokens, merge_weights
from dragoman.viz.svg import (
    box_path,
    escape_text,
    estimate_text_width,
    format_attributes,
    format_number,
    line_path,
    render_label,
    render_svg,
    truncate_text,
)

if TYPE_CHECKING:
    from dragoman.viz.explanation import FloatArray

# Every two colors have a distance of at least 15 in CIELAB for any color vision, and each has contrast with its background.
# From the ninth head on, the colors repeat; numbers and positions tell the heads apart.
HEAD_COLORS = ["#0072b2", "#d55e00", "#009e73", "#b200ff", "#661900", "#191999", "#661966", "#e5004c"]
DARK_HEAD_COLORS = ["#58a6ff", "#ff8c42", "#2dc99a", "#ffccff", "#b2197f", "#7f00ff", "#cc0033", "#4c66e5"]

OPACITY_STEPS = 8
SHADE_STEPS = 16
MIN_VISIBLE_WEIGHT = 0.04
ROW_HEIGHT, FONT_SIZE, MARGIN = 20, 13, 12
_COLUMN_GAP, _LABEL_GAP, _MIN_LABEL_WIDTH, _MAX_LABEL_WIDTH, _HEADING_HEIGHT = 150, 7, 64.0, 132, 44
_MIN_ROW_HEIGHT, _VECTORS_HEIGHT = 5.0, 500.0
_BOX_WIDTH, _MAX_BOXES_WIDTH = 11.0, 88.0
_HEAD_VIEW_WIDTH, _MAX_SOFTMAX_ROWS = 560.0, 12

CSS_CLASS = "dragoman-attention"
_SHARED_RULES = {".line": "fill:none;stroke-width:1.6", ".bold": "font-weight:600", ".best": "stroke-width:2.4;fill:none"}


def _build_rules(colors: Sequence[str], *, cell: str, accent: str, box: str) -> dict[str, str]:
    stroke_rules = {f".h{index}": f"stroke:{color}" for index, color in enumerate(colors)}
    fill_rules = {f".f{index}": f"fill:{color}" for index, color in enumerate(colors)}
    color_rules = {
        ".cell": f"fill:{cell}",
        ".best": f"{_SHARED_RULES['.best']};stroke:{accent}",
        ".box": f"fill:{box}",
    }
    return _SHARED_RULES | stroke_rules | fill_rules | color_rules


LIGHT_RULES = _build_rules(HEAD_COLORS, cell="#08519c", accent="#0550ae", box="#eef2f6")
DARK_RULES = {
    **_build_rules(DARK_HEAD_COLORS, cell="#79b8ff", accent="#79b8ff", box="#1c232c"),
    ".source": "filter:invert(1)",
}

KIND_TITLES: dict[AttentionKind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}
SIDE_LABELS: dict[AttentionKind, tuple[str, str]] = {
    "encoder": ("query", "key: source"),
    "decoder": ("query", "key: previous outputs"),
    "cross": ("query", "key: source"),
}


def render_drawing(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    """Return a drawing in the style of the attention page."""
    return render_svg(
        CSS_CLASS,
        width=width,
        height=height,
        title=title,
        description=description,
        body="\n".join(part for part in parts if part),
        light=LIGHT_RULES,
        dark=DARK_RULES,
    )


def display_token(token: str) -> str:
    """Return a token as a label, without its space symbol unless it is nothing else."""
    return token.removeprefix(WHITESPACE_SYMBOL) or token


def describe_selection(explanation: Explanation, kind: AttentionKind) -> str:
    """Return the selected layer and heads as text."""
    selection, num_heads = explanation.selections[kind], explanation.heads(kind).shape[1]
    head_numbers = ", ".join(str(head + 1) for head in selection.heads)
    head_text = (
        "all heads" if len(selection.heads) == num_heads else f"head{'s' if len(selection.heads) > 1 else ''} {head_numbers}"
    )
    return f"layer {selection.layer + 1}, {head_text}"


def render_heading(title: str, subtitle: str, width: float) -> list[str]:
    return [
        render_label(truncate_text(title, width - 2 * MARGIN, 15), MARGIN, 20, 15, css_class="ink bold"),
        render_label(truncate_text(subtitle, width - 2 * MARGIN, 12), MARGIN, 37, 12, css_class="muted"),
    ]


# Lines


@dataclass(frozen=True)
class LineViewLayout:
    """Layout of two columns of tokens: x of the label ends, total width, and width of the box of a head."""

    left_x: float
    right_x: float
    width: float
    box_width: float

    @staticmethod
    def from_tokens(query_tokens: Sequence[str], key_tokens: Sequence[str], num_heads: int) -> LineViewLayout:
        boxes_width = min(_BOX_WIDTH * num_heads, _MAX_BOXES_WIDTH)
        label_widths = [
            max(_MIN_LABEL_WIDTH, *(estimate_text_width(_shorten_token(token), FONT_SIZE) for token in tokens))
            for tokens in (query_tokens, key_tokens)
        ]
        left_x = MARGIN + boxes_width + label_widths[0]
        right_x = left_x + 2 * _LABEL_GAP + _COLUMN_GAP
        return LineViewLayout(
            left_x, right_x, right_x + label_widths[1] + _LABEL_GAP + boxes_width + MARGIN, boxes_width / num_heads
        )


def _shorten_token(token: str) -> str:
    return truncate_text(display_token(token), _MAX_LABEL_WIDTH, FONT_SIZE)


def compute_row_center(row: int, height: float = ROW_HEIGHT) -> float:
    return _HEADING_HEIGHT + 34 + height * (row + 0.5)


def _compute_row_heights(explanation: Explanation, kind: AttentionKind) -> tuple[float, float]:
    """Return the heights of the rows of queries and keys. Those of the vectors of an array are lower, because they are many."""
    counts = len(explanation.query_tokens(kind)), len(explanation.key_tokens(kind))
    are_vectors = (kind == "encoder", kind != "decoder") if explanation.image else (False, False)
    query_height, key_height = (
        max(_MIN_ROW_HEIGHT, min(ROW_HEIGHT, _VECTORS_HEIGHT / count)) if is_vector else ROW_HEIGHT
        for count, is_vector in zip(counts, are_vectors, strict=True)
    )
    return query_height, key_height


def render_line_view(explanation: Explanation, kind: AttentionKind, *, max_lines: int | None = None) -> str:
    """Draw lines from query tokens to key tokens, as in the paper's figures 3 to 5. A stronger line is a greater weight.

    max_lines: draw only this number of lines, those with the greatest weights
    """
    query_tokens, key_tokens = explanation.query_tokens(kind), explanation.key_tokens(kind)
    layout = LineViewLayout.from_tokens(query_tokens, key_tokens, explanation.heads(kind).shape[1])
    parts = render_heading(KIND_TITLES[kind], describe_selection(explanation, kind), layout.width)
    for (x, anchor), text in zip(((layout.left_x, "end"), (layout.right_x, "start")), SIDE_LABELS[kind], strict=True):
        parts.append(render_label(text, x, compute_row_center(0) - ROW_HEIGHT, 11, css_class="muted", anchor=anchor))
    parts.append(
        f'<g class="lines" data-box="{format_number(layout.box_width)}">'
        f"{_render_lines(explanation, kind, layout, max_lines)}</g>"
    )
    heights = _compute_row_heights(explanation, kind)
    sides = (("q", layout.left_x, "end", query_tokens), ("k", layout.right_x, "start", key_tokens))
    for (side, x, anchor, tokens), row_height in zip(sides, heights, strict=True):
        label_step = math.ceil((FONT_SIZE + 2) / row_height)
        for row, token in enumerate(tokens):
            label = "" if row % label_step else _shorten_token(token)
            y = compute_row_center(row, row_height) + 4.5
            parts.append(render_label(label, x, y, FONT_SIZE, css_class=f"ink {side}", anchor=anchor))
    bottoms = (compute_row_center(len(side[3]), row_height) for side, row_height in zip(sides, heights, strict=True))
    height = max(bottoms) + MARGIN / 2
    counts = f"{format_count(len(query_tokens), 'token')} to {format_count(len(key_tokens), 'token')}"
    description = f"Lines from {counts}; {describe_selection(explanation, kind)}."
    return render_drawing(layout.width, height, KIND_TITLES[kind], description, parts)


def _render_lines(explanation: Explanation, kind: AttentionKind, layout: LineViewLayout, max_lines: int | None) -> str:
    selection = explanation.selections[kind]
    lines = []
    for index, head in enumerate(selection.heads):
        weights = explanation.heads(kind).weights_LHTS[selection.layer, head]
        is_visible_TS = weights >= MIN_VISIBLE_WEIGHT
        cells = zip(weights[is_visible_TS].tolist(), *(axis.tolist() for axis in is_visible_TS.nonzero()), strict=True)
        lines += [(weight, index, head, row, column) for weight, row, column in cells]
    lines.sort(reverse=True)
    paths: dict[tuple[int, int], list[str]] = {}
    query_height, key_height = _compute_row_heights(explanation, kind)
    for weight, index, head, row, column in lines[:max_lines]:
        shift = (index - (len(selection.heads) - 1) / 2) * min(1.8, ROW_HEIGHT * 0.7 / len(selection.heads))
        y, end_y = compute_row_center(row, query_height) + shift, compute_row_center(column, key_height) + shift
        path = line_path(layout.left_x + _LABEL_GAP, y, layout.right_x - _LABEL_GAP, end_y)
        paths.setdefault((head, math.ceil(min(weight, 1.0) * OPACITY_STEPS)), []).append(path)
    return "".join(render_head_lines(paths))


def render_head_lines(paths: Mapping[tuple[int, int], Sequence[str]]) -> Iterator[str]:
    """Yield one path for each head and opacity, from the lines of each head and each step of the opacity."""
    for (head, level), lines in sorted(paths.items()):
        opacity = format_number(level / OPACITY_STEPS)
        yield f'<path class="line h{head % len(HEAD_COLORS)}" stroke-opacity="{opacity}" d="{"".join(lines)}"/>'


# All heads


def render_head_grid(explanation: Explanation, kind: AttentionKind) -> str:
    """Draw a thumbnail of each head, with one row for each layer."""
    heads = explanation.heads(kind)
    layers, num_heads, rows, columns = heads.shape
    unit = max(1.0, 76 / max(rows, columns))
    grid_width, grid_height = unit * columns, unit * rows
    left, top, gap = 66.0, _HEADING_HEIGHT + 26.0, 9.0
    width = max(left + num_heads * (grid_width + gap) + MARGIN, 300)
    parts = render_heading(KIND_TITLES[kind], "all layers and heads; rows attend to columns", width)
    for head in range(num_heads):
        center = left + head * (grid_width + gap) + grid_width / 2
        parts.append(render_label(f"head {head + 1}", center, top - 6, 11, css_class="muted", anchor="middle"))
    for layer in range(layers):
        y = top + layer * (grid_height + gap)
        parts.append(render_label(f"layer {layer + 1}", left - 8, y + grid_height / 2 + 4, 11, css_class="muted", anchor="end"))
        for head in range(num_heads):
            x = left + head * (grid_width + gap)
            parts.append(f'<path class="grid" d="{box_path(x, y, grid_width, grid_height)}"/>')
            parts.append(render_cells(quantize_weights(heads.weights_LHTS[layer, head]), x, y, unit, unit))
    return render_drawing(
        width,
        top + layers * (grid_height + gap) + MARGIN,
        KIND_TITLES[kind],
        f"{format_count(layers, 'layer')} of {format_count(num_heads, 'head')}.",
        parts,
    )


def quantize_weights(weights_TS: FloatArray) -> Iterator[tuple[int, int, int]]:
    """Return row, column and shade of each weight that has a visible shade."""
    shades = (weights_TS * SHADE_STEPS).round().clip(0, SHADE_STEPS).astype("u1")
    rows, columns = shades.nonzero()
    return zip(rows.tolist(), columns.tolist(), shades[rows, columns].tolist(), strict=True)


def render_cells(shaded_cells: Iterable[tuple[int, int, int]], left: float, top: float, wide: float, high: float) -> str:
    """Return a matrix of cells of a width and a height as one path for each shade."""
    paths: dict[int, list[str]] = {}
    w, h = (format_number(side * 0.96 if side > 8 else side) for side in (wide, high))
    for row, column, shade in shaded_cells:
        start_point = f"M{format_number(left + wide * column)} {format_number(top + high * row)}"
        paths.setdefault(shade, []).append(f"{start_point}h{w}v{h}h-{w}z")
    return "".join(
        f'<path class="cell" fill-opacity="{format_number(shade / SHADE_STEPS)}" d="{"".join(cells)}"/>'
        for shade, cells in sorted(paths.items())
    )


# Words


def render_word_matrix(explanation: Explanation) -> str:
    """Draw the weights between output words and source words: subword tokens merged, mean of the selected heads."""
    selection = explanation.selections["cross"]
    mean_weights_TS = explanation.cross.weights_LHTS[selection.layer, list(selection.heads)].mean(axis=0)
    rows = merge_tokens(explanation.output_tokens, explanation.output_word_ids)
    columns = merge_tokens(explanation.source_tokens, explanation.source_word_ids)
    weights = merge_weights(mean_weights_TS, explanation.output_word_ids, explanation.source_word_ids)
    counts = f"{format_count(len(rows), 'word')} of the output, one a row, attend to {format_count(len(columns), 'word')}"
    subtitle, description = f"mean of {describe_selection(explanation, 'cross')}", f"{counts} of the source."
    return render_matrix(weights, rows, columns, title="Words", subtitle=subtitle, description=description)


def render_matrix(
    weights: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    subtitle: str,
    description: str,
    tooltips: bool = False,
) -> str:
    """Draw `weights[row][column]`, each between 0 and 1, as darker and lighter cells with the names of rows and columns.

    tooltips: the numbers as tooltips of the cells, for a page without a script
    """
    unit = max(14.0, min(42.0, 620 / max(len(rows), len(columns))))
    size = min(FONT_SIZE, unit - 3)
    slant = math.radians(55)
    column_labels = [truncate_text(word, _MAX_LABEL_WIDTH, size) for word in columns]
    row_labels = [truncate_text(word, _MAX_LABEL_WIDTH, size) for word in rows]
    left = MARGIN + _LABEL_GAP + max(estimate_text_width(word, size) for word in row_labels)
    top = _HEADING_HEIGHT + 14 + max(estimate_text_width(word, size) for word in column_labels) * math.sin(slant)
    labels_right = max(
        left + unit * (column + 0.6) + estimate_text_width(word, size) * math.cos(slant) + size
        for column, word in enumerate(column_labels)
    )
    matrix_width, matrix_height = unit * len(columns), unit * len(rows)
    width = max(labels_right + MARGIN, left + matrix_width + MARGIN, 300.0)
    parts = render_heading(title, subtitle, width)
    parts.append(f'<path class="grid" d="{box_path(left, top, matrix_width, matrix_height)}"/>')
    data = {"left": left, "top": top, "wide": unit, "high": unit}
    data_attributes = "".join(f' data-{name}="{format_number(value)}"' for name, value in data.items())
    cells = [
        (row, column, min(weight, 1.0)) for row, row_weights in enumerate(weights) for column, weight in enumerate(row_weights)
    ]
    if tooltips:
        drawn = "".join(
            f'<path class="cell" fill-opacity="{format_number(weight)}" '
            f'd="{box_path(left + unit * column, top + unit * row, unit, unit)}">'
            f"<title>{escape_text(f'{rows[row]}: {columns[column]} {weight:.3f}')}</title></path>"
            for row, column, weight in cells
        )
    else:
        shades = ((row, column, shade) for row, column, weight in cells if (shade := round(weight * SHADE_STEPS)))
        drawn = render_cells(shades, left, top, unit, unit)
    parts.append(f'<g class="cells"{data_attributes}>{drawn}</g>')
    for row, word in enumerate(row_labels):
        parts.append(render_label(word, left - _LABEL_GAP, top + unit * (row + 0.5) + size * 0.35, size, anchor="end"))
    for column, word in enumerate(column_labels):
        x, y = left + unit * (column + 0.5) + size * 0.3, top - 6
        parts.append(
            render_label(word, x, y, size, attributes=f' transform="rotate(-55 {format_number(x)} {format_number(y)})"')
        )
    return render_drawing(width, top + matrix_height + MARGIN, title, description, parts)


# Inside one head


def find_strongest_pair(explanation: Explanation, kind: AttentionKind) -> tuple[int, int]:
    """Return the query and key with the greatest weight of the first selected head, without punctuation if there are words."""
    selection = explanation.selections[kind]
    weights_TS = explanation.heads(kind).weights_LHTS[selection.layer, selection.heads[0]]
    rows, columns = (
        [index for index, token in enumerate(tokens) if display_token(token).isalpha()] or list(range(len(tokens)))
        for tokens in (explanation.query_tokens(kind), explanation.key_tokens(kind))
    )
    word_weights_TS = weights_TS[rows][:, columns]
    row, column = divmod(int(word_weights_TS.argmax()), word_weights_TS.shape[1])
    return rows[row], columns[column]


def render_head_view(explanation: Explanation, kind: AttentionKind) -> str:
    """Draw equation 1 for one pair of tokens: products, their sum, the division, the softmax and the weighted values."""
    selection = explanation.selections[kind]
    head, (row, column) = selection.heads[0], find_strongest_pair(explanation, kind)
    heads = explanation.heads(kind)
    query, key = heads.query_LHTK[selection.layer, head, row], heads.key_LHSK[selection.layer, head, column]
    dot_product, sqrt_key_width = float((query * key).sum()), math.sqrt(len(query))
    query_token = display_token(explanation.query_tokens(kind)[row])
    key_token = display_token(explanation.key_tokens(kind)[column])
    title, subtitle = (
        f"Inside layer {selection.layer + 1}, head {head + 1}",
        f"{KIND_TITLES[kind]}: {query_token} → {key_token}",
    )
    parts = render_heading(title, subtitle, _HEAD_VIEW_WIDTH)
    y = _HEADING_HEIGHT + 28.0
    for name, values in (("query q", query), ("key k", key), ("q × k", query * key)):
        parts += _render_vector(name, values.tolist(), y)
        y += 34
    weight = float(heads.weights_LHTS[selection.layer, head, row, column])
    equation = f"q · k = {dot_product:.3f}  →  ÷ √{len(query)} = {dot_product / sqrt_key_width:.3f}  →  softmax = {weight:.3f}"
    parts.append(render_label(equation, MARGIN, y + 6, FONT_SIZE, css_class="ink bold"))
    y = _render_softmax_rows(explanation, kind, row, y + 28, parts)
    return render_drawing(
        _HEAD_VIEW_WIDTH, y + 20, "Inside one head", f"{query_token} attends to {key_token}: {equation}", parts
    )


def _render_softmax_rows(explanation: Explanation, kind: AttentionKind, row: int, y: float, parts: list[str]) -> float:
    """Add the keys of one query, the strongest if there are many: score, weight, and norm of the weighted value."""
    heads, selection = explanation.heads(kind), explanation.selections[kind]
    layer, head = selection.layer, selection.heads[0]
    keys, weights = heads.key_LHSK[layer, head], heads.weights_LHTS[layer, head, row]
    scores = (keys * heads.query_LHTK[layer, head, row]).sum(axis=1) / math.sqrt(keys.shape[1])
    value_norms = (heads.value_LHSU[layer, head] ** 2).sum(axis=1) ** 0.5
    tokens = explanation.key_tokens(kind)
    parts.append(render_label("key", 128, y, 11, css_class="muted", anchor="end"))
    parts += [
        render_label(name, x, y, 11, css_class="muted")
        for x, name in ((140, "q · k ÷ √d"), (230, "weight"), (440, "weight × |v|"))
    ]
    strongest = (-weights).argsort(kind="stable")[:_MAX_SOFTMAX_ROWS].tolist()
    for index in sorted(strongest):
        y += ROW_HEIGHT
        weight = float(weights[index])
        is_visible = explanation.is_visible(kind, row, index)
        parts.append(render_label(truncate_text(display_token(tokens[index]), 112, 12), 128, y, 12, anchor="end"))
        score_text, css_class = (f"{float(scores[index]):.3f}", "ink") if is_visible else ("hidden", "muted")
        parts.append(render_label(score_text, 140, y, 12, css_class=css_class))
        parts.append(render_bar(230, y - 10, max(150 * weight, 0.5), 12))
        parts.append(render_label(f"{weight:.3f}", 236 + 150 * weight, y, 12))
        parts.append(render_label(f"{weight * float(value_norms[index]):.3f}", 440, y, 12))
    if len(strongest) < len(tokens):
        y += ROW_HEIGHT
        rest = f"and {len(tokens) - len(strongest)} more with smaller weights"
        parts.append(render_label(rest, 128, y, 11, css_class="muted"))
    return y


def render_bar(x: float, y: float, width: float, height: float, *, opacity: float = 1.0) -> str:
    attributes = format_attributes(x=x, y=y, width=width, height=height)
    return f'<rect class="cell" fill-opacity="{format_number(opacity)}" {attributes}/>'


def _render_vector(name: str, values: Sequence[float], y: float) -> Iterator[str]:
    """Yield a vector as bars above and below a line. The largest number is 12 high."""
    largest = max(max(map(abs, values)), 1e-9)
    step = 460 / len(values)
    path = "".join(
        f"M{format_number(80 + step * index)} {format_number(y)}v{format_number(-12 * value / largest)}"
        f"h{format_number(step * 0.8)}V{format_number(y)}z"
        for index, value in enumerate(values)
    )
    yield render_label(name, 68, y + 4, 12, anchor="end", css_class="muted")
    yield f'<path class="cell" d="{path}"/>'
    yield f'<path class="grid" d="M80 {format_number(y)}h460"/>'
