"""Marian of transformers as a system of the benchmark, eager, through `generate`."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from .serve import LEAST_SECONDS, TARGET_TOKENS, batch_by_length, serve, time_each, time_turns, warm_up


@lru_cache(maxsize=2)
def opened(folder: str, precision: str) -> Any:
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
    missing, added = model.load_state_dict(load_file(Path(folder) / "marian.safetensors"), strict=False)
    model.tie_weights()
    if added or any("embed" not in name and "lm_head" not in name for name in missing):
        raise ValueError(f"weights do not fit: {missing[:1]} {added[:1]}")
    model.train(False)
    return model.to(getattr(torch, precision))


@lru_cache
def subword(folder: str, name: str) -> Any:
    import sentencepiece

    path = Path(folder) / name
    return sentencepiece.SentencePieceProcessor(model_file=str(path if path.exists() else Path(folder) / "source.model"))


def generated(model: Any, sources: list[list[int]], beam: int, **how: Any) -> list[list[int]]:
    import torch

    end = model.config.eos_token_id
    longest = max(map(len, sources)) + 1
    ids = torch.zeros(len(sources), longest, dtype=torch.long)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source) + 1] = torch.tensor([*source, end])
    with torch.inference_mode():
        generated_ids = model.generate(input_ids=ids, attention_mask=(ids != 0).long(), num_beams=beam, do_sample=False, **how)
    rows: list[list[int]] = generated_ids[:, 1:].tolist()
    return rows


def fixed(
    folder: str, sources: list[list[int]], beam: int, seconds: float, setting: dict[str, Any], length: int = TARGET_TOKENS
) -> dict[str, Any]:
    """Translate to exactly `length` tokens for each source."""
    model = opened(folder, setting["precision"])

    outputs: list[list[int]] = []

    def work() -> None:
        outputs[:] = generated(model, sources, beam, min_new_tokens=length, max_new_tokens=length)

    warm_up({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = time_turns(work, seconds)
    if any(len(text) != length for text in outputs):
        raise ValueError("an output of another length")
    return {"seconds": turns, "outputs": outputs}


def text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], one_by_one: bool
) -> dict[str, Any]:
    """Translate text to text: in batches of similar lengths, or one by one."""
    model = opened(folder, setting["precision"])
    source, target = subword(folder, "source.model"), subword(folder, "target.model")

    def work(subset: list[str]) -> list[str]:
        sources = source.encode(subset)
        generated_ids = generated(model, sources, beam, max_new_tokens=max(map(len, sources)) + 51, **search)
        outputs: list[str] = target.decode([[index for index in row if index > 3] for row in generated_ids])
        return outputs

    def all_of_them() -> list[str]:
        outputs = [""] * len(lines)
        for subset in batch_by_length([len(line) for line in lines], setting["batch"]):
            for index, text in zip(subset, work([lines[index] for index in subset]), strict=True):
                outputs[index] = text
        return outputs

    warm_up(
        {"folder": folder, "beam": beam, "alone": one_by_one, **setting},
        lambda: work(lines[:4]) if one_by_one else all_of_them(),
    )
    if one_by_one:
        seconds, outputs = time_each(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "outputs": outputs}
    whole: list[list[str]] = []
    seconds = time_turns(lambda: whole.append(all_of_them()), LEAST_SECONDS)
    return {"seconds": seconds, "outputs": whole[0]}


if __name__ == "__main__":
    serve({"fixed": fixed, "text": text})
