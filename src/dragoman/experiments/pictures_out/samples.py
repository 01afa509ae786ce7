"""Scores of the pictures that a model has written, and a drawing of them beside the real ones.

What a picture shows is read from the most similar picture of the training data, so no classifier is trained. Q counts pictures
that are judged, N those of the training data, P the pixels of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from dragoman.errors import DataError
from dragoman.experiments.pictures_out.digits import LEVELS, SIDE, WORDS, Picture, list_properties, read_text
from dragoman.formats.pair import Pair
from dragoman.viz.svg import box_path, render_label, render_svg

_COLUMNS, _CELL_WIDTH, _CELL_HEIGHT, _PIXEL, _MARGIN = 5, 182.0, 108.0, 6.0, 16.0
_CHUNK = 256
COLORS = ("#c3cad2", "#7b8591", "#1f2328"), ("#4a5460", "#97a1ac", "#e6edf3")
"""Colors of the three levels of ink on light and on dark pages."""


@dataclass(frozen=True)
class PictureScores:
    """Scores of some pictures.

    digits: share whose most similar picture of the training data shows the digit of the sentence
    properties: share of the properties in the sentences that the pictures have
    distance: mean Euclidean distance, in levels, to the most similar picture of the training data
    invalid: texts with another number of pixels, or with other characters
    """

    pictures: int
    digits: float
    properties: float
    distance: float
    invalid: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def parse_digit(pair: Pair) -> int:
    """Return the digit that a sentence names. Raises DataError, which names the line."""
    words = pair.source.split(",")[0].split()
    if not words or words[-1] not in WORDS:
        raise DataError(f"{pair.origin}: {pair.source[:40]!r} names no digit; give a corpus of dragoman write-digits")
    return WORDS.index(words[-1])


def score_pictures(training_pairs: Sequence[Pair], pairs: Sequence[Pair], texts: Sequence[str]) -> PictureScores:
    """Return the scores of the pictures of texts. pairs: the sentence of each text."""
    if not training_pairs or not texts:
        raise DataError("the corpora have no pictures; give those of dragoman write-digits", code="empty-data")
    pictures = [read_text(text) for text in texts]
    nearest_Q, distance_Q = find_nearest(pictures, [read_text(pair.target) for pair in training_pairs])
    is_right = [parse_digit(training_pairs[near]) == parse_digit(pair) for near, pair in zip(nearest_Q, pairs, strict=True)]
    asked = [
        (word.strip(), list_properties(picture))
        for pair, picture in zip(pairs, pictures, strict=True)
        for word in pair.source.split(",")[1:]
    ]
    return PictureScores(
        pictures=len(texts),
        digits=float(np.mean(is_right)),
        properties=sum(word in words for word, words in asked) / max(len(asked), 1),
        distance=float(distance_Q.mean()),
        invalid=sum(len(text) != SIDE**2 or not set(text) <= set(LEVELS) for text in texts),
    )


def find_nearest(
    pictures: Sequence[Picture], training: Sequence[Picture]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Return the index of the most similar picture of the training data, and the distance to it in levels. (Q,), (Q,)"""
    picture_QP, training_NP = (np.stack(group).reshape(len(group), -1).astype(np.float32) for group in (pictures, training))
    nearest, distances = list[npt.NDArray[np.intp]](), list[npt.NDArray[np.float32]]()
    for start in range(0, len(picture_QP), _CHUNK):
        chunk_QP = picture_QP[start : start + _CHUNK]
        squares_QN = (chunk_QP**2).sum(1)[:, None] + (training_NP**2).sum(1) - 2 * chunk_QP @ training_NP.T
        nearest.append(squares_QN.argmin(1))
        distances.append(np.sqrt(squares_QN.min(1).clip(0)))
    return np.concatenate(nearest), np.concatenate(distances)


def draw_samples(pairs: Sequence[Pair], texts: Sequence[str]) -> str:
    """Return an SVG with each sentence above its real picture and the one that the model wrote."""
    body = []
    for index, (pair, text) in enumerate(zip(pairs, texts, strict=True)):
        x = _MARGIN + _CELL_WIDTH * (index % _COLUMNS)
        y = 62 + _CELL_HEIGHT * (index // _COLUMNS)
        body.append(render_label(pair.source, x, y, 10.5))
        for left, pixels in ((x, pair.target), (x + _PIXEL * SIDE + 5, text)):
            body += [f'<path class="grid" d="{box_path(left, y + 5, _PIXEL * SIDE, _PIXEL * SIDE)}"/>']
            body += _draw_picture(read_text(pixels), left, y + 5)
    light, dark = ({f".level{level}": f"fill:{color}" for level, color in enumerate(colors, 1)} for colors in COLORS)
    title = "A sentence in, pixels out"
    lesson = "Left of each pair is the picture that the sentence describes, and right the one that the model drew from it."
    return render_svg(
        "dragoman-pictures",
        width=2 * _MARGIN + _CELL_WIDTH * _COLUMNS,
        height=62 + _CELL_HEIGHT * -(-len(texts) // _COLUMNS),
        title=title,
        description=lesson,
        body="\n".join([render_label(title, _MARGIN, 24, 16), render_label(lesson, _MARGIN, 42, 12), *body]),
        light=light,
        dark=dark,
    )


def _draw_picture(picture_HW: Picture, left: float, top: float) -> list[str]:
    """Return one path for each level of ink, with a box for each run of pixels in a row."""
    paths = []
    for level in range(1, len(LEVELS)):
        boxes = []
        for row, levels_W in enumerate(picture_HW):
            edges = np.flatnonzero(np.diff(np.pad(levels_W == level, 1).astype(np.int8)))
            for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                boxes.append(box_path(left + _PIXEL * start, top + _PIXEL * row, _PIXEL * (end - start), _PIXEL))
        paths += [f'<path class="level{level}" d="{"".join(boxes)}"/>'] if boxes else []
    return paths
