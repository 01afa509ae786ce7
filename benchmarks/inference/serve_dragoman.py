"""dragoman as a system of the benchmark, through its public API: text in and text out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dragoman import load

from .serve import SOURCE_TOKENS, TARGET_TOKENS, measure_fixed, measure_text, serve


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

    options = {**search, **({"beam_size": beam} if beam > 1 else {}), **build_length_options(length)}

    def work() -> list[Any]:
        return [result.tokens for result in translator.translate(lines, **options)]

    request = {"folder": folder, "count": len(sources), "beam": beam, **setting}
    turns, outputs = measure_fixed(work, request, length=length, seconds=seconds, clock=clock)
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

    request = {"folder": folder, "beam": beam, **search, **setting}
    return measure_text(work, lambda: work(lines), lines, request, line_by_line=line_by_line)


if __name__ == "__main__":
    serve({"fixed": translate_fixed, "text": translate_text})
