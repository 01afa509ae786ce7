"""Rules for the codes of a text that a format, a declaration of a file, or the texts of a file add to the common ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

MIN_TEXTS = 2
"""Texts with a style that two readings fit, such as `[name]`, from which on it is a placeholder in a file."""

EDITOR_WORDS = frozenset(
    (
        "all", "any", "beta", "bold", "cc", "citation", "cut", "default", "deleted", "draft", "edit", "empty", "error",
        "fixed", "hidden", "image", "info", "italic", "laughs", "link", "missing", "more", "music", "n", "new", "no",
        "none", "note", "ok", "old", "optional", "preview", "private", "read", "redacted", "removed", "required", "sic",
        "todo", "translated", "unknown", "untitled", "warning", "yes",
    )
)  # fmt: skip
"""Words in brackets that are no placeholders."""
BRACKET = rf"\[(?!(?i:{'|'.join(sorted(EDITOR_WORDS))})\])(?:[a-z][\w.-]*+|[A-Z][A-Z0-9_]*+)\](?![(\[_])"
"""Pattern of a name in brackets."""
_BRACKET = re.compile(BRACKET)
_HAS_SIGN = re.compile("[:@#!]|__")
_SIGNS = re.compile(r"(?<![\w:/\\.)\]}%@&#!])(?:([@#!]|::?)[A-Za-z_][\w-]+(?![\w:])|(__)[A-Za-z]\w*__(?!\w))")
_AMPERSAND = re.compile(r"(?<![\w&])&(?=[^\W\d_])(?!\w+;)")
_UNDERSCORE = re.compile(r"(?<!\w)_(?=[^\W\d_])[^\W_]+(?![\w*_`])")


@dataclass(frozen=True)
class InlineRules:
    """Rules for the codes of a text.

    enabled: optional styles. "spaces" is the space flag of printf, `% d`. "brackets" is `[name]`. "rst" is reStructuredText.
        ":name", "@name", "#name", "!name" and "_name", for `__name__`, are any names with these signs. "&" and "_" are
        accelerators inside words.
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


def infer_rules(texts: Iterable[tuple[str, str]], *, has_names: bool) -> frozenset[str]:
    """Return the optional styles that texts of one file have in common.

    A style that two readings fit is a placeholder if `MIN_TEXTS` texts have it, or if one has the same code in its translation.
    These are names behind a sign, such as `:who` and `@who`, and `[who]`, except for words of editors such as `[sic]`.
    Accelerators before a word, such as `&File`, may then also be inside a word.

    texts: texts, each with its translation or an empty text
    has_names: the file is one of values, which may have all names; other files have only `@who` and `#who`
    """
    counts: Counter[str] = Counter()
    for text, translation in texts:
        names: dict[str, str] = {}
        if "[" in text:
            names = dict.fromkeys(_BRACKET.findall(text), "brackets")
        if _HAS_SIGN.search(text):
            names |= {match[0]: f"{(match[1] or match[2])[0]}name" for match in _SIGNS.finditer(text)}
        for style in set(names.values()):
            is_kept = any(name in translation for name, other in names.items() if other == style)
            counts[style] += MIN_TEXTS if is_kept else 1
        if "&" in text and len(_AMPERSAND.findall(text)) == 1:
            counts["&"] += 1
        if "_" in text and len(_UNDERSCORE.findall(text)) == 1:
            counts["_"] += 1
    allowed = counts.keys() if has_names else counts.keys() - {":name", "!name", "_name"}
    return frozenset(name for name in allowed if counts[name] >= MIN_TEXTS)
