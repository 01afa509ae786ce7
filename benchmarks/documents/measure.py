"""One process that translates one file without a model: `python -m documents.measure dragoman FILE`, or `argos FILE`.

A stand-in replaces each letter by the one 13 places further. So each text passes the checks, and none is translated twice, as
a copy of its source would be. The process prints its CPU seconds, its peak memory above that after the imports, and the number
of calls or texts, as JSON. With argos, it runs in the environment of argos-translate-files and needs nothing else.
"""

from __future__ import annotations

import codecs
import importlib
import json
import resource
import string
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_LETTERS = str.maketrans(string.ascii_letters, codecs.encode(string.ascii_letters, "rot13"))


def prepare_dragoman() -> Callable[[Path], int]:
    """Return the function that translates a file with dragoman and returns the number of its texts."""
    from dragoman.documents.file_garbage import FileGarbage
    from dragoman.documents.formats import get_parser, parse_document
    from dragoman.documents.translate_document import DocumentOptions, translate_document
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.whole_texts import LineRequest

    @lru_cache
    def make_attention(size: int) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(row == column) for column in range(size)) for row in range(size))

    def translate_line(line: str, attention: bool) -> Translation:
        text = line.translate(_LETTERS)
        tokens, source_tokens = (tuple(f"▁{word}" for word in side.split(" ")) for side in (text, line))
        rows = make_attention(len(tokens)) if attention else None
        return Translation(text, tokens=tokens, source_tokens=source_tokens, attention=rows)

    def translate(request: LineRequest) -> Sequence[Translation]:
        return [translate_line(line, request.attention) for line in request.lines]

    def translate_file(path: Path) -> int:
        with FileGarbage().without_full_collections():  # as the command and the server do
            document = parse_document(path.name, path.read_bytes())
            result = translate_document(document, get_parser(path.name), translate, DocumentOptions(target_language="de"))
        path.with_name(f"dragoman-{path.name}").write_bytes(result.content)
        return sum(bool(unit.text) for unit in result.results)

    return translate_file


class _ArgosStandIn:
    """Translation of Argos with the same stand-in. calls: number of texts"""

    def __init__(self) -> None:
        self.calls = 0
        self.from_lang = self.to_lang = type("Language", (), {"code": "en", "name": "English"})()

    def translate(self, text: str) -> str:
        self.calls += 1
        return text.translate(_LETTERS)

    def hypotheses(self, text: str, num_hypotheses: int = 1) -> list[Any]:
        hypothesis = type("Hypothesis", (), {"value": self.translate(text), "score": 0.0})
        return [hypothesis()] * num_hypotheses


def prepare_argos() -> Callable[[Path], int]:
    """Return the function that translates a file with argos-translate-files and returns the number of calls of its model."""
    argos = importlib.import_module("argostranslatefiles.argostranslatefiles")

    def translate_file(path: Path) -> int:
        stand_in = _ArgosStandIn()
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_bytes(path.read_bytes())
            if not argos.translate_file(stand_in, str(copy)):
                raise SystemExit(f"{path.name}: argos-translate-files has no such format")
        return stand_in.calls

    return translate_file


def main() -> None:
    """Translate the file and print the costs."""
    translate_file = prepare_dragoman() if sys.argv[1] == "dragoman" else prepare_argos()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    count = translate_file(Path(sys.argv[2]))
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "mebibytes": (peak - before) / 1024, "texts": count}))


if __name__ == "__main__":
    main()
