"""Long texts of many kinds, and a check that a function takes time in proportion to their length."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
Make = Callable[[int, str], str]
"""Function from a length and a word to a text of about this length that holds the word."""

MAX_RATIO = 6.0
SUSPICIOUS_RATIO = 5.0
MAX_REPEATS = 5
FLOOR_SECONDS = 0.001
"""Processor time of a call that is too short for a verdict, and too short to harm at such a length."""
PARSER_SECONDS = 0.004
MIN_LENGTH, MAX_LENGTH = 512, 2048
"""Lengths of the shorter of two texts."""
CALL_SECONDS = 20.0
"""Processor time after which a call is ended. One that grows faster than the square would not end."""
_numbers = count()


def make_run(piece: str) -> Make:
    """Return the maker of a text that repeats a piece between words."""
    return lambda length, word: f"{word}{piece * (length // len(piece))}{word}"


def make_ended(piece: str) -> Make:
    """Return the maker of a text that repeats a piece, and then has a character that fits in few patterns."""
    return lambda length, word: f"{piece * (length // len(piece))}!{word}"


def make_nested(start: str, end: str) -> Make:
    """Return the maker of a text that opens a structure again and again, and closes it as often."""

    def make(length: int, word: str) -> str:
        depth = length // len(start + end)
        inner = json.dumps(word) if '"' in start else word
        return f"{start * depth}{inner}{end * depth}"

    return make


TEXTS: dict[str, Make] = {
    **{f"run of {piece!r}": make_run(piece) for piece in (*CHARACTERS, *PIECES, *(start for start, _ in BRACKETS))},
    **{f"run of {piece!r} and '!'": make_ended(piece) for piece in ("1", "1.", "a", "A", "A1", "a-", "a_", "a/", "a.", "[a]")},
    **{f"{start!r} in {start!r}": make_nested(start, end) for start, end in BRACKETS},
}
QUICK_TEXTS = {name: TEXTS[name] for name in ("run of '.'", "run of '<a '", "run of '{'")}


def choose_length(function: Callable[[str], object]) -> int:
    """Return the length of the shorter texts for a function: longer ones for a fast function, whose faults weigh more."""
    rate = min(sum(measure(function, make, 1024) for make in QUICK_TEXTS.values()) / len(QUICK_TEXTS) for _ in range(2)) / 1024
    return max(MIN_LENGTH, min(MAX_LENGTH, int(PARSER_SECONDS / max(rate, 1e-9)) // 4))


def measure(function: Callable[[str], object], make: Make, length: int) -> float:
    """Return the processor time of a call, in seconds. Each call has a word of its own, so that no cache knows the text."""
    number = next(_numbers)
    text = make(length, "".join(chr(ord("a") + number // 26**place % 26) for place in range(4)))
    with limit_processor_time():
        start = time.thread_time()
        with suppress(DragomanError, ValueError):  # the text is refused
            function(text)
        return time.thread_time() - start


@contextmanager
def limit_processor_time(seconds: float = CALL_SECONDS) -> Iterator[None]:
    """Raise AssertionError after some processor time, where the system can. A search with an expression is ended, too."""

    def fail(*_: object) -> None:
        raise AssertionError(f"a call took more than {seconds} s")

    if not hasattr(signal, "setitimer"):
        yield
        return
    previous = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def check_time_is_linear(name: str, function: Callable[[str], object], make: Make, length: int) -> None:
    """Raise AssertionError if four times the length takes more than `MAX_RATIO` times as long.

    Most texts are measured once. A suspicious ratio is measured again at twice the length, the least of several each time. It
    has to become that of a linear time before it was above the limit four times in a row. The ratio of a time with a square
    in it grows. That of a square with a limit, such as the longest sentence, falls.
    """
    longer = measure(function, make, 4 * length)
    if longer < FLOOR_SECONDS or longer <= SUSPICIOUS_RATIO * measure(function, make, length):
        return
    num_above = 0
    for _ in range(MAX_REPEATS):
        shorter = min(measure(function, make, length) for _ in range(3))
        longer = min(measure(function, make, 4 * length) for _ in range(2))
        ratio = longer / max(shorter, 1e-6)
        if ratio <= SUSPICIOUS_RATIO:
            return
        num_above = num_above + 1 if ratio > MAX_RATIO else 0
        if num_above == 4:
            raise AssertionError(f"{name}: {4 * length} characters took {ratio:.1f} times as long as {length}")
        length *= 2
