"""dragoman as a system of the benchmark, through its public API: text in and text out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dragoman import load

from .serve import MIN_SECONDS, SOURCE_TOKENS, TARGET_TOKENS, serve, time_each, time_turns, warm_up


@lru_cache(maxsize=8)
def load_translator(folder: str, precision: str, inter_threads: int | None, intra_threads: int | None) -> Any:
    return load(folder, device="cpu", precision=precision, inter_threads=inter_threads, intra_threads=intra_threads)


def build_length_options(length: int) -> dict[str, Any]:
    """Return decoding options that force outputs of exactly this length."""
    return {"max_extra_tokens": length - SOURCE_TOKENS, "min_length": length, "repetition_window": 0}


def translate_fixed(
    folder: str,
    sources: list[list[int]],
    beam: int,
    seconds: float,
    setting: dict[str, Any],
    length: int = TARGET_TOKENS,
    clock: str = "wall",
) -> dict[str, Any]:
    """Translate to exactly `length` tokens for each source. Every id is a word of its own, so the text is the ids."""
    translator = load_translator(folder, setting["precision"], setting["inter_threads"], setting["intra_threads"])
    tokenizer = translator.bundle.tokenizer.source
    lines = [tokenizer.decode(source) for source in sources]
    if tokenizer.encode_batch(lines) != sources:
        raise ValueError("the ids do not survive decoding and encoding")
    rows = setting.get("batch", len(sources))
    search = {"method": "beam" if beam > 1 else "greedy", "batch_tokens": SOURCE_TOKENS * rows * beam}

    results: list[Any] = []

    def work() -> None:
        results[:] = translator.translate(
            lines, **search, **({"beam_size": beam} if beam > 1 else {}), **build_length_options(length)
        )

    warm_up({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = time_turns(work, seconds, clock)
    outputs = [result.tokens for result in results]
    if any(len(result) != length for result in outputs):
        raise ValueError(f"outputs of other lengths: {sorted({len(result) for result in outputs})}")
    id_by_piece = {piece: index for index, piece in enumerate(tokenizer.ids_to_pieces(range(len(tokenizer))))}
    return {"seconds": turns, "outputs": [[id_by_piece[piece] for piece in result] for result in outputs]}


def translate_text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], line_by_line: bool
) -> dict[str, Any]:
    """Translate text to text: all lines at once, or line by line."""
    translator = load_translator(folder, setting["precision"], setting["inter_threads"], setting["intra_threads"])
    options = {"method": "beam", "beam_size": beam} if beam > 1 else {"method": "greedy"}
    if setting.get("batch_tokens"):
        options["batch_tokens"] = setting["batch_tokens"]

    def work(subset: list[str]) -> list[str]:
        return [result.text for result in translator.translate(subset, **options, **search)]

    warm_up(
        {"folder": folder, "beam": beam, "line_by_line": line_by_line, **search, **setting},
        lambda: work(lines[:4] if line_by_line else lines),
    )
    if line_by_line:
        seconds, outputs = time_each(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "outputs": outputs}
    outputs_by_turn: list[list[str]] = []
    seconds = time_turns(lambda: outputs_by_turn.append(work(lines)), MIN_SECONDS)
    return {"seconds": seconds, "outputs": outputs_by_turn[0]}


if __name__ == "__main__":
    serve({"fixed": translate_fixed, "text": translate_text})
