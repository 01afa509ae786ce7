"""Large documents: seconds, texts a second and peak memory with a stand-in translator that writes words backwards.

    PYTHONPATH=benchmarks python -m documents.scale make FOLDER            # HTML of 10 and 100 MB, PO, DOCX
    PYTHONPATH=benchmarks python -m documents.scale dragoman FILE
    PYTHONPATH=benchmarks python -m documents.scale argos FILE             # argos-translate-files with the same stand-in

One process measures one file, so its peak memory is that of the file. argos-translate-files is under the AGPL and is no
dependency: install it in an environment of its own, and run that environment's Python.
"""

from __future__ import annotations

import argparse
import importlib
import io
import random
import resource
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WORDS = [
    "the", "a", "of", "in", "on", "with", "house", "river", "teacher", "window", "garden", "letter", "morning", "green",
    "quiet", "large", "small", "old", "new", "opens", "reads", "writes", "finds", "keeps", "sees", "walks", "under", "over",
    "near", "through", "between", "city", "street", "market", "paper", "number", "color", "winter", "summer",
]  # fmt: skip
PARAGRAPHS_PER_PAGE = 20
NUM_PAGES = 500
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/word/document.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)


def write_sentences(count: int) -> Iterator[str]:
    """Yield sentences of 8 to 20 words, all different."""
    rng = random.Random(1)
    for number in range(count):
        words = rng.choices(WORDS, k=rng.randint(8, 20))
        yield f"Item {number} {' '.join(words)}."


def make_html(size: int) -> bytes:
    """Return a page of about `size` bytes: paragraphs with a bold word and a link."""
    output = ["<!DOCTYPE html>\n<html><head><title>Large page</title></head><body>\n"]
    length = 0
    for sentence in write_sentences(size):
        head, _, tail = sentence.partition(" the ")
        body = f'{head} <b>the</b> <a href="page.html">{tail}</a>' if tail else sentence
        output.append(f"<p>{body}</p>\n")
        length += len(output[-1])
        if length >= size:
            break
    return "".join([*output, "</body></html>\n"]).encode()


def make_po(count: int) -> bytes:
    """Return a catalog with `count` entries without translations."""
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    return (header + "".join(f'#: file.c:1\nmsgid "{text}"\nmsgstr ""\n\n' for text in write_sentences(count))).encode()


def make_docx(count: int) -> bytes:
    """Return a text document with `count` paragraphs of three runs each."""
    body = []
    for sentence in write_sentences(count):
        words = sentence.split()
        runs = (" ".join(words[:3]) + " ", words[3], " " + " ".join(words[4:]))
        bold = ("", "<w:rPr><w:b/></w:rPr>", "")
        marked = (f'<w:r>{rpr}<w:t xml:space="preserve">{run}</w:t></w:r>' for run, rpr in zip(runs, bold, strict=True))
        body.append(f"<w:p>{''.join(marked)}</w:p>")
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("word/document.xml", f"<w:document {_W}><w:body>{''.join(body)}</w:body></w:document>")
    return output.getvalue()


def make_files(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in (10, 100):
        (folder / f"page-{size}.html").write_bytes(make_html(size * 10**6))
    (folder / "catalog.po").write_bytes(make_po(10_000))
    (folder / "book.docx").write_bytes(make_docx(NUM_PAGES * PARAGRAPHS_PER_PAGE))


def reverse_words(text: str) -> str:
    """Return the text with each word without a digit backwards: it passes all checks, so nothing is translated twice."""
    return " ".join(word if any(map(str.isdigit, word)) else word[::-1] for word in text.split(" "))


def translate_with_dragoman(path: Path) -> int:
    """Translate a file and return the number of its texts."""
    from dragoman.documents.formats import get_parser, parse_document
    from dragoman.documents.translate_document import DocumentOptions, translate_document
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.whole_texts import LineRequest

    def translate(request: LineRequest) -> Sequence[Translation]:
        results = []
        for line in request.lines:
            words = line.split(" ")
            tokens = tuple(f"▁{word}" for word in words)
            rows = (
                tuple(tuple(float(i == j) for j in range(len(tokens))) for i in range(len(tokens)))
                if request.attention
                else None
            )
            text = reverse_words(line)
            own_tokens = tuple(f"▁{word}" for word in text.split(" "))
            results.append(Translation(text, tokens=own_tokens, source_tokens=tokens, attention=rows))
        return results

    document = parse_document(path.name, path.read_bytes())
    result = translate_document(document, get_parser(path.name), translate, DocumentOptions(target_language="de"))
    path.with_name(f"dragoman-{path.name}").write_bytes(result.content)
    return len(result.results)


class _ArgosStandIn:
    """Translation of Argos with the same stand-in. calls: number of texts"""

    def __init__(self) -> None:
        self.calls = 0
        self.from_lang = self.to_lang = type("Language", (), {"code": "en", "name": "English"})()

    def translate(self, text: str) -> str:
        self.calls += 1
        return reverse_words(text)

    def hypotheses(self, text: str, num_hypotheses: int = 1) -> list[Any]:
        hypothesis = type("Hypothesis", (), {"value": self.translate(text), "score": 0.0})
        return [hypothesis()] * num_hypotheses


def translate_with_argos(path: Path) -> int:
    """Translate a file and return the number of calls of the translator."""
    stand_in = _ArgosStandIn()
    argos = importlib.import_module("argostranslatefiles.argostranslatefiles")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(path.read_bytes())
        if not argos.translate_file(stand_in, str(copy)):
            raise SystemExit(f"{path.name}: argos-translate-files has no such format")
    return stand_in.calls


def main() -> None:
    """Make files, or measure one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "dragoman", "argos"))
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    if options.action == "make":
        make_files(options.path)
        return
    if options.action == "dragoman":
        import dragoman.documents.translate_document  # noqa: F401  # loaded before the clock starts
    else:
        importlib.import_module("argostranslatefiles.argostranslatefiles")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    count = (translate_with_dragoman if options.action == "dragoman" else translate_with_argos)(options.path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = options.path.stat().st_size
    print(
        f"{options.action} {options.path.name}: {size / 1e6:.1f} MB, {count:,} texts, {seconds:.1f} s, "
        f"{cpu_seconds:.1f} CPU s, {count / cpu_seconds:,.0f} texts a CPU second, "
        f"peak {(peak - before) / 1024:,.0f} MiB above {before / 1024:,.0f}"
    )


if __name__ == "__main__":
    main()
