"""Attention to a sound or a picture: the image of the source, its axis, and below it a row for each output token.

The columns of the rows are the vectors of the source. Each is below the frame of the image on which it is centered.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.runtime.counts import format_count
from dragoman.viz.attention_svg import (
    FONT_SIZE,
    MARGIN,
    describe_selection,
    display_token,
    quantize_weights,
    render_cells,
    render_drawing,
    render_heading,
)
from dragoman.viz.explanation import Explanation, SourceImage
from dragoman.viz.png import encode_palette_png, interpolate_colors, to_data_url
from dragoman.viz.svg import box_path, estimate_text_width, format_attributes, format_number, line_path, render_label

ROW_HEIGHT = 18.0
_WIDTH, _MIN_FRAME_WIDTH, _MAX_FRAME_WIDTH, _MAX_IMAGE_HEIGHT = 900.0, 0.75, 16.0, 140.0
_TOP, _AXIS_HEIGHT, _LABEL_GAP, _TICK_DISTANCE = 56.0, 24.0, 8, 80.0
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)


def render_source_attention(explanation: Explanation) -> str:
    """Draw the image of the source and the mean weights of the selected heads from each output token to each vector."""
    image, tokens = explanation.image, [display_token(token) for token in explanation.output_tokens]
    assert image is not None
    selection = explanation.selections["cross"]
    weights_TS = explanation.cross.weights_LHTS[selection.layer, list(selection.heads)].mean(axis=0)
    height, num_frames = image.pixels_YT.shape
    frame_width = max(_MIN_FRAME_WIDTH, min(_MAX_FRAME_WIDTH, _WIDTH / num_frames))
    image_height = min(_MAX_IMAGE_HEIGHT, max(2.0, frame_width) * height)
    labels = [*tokens, image.top_label, image.bottom_label]
    unit = frame_width * image.frames_per_vector
    cells_left = MARGIN + _LABEL_GAP + max(estimate_text_width(label, FONT_SIZE) for label in labels)
    left = cells_left + unit / 2 - frame_width / 2
    top = _TOP + image_height + _AXIS_HEIGHT
    cells_width, cells_height = unit * weights_TS.shape[1], ROW_HEIGHT * len(tokens)
    width = max(cells_left + cells_width, left + frame_width * num_frames) + MARGIN
    geometry = {"left": cells_left, "top": top, "wide": unit, "high": ROW_HEIGHT}
    data = "".join(f' data-{name}="{format_number(value)}"' for name, value in geometry.items())
    parts = [
        *render_heading("Attention to the source", f"mean of {describe_selection(explanation, 'cross')}", width),
        _render_image(image, left, frame_width * num_frames, image_height),
        '<g class="over"></g>',
        *_render_axis(image, left, frame_width, image_height, top + cells_height),
        *(
            render_label(label, cells_left - _LABEL_GAP, y, 11, css_class="muted", anchor="end")
            for label, y in ((image.top_label, _TOP + 10), (image.bottom_label, _TOP + image_height))
            if label
        ),
        f'<g class="cells"{data}>{render_cells(quantize_weights(weights_TS), cells_left, top, unit, ROW_HEIGHT)}</g>',
        f'<path class="grid" d="{box_path(cells_left, top, cells_width, cells_height)}"/>',
    ]
    for row, token in enumerate(tokens):
        y = top + ROW_HEIGHT * (row + 0.5) + FONT_SIZE * 0.35
        parts.append(render_label(token, cells_left - _LABEL_GAP, y, FONT_SIZE, css_class="ink row", anchor="end"))
    counts = f"{format_count(len(tokens), 'token')} of the output, one a row, attend to {format_count(num_frames, 'frame')}"
    description = f"{counts} of the source."
    return render_drawing(width, top + cells_height + MARGIN, "Attention to the source", description, parts)


def _render_image(image: SourceImage, left: float, width: float, height: float) -> str:
    png = encode_palette_png([row.tobytes() for row in image.pixels_YT], interpolate_colors(_WHITE, _BLACK))
    place = format_attributes(x=left, y=_TOP, width=width, height=height)
    return f'<image class="source" preserveAspectRatio="none" {place} href="{to_data_url(png)}"/>'


def _render_axis(image: SourceImage, left: float, frame_width: float, height: float, bottom: float) -> Iterator[str]:
    """Yield the labels of the frames, and lines from them down to the last row."""
    num_frames = image.pixels_YT.shape[1]
    step = _choose_tick(_TICK_DISTANCE / frame_width * image.units_per_frame)
    y = _TOP + height
    ticks = range(int((num_frames - 1) * image.units_per_frame / step + 1e-9) + 1)
    xs = [left + frame_width * (tick * step / image.units_per_frame + 0.5) for tick in ticks]
    yield f'<path class="grid" d="{"".join(line_path(x, y, x, bottom) for x in xs)}"/>'
    for tick, x in zip(ticks, xs, strict=True):
        label = f"{tick * step:g}" if tick else f"0 {image.unit}"
        yield render_label(label, x + 3, y + 15, 11, css_class="muted")


def _choose_tick(least: float) -> float:
    """Return the least of 0.01, 0.02, 0.05, 0.1, … that is not below `least`."""
    steps = (factor * 10.0**power for power in range(-2, 6) for factor in (1, 2, 5))
    return next(step for step in steps if step >= least or step == 5e5)
