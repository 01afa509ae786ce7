"""Marian of transformers as a system of the benchmark, eager, through `generate`."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from .serve import MIN_SECONDS, TARGET_TOKENS, batch_by_length, serve, time_each, time_turns, warm_up


@lru_cache(maxsize=2)
def load_model(folder: str, precision: str) -> Any:
    """Return a Marian model with dragoman's weights and position tables."""
    import torch
    from safetensors.torch import load_file
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(2)
    config = json.loads((Path(folder) / "marian.json").read_text(encoding="utf-8"))
    epsilon = config.pop("norm_epsilon")
    model = MarianMTModel(MarianConfig(**config))
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = epsilon
    missing_names, unknown_names = model.load_state_dict(load_file(Path(folder) / "marian.safetensors"), strict=False)
    model.tie_weights()
    if unknown_names or any("embed" not in name and "lm_head" not in name for name in missing_names):
        raise ValueError(f"weights do not fit: missing {missing_names[:1]}, unknown {unknown_names[:1]}")
    model.train(False)
    return model.to(getattr(torch, precision))


@lru_cache
def load_sentencepiece(folder: str, name: str) -> Any:
    import sentencepiece

    path = Path(folder) / name
    return sentencepiece.SentencePieceProcessor(model_file=str(path if path.exists() else Path(folder) / "source.model"))


def generate(model: Any, sources: list[list[int]], beam: int, **options: Any) -> list[list[int]]:
    import torch

    end = model.config.eos_token_id
    longest = max(map(len, sources)) + 1
    ids = torch.zeros(len(sources), longest, dtype=torch.long)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source) + 1] = torch.tensor([*source, end])
    with torch.inference_mode():
        generated_ids = model.generate(
            input_ids=ids, attention_mask=(ids != 0).long(), num_beams=beam, do_sample=False, **options
        )
    rows: list[list[int]] = generated_ids[:, 1:].tolist()
    return rows


def translate_fixed(
    folder: str, sources: list[list[int]], beam: int, seconds: float, setting: dict[str, Any], length: int = TARGET_TOKENS
) -> dict[str, Any]:
    """Translate to exactly `length` tokens for each source."""
    model = load_model(folder, setting["precision"])

    outputs: list[list[int]] = []

    def work() -> None:
        outputs[:] = generate(model, sources, beam, min_new_tokens=length, max_new_tokens=length)

    warm_up({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = time_turns(work, seconds)
    if any(len(text) != length for text in outputs):
        raise ValueError(f"outputs of other lengths than {length}")
    return {"seconds": turns, "outputs": outputs}


def translate_text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], line_by_line: bool
) -> dict[str, Any]:
    """Translate text to text: in batches of similar lengths, or line by line."""
    model = load_model(folder, setting["precision"])
    source, target = load_sentencepiece(folder, "source.model"), load_sentencepiece(folder, "target.model")

    def work(subset: list[str]) -> list[str]:
        sources = source.encode(subset)
        generated_ids = generate(model, sources, beam, max_new_tokens=max(map(len, sources)) + 51, **search)
        outputs: list[str] = target.decode([[index for index in row if index > 3] for row in generated_ids])
        return outputs

    def translate_all() -> list[str]:
        outputs = [""] * len(lines)
        for subset in batch_by_length([len(line) for line in lines], setting["batch"]):
            for index, text in zip(subset, work([lines[index] for index in subset]), strict=True):
                outputs[index] = text
        return outputs

    warm_up(
        {"folder": folder, "beam": beam, "line_by_line": line_by_line, **setting},
        lambda: work(lines[:4]) if line_by_line else translate_all(),
    )
    if line_by_line:
        seconds, outputs = time_each(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "outputs": outputs}
    outputs_by_turn: list[list[str]] = []
    seconds = time_turns(lambda: outputs_by_turn.append(translate_all()), MIN_SECONDS)
    return {"seconds": seconds, "outputs": outputs_by_turn[0]}


if __name__ == "__main__":
    serve({"fixed": translate_fixed, "text": translate_text})
