"""Codes inside texts: what models lose, double and move, for 25 kinds of structure, for real texts, and for real files.

    PYTHONPATH=benchmarks python -m documents.inline_structure --bundle BUNDLE --files FOLDER...

Each kind has the same number of texts, made with a seed. A text is a date or two with codes at random places, as a value of a
JSON file. Real texts are those of programs and of LibreOffice's help, in the folder of the corpora, in nine formats. Real files
are HTML, Markdown and properties. Three functions translate: the bundle, a weak bundle, and a stub that shuffles, drops and
doubles all that it reads. The weak bundle is the bundle with noise on its weights. Without a bundle, stubs alone translate.

A code is lost or doubled if its characters stand in the written text less or more often than in the source. Codes of a real
text are what looks like one and is in its human translation as often; those of a file are all that look like one.
`compare_codes` counts those that moved out of their pairs.
"""

from __future__ import annotations

import argparse
import calendar
import gzip
import html
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dragoman.documents.document import Unit
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.translate_document import CODE_FLAGS, DocumentOptions, translate_document
from dragoman.errors import DataError
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TranslateLines
from dragoman.text.breaks import repeated_boundaries
from dragoman.text.code_check import compare_codes
from dragoman.text.inline_codes import read_inline
from dragoman.text.references import count_sign, read_reference, spells_word

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

MONTHS = calendar.month_name[1:]
FIGURES = ("lost", "doubled", "moved", "flagged", "translated")
NOISE = 0.5
"""Standard deviation of the noise on a weight of the weak bundle, in standard deviations of its tensor."""
MAX_CHARACTERS = 160
"""Longest real text."""
CORPORA = {"programs": "software-strings/en-de/train.tsv.gz", "help": "libreoffice-help-tagged/en-de/train.tsv.gz"}
_CODE = re.compile(
    r"%[-+#0]*(?:\d+\$)?[\d.]*[sdioufxcqvlu@]+\b|%\(\w+\)s|\{\{?[\w.:$-]*\}?\}|</?[A-Za-z][^<>]*>|\$\{?\w+\}?|&\w+;"
)
_XLIFF = '<xliff version="1.2"><file source-language="en" target-language="de"><body>{}</body></file></xliff>'
_ANDROID = re.compile(r"[\\'\"]")
FILE_ENDINGS = {"HTML": (".html", ".htm"), "Markdown": (".md",), "properties": (".properties",)}
FORMATS: dict[str, tuple[str, Callable[[Sequence[str]], str]]] = {
    "JSON": ("a.json", lambda texts: json.dumps({f"text {number}": text for number, text in enumerate(texts)})),
    "YAML": ("a.yaml", lambda texts: "".join(f"text{number}: {json.dumps(text)}\n" for number, text in enumerate(texts))),
    "PO": (
        "a.po",
        lambda texts: "".join(
            f'msgctxt "{number}"\nmsgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n\n'
            for number, text in enumerate(texts)
        ),
    ),
    "XLIFF": (
        "a.xlf",
        lambda texts: _XLIFF.format(
            "".join(
                f'<trans-unit id="{number}"><source>{html.escape(text)}</source></trans-unit>'
                for number, text in enumerate(texts)
            )
        ),
    ),
    "RESX": (
        "a.resx",
        lambda texts: (
            "<root>"
            + "".join(f'<data name="{number}"><value>{html.escape(text)}</value></data>' for number, text in enumerate(texts))
            + "</root>"
        ),
    ),
    "Qt TS": (
        "a.ts",
        lambda texts: (
            "<TS>"
            + "".join(
                f"<context><name>{number}</name><message><source>{html.escape(text)}</source><translation/></message></context>"
                for number, text in enumerate(texts)
            )
            + "</TS>"
        ),
    ),
    "properties": (
        "a.properties",
        lambda texts: "".join(
            "text{}={}\n".format(number, text.replace("\\", "\\\\").replace("\n", "\\n")) for number, text in enumerate(texts)
        ),
    ),
    "strings": (
        "a.strings",
        lambda texts: "".join(
            f'"text{number}" = {json.dumps(text, ensure_ascii=False)};\n' for number, text in enumerate(texts)
        ),
    ),
    "Android": (
        "strings.xml",
        lambda texts: (
            "<resources>"
            + "".join(
                f'<string name="text{number}">{_ANDROID.sub(_escape_android, html.escape(text, quote=False))}</string>'
                for number, text in enumerate(texts)
            )
            + "</resources>"
        ),
    ),
}
"""File name of each format, and function that writes texts in it."""


