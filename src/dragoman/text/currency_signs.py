"""Signs of currencies that a translation lost, as `Price in €` that became `Preis in`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_SIGN = re.compile("[\u00a2-\u00a5\u20a0-\u20cf]")
# Translators write these out, and a translation with a name has not lost its sign.
_NAMES = {
    "\u20ac": re.compile("eur|евр|ευρ|欧|歐|ユーロ|유로|يورو|יורו|यूरो", re.IGNORECASE),
    "\u00a3": re.compile("gbp|pfund|punt|funt|liv|lib|lir|sterl|фунт|镑|鎊|ポンド|파운드", re.IGNORECASE),
    "\u00a5": re.compile("yen|jen|ien|yuan|иен|юан|元|円|엔|위안", re.IGNORECASE),
}


def loses_currency(source: str, translation: str) -> bool:
    """Return whether a translation has a sign of a currency, but `$`, less often than its source, and no name of it."""
    if source.isascii():
        return False
    lost = Counter(_SIGN.findall(source)) - Counter(_SIGN.findall(translation))
    return any(sign not in _NAMES or _NAMES[sign].search(translation) is None for sign in lost)


def find_currency_signs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each sign."""
    return (match.span() for match in _SIGN.finditer(text))
