"""dragoman as a contestant, through its public face: text in, text out, also where the others are given ids."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dragoman import load

from .serve import LEAST_SECONDS, SOURCE_TOKENS, TARGET_TOKENS, each_timed, serve, timed, warmed


@lru_cache(maxsize=8)
def opened(folder: str, precision: str, replicas: int | None, threads: int | None) -> Any:
    return load(folder, device="cpu", precision=precision, inter_threads=replicas, intra_threads=threads)


def exactly(length: int) -> dict[str, Any]:
    """Knobs by which an output has so many tokens, whatever it says: its limit, no earlier end, no stop for loops."""
    return {"max_extra_tokens": length - SOURCE_TOKENS, "min_length": length, "repetition_window": 0}


def fixed(
    folder: str,
    sources: list[list[int]],
    beam: int,
    seconds: float,
    setting: dict[str, Any],
    length: int = TARGET_TOKENS,
    clock: str = "wall",
) -> dict[str, Any]:
    """Exactly so many tokens for each source. Every id is a word of its own here, so the text is the ids."""
    translator = opened(folder, setting["precision"], setting["replicas"], setting["threads"])
    subword = translator.bundle.tokeniser.source
    lines = [subword.decode(source) for source in sources]
    if subword.encode_many(lines) != sources:
        raise ValueError("the text does not give these ids")
    rows = setting.get("batch", len(sources))
    search = {"method": "beam" if beam > 1 else "greedy", "batch_tokens": SOURCE_TOKENS * rows * beam}

    found: list[Any] = []

    def work() -> None:
        found[:] = translator.translate(lines, **search, **({"beam_size": beam} if beam > 1 else {}), **exactly(length))

    warmed({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = timed(work, seconds, clock)
    said = [one.tokens for one in found]
    if any(len(one) != length for one in said):
        raise ValueError(f"outputs of other lengths: {sorted({len(one) for one in said})}")
    number = {piece: index for index, piece in enumerate(subword.pieces(range(len(subword))))}
    return {"seconds": turns, "said": [[number[piece] for piece in one] for one in said]}


def text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], one_by_one: bool
) -> dict[str, Any]:
    """Text in, text out: all lines at once, or one by one."""
    translator = opened(folder, setting["precision"], setting["replicas"], setting["threads"])
    how = {"method": "beam", "beam_size": beam} if beam > 1 else {"method": "greedy"}
    if setting.get("batch_tokens"):
        how["batch_tokens"] = setting["batch_tokens"]

    def work(some: list[str]) -> list[str]:
        return [one.text for one in translator.translate(some, **how, **search)]

    warmed({"folder": folder, "beam": beam, "alone": one_by_one, **setting}, lambda: work(lines[:4] if one_by_one else lines))
    if one_by_one:
        seconds, said = each_timed(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "said": said}
    whole: list[list[str]] = []
    seconds = timed(lambda: whole.append(work(lines)), LEAST_SECONDS)
    return {"seconds": seconds, "said": whole[0]}


if __name__ == "__main__":
    serve({"fixed": fixed, "text": text})
