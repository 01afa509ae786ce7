"""Rules for the codes of a text that a format, a declaration of a file, or the texts of a file add to the common ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

MIN_TEXTS = 2
"""Texts with a style that two readings fit, such as `[name]`, from which on it is a placeholder in a file."""

_BRACKET = re.compile(r"\[([a-z][\w.-]*|[A-Z][A-Z0-9_]*)\](?![(\[_])")
_BRACKET_WORDS = frozenset(
    (
        "all", "any", "beta", "bold", "cc", "citation", "cut", "default", "deleted", "draft", "edit", "empty", "error",
        "fixed", "hidden", "image", "info", "italic", "laughs", "link", "missing", "more", "music", "n", "new", "no",
        "none", "note", "ok", "old", "optional", "preview", "private", "read", "redacted", "removed", "required", "sic",
        "todo", "translated", "unknown", "untitled", "warning", "yes",
    )
)  # fmt: skip
_AMPERSAND = re.compile(r"(?<![\w&])&(?=[^\W\d_])(?!\w+;)")
_UNDERSCORE = re.compile(r"(?<!\w)_(?=[^\W\d_])[^\W_]+(?![\w*_`])")


@dataclass(frozen=True)
class InlineRules:
    """Rules for the codes of a text.

    enabled: optional styles. "spaces" is the space flag of printf, `% d`. "brackets" is `[name]`. "rst" is reStructuredText.
        "&" and "_" are accelerators inside words.
    disabled: families of styles that are text here, such as "printf"
    kept: words that stay as they are
    """

    enabled: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()

    def enable(self, *names: str) -> InlineRules:
        """Return the rules with these styles."""
        return replace(self, enabled=self.enabled | set(names))

    def disable(self, *names: str) -> InlineRules:
        """Return the rules without these families."""
        return replace(self, disabled=self.disabled | set(names))


COMMON_RULES = InlineRules()
"""Rules of a text about which nothing else is known."""


def infer_rules(texts: Iterable[str]) -> frozenset[str]:
    """Return the optional styles that texts of one file have in common.

    A style that two readings fit is a placeholder if `MIN_TEXTS` texts have it. These are `[name]`, except for words of editors
    such as `[sic]`, and accelerators before a word, such as `&File`. Accelerators may then also be inside a word.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        if "[" in text and any(name.lower() not in _BRACKET_WORDS for name in _BRACKET.findall(text)):
            counts["brackets"] += 1
        if "&" in text and len(_AMPERSAND.findall(text)) == 1:
            counts["&"] += 1
        if "_" in text and len(_UNDERSCORE.findall(text)) == 1:
            counts["_"] += 1
    return frozenset(name for name, count in counts.items() if count >= MIN_TEXTS)
