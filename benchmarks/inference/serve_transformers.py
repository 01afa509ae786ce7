"""Marian of transformers as a system of the benchmark, eager, through `generate`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .serve import TARGET_TOKENS, batch_by_length, load_sentencepiece, measure_fixed, measure_text, serve

UNREACHABLE_LOGIT = -3e4


@lru_cache(maxsize=2)
def load_model(folder: str, precision: str) -> Any:
    """Return a MarianMT model, whose outputs never hold padding and the begin token."""
    import torch
    from transformers import GenerationConfig, MarianMTModel

    torch.set_num_threads(2)
    model = MarianMTModel.from_pretrained(folder, dtype=getattr(torch, precision))
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.final_logits_bias[:, [model.config.pad_token_id, model.config.bos_token_id]] = UNREACHABLE_LOGIT
    model.train(False)
    return model


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

    def work() -> list[list[int]]:
        return generate(model, sources, beam, min_new_tokens=length, max_new_tokens=length)

    request = {"folder": folder, "count": len(sources), "beam": beam, **setting}
    turns, outputs = measure_fixed(work, request, length=length, seconds=seconds)
    return {"seconds": turns, "outputs": outputs}


def translate_text(
    folder: str, lines: list[str], beam: int, search: dict[str, Any], setting: dict[str, Any], line_by_line: bool
) -> dict[str, Any]:
    """Translate text to text: in batches of similar lengths, or line by line."""
    model = load_model(folder, setting["precision"])
    source, target = (load_sentencepiece(path := f"{folder}/{side}.spm", path) for side in ("source", "target"))

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

    request = {"folder": folder, "beam": beam, **setting}
    return measure_text(work, translate_all, lines, request, line_by_line=line_by_line)


if __name__ == "__main__":
    serve({"fixed": translate_fixed, "text": translate_text})
