"""Drawing of a parse with its attention: the tree, and one row of word weights for each bracket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.runtime.counts import format_count
from dragoman.viz.attention_svg import MARGIN, SHADE_STEPS, describe_selection, render_drawing, render_heading
from dragoman.viz.explanation import Explanation, ExplanationTree, merge_weights
from dragoman.viz.svg import box_path, escape_text, estimate_text_width, format_number, render_label, truncate_text
from dragoman.viz.tree_diagram import FONT_SIZE, TreeDrawing, TreeLayout, lay_out_tree

_HEADING_HEIGHT, _ROW_HEIGHT, _LEVEL_INDENT, _MAX_LABEL_WIDTH = 44, 20.0, 9.0, 150.0


def render_tree_attention(explanation: Explanation) -> str:
    """Draw the tree of a parse, and one row for each bracket, in the order in which the brackets open.

    A darker cell is more attention from the opening token to the word: mean of the selected heads, sum over the tokens of a
    word. A frame shows the words of the bracket. A triangle marks the pointer of the decoder.

    Raises ValueError for an explanation without a tree.
    """
    tree = explanation.tree
    if tree is None:
        raise ValueError("explanation: has no tree; give the explanation of a parse")
    names = [truncate_text(text or "(no label)", _MAX_LABEL_WIDTH, FONT_SIZE) for text, _, _ in tree.brackets]
    levels = _compute_levels(tree.brackets)
    labels_width = max(
        estimate_text_width(name, FONT_SIZE) + _LEVEL_INDENT * level for name, level in zip(names, levels, strict=True)
    )
    left = MARGIN + labels_width + 16
    layout = lay_out_tree(TreeDrawing(tree.words, tree.brackets, tree.tags), _HEADING_HEIGHT, left)
    end_x = layout.right + 40
    subtitle = f"{describe_selection(explanation, 'cross')}; rows are brackets, in the order in which they open"
    width = max(end_x + 30, left + estimate_text_width(subtitle, 12) * 0.5)
    parts = render_heading("The tree and its attention", subtitle, width)
    parts += layout.render(edge_class="grid", bracket_class="ink bold")
    weights = _compute_bracket_weights(explanation, tree)
    top = layout.bottom + 18
    parts.append(render_label("end", end_x, layout.bottom, 11, css_class="muted", anchor="middle"))
    for row, (name, level) in enumerate(zip(names, levels, strict=True)):
        row_y = top + _ROW_HEIGHT * (row + 0.5)
        parts.append(render_label(name, MARGIN + _LEVEL_INDENT * level, row_y + 4.5, FONT_SIZE, css_class="ink"))
        parts.append(_render_row(layout, tree, row, weights[row], row_y, end_x))
        if tree.has_pointer:
            x = layout.centers[tree.brackets[row][1]] - layout.widths[tree.brackets[row][1]] / 2 - 8
            parts.append(f'<path class="ink" d="M{format_number(x)} {format_number(row_y - 4)}l6 4l-6 4z"/>')
    height = top + _ROW_HEIGHT * len(names) + MARGIN
    counts = f"{format_count(len(names), 'bracket')} over {format_count(len(tree.words), 'word')}"
    description = f"{counts}; each row shows the attention of a bracket's token."
    return render_drawing(width, height, "The tree and its attention", description, parts)


def _compute_bracket_weights(explanation: Explanation, tree: ExplanationTree) -> list[list[float]]:
    """Return the word weights of the opening token of each bracket. The end token of the source is last."""
    selection = explanation.selections["cross"]
    mean_TS = explanation.cross.weights_LHTS[selection.layer, list(selection.heads)].mean(axis=0)
    return merge_weights(mean_TS[list(tree.opener_positions)], range(len(tree.opener_positions)), explanation.source_word_ids)


def _render_row(
    layout: TreeLayout, tree: ExplanationTree, row: int, weights: Sequence[float], row_y: float, end_x: float
) -> str:
    name, start_word, end_word = tree.brackets[row]
    row_height = _ROW_HEIGHT - 4
    cell_positions = [(x, cell_width) for x, cell_width in zip(layout.centers, layout.widths, strict=True)]
    cell_positions += [(end_x, 26.0)] * (len(weights) - len(cell_positions))
    cells = "".join(_render_cells(weights, cell_positions, row_y - row_height / 2, row_height))
    x, right = (
        layout.centers[start_word] - layout.widths[start_word] / 2,
        layout.centers[end_word - 1] + layout.widths[end_word - 1] / 2,
    )
    box = box_path(x, row_y - row_height / 2, right - x, row_height)
    frame = f'<path class="line h0" stroke-opacity="0.7" d="{box}"/>'
    best_index = max(range(len(weights)), key=weights.__getitem__)
    word = tree.words[best_index] if best_index < len(tree.words) else "the end"
    tooltip = f"{name or '(no label)'}, words {start_word + 1} to {end_word}: most at {word}, {weights[best_index]:.3f}"
    return f"<g><title>{escape_text(tooltip)}</title>{cells}{frame}</g>"


def _render_cells(
    weights: Sequence[float], cell_positions: Sequence[tuple[float, float]], top: float, row_height: float
) -> Iterator[str]:
    for weight, (x, cell_width) in zip(weights, cell_positions, strict=True):
        if shade := round(min(weight, 1.0) * SHADE_STEPS):
            box = box_path(x - cell_width / 2, top, cell_width, row_height)
            yield f'<path class="cell" fill-opacity="{format_number(shade / SHADE_STEPS)}" d="{box}"/>'


def _compute_levels(brackets: Sequence[tuple[str, int, int]]) -> list[int]:
    levels: list[int] = []
    open_ends: list[int] = []
    for _, start, end in brackets:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        levels.append(len(open_ends))
        open_ends.append(end)
    return levels
