"""Languages that office documents state for each kind of script: one for Latin and its like, one for Asian, one for complex.

The characters of a text select its kind, so a Japanese text in a file with `en-US` and `ja-JP` is Japanese.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ASIAN = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]")
_COMPLEX = re.compile(r"[\u0590-\u109f\u1780-\u17ff\ufb1d-\ufdff\ufe70-\ufefc\U0001e900-\U0001e95f]")


class ScriptLanguages(NamedTuple):
    """Codes of the languages of texts in Latin and other simple scripts, in Asian and in complex scripts; empty if unknown."""

    simple: str = ""
    asian: str = ""
    complex: str = ""

    def select(self, text: str) -> str:
        """Return the code for the script of most letters of a text."""
        num_asian, num_complex = len(_ASIAN.findall(text)), len(_COMPLEX.findall(text))
        num_simple = sum(map(str.isalpha, text)) - num_asian - num_complex
        if num_asian > max(num_simple, num_complex):
            return self.asian
        return self.complex if num_complex > max(num_simple, num_asian) else self.simple


NO_LANGUAGES = ScriptLanguages()
"""Languages of a part that states none."""
