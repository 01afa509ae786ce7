"""Formatting that marks code in office documents: character styles for code, and monospaced fonts.

A text with a character style for code is kept, like `<code>` in HTML. A text in a monospaced font is kept only beside words in
another font, because whole paragraphs in such a font, as in screenplays, are written for readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.documents.script_languages import NO_LANGUAGES, ScriptLanguages

# Names without spaces of the character styles of Word, LibreOffice and Pandoc that stand for the tags code, kbd, samp and var.
_CODE_STYLES = frozenset(
    (
        "code", "codechar", "htmlcode", "htmlkeyboard", "htmlsample", "htmlvariable", "inlinecode", "sourcecode",
        "sourcecodechar", "sourcetext", "userentry", "verbatimchar",
    )
)  # fmt: skip
_MONOSPACED_FONTS = re.compile(
    r"\b(?:mono|monospaced?|courier|consolas|menlo|monaco|inconsolata|fixedsys|lucida console|typewriter"
    r"|(?:cascadia|fira|source) code)\d*\b",
    re.IGNORECASE,
)
MAX_PARENTS = 20
"""Most styles above a style that are looked up."""


@dataclass(frozen=True, slots=True)
class FontStyle:
    """Style of characters or paragraphs.

    name: as a user sees it
    parent: id of the style above
    font, languages, position: empty if it states none; the position is that of a superscript or subscript
    """

    name: str
    parent: str = ""
    font: str = ""
    languages: ScriptLanguages = NO_LANGUAGES
    position: str = ""


@dataclass(frozen=True)
class FontStyles:
    """Styles of a document by id.

    default: id of the style of paragraphs that name none
    font, languages: those of texts without a style
    language: that of most texts
    """

    styles: Mapping[str, FontStyle] = field(default_factory=dict)
    default: str = ""
    font: str = ""
    languages: ScriptLanguages = NO_LANGUAGES
    language: str = ""

    def is_code(self, style_id: str) -> bool:
        """Return whether a character style, or one above it, is one for code."""
        return any(re.sub(r"[\s_-]", "", style.name).lower() in _CODE_STYLES for style in self._list(style_id))

    def get_font(self, style_id: str) -> str:
        """Return the font of a style, or an empty text if it has none."""
        return next((style.font for style in self._list(style_id) if style.font), "")

    def get_position(self, style_id: str) -> str:
        """Return the position of a superscript or subscript of a style, or an empty text."""
        return next((style.position for style in self._list(style_id) if style.position), "")

    def get_language(self, style_id: str, text: str) -> str:
        """Return the code of the language of a style for the script of a text, or an empty text if it states none."""
        for style in self._list(style_id):
            if code := style.languages.select(text):
                return code
        return ""

    def _list(self, style_id: str) -> list[FontStyle]:
        """Return a style and those above it."""
        styles: list[FontStyle] = []
        while (style := self.styles.get(style_id)) is not None and len(styles) < MAX_PARENTS:
            styles.append(style)
            style_id = style.parent
        return styles


def is_monospaced(font: str) -> bool:
    """Return whether the name of a font is that of one with characters of equal width."""
    return bool(_MONOSPACED_FONTS.search(font))
