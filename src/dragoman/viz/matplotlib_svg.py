"""Style of the charts, and conversion of a matplotlib figure to a plain SVG.

matplotlib is imported only while a chart is drawn. It belongs to the extra `plots`.
"""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dragoman.errors import MissingDependencyError
from dragoman.viz.svg import escape_hidden, format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT_SIZE, TITLE_FONT_SIZE = 12.0, 16.0
# This gray has a contrast above 4 with white and with the dark page.
GRAY = "#7a7a7a"
# Okabe and Ito's palette for any color vision. Gray replaces black; yellow is left out, because white hides it.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", GRAY)
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRAY,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": GRAY,
    "axes.labelsize": FONT_SIZE,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.h_pad": 6 / 72,
    "figure.constrained_layout.w_pad": 12 / 72,
    "figure.dpi": 72.0,  # one point is one pixel
    "figure.facecolor": "none",
    "figure.titlesize": TITLE_FONT_SIZE,
    "figure.titleweight": "bold",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    "grid.alpha": 0.3,
    "grid.color": GRAY,
    "legend.fontsize": FONT_SIZE,
    "legend.frameon": False,
    "lines.linewidth": 1.75,
    "lines.markersize": 5.0,
    "path.simplify_threshold": 0.5,  # pixels
    "svg.fonttype": "none",
    "svg.hashsalt": "dragoman",
    "text.color": GRAY,
    "text.parse_math": False,
    **{f"{axis}tick.{kind}.size": 0.0 for axis in "xy" for kind in ("major", "minor")},
    **{f"{axis}tick.color": GRAY for axis in "xy"},
}
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


def check_matplotlib() -> None:
    """Raise MissingDependencyError without matplotlib. Commands that draw at their end call this at their start."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependencyError("matplotlib", "plots", "drawing a chart")


@contextmanager
def chart_style() -> Iterator[None]:
    """Apply the style of the charts within the block instead of the user's own style.

    Raises MissingDependencyError without matplotlib.
    """
    check_matplotlib()
    import numpy as np
    from matplotlib import style

    # The ticks above the perplexity of a diverged run overflow.
    with warnings.catch_warnings(), np.errstate(over="ignore"), style.context(["default", _STYLE]):
        # matplotlib only measures the text. The browser draws it with fonts of its own.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def figure_to_svg(figure: Figure, *, title: str, description: str, tooltips: Mapping[str, Sequence[str]]) -> str:
    """Return the figure as an SVG element that a page can hold: it has no ids, no references and no rules of style.

    tooltips: for the `gid` of an artist, the tooltips of its shapes in order. The first word of the `gid` becomes the class.
    """
    stream = io.StringIO()
    metadata: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=metadata)
    root = ElementTree.fromstring(stream.getvalue())
    paths = {f"#{path.get('id')}": path.get("d", "") for path in root.iter(f"{_NAMESPACE}path") if path.get("id")}
    for element in list(root.iter()):
        for definitions in element.findall(f"{_NAMESPACE}defs"):
            element.remove(definitions)
    for element in list(root.iter()):
        element.tag = element.tag.removeprefix(_NAMESPACE)
        if element.tag == "use":
            position = f"translate({element.attrib.pop('x')} {element.attrib.pop('y')})"
            element.tag = "path"
            element.attrib |= {"d": paths[element.attrib.pop(_LINK)], "transform": position}
    for element in list(root.iter()):
        gid = element.attrib.pop("id", "")
        element.attrib.pop("clip-path", None)  # the axes include all data
        if "d" in element.attrib:
            element.set(
                "d", _LONG_NUMBER.sub(lambda match: format_number(float(match[0])), " ".join(element.attrib["d"].split()))
            )
        if gid in tooltips:
            element.set("class", gid.split()[0])
            for path, tooltip in zip(element.iter("path"), tooltips[gid], strict=False):
                _insert_text(path, 0, "title", "\n".join(map(escape_hidden, tooltip.split("\n"))))
    _insert_text(root, 0, "title", escape_hidden(title))
    _insert_text(root, 1, "desc", escape_hidden(description))
    width, height = (format_number(float(size)) for size in root.get("viewBox", "").split()[2:])
    root.attrib.clear()
    root.attrib |= {
        "xmlns": _NAMESPACE[1:-1],
        "class": "dragoman-chart",
        "role": "img",
        "width": width,
        "height": height,
        "viewBox": f"0 0 {width} {height}",
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _insert_text(parent: ElementTree.Element, index: int, tag: str, text: str) -> None:
    element = ElementTree.Element(tag)
    element.text = text
    parent.insert(index, element)
