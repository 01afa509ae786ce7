"""Views of an explanation as separate figures."""

from __future__ import annotations

from typing import Any

from dragoman.errors import MissingDependencyError
from dragoman.viz.attention_svg import render_head_grid, render_head_view, render_line_view, render_word_matrix
from dragoman.viz.beam_svg import render_beam_tree, render_prediction_chart
from dragoman.viz.explanation import ATTENTION_KINDS, Explanation
from dragoman.viz.source_attention import render_source_attention
from dragoman.viz.tree_attention import render_tree_attention

PIXELS_PER_UNIT = 3
"""Scale of PNGs."""


def list_figure_names(*, include_tree: bool = False) -> list[str]:
    """Return the names that `render_figures` can return. There is no beam figure without a recorded beam."""
    return (
        [f"{view}-{kind}" for view in ("lines", "heads", "inside") for kind in ATTENTION_KINDS]
        + ["words", "steps", "beam"]
        + ["tree"] * include_tree
    )


def render_figures(explanation: Explanation) -> dict[str, str]:
    """Return the figures as SVGs by name."""
    svg_by_name = {f"lines-{kind}": render_line_view(explanation, kind) for kind in explanation.kinds}
    svg_by_name |= {f"heads-{kind}": render_head_grid(explanation, kind) for kind in explanation.kinds}
    svg_by_name |= {f"inside-{kind}": render_head_view(explanation, kind) for kind in explanation.kinds}
    svg_by_name |= {"words": render_words(explanation), "steps": render_prediction_chart(explanation)}
    svg_by_name |= {"beam": render_beam_tree(explanation)} if explanation.beam else {}
    return svg_by_name | ({"tree": render_tree_attention(explanation)} if explanation.tree else {})


def render_words(explanation: Explanation) -> str:
    """Return the attention from the output to the source: between words, or over the image of the source."""
    return render_source_attention(explanation) if explanation.image else render_word_matrix(explanation)


def svg_to_png(svg: str) -> bytes:
    """Return an SVG as a PNG, with `PIXELS_PER_UNIT` pixels for each unit. Raises MissingDependencyError."""
    try:
        import resvg_py
    except ImportError:
        raise MissingDependencyError("resvg-py", "png", "writing a PNG") from None
    render: Any = resvg_py.svg_to_bytes
    return bytes(render(svg_string=svg, zoom=PIXELS_PER_UNIT, sans_serif_family="DejaVu Sans"))
