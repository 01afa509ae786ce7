"""Codes inside texts: what models lose, double and move, for 25 kinds of structure.

    PYTHONPATH=benchmarks python -m documents.inline_structure --bundle BUNDLE

Each kind has the same number of texts, made with a seed. A text is a date or two with codes at random places. It is a value of
a JSON file. Three functions translate. One is the bundle. The weak stub changes letters, drops words and damages half of the
codes that it reads. The last stub shuffles, drops and doubles all that it reads. A code is lost or doubled if its characters
stand in the written text less or more often than in the source. `compare_codes` counts those that moved out of their pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dragoman.documents.json_file import parse
from dragoman.documents.translate_document import CODE_FLAGS, DocumentOptions, translate_document
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TranslateLines
from dragoman.text.code_check import compare_codes
from dragoman.text.inline_codes import parse_text

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
POINTS = {
    "none": (),
    "printf": ("%s", "%d", "%1$s", "%-5.2f", "%ld", "%@"),
    "Qt, KDE": ("%1", "%2", "%L1", "%n"),
    "Go": ("%v", "%+v", "%q", "%T"),
    "Java": ("%,d", "%1$tY", "%b", "{0,number,integer}"),
    "strftime": ("%B", "%Y", "%d", "%H:%M"),
    "Python": ("%(name)s", "{name!r:>10}", "{n:>10}", "{0}"),
    "Symfony, Drupal": ("%name%", "@name", "!name", "%count%"),
    "Laravel": (":name", ":count", ":user_id"),
    "MediaWiki": ("$1", "{{PLURAL:$1|day|days}}"),
    "Fluent, ICU": ("{ $name }", "{n, number}", "{d, date, long}", "{ -brand }"),
    "i18next, Vue": ("{{name}}", "$t(other)", "@:other.key", "{'@'}"),
    "Ruby, Mustache": ("%<n>d", "%{count}", "#{name}", "{{{name}}}"),
    "shell": ("$HOME", "${x}", "$(name)", "%PATH%"),
    "Apple, Windows": ("%#@days@", "%1!s!", "%1$@", "{0:N2}"),
    "brackets": ("[%key:x%]", "[[name]]", "[name/ver]", "__name__"),
    "addresses": ("https://example.org/a?b=1", "a@example.org", "/usr/bin", "C:\\temp\\x.txt"),
    "void tags": ("<br/>", "<img src='x.png'>", "<0/>", "<icon/>"),
    "references": ("&nbsp;", "&copy;", "&#169;", "&mdash;"),
    "literals": ("`ls -l`", "``x``", ":kbd:`Ctrl`", "|x|", "[1]_"),
    "emoji": ("\U0001f600", "\u2713", "\U0001f1e9\U0001f1ea"),
}  # fmt: skip
PAIRS = {
    "HTML": (("<b>", "</b>"), ("<a href='x'>", "</a>"), ("<i class='y'>", "</i>")),
    "elements": (("<0>", "</0>"), ("<bold>", "</bold>"), ("<1>", "</1>")),
    "Markdown": (("**", "**"), ("[", "](https://example.org)"), ("*", "*")),
    "roles, links": ((":ref:`", " <label>`"), ("`", " <https://example.org>`_"), ("{$START_LINK}", "{$CLOSE_LINK}")),
}  # fmt: skip


def make_texts(kind: str, count: int, seed: int) -> dict[str, tuple[str, ...]]:
    """Return different texts of one kind with their codes."""
    rng = random.Random(f"{seed} {kind}")
    texts: dict[str, tuple[str, ...]] = {}
    while len(texts) < count:
        dates = [f"{rng.choice(MONTHS)} {rng.randint(1, 28)}, {rng.randint(1950, 2049)}" for _ in range(rng.randint(1, 2))]
        codes: tuple[str, ...] = ()
        if kind in PAIRS:
            codes = start, end = rng.choice(PAIRS[kind])
            number = rng.randrange(len(dates))
            dates[number] = f"{start}{dates[number]}{end}"
        elif POINTS[kind]:
            codes = tuple(rng.sample(POINTS[kind], rng.randint(1, 2)))
            for code in codes:
                dates.insert(rng.randint(0, len(dates)), code)
        texts[" ".join(dates)] = codes
    return texts


def make_weak_stub(seed: int) -> TranslateLines:
    """Return a stub that changes letters, drops a word of ten, and damages each second code that it reads."""
    rng = random.Random(seed)

    def change(word: str) -> str:
        if word.isalnum():
            return word[::-1]
        return word[1:] if rng.random() < 0.5 else word

    return make_stub(lambda words: [change(word) for word in words if rng.random() < 0.9])


def make_shuffling_stub(seed: int) -> TranslateLines:
    """Return a stub that shuffles words and codes, drops some and doubles others."""
    rng = random.Random(seed)

    def shuffle(words: list[str]) -> list[str]:
        chosen = [word for word in words for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        rng.shuffle(chosen)
        return chosen

    return make_stub(shuffle)


def make_stub(change: Callable[[list[str]], list[str]]) -> TranslateLines:
    """Return a function that gives lines with changed words, and attention on the diagonal."""

    def translate(request: LineRequest) -> list[Translation]:
        results = []
        for line in request.lines:
            sources = line.split()
            targets = change(sources) or ["x"]
            rows = tuple(
                tuple(float(row * len(sources) // len(targets) == column) for column in range(len(sources)))
                for row in range(len(targets))
            )
            text = " ".join(targets)
            results.append(Translation(text, tokens=tuple(targets), source_tokens=tuple(sources), attention=rows))
        return results

    return translate


def measure(texts: Mapping[str, Sequence[str]], translate: TranslateLines) -> dict[str, int]:
    """Return how many texts are lost, doubled, moved outside, flagged, and translated."""
    content = json.dumps({f"k{number}": text for number, text in enumerate(texts)}).encode()
    result = translate_document(parse(content), parse, translate, DocumentOptions("en", "de"))
    written = json.loads(result.content)
    pairs = [(text, written[f"k{number}"], codes) for number, (text, codes) in enumerate(texts.items())]
    differences = [compare_codes(parse_text(text), parse_text(new)) for text, new, _ in pairs]
    return {
        "lost": sum(any(new.count(code) < text.count(code) for code in codes) for text, new, codes in pairs),
        "doubled": sum(any(new.count(code) > text.count(code) for code in codes) for text, new, codes in pairs),
        "moved": sum(bool(difference.moved) for difference in differences),
        "flagged": sum(bool(CODE_FLAGS.intersection(unit.flags)) for unit in result.results),
        "translated": sum(bool(unit.text) for unit in result.results),
    }


def build_bundle(path: Path) -> TranslateLines:
    """Return the function that translates with a bundle."""
    import dragoman

    translator = dragoman.load(path, task="translation")
    return lambda request: translator.translate(
        request.lines, attention=request.attention, constraints=request.build_constraints()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    functions = {"weak": make_weak_stub(options.seed), "shuffles": make_shuffling_stub(options.seed)}
    if options.bundle:
        functions = {"bundle": build_bundle(options.bundle), **functions}
    rows: dict[str, dict[str, dict[str, int]]] = {}
    start = time.process_time()
    print("| kind |" + "".join(f" {name}: lost, doubled, moved, flagged, translated |" for name in functions))
    print("| --- |" + " --- |" * len(functions))
    for kind in (*POINTS, *PAIRS):
        texts = make_texts(kind, options.texts, options.seed)
        rows[kind] = {name: measure(texts, translate) for name, translate in functions.items()}
        print(f"| {kind} |" + "".join(f" {', '.join(map(str, row.values()))} |" for row in rows[kind].values()), flush=True)
    print(f"{time.process_time() - start:.0f} CPU seconds")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