def _escape_android(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


def list_found_codes(unit: Unit) -> list[str]:
    """Return what looks like a code in a text of a real file. References of letters and apostrophes are parts of words."""
    return [code for code in _CODE.findall(unit.source) if not spells_word(html.unescape(code), "a", "a")]


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


def read_real_texts(path: Path, count: int) -> dict[str, tuple[str, ...]]:
    """Return texts of a corpus with their codes, spread over the file."""
    texts: dict[str, tuple[str, ...]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            source, reference = line.rstrip("\n").split("\t")[:2]
            codes = Counter(_CODE.findall(source))
            same = tuple(code for code, number in codes.items() if reference.count(code) == source.count(code) == number)
            if same and len(source) <= MAX_CHARACTERS and any(map(str.isalpha, _CODE.sub("", source))):
                texts[source] = same
    step = max(len(texts) // count, 1)
    return dict(list(texts.items())[::step][:count])


def save_weak_bundle(bundle: Path, path: Path, seed: int) -> None:
    """Write a bundle with noise on its weights."""
    import torch

    from dragoman.bundle import load_bundle, save_bundle
    from dragoman.model.weights import collect_weights

    generator = torch.Generator().manual_seed(seed)
    original = load_bundle(bundle)
    weights = {
        name: weight + NOISE * weight.std() * torch.randn(weight.shape, generator=generator) if weight.dim() > 1 else weight
        for name, weight in collect_weights(original.model).items()
    }
    save_bundle(path, recipe=original.recipe, tokenizer=original.tokenizer, weights=weights, metadata=original.metadata)


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
            rows = np.eye(len(sources))[[row * len(sources) // len(targets) for row in range(len(targets))]]
            text = " ".join(targets)
            results.append(Translation(text, tokens=tuple(targets), source_tokens=tuple(sources), attention=rows))
        return results

    return translate


def measure(texts: Mapping[str, Sequence[str]], translate: TranslateLines, format_name: str = "JSON") -> Counter[str]:
    """Return how many texts are lost, doubled, moved outside, flagged, and translated."""
    name, write = FORMATS[format_name]
    return measure_file(name, write(list(texts)).encode(), translate, lambda unit: texts[unit.source])


def measure_file(
    name: str, content: bytes, translate: TranslateLines, list_codes: Callable[[Unit], Sequence[str]]
) -> Counter[str]:
    """Return the counts of a file. list_codes: returns the codes of a text"""
    parse = get_parser(name)
    document = parse_document(name, content)
    result = translate_document(document, parse, translate, DocumentOptions("en", "de"))
    with repeated_boundaries(document.boundaries):
        after = parse(result.content)
    units = {unit.id: unit for unit in (*after.units, *after.other_units)}
    counts: Counter[str] = Counter()
    for unit_result in result.results:
        unit = unit_result.unit
        text, codes = unit.source, list_codes(unit)
        written = units[unit.id].target or (text if after.is_bilingual else units[unit.id].source)
        sides = (read_inline(side, unit.markup, unit.rules) for side in (text, written))
        counts["lost"] += any(_count(written, code) < _count(text, code) for code in codes)
        counts["doubled"] += any(_count(written, code) > _count(text, code) for code in codes)
        counts["moved"] += bool(compare_codes(*sides).moved)
        counts["flagged"] += bool(CODE_FLAGS.intersection(unit_result.flags))
        counts["translated"] += bool(unit_result.text)
        counts["texts"] += 1
    return counts


def _count(text: str, code: str) -> int:
    """Return how often a text has a code; for a character reference, also as a character, or as another sign of its kind."""
    character = read_reference(code)
    return text.count(code) + (count_sign(text, character) if character and code != "&amp;" else 0)


def list_files(folders: Sequence[Path], count: int) -> Iterator[tuple[str, list[Path]]]:
    """Yield each format of real files with files of up to `count` texts in all, small ones first."""
    for name, endings in FILE_ENDINGS.items():
        paths = {path for folder in folders for ending in endings for path in folder.rglob(f"*{ending}") if path.is_file()}
        chosen: list[Path] = []
        rest = count
        for path in sorted(paths, key=lambda path: (path.stat().st_size, path)):
            if not rest:
                break
            try:
                number = len(parse_document(path.name, path.read_bytes()).units)
            except DataError:
                continue
            if 0 < number <= rest:
                chosen.append(path)
                rest -= number
        yield name, chosen


def build_bundle(path: Path) -> TranslateLines:
    """Return the function that translates with a bundle, each line once."""
    import dragoman

    translator = dragoman.load(path, task="translation")
    known: dict[LineRequest, Translation] = {}

    def translate(request: LineRequest) -> list[Translation]:
        keys = request.split()
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if missing:
            lines = [key.lines[0] for key in missing]
            constraints = [(key.build_constraints() or [None])[0] for key in missing]
            used = constraints if any(constraints) else None
            known.update(zip(missing, translator.translate(lines, attention=request.attention, constraints=used), strict=True))
        return [known[key] for key in keys]

    return translate


def build_functions(bundle: Path | None, folder: Path, seed: int) -> dict[str, TranslateLines]:
    """Return the functions that translate, by name. folder: for the weak bundle"""
    functions = {"shuffles": make_shuffling_stub(seed)}
    if bundle is None:
        return functions
    save_weak_bundle(bundle, folder / "weak", seed)
    return {"bundle": build_bundle(bundle), "weak": build_bundle(folder / "weak"), **functions}


def list_cases(count: int, seed: int, shared: Path) -> Iterator[tuple[str, str, dict[str, tuple[str, ...]]]]:
    """Yield the name, the format and the texts of each row of the table."""
    for kind in (*POINTS, *PAIRS):
        yield kind, "JSON", make_texts(kind, count, seed)
    for name, place in CORPORA.items():
        if not (shared / place).exists():
            print(f"no real texts of {name}: {shared / place} does not exist")
            continue
        texts = read_real_texts(shared / place, count)
        for format_name in FORMATS:
            yield f"{name}, {format_name}", format_name, texts


def main() -> None:
    """Print a table with a row for each kind, and for each corpus in each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"), help="folder of the corpora")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="folders with files of HTML, Markdown and properties")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, int]]] = {}

    def add_row(name: str, counts: Sequence[Counter[str]]) -> None:
        rows[name] = [{key: row[key] for key in FIGURES} for row in counts]
        cells = (f" {', '.join(map(str, row.values()))} |" for row in rows[name])
        print(f"| {name}: {counts[0]['texts']} |{''.join(cells)}", flush=True)

    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        functions = build_functions(options.bundle, Path(folder), options.seed)
        print("| texts |" + "".join(f" {name} |" for name in functions) + f"  figures: {', '.join(FIGURES)}")
        print("| --- |" + " --- |" * len(functions))
        for name, format_name, texts in list_cases(options.texts, options.seed, options.shared):
            add_row(name, [measure(texts, translate, format_name) for translate in functions.values()])
        for name, paths in list_files(options.files, options.texts) if options.files else ():
            add_row(
                f"files, {name}",
                [
                    sum((measure_file(path.name, path.read_bytes(), translate, list_found_codes) for path in paths), Counter())
                    for translate in functions.values()
                ],
            )
    print(f"{time.process_time() - start:.0f} CPU seconds")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
