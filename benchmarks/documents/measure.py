"""One process that translates one file without a model: `python -m documents.measure dragoman FILE`, or `argos FILE`.

A stand-in replaces each letter by the one 13 places further. So each text passes the checks, and none is translated twice, as
a copy of its source would be. The process prints its CPU seconds, its peak memory, also above that after the imports, and the
number of calls or texts, as JSON. With argos, it runs in the environment of argos-translate-files and needs nothing else.

With `reversed` as a third word, the stand-in also reverses the words of what it is given, as a model moves words. Then the
process also prints the number of paragraphs that have all words of the sentence in reverse, each in the element that it had.
With `steps` instead, dragoman prints the CPU seconds of steps that argos-translate-files does not have.
"""

from __future__ import annotations

import codecs
import importlib
import json
import re
import resource
import string
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_LETTERS = str.maketrans(string.ascii_letters, codecs.encode(string.ascii_letters, "rot13"))
_PARAGRAPH = re.compile(r"<(?:w:)?p>(.*?)</(?:w:)?p>", re.DOTALL)
_HTML_PIECE = re.compile(r"(?:<(b|a)\b[^>]*>|</\w+>)?([^<>]+)(?=<|$)")
_RUN = re.compile(r"<w:r>(?:<w:rPr>(.*?)</w:rPr>)?<w:t\b[^>]*>(.*?)</w:t>")


def translate_words(text: str, is_reversed: bool) -> str:
    """Return what the stand-in makes of a text."""
    words = text.translate(_LETTERS).split(" ")
    return " ".join(words[::-1] if is_reversed else words)


def read_words(path: Path) -> list[list[tuple[str, str]]]:
    """Return the words of each paragraph of a file that `documents.run` wrote, with the element or formatting around them."""
    if path.suffix == ".docx":
        with zipfile.ZipFile(path) as archive:
            content, piece = archive.read("word/document.xml").decode(), _RUN
    else:
        content, piece = path.read_text(encoding="utf-8"), _HTML_PIECE
    return [
        [(word, mark or "") for mark, text in piece.findall(paragraph) for word in text.split()]
        for paragraph in _PARAGRAPH.findall(content)
    ]


def count_kept(source: Path, target: Path) -> int:
    """Return the number of paragraphs of a translation in reverse in which each word has its element."""
    expected = [[(word.translate(_LETTERS), mark) for word, mark in words[::-1]] for words in read_words(source)]
    return sum(words == other for words, other in zip(read_words(target), expected, strict=True))


def time_steps(seconds: dict[str, float]) -> None:
    """Add the CPU seconds of some steps of dragoman, from now on."""
    from dragoman.documents import translate_document
    from dragoman.inference import whole_texts

    def wrap(module: Any, name: str, step: str) -> None:
        function = getattr(module, name)

        def measured(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            result = function(*arguments, **options)
            result = list(result) if isinstance(result, Iterator) else result
            seconds[step] = seconds.get(step, 0.0) + time.process_time() - start
            return iter(result) if name in ("divide", "place_codes") else result

        setattr(module, name, measured)

    wrap(whole_texts, "divide", "sentences")
    wrap(whole_texts, "place_codes", "places of codes")
    wrap(whole_texts, "check_translation", "guards")
    wrap(translate_document, "check_unit", "checks of texts")
    wrap(translate_document, "check_written", "check of the file")


def prepare_dragoman(is_reversed: bool = False) -> Callable[[Path], int]:
    """Return the function that translates a file with dragoman and returns the number of its texts."""
    import numpy as np

    from dragoman.documents.file_garbage import FileGarbage
    from dragoman.documents.formats import get_parser, parse_document
    from dragoman.documents.translate_document import DocumentOptions, translate_document
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.whole_texts import LineRequest

    @lru_cache
    def make_attention(size: int) -> Any:
        return np.eye(size, dtype=np.float32)[:: -1 if is_reversed else 1]

    def translate_line(line: str, attention: bool) -> Translation:
        text = translate_words(line, is_reversed)
        tokens, source_tokens = (tuple(f"▁{side}".replace(" ", " ▁").split(" ")) for side in (text, line))
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

    def __init__(self, is_reversed: bool) -> None:
        self.calls, self._is_reversed = 0, is_reversed
        self.from_lang = self.to_lang = type("Language", (), {"code": "en", "name": "English"})()

    def translate(self, text: str) -> str:
        self.calls += 1
        return translate_words(text, self._is_reversed)

    def hypotheses(self, text: str, num_hypotheses: int = 1) -> list[Any]:
        hypothesis = type("Hypothesis", (), {"value": self.translate(text), "score": 0.0})
        return [hypothesis()] * num_hypotheses


def prepare_argos(is_reversed: bool = False) -> Callable[[Path], int]:
    """Return the function that translates a file with argos-translate-files and returns the number of calls of its model."""
    argos = importlib.import_module("argostranslatefiles.argostranslatefiles")

    def translate_file(path: Path) -> int:
        stand_in = _ArgosStandIn(is_reversed)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_bytes(path.read_bytes())
            if not (translated := argos.translate_file(stand_in, str(copy))):
                raise SystemExit(f"{path.name}: argos-translate-files has no such format")
            if is_reversed:
                path.with_name(f"argos-{path.name}").write_bytes(Path(translated).read_bytes())
        return stand_in.calls

    return translate_file


def main() -> None:
    """Translate the file and print the costs."""
    program, path, option = sys.argv[1], Path(sys.argv[2]), "".join(sys.argv[3:])
    translate_file = (prepare_dragoman if program == "dragoman" else prepare_argos)(option == "reversed")
    steps: dict[str, float] = {}
    if option == "steps":
        time_steps(steps)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    count = translate_file(path)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures: dict[str, Any] = {"seconds": seconds, "mebibytes": (peak - before) / 1024, "process_mebibytes": peak / 1024}
    figures |= {"texts": count} | ({"steps": steps} if steps else {})
    if option == "reversed":
        figures["kept"] = count_kept(path, path.with_name(f"{program}-{path.name}"))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
