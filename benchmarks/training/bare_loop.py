"""Bare training loop around torch.nn.Transformer or Marian from transformers, with Adam.

`bare_loop.py SETTINGS` runs in the library's environment. SETTINGS is a JSON object with the model (nn or marian), the
dimensions, the precision and the files of ids. It prints a JSON object every few steps: target tokens and seconds.
"""

import importlib
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PADDING, BEGIN, END = 0, 2, 3
LONGEST = 128

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with one embedding for source, target and output, and sinusoidal positions."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        width = settings["d_model"]
        layers, heads = settings["layers"], settings["num_heads"]
        self.embedding = nn.Embedding(settings["vocabulary"], width, padding_idx=PADDING)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.layers = nn.Transformer(width, heads, layers, layers, settings["d_ff"], settings["dropout"], batch_first=True)
        self.dropout = nn.Dropout(settings["dropout"])
        angles = torch.arange(LONGEST)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=1))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        embedded: torch.Tensor = self.dropout(scaled + self.get_buffer("positions")[: ids.shape[1]])
        return embedded

    def forward(self, source: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        later = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]).isinf()
        empty = source == PADDING
        outputs = self.layers(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=later,
            tgt_is_causal=True,
            src_key_padding_mask=empty,
            memory_key_padding_mask=empty,
        )
        return functional.linear(outputs, self.embedding.weight)


class MarianTransformer(nn.Module):
    """Marian from transformers with the same dimensions."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        transformers: Any = importlib.import_module("transformers")
        both = {"layers": settings["layers"], "attention_heads": settings["num_heads"], "ffn_dim": settings["d_ff"]}
        stacks = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in both.items()}
        config = transformers.MarianConfig(
            vocab_size=settings["vocabulary"],
            d_model=settings["d_model"],
            activation_function="relu",
            dropout=settings["dropout"],
            attention_dropout=0.0,
            activation_dropout=0.0,
            max_position_embeddings=LONGEST,
            scale_embedding=True,
            pad_token_id=PADDING,
            eos_token_id=END,
            decoder_start_token_id=BEGIN,
            tie_word_embeddings=True,
            share_encoder_decoder_embeddings=True,
            **stacks,
        )
        self.model = transformers.MarianMTModel(config)

    def forward(self, source: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        mask = (source != PADDING).long()
        logits: torch.Tensor = self.model(
            input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False
        ).logits
        return logits


def read_ids(path: str) -> list[list[int]]:
    with open(path, encoding="utf-8") as lines:
        return [[int(word) for word in line.split()] for line in lines]


def pad_rows(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])


def make_batches(sources: list[list[int]], targets: list[list[int]], batch_tokens: int) -> list[Batch]:
    """Return batches of pairs with similar lengths, within the budget of the longer side, in random order."""
    pairs = sorted(zip(sources, targets, strict=True), key=lambda pair: (max(map(len, pair)), len(pair[1])))
    groups: list[list[tuple[list[int], list[int]]]] = [[]]
    for pair in pairs:
        longest = max(map(len, pair)) + 1  # pairs come by length, so this one is the longest so far
        if longest * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(pair)
    random.Random(1).shuffle(groups)
    return [
        (
            pad_rows([[*source, END] for source, _ in group]),
            pad_rows([[BEGIN, *target] for _, target in group]),
            pad_rows([[*target, END] for _, target in group]),
            sum(len(target) + 1 for _, target in group),
        )
        for group in groups
    ]


def repeat_batches(batches: list[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.manual_seed(1)
    model = PlainTransformer(settings) if settings["model"] == "nn" else MarianTransformer(settings)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-4, betas=(0.9, 0.98), eps=1e-9)
    batches = make_batches(read_ids(settings["source"]), read_ids(settings["target"]), settings["batch_tokens"])
    use_bfloat16 = settings["precision"] == "bfloat16"
    tokens, started = 0, time.perf_counter()
    for step, (source, inputs, targets, count) in enumerate(repeat_batches(batches), start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=use_bfloat16):
            logits = model(source, inputs)
            loss = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING, label_smoothing=settings["label_smoothing"]
            )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        tokens += count
        if step % settings["report_steps"] == 0:
            now = time.perf_counter()
            print(json.dumps({"tokens": tokens, "seconds": now - started, "loss": loss.item()}), flush=True)
            tokens, started = 0, now


if __name__ == "__main__":
    main()
