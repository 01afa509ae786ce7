"""Long texts of many kinds, and a check that a function takes time in proportion to their length."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from dragoman.errors import DragomanError

# Letters, digits, blanks, combining marks, scripts without spaces, emoji, and every mark of ASCII.
CHARACTERS = (
    "a", "Z", "7", " ", "\t", "\n", "\r\n", "\u00a0", "\u2028", "\u0301", "\u4e2d", "\u3042", "\u0e01", "\u0627",
    "\U0001f600", *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "\u3002", "\u2026", "\u00ab", "\u00bb", "\u2019", "\u27e6",
    "\u27e7", "\ufdd0",
)  # fmt: skip
# Beginnings and wholes of tags, links, placeholders, escapes, comments and other structures.
PIECES = (
    "a.", ". ", ".\n", "a ", "a, ", "1.", "1. ", "- ", "* ", "> ", "# ", "| ", "|a", "<a", "<a ", "<a>", "</a>", "<br/>",
    "<a b='", '<a b="c" ', "<!", "<!--", "-->", "<![CDATA[", "]]>", "<?", "&amp;", "&a", "&#1", "{a", "{{", "}}", "{a}",
    "{a, plural, ", "{a, select, other {", "%(", "%(a)0", "%1$", "%s", "%0", "${", "$a", "@a", "a@b.", "http://", "www.",
    "[X1", "\u27e61\u27e7", "\\\\", "\\u00", "\\\n", "''", "\"'", "**", "__", "*a", "_a ", "``", "`a", "~~", "[a", "[a](",
    "![", "](", "[^", "[a]: ", "{#", "{%", "<%", "--", "---\n", "===\n", "\n\n", "\n ", "a\n", "a: ", "a: b\n", "- a\n",
    "  - ", "a=b\n", "/*", "//", '"a" ', '"a"="b";', "'a", "\u201ca", "a'", "1'", "a\u0301", "\u4e2d\u3002", "\u30a2-",
    "1\n00:00:01,000 --> 00:00:02,000\n", "00:00:01.000 --> 00:00:02.000\na\n", 'msgid "a"\nmsgstr ""\n', '"a"\n', "#, a\n",
    "<p>a", "<div>", "<b>", "<code>", "<x1/>", "<g1>", "</g1>", "*a* ", "[a](b) ", "\u0315\u0300",
)  # fmt: skip
# Structures that contain themselves: start and end.
BRACKETS = (
    ("(", ")"), ("[", "]"), ("{", "}"), ("<b>", "</b>"), ("<div>", "</div>"), ("<p><i>", "</i></p>"), ("<svg>", "</svg>"),
    ("<ul><li>", "</li></ul>"), ("*a ", " a*"), ("**a _b ", " b_ a**"), ("[a ", "](b)"), ("![", "](b)"), ("> ", ""), ("- ", ""),
    ("{a, plural, other {", "}}"), ("{a, select, b {c} other {", "}}"), ("{a: ", "}"), ('{"a":', "}"), ('[{"a":[', "]}]"),
    ("&a [", "]"), ("n?", ":1"), ("!(", ")"),
)  # fmt: skip
QUICK = (".", "<a ", "{")

MAX_RATIO = 6.0
FLOOR_SECONDS = 0.01
"""Processor time below which the time for one length says nothing about another."""
Make = Callable[[int], str]
"""Function from a length to a text of about this length."""
_numbers = count()


def make_run(piece: str) -> Make:
    """Return the maker of a text that repeats a piece between letters."""
    return lambda length: f"a{piece * (length // len(piece))}a"


def make_nested(start: str, end: str) -> Make:
    """Return the maker of a text that opens a structure again and again, and closes it as often."""

    def make(length: int) -> str:
        depth = length // len(start + end)
        return f"{start * depth}a{end * depth}"

    return make


def measure(function: Callable[[str], object], make: Make, length: int) -> float:
    """Return the processor time of a call, in seconds. Each call has a text of its own, which no cache knows."""
    text = make(length + 8 * (next(_numbers) % 64))
    gc.collect(0)
    start = time.thread_time()
    with suppress(DragomanError, ValueError):  # the text is refused
        function(text)
    return time.thread_time() - start


def check_time_is_linear(name: str, function: Callable[[str], object], make: Make, length: int) -> None:
    """Fail if four times the length takes more than `MAX_RATIO` times as long, also when it is measured again and longer."""
    longer = measure(function, make, 4 * length)
    if longer < FLOOR_SECONDS or longer <= MAX_RATIO * measure(function, make, length):
        return
    ratio = 0.0
    for _ in range(4):
        shorter = min(measure(function, make, length) for _ in range(3))
        longer = min(measure(function, make, 4 * length) for _ in range(2))
        ratio = longer / max(shorter, 1e-6)
        if ratio <= MAX_RATIO:
            return
        length = 2 * length if longer < 0.5 else length
    raise AssertionError(f"{name}: {4 * length} characters took {ratio:.1f} times as long as {length}")
