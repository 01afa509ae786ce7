"""Each view of an explanation as a picture of its own, for papers and talks."""

from __future__ import annotations

from typing import Any

from dragoman.errors import MissingExtraError
from dragoman.viz.attention_svg import head_grid, inside_view, line_view, word_matrix
from dragoman.viz.beam_svg import beam_tree, choice_chart
from dragoman.viz.explanation import KINDS, Explanation
from dragoman.viz.tree_attention import tree_view


def figure_names(*, tree: bool = False) -> list[str]:
    """All that `figures` may give, of a parse with its tree; there is no beam where none was recorded."""
    return (
        [f"{view}-{kind}" for view in ("lines", "heads", "inside") for kind in KINDS]
        + ["words", "steps", "beam"]
        + ["tree"] * tree
    )


def figures(explanation: Explanation) -> dict[str, str]:
    """SVGs by name."""
    drawn = {f"lines-{kind}": line_view(explanation, kind) for kind in KINDS}
    drawn |= {f"heads-{kind}": head_grid(explanation, kind) for kind in KINDS}
    drawn |= {f"inside-{kind}": inside_view(explanation, kind) for kind in KINDS}
    drawn |= {"words": word_matrix(explanation), "steps": choice_chart(explanation)}
    drawn |= {"beam": beam_tree(explanation)} if explanation.beam else {}
    return drawn | ({"tree": tree_view(explanation)} if explanation.tree else {})


def png_of(svg: str, *, zoom: int = 3) -> bytes:
    """An SVG as pixels, `zoom` of them to each of its units. Raises MissingExtraError."""
    try:
        import resvg_py
    except ImportError:
        raise MissingExtraError("resvg-py", "png", "a picture as PNG") from None
    render: Any = resvg_py.svg_to_bytes
    return bytes(render(svg_string=svg, zoom=zoom, sans_serif_family="DejaVu Sans"))
