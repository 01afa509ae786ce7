"""CTranslate2 as a contestant; runs in the peers' environment. Its instruction set is chosen by the environment's variables."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from .serve import LEAST_SECONDS, TARGET_TOKENS, each_timed, serve, timed, warmed


@lru_cache(maxsize=4)
def opened(folder: str, compute_type: str, inter: int, intra: int) -> Any:
    import ctranslate2

    return ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=inter, intra_threads=intra)


@lru_cache
def vocabulary(folder: str) -> list[str]:
    """Pieces by id, the same on both sides of the models here."""
    found: list[str] = json.loads((Path(folder) / "shared_vocabulary.json").read_text(encoding="utf-8"))
    return found


@lru_cache
def subword(folder: str, name: str) -> Any:
    import sentencepiece

    there = Path(folder) / name
    return sentencepiece.SentencePieceProcessor(model_file=str(there if there.exists() else Path(folder) / "source.model"))


def fixed(
    folder: str,
    sources: list[list[int]],
    beam: int,
    seconds: float,
    setting: dict[str, Any],
    length: int = TARGET_TOKENS,
    clock: str = "wall",
) -> dict[str, Any]:
    """Exactly so many tokens for each source."""
    translator = opened(folder, setting["compute_type"], setting["inter"], setting["intra"])
    known = vocabulary(folder)
    pieces = [[known[index] for index in source] for source in sources]
    limits = {"min_decoding_length": length, "max_decoding_length": length}

    found: list[Any] = []

    def work() -> None:
        found[:] = translator.translate_batch(
            pieces, beam_size=beam, max_batch_size=setting.get("batch", len(pieces)), **limits
        )

    warmed({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = timed(work, seconds, clock)
    said = [one.hypotheses[0] for one in found]
    if any(len(one) != length for one in said):
        raise ValueError("an output of another length")
    number = {piece: index for index, piece in enumerate(known)}
    return {"seconds": turns, "said": [[number[piece] for piece in one] for one in said]}


def text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], one_by_one: bool
) -> dict[str, Any]:
    """Text in, text out: all lines at once, or one by one."""
    translator = opened(folder, setting["compute_type"], setting["inter"], setting["intra"])
    source, target = subword(folder, "source.model"), subword(folder, "target.model")
    how = {"max_input_length": 0, "max_decoding_length": 256, "beam_size": beam, **search}

    def work(some: list[str], **batching: Any) -> list[str]:
        found = translator.translate_batch(source.encode(some, out_type=str), **how, **batching)
        said: list[str] = target.decode([one.hypotheses[0] for one in found])
        return said

    style = {} if one_by_one else {"max_batch_size": setting["batch"], "batch_type": setting["batch_type"]}
    warm = {"folder": folder, "beam": beam, "alone": one_by_one, **setting}
    warmed(warm, lambda: work(lines[:4]) if one_by_one else work(lines, **style))
    if one_by_one:
        seconds, said = each_timed(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "said": said}
    whole: list[list[str]] = []
    seconds = timed(lambda: whole.append(work(lines, **style)), LEAST_SECONDS)
    return {"seconds": seconds, "said": whole[0]}


if __name__ == "__main__":
    serve({"fixed": fixed, "text": text})
