"""dragoman as a system of the benchmark, through its public API: text in and text out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dragoman import load

from .serve import LEAST_SECONDS, SOURCE_TOKENS, TARGET_TOKENS, serve, time_each, time_turns, warm_up


@lru_cache(maxsize=8)
def opened(folder: str, precision: str, replicas: int | None, threads: int | None) -> Any:
    return load(folder, device="cpu", precision=precision, inter_threads=replicas, intra_threads=threads)


def exactly(length: int) -> dict[str, Any]:
    """Return decoding options that force outputs of exactly this length."""
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
    """Translate to exactly `length` tokens for each source. Every id is a word of its own, so the text is the ids."""
    translator = opened(folder, setting["precision"], setting["replicas"], setting["threads"])
    tokenizer = translator.bundle.tokenizer.source
    lines = [tokenizer.decode(source) for source in sources]
    if tokenizer.encode_batch(lines) != sources:
        raise ValueError("the text does not give these ids")
    rows = setting.get("batch", len(sources))
    search = {"method": "beam" if beam > 1 else "greedy", "batch_tokens": SOURCE_TOKENS * rows * beam}

    results: list[Any] = []

    def work() -> None:
        results[:] = translator.translate(lines, **search, **({"beam_size": beam} if beam > 1 else {}), **exactly(length))

    warm_up({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = time_turns(work, seconds, clock)
    outputs = [result.tokens for result in results]
    if any(len(result) != length for result in outputs):
        raise ValueError(f"outputs of other lengths: {sorted({len(result) for result in outputs})}")
    number = {piece: index for index, piece in enumerate(tokenizer.ids_to_pieces(range(len(tokenizer))))}
    return {"seconds": turns, "outputs": [[number[piece] for piece in result] for result in outputs]}


def text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], one_by_one: bool
) -> dict[str, Any]:
    """Translate text to text: all lines at once, or one by one."""
    translator = opened(folder, setting["precision"], setting["replicas"], setting["threads"])
    how = {"method": "beam", "beam_size": beam} if beam > 1 else {"method": "greedy"}
    if setting.get("batch_tokens"):
        how["batch_tokens"] = setting["batch_tokens"]

    def work(subset: list[str]) -> list[str]:
        return [result.text for result in translator.translate(subset, **how, **search)]

    warm_up({"folder": folder, "beam": beam, "alone": one_by_one, **setting}, lambda: work(lines[:4] if one_by_one else lines))
    if one_by_one:
        seconds, outputs = time_each(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "outputs": outputs}
    whole: list[list[str]] = []
    seconds = time_turns(lambda: whole.append(work(lines)), LEAST_SECONDS)
    return {"seconds": seconds, "outputs": whole[0]}


if __name__ == "__main__":
    serve({"fixed": fixed, "text": text})
