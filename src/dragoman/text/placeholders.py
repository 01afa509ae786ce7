"""Placeholders of program texts, and addresses: parts of a text that a translation keeps as they are."""

from __future__ import annotations

import re

Span = tuple[int, int]
PLACEHOLDER_MARKS = tuple(f"⟦{number}⟧" for number in range(32))
"""Marks of placeholders in a text; each stands for a reserved token of the vocabulary."""

# Each alternative begins with a character that ends the one before it, so a search takes time in proportion to the text.
_PLACEHOLDER = re.compile(
    r"""
      \[X\d+X\]                                                     # Weblate, for services without tags
    | ⟦\d+⟧                                                         # reserved tokens
    | %%
    | %\([A-Za-z_]\w*+\)[-+#0]*+\d*+(?:\.\d++)?[diouxXeEfFgGcrsa]  # Python, by name
    | %(?:\d++\$)?+[-+#0']*+(?:\d++|\*)?+(?:\.(?:\d++|\*))?+(?:hh?|ll?|[Lzjtq])?[@diouxXeEfFgGcspn](?![A-Za-z])  # C, Java
    | %\{[^{}\s]++\}                                                # Ruby
    | \$\{[^{}]++\} | \{\{[^{}]++\}\} | \{[^{}\s]*+\}               # templates
    | \$[A-Za-z_]\w*+\$?
    | (?:https?|ftp)://[^\s<>"'”»]*[^\s<>"'”».,;:!?)\]}]            # addresses
    | \bwww\.[^\s<>"'”»]*[^\s<>"'”».,;:!?)\]}]
    | (?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}
    """,
    re.VERBOSE,
)


# Each placeholder holds one of these. Most texts hold none, and to look for them takes a small part of the time.
_TRIGGER = re.compile(r"[%⟦{$@]|\[X|://|www\.")


def find_placeholders(text: str) -> list[Span]:
    """Return the spans of the placeholders and addresses of a text, in order.

    They are the marks of printf, Python, Ruby and templates, Weblate's `[X0X]`, reserved tokens `⟦0⟧`, URLs and e-mail
    addresses.
    """
    return [match.span() for match in _PLACEHOLDER.finditer(text)] if _TRIGGER.search(text) else []
