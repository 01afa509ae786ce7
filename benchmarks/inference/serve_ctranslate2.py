"""CTranslate2 as a system of the benchmark; environment variables choose its instruction set."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from .serve import LEAST_SECONDS, TARGET_TOKENS, serve, time_each, time_turns, warm_up


@lru_cache(maxsize=4)
def opened(folder: str, compute_type: str, inter: int, intra: int) -> Any:
    import ctranslate2

    return ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=inter, intra_threads=intra)


@lru_cache
def vocabulary(folder: str) -> list[str]:
    """Return the pieces by id, equal on both sides."""
    results: list[str] = json.loads((Path(folder) / "shared_vocabulary.json").read_text(encoding="utf-8"))
    return results


@lru_cache
def subword(folder: str, name: str) -> Any:
    import sentencepiece

    path = Path(folder) / name
    return sentencepiece.SentencePieceProcessor(model_file=str(path if path.exists() else Path(folder) / "source.model"))


def fixed(
    folder: str,
    sources: list[list[int]],
    beam: int,
    seconds: float,
    setting: dict[str, Any],
    length: int = TARGET_TOKENS,
    clock: str = "wall",
) -> dict[str, Any]:
    """Translate to exactly `length` tokens for each source."""
    translator = opened(folder, setting["compute_type"], setting["inter"], setting["intra"])
    pieces_by_id = vocabulary(folder)
    pieces = [[pieces_by_id[index] for index in source] for source in sources]
    limits = {"min_decoding_length": length, "max_decoding_length": length}

    results: list[Any] = []

    def work() -> None:
        results[:] = translator.translate_batch(
            pieces, beam_size=beam, max_batch_size=setting.get("batch", len(pieces)), **limits
        )

    warm_up({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = time_turns(work, seconds, clock)
    outputs = [result.hypotheses[0] for result in results]
    if any(len(result) != length for result in outputs):
        raise ValueError("an output of another length")
    number = {piece: index for index, piece in enumerate(pieces_by_id)}
    return {"seconds": turns, "outputs": [[number[piece] for piece in result] for result in outputs]}


def text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], one_by_one: bool
) -> dict[str, Any]:
    """Translate text to text: all lines at once, or one by one."""
    translator = opened(folder, setting["compute_type"], setting["inter"], setting["intra"])
    source, target = subword(folder, "source.model"), subword(folder, "target.model")
    how = {"max_input_length": 0, "max_decoding_length": 256, "beam_size": beam, **search}

    def work(subset: list[str], **batching: Any) -> list[str]:
        results = translator.translate_batch(source.encode(subset, out_type=str), **how, **batching)
        outputs: list[str] = target.decode([result.hypotheses[0] for result in results])
        return outputs

    style = {} if one_by_one else {"max_batch_size": setting["batch"], "batch_type": setting["batch_type"]}
    warm = {"folder": folder, "beam": beam, "alone": one_by_one, **setting}
    warm_up(warm, lambda: work(lines[:4]) if one_by_one else work(lines, **style))
    if one_by_one:
        seconds, outputs = time_each(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "outputs": outputs}
    whole: list[list[str]] = []
    seconds = time_turns(lambda: whole.append(work(lines, **style)), LEAST_SECONDS)
    return {"seconds": seconds, "outputs": whole[0]}


if __name__ == "__main__":
    serve({"fixed": fixed, "text": text})
