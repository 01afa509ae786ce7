"""Pictures of lines of text: training data for a model that reads them.

A line is black on white, in one of several fonts, with margins. Distortion turns and slants it, fades its ink and its paper,
blurs it and adds noise to its pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dragoman.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

MIN_SIZE, MAX_SIZE = 24, 40
"""Sizes of a font, in pixels."""
MIN_MARGIN, MAX_MARGINS = 0.05, (1.0, 0.35, 1.0, 0.35)
"""Least margin, and largest ones before, above, after and below a line, as shares of the font's size."""
MAX_DEGREES, MAX_SLANT = 2.0, 0.2
"""Largest rotation of a line, and largest shift to the side for each pixel up."""
MAX_BLUR, MAX_NOISE = 0.05, 0.15
"""Largest standard deviations of the blur, as a share of the font's size, and of the noise, as a share of the full range."""
MAX_FADING = 0.4
"""Largest share of the full range by which ink is lighter than black, and paper darker than white."""
NO_CHARACTER = "\uffff"
"""Code point that no font has: its form is that of a missing character."""


class LineDrawer:
    """Draws lines in fonts that are drawn by lot.

    fonts: files of TrueType and OpenType fonts
    distortion: share of each largest distortion; 0 gives black text on white
    """

    def __init__(self, fonts: Sequence[Path], *, distortion: float = 0.0) -> None:
        if not fonts:
            raise DataError("fonts: there are none; list font files, one a line", code="empty-data")
        self.fonts, self.distortion = tuple(fonts), distortion
        self.opened: dict[tuple[Path, int], FreeTypeFont] = {}

    def draw(self, text: str, rng: np.random.Generator) -> Image:
        """Return the gray picture of a line.

        Raises DataError for a blank line and a font that cannot be read or lacks a character, and MissingDependencyError.
        """
        if not text.strip():
            raise DataError("texts: a line is blank; delete it", code="empty-data")
        path, size = self.fonts[rng.integers(len(self.fonts))], int(rng.integers(MIN_SIZE, MAX_SIZE + 1))
        font = self._open_font(path, size)
        unknown = bytes(font.getmask(NO_CHARACTER))
        if missing := [
            character for character in text if not character.isspace() and bytes(font.getmask(character)) == unknown
        ]:
            raise DataError(
                f"{path}: the font lacks {missing[0]!r}; take it off the list, or the line", code="invalid-argument"
            )
        from PIL import Image, ImageDraw

        left, top, right, bottom = font.getbbox(text)
        before, above, after, below = (rng.uniform(MIN_MARGIN, MAX_MARGINS) * size).tolist()
        picture = Image.new("L", (round(right - left + before + after) + 1, round(bottom - top + above + below) + 1))
        ImageDraw.Draw(picture).text((before - left, above - top), text, fill=255, font=font)
        return self._distort(picture, size, rng) if self.distortion else picture.point(lambda ink: 255 - ink)

    def _distort(self, picture: Image, size: int, rng: np.random.Generator) -> Image:
        """Return the picture of white text on black as dark text on light, with distortions of random strength."""
        from PIL import Image, ImageFilter

        signed = (rng.uniform(-1, 1, 2) * (MAX_DEGREES, MAX_SLANT) * self.distortion).tolist()
        positive = (rng.uniform(0, 1, 4) * (MAX_BLUR * size, MAX_NOISE, MAX_FADING, MAX_FADING) * self.distortion).tolist()
        (degrees, slant), (blur, noise, ink, paper) = signed, positive
        picture = picture.transform(
            (round(picture.width + abs(slant) * picture.height), picture.height),
            Image.Transform.AFFINE,
            (1, slant, -max(slant, 0) * picture.height, 0, 1, 0),
            Image.Resampling.BILINEAR,
        )
        picture = picture.rotate(degrees, Image.Resampling.BILINEAR, expand=True).filter(ImageFilter.GaussianBlur(blur))
        pixels_HW = 1 - paper - (1 - ink - paper) * np.asarray(picture, np.float32) / 255
        pixels_HW += noise * rng.standard_normal(pixels_HW.shape, np.float32)
        return Image.fromarray((pixels_HW * 255).clip(0, 255).astype(np.uint8))

    def _open_font(self, path: Path, size: int) -> FreeTypeFont:
        try:
            from PIL import ImageFont
        except ImportError:
            raise MissingDependencyError("Pillow", "pictures", f"{path}: a font") from None
        if (font := self.opened.get((path, size))) is None:
            try:
                font = self.opened[path, size] = ImageFont.truetype(path, size)
            except OSError as error:
                raise DataError(f"{path}: not a font: {error}; give TrueType or OpenType", code="invalid-format") from None
        return font
