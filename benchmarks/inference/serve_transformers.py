"""Marian of transformers as a contestant, eager, through `generate`; runs in the peers' environment."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from .serve import LEAST_SECONDS, TARGET_TOKENS, batches, each_timed, serve, timed, warmed


@lru_cache(maxsize=2)
def opened(folder: str, precision: str) -> Any:
    """A model of our weights: Marian's code, our tables of positions."""
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

    there = Path(folder) / name
    return sentencepiece.SentencePieceProcessor(model_file=str(there if there.exists() else Path(folder) / "source.model"))


def generated(model: Any, sources: list[list[int]], beam: int, **how: Any) -> list[list[int]]:
    import torch

    end = model.config.eos_token_id
    longest = max(map(len, sources)) + 1
    ids = torch.zeros(len(sources), longest, dtype=torch.long)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source) + 1] = torch.tensor([*source, end])
    with torch.inference_mode():
        found = model.generate(input_ids=ids, attention_mask=(ids != 0).long(), num_beams=beam, do_sample=False, **how)
    rows: list[list[int]] = found[:, 1:].tolist()
    return rows


def fixed(
    folder: str, sources: list[list[int]], beam: int, seconds: float, setting: dict[str, Any], length: int = TARGET_TOKENS
) -> dict[str, Any]:
    """Exactly so many tokens for each source."""
    model = opened(folder, setting["precision"])

    said: list[list[int]] = []

    def work() -> None:
        said[:] = generated(model, sources, beam, min_new_tokens=length, max_new_tokens=length)

    warmed({"folder": folder, "count": len(sources), "beam": beam, "length": length, **setting}, work)
    turns = timed(work, seconds)
    if any(len(one) != length for one in said):
        raise ValueError("an output of another length")
    return {"seconds": turns, "said": said}


def text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], one_by_one: bool
) -> dict[str, Any]:
    """Text in, text out: in batches of like lengths, or one by one."""
    model = opened(folder, setting["precision"])
    source, target = subword(folder, "source.model"), subword(folder, "target.model")

    def work(some: list[str]) -> list[str]:
        sources = source.encode(some)
        found = generated(model, sources, beam, max_new_tokens=max(map(len, sources)) + 51, **search)
        said: list[str] = target.decode([[index for index in row if index > 3] for row in found])
        return said

    def all_of_them() -> list[str]:
        said = [""] * len(lines)
        for some in batches([len(line) for line in lines], setting["batch"]):
            for index, one in zip(some, work([lines[index] for index in some]), strict=True):
                said[index] = one
        return said

    warmed(
        {"folder": folder, "beam": beam, "alone": one_by_one, **setting},
        lambda: work(lines[:4]) if one_by_one else all_of_them(),
    )
    if one_by_one:
        seconds, said = each_timed(lambda line: work([line])[0], lines)
        return {"seconds": seconds, "said": said}
    whole: list[list[str]] = []
    seconds = timed(lambda: whole.append(all_of_them()), LEAST_SECONDS)
    return {"seconds": seconds, "said": whole[0]}


if __name__ == "__main__":
    serve({"fixed": fixed, "text": text})
