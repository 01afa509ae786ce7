"""CTranslate2 as a system of the benchmark; environment variables choose its instruction set."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from .serve import TARGET_TOKENS, load_sentencepiece, measure_fixed, measure_text, serve


@lru_cache(maxsize=4)
def load_translator(folder: str, compute_type: str, inter_threads: int, intra_threads: int) -> Any:
    import ctranslate2

    return ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=inter_threads, intra_threads=intra_threads)


@lru_cache
def read_vocabulary(folder: str) -> list[str]:
    """Return the pieces by dragoman's id, equal on both sides. A converter that orders them otherwise has a list beside it."""
    path = Path(folder) / "pieces.json"
    path = path if path.exists() else Path(folder) / "shared_vocabulary.json"
    pieces: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return pieces


@lru_cache
def adds_end_token(folder: str) -> bool:
    """Return whether CTranslate2 adds the end token to each source."""
    return bool(json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["add_source_eos"])


def translate_fixed(
    folder: str,
    sources: list[list[int]],
    beam: int,
    seconds: float,
    setting: dict[str, Any],
    length: int = TARGET_TOKENS,
    clock: str = "wall",
) -> dict[str, Any]:
    """Translate to exactly `length` tokens for each source."""
    translator = load_translator(folder, setting["compute_type"], setting["inter_threads"], setting["intra_threads"])
    pieces_by_id = read_vocabulary(folder)
    end = [] if adds_end_token(folder) else ["</s>"]
    pieces = [[*(pieces_by_id[index] for index in source), *end] for source in sources]
    limits = {"min_decoding_length": length, "max_decoding_length": length}

    options = {"beam_size": beam, "max_batch_size": setting.get("batch", len(pieces)), **limits}

    def work() -> list[list[str]]:
        return [result.hypotheses[0] for result in translator.translate_batch(pieces, **options)]

    request = {"folder": folder, "count": len(sources), "beam": beam, **setting}
    turns, outputs = measure_fixed(work, request, length=length, seconds=seconds, clock=clock)
    id_by_piece = {piece: index for index, piece in enumerate(pieces_by_id)}
    return {"seconds": turns, "outputs": [[id_by_piece[piece] for piece in result] for result in outputs]}


def translate_text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], line_by_line: bool
) -> dict[str, Any]:
    """Translate text to text: all lines at once, or line by line."""
    translator = load_translator(folder, setting["compute_type"], setting["inter_threads"], setting["intra_threads"])
    shared = f"{folder}/source.model"
    source, target = load_sentencepiece(shared, shared), load_sentencepiece(f"{folder}/target.model", shared)
    options = {"max_input_length": 0, "beam_size": beam, **search}

    def work(subset: list[str], **batching: Any) -> list[str]:
        pieces = source.encode(subset, out_type=str)
        limit = max(map(len, pieces)) + 51  # as long as those of the other systems
        results = translator.translate_batch(pieces, max_decoding_length=limit, **options, **batching)
        outputs: list[str] = target.decode([result.hypotheses[0] for result in results])
        return outputs

    style = {} if line_by_line else {"max_batch_size": setting["batch"], "batch_type": setting["batch_type"]}
    request = {"folder": folder, "beam": beam, **setting}
    return measure_text(work, lambda: work(lines, **style), lines, request, line_by_line=line_by_line)


if __name__ == "__main__":
    serve({"fixed": translate_fixed, "text": translate_text})
