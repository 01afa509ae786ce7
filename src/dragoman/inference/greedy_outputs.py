"""Greedy outputs of a bundle for the lines of a corpus, in a file that a killed command continues.

Prediction heads and draft decoders learn from these outputs (`dragoman.training.proposal_training`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.config import CorpusConfig, DecodingConfig
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import DataError, OutputError
from dragoman.formats.readers import SUFFIX_FORMATS, get_format_suffix, read_pairs
from dragoman.formats.resumable import resumable_file
from dragoman.formats.text import read_lines
from dragoman.inference.translator import Translator
from dragoman.io.storage import make_dirs, write_json
from dragoman.tasks.inference_model import get_max_positions
from dragoman.tasks.translation import encode_lines, get_source_limit, search_lines

OUTPUTS_FILE, REQUEST_FILE = "outputs.jsonl", "request.json"
WINDOW_LINES = 512
"""Lines that are translated together; a killed process loses at most these."""
GREEDY_OPTIONS: dict[str, Any] = {
    "method": "greedy",
    "nbest": 1,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "coverage_penalty": 0.0,
    "mbr": "none",
    "mbr_candidates": None,
    "mbr_model": None,
    "speculative": "off",
}
"""Options of the search whose outputs are learned."""


def read_source_lines(path: Path, *, source_language: str, target_language: str) -> list[str]:
    """Return the lines with text of the source side of a corpus: a text file, or a file of pairs such as TSV or TMX.

    Raises DataError for a file that cannot be read, or that holds no text.
    """
    lines: Iterator[str]
    if get_format_suffix(path) in SUFFIX_FORMATS:
        corpus = CorpusConfig(file=path.name)
        pairs = read_pairs(corpus, path.parent, source_language=source_language, target_language=target_language)
        lines = (pair.source for pair in pairs)
    else:
        lines = read_lines(path)
    if texts := [line for line in lines if line.strip()]:
        return texts
    raise DataError(f"{path}: holds no text; give a file with sentences in the source language", code="empty-data")


def hash_lines(lines: Sequence[str]) -> str:
    """Return the SHA-256 of the lines of a corpus."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def claim_folder(folder: Path, request: Mapping[str, Any]) -> None:
    """Make the folder of unfinished work, or check that its work is the same.

    request: everything that determines the result, as JSON values

    Raises OutputError if the folder belongs to other work or holds other files.
    """
    make_dirs(folder)
    path = folder / REQUEST_FILE
    if not path.exists():
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise OutputError(f"{folder}: holds files of another program; give another output", code="not-replaceable")
        write_json(path, request)
        return
    try:
        old_request = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise OutputError(f"{path}: is damaged; delete {folder} to start again", code="output-damaged") from None
    if changed := [
        name for name, value in request.items() if not isinstance(old_request, dict) or old_request.get(name) != value
    ]:
        raise OutputError(
            f"{folder}: was started with another {changed[0].replace('_', ' ')}; delete the folder to start again, or give "
            "another output",
            code="output-mismatch",
        )


def write_greedy_outputs(
    translator: Translator,
    lines: Sequence[str],
    folder: Path,
    *,
    max_tokens: int,
    seed: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the source ids and the output ids of lines in a random order, with the end token of each output that has it.

    folder: folder of the outputs; unfinished ones are continued, and finished ones are read
    max_tokens: tokens of outputs after which no further line is translated
    on_progress: called with the number of lines that are done

    Raises OutputError if the folder cannot be written.
    """
    config, path = translator.resolve_decoding(GREEDY_OPTIONS), folder / OUTPUTS_FILE
    if not path.exists():
        order = random.Random(seed).sample(range(len(lines)), len(lines))
        with resumable_file(path, {"max_tokens": max_tokens, "seed": seed}) as output_file:
            for start in range(output_file.num_read, len(order), WINDOW_LINES):
                window = [lines[index] for index in order[start : start + WINDOW_LINES]]
                if output_file.counts["tokens"] >= max_tokens:
                    break
                results = _search(translator, window, config)
                rows = [[list(source), list(output)] for source, output in results if output]
                text = "".join(json.dumps(row) + "\n" for row in rows)
                counts = {"tokens": sum(len(output) for _, output in rows)}
                output_file.append(text, num_read=len(window), counts=counts)
                on_progress(len(window))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(tuple(source), tuple(output)) for source, output in rows]


def _search(
    translator: Translator, lines: Sequence[str], config: DecodingConfig
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the source ids and the output ids of each line; no output for a line that the model does not read."""
    tokenizer = translator.select_tokenizer(config)
    source_limit = get_source_limit(get_max_positions(translator.models), config)
    results = search_lines(
        translator.inference_model,
        tokenizer,
        encode_lines(tokenizer, lines, source_limit=source_limit),
        translator.recipe,
        config,
        map_fn=translator.scheduler.map,
    )
    return [
        (tuple(line.source), (*hypothesis.tokens, *([END_ID] if hypothesis.finished else [])))
        for line in results
        for hypothesis in line.hypotheses[:1]
        if not hypothesis.has_repetition
    ]
