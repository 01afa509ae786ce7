"""Acceptance of three ways to propose the next tokens of greedy search, trained on the same outputs of a bundle.

    PYTHONPATH=benchmarks python -m inference.draft_decoder BUNDLE LINES

LINES is a text file in the source language. The ways:

    heads          the prediction heads of `dragoman accelerate`, independent of each other
    draft          a decoder of one layer over the shared encoder, which begins as a copy of the last layer
    draft over h   one layer that reads the decoder's last output h, or its own, and the embedding of the token behind it. It
                   attends to the source, but not to the output, so it needs no cache

All keep the embeddings of the model, which does not change. Tokens of the training are those that `dragoman accelerate`
allows, a tenth of the bundle's own, times --budget. A proposal is checked only if those before it hold, so the tokens that a
draft reads are those of the output. A table shows the tokens that a step adds to an output that was held out.
"""

from __future__ import annotations

import copy
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.data.collate import collate
from dragoman.inference.greedy_outputs import read_source_lines, write_greedy_outputs
from dragoman.inference.load import load
from dragoman.inference.translator import Translator
from dragoman.model.attention import KeyValue
from dragoman.model.draft_decoder import DraftDecoder
from dragoman.model.layers import DecoderLayer
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.training.proposal_objectives import Output
from dragoman.training.proposal_training import choose_proposed_tokens, choose_target_tokens, count_steps, make_batches

from .domains import read_domains

NUM_PROPOSALS, BATCH_TOKENS, PEAK_LR, WARMUP, HELD_OUT = 4, 1024, 2e-3, 0.05, 500
COVERAGE = 0.97


@dataclass(frozen=True)
class DecoderBatch:
    """Decoder's view of a batch: its outputs h (B, T, D), the tokens y behind them (B, T; -1 for none), and the source."""

    h_BTD: Tensor
    y_BT: Tensor
    inputs_BT: Tensor
    memory_BSD: Tensor
    source_BS: Tensor
    memory_mask: Tensor


@torch.no_grad()
def read_batch(model: Transformer, outputs: Sequence[Output], start_id: int) -> DecoderBatch:
    batch = collate([item.source for item in outputs], [item.output[:-1] for item in outputs], start_id=start_id)
    memory_BSD = model.encoder(batch.source_BS)
    state = model.decoder.start(memory_BSD, batch.source_BS)
    h_BTD, _ = model.decoder(batch.inputs_BT, state)
    y_BT = torch.full(batch.inputs_BT.shape, -1)
    for row, item in enumerate(outputs):
        y_BT[row, : len(item.output)] = torch.tensor(item.output)
    return DecoderBatch(h_BTD, y_BT, batch.inputs_BT, memory_BSD, batch.source_BS, state.memory_mask)


def embed(model: Transformer, tokens_X: Tensor) -> Tensor:
    embedding = model.decoder.embedding
    return embedding.weight.detach()[tokens_X] * embedding.scale


def shift(y_BT: Tensor, distance: int) -> Tensor:
    """Return the token at this distance behind each token, -1 for none."""
    return F.pad(y_BT[:, distance:], (0, min(distance, y_BT.shape[1])), value=-1)[:, : y_BT.shape[1]]


class Heads(nn.Module):
    def __init__(self, model: Transformer, token_ids_W: Tensor) -> None:
        super().__init__()
        d_model = model.output.shape[1]
        self.heads = PredictionHeads(num_heads=NUM_PROPOSALS, d_model=d_model, d_inner=d_model, token_ids_W=token_ids_W)

    def forward(self, model: Transformer, batch: DecoderBatch) -> list[Tensor]:
        """Return the inputs of the output embedding for each proposal (B, T, D)."""
        y_BTD = embed(model, batch.y_BT.clamp(min=0))
        x_XID = self.heads(batch.h_BTD.flatten(0, 1), y_BTD.flatten(0, 1))
        return list(x_XID.view(*y_BTD.shape[:2], NUM_PROPOSALS, -1).unbind(2))


class Draft(nn.Module):
    """Draft decoder of `dragoman accelerate`. Its output behind y does not depend on where the block began."""

    def __init__(self, model: Transformer, token_ids_W: Tensor) -> None:
        super().__init__()
        self.draft = DraftDecoder.from_model(model, token_ids_W=token_ids_W, num_proposals=NUM_PROPOSALS)

    def forward(self, model: Transformer, batch: DecoderBatch) -> list[Tensor]:
        """Return the inputs of the output embedding for each proposal (B, T, D)."""
        decoder = self.draft.to_decoder(model.decoder.embedding)
        outputs_BTD, _ = decoder(batch.inputs_BT, decoder.start(batch.memory_BSD, batch.source_BS))
        length = batch.y_BT.shape[1]
        return [
            F.pad(outputs_BTD[:, distance:], (0, 0, 0, min(distance, length)))[:, :length]
            for distance in range(1, NUM_PROPOSALS + 1)
        ]


class DraftOverOutputs(nn.Module):
    """Layer that reads [g; y], where g is h at first and then its own output: cross-attention and a feed-forward network."""

    def __init__(self, model: Transformer, token_ids_W: Tensor) -> None:
        super().__init__()
        d_model, last = model.output.shape[1], cast(DecoderLayer, model.decoder.layers[-1])
        self.join = nn.Linear(2 * d_model, d_model)
        with torch.no_grad():
            self.join.weight.mul_(0.1)
            self.join.weight[:, :d_model] += torch.eye(d_model)
        self.attention = copy.deepcopy(last.cross_attention).requires_grad_(True)
        self.inner, self.outer = nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))

    def forward(self, model: Transformer, batch: DecoderBatch) -> list[Tensor]:
        """Return the inputs of the output embedding for each proposal (B, T, D)."""
        kv: KeyValue = self.attention.project_kv(batch.memory_BSD)
        g_BTD, proposals = batch.h_BTD, []
        for distance in range(NUM_PROPOSALS):
            y_BTD = embed(model, shift(batch.y_BT, distance).clamp(min=0))
            x_BTD = g_BTD + self.join(torch.cat([g_BTD, y_BTD], -1))
            x_BTD = x_BTD + self.attention(self.norms[0](x_BTD), kv, batch.memory_mask)
            g_BTD = g_BTD + self.outer(F.relu(self.inner(self.norms[1](x_BTD)))) + 0.1 * x_BTD
            proposals.append(g_BTD)
        return proposals


WAYS: dict[str, Callable[[Transformer, Tensor], nn.Module]] = {"heads": Heads, "draft": Draft, "draft over h": DraftOverOutputs}


def train(
    way: nn.Module, model: Transformer, outputs: Sequence[Output], token_ids_W: Tensor, start_id: int, target_tokens: int
) -> None:
    """Train by cross-entropy, with the learning rates and batches of the heads. Tokens that are not proposed are no targets."""
    parameters = [parameter for parameter in way.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=PEAK_LR, betas=(0.9, 0.98))
    batches = make_batches(outputs, BATCH_TOKENS)
    num_steps = max(1, round(target_tokens / sum(len(item.output) for item in outputs) * len(batches)))
    local_V = torch.full((len(model.output),), -1)
    local_V[token_ids_W] = torch.arange(len(token_ids_W))
    output_WD = model.output.detach()[token_ids_W]
    warmup = max(1, round(WARMUP * num_steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warmup) * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * step / num_steps)))),
    )
    order: list[int] = []
    for step in range(num_steps):
        if not order:
            order = random.Random(step).sample(range(len(batches)), len(batches))
        batch = read_batch(model, [outputs[row] for row in batches[order.pop()]], start_id)
        losses, count = [], 0
        for distance, x_BTD in enumerate(way(model, batch), start=1):
            targets_BT = shift(batch.y_BT, distance)
            local_BT = torch.where(targets_BT >= 0, local_V[targets_BT.clamp(min=0)], -1)
            if isinstance(way, Draft) and distance > 1:
                break  # the outputs are those of the first distance, shifted
            losses.append(F.cross_entropy(x_BTD[local_BT >= 0] @ output_WD.T, local_BT[local_BT >= 0], reduction="sum"))
            count += int((local_BT >= 0).sum())
        if not count:
            continue
        loss = torch.stack(losses).sum() / count
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def measure(
    way: nn.Module, model: Transformer, outputs: Sequence[Output], token_ids_W: Tensor, start_id: int, top: int = 1
) -> tuple[list[float], list[list[float]]]:
    """Return the tokens of a step for k = 2 to 5, and for each proposal the shares of the likeliest `top` tokens that hold.

    A share counts the places at which the proposals before it hold.
    """
    output_WD = model.output.detach()[token_ids_W]
    steps, tokens = [0] * NUM_PROPOSALS, 0
    hits, places = torch.zeros(NUM_PROPOSALS, top), torch.zeros(NUM_PROPOSALS)
    for rows in make_batches(outputs, BATCH_TOKENS):
        batch = read_batch(model, [outputs[row] for row in rows], start_id)
        likeliest = [token_ids_W[(x_BTD @ output_WD.T).topk(top).indices] for x_BTD in way(model, batch)]
        is_open_BT = batch.y_BT >= 0
        for distance, ids_BTX in enumerate(likeliest, start=1):
            targets_BT = shift(batch.y_BT, distance)
            is_open_BT = is_open_BT & (targets_BT >= 0)
            matches_BTX = (ids_BTX == targets_BT[..., None]) & is_open_BT[..., None]
            hits[distance - 1] += matches_BTX.sum((0, 1))
            places[distance - 1] += is_open_BT.sum()
            is_open_BT = is_open_BT & matches_BTX[..., 0]
        proposals_BTI = torch.stack([ids_BTX[..., 0] for ids_BTX in likeliest], -1).tolist()
        for row, proposals in zip(rows, proposals_BTI, strict=True):
            tokens += len(outputs[row].output)
            for index in range(NUM_PROPOSALS):
                steps[index] += count_steps(outputs[row].output, proposals, index + 2)
    return [tokens / count for count in steps], (hits / places[:, None]).tolist()


def write_outputs(translator: Translator, lines: Sequence[str], max_tokens: int) -> list[Output]:
    """Return the greedy outputs of lines, in a random order."""
    with tempfile.TemporaryDirectory() as folder:
        rows = write_greedy_outputs(translator, lines, Path(folder), max_tokens=max_tokens, seed=1)
    return [Output(source, output) for source, output in rows]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("lines", type=click.Path(path_type=Path, exists=True))
@click.option("--budget", type=float, default=1.0, show_default=True, help="Training tokens, in tenths of the bundle's own.")
@click.option("--way", "names", type=click.Choice(list(WAYS)), multiple=True, help="Train only these.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the real corpora.  [default: ../shared/data]")
def main(bundle: Path, lines: Path, budget: float, names: tuple[str, ...], shared: Path | None) -> None:
    """Train the ways to propose tokens for BUNDLE on its outputs for LINES, and print their acceptance."""
    torch.manual_seed(1)
    shared = (shared or Path(__file__).resolve().parents[3] / "shared" / "data").resolve()
    translator = load(bundle, task="translation", device="cpu")
    model, start_id = translator.models[0].eval().requires_grad_(False), get_decoder_start_id(translator.recipe.model)
    limit = choose_target_tokens(None, translator.metadata.target_tokens)
    task = translator.recipe.task
    text = read_source_lines(lines, source_language=task.source_language, target_language=task.target_language)
    outputs = write_outputs(translator, text, limit)
    domains = {
        name: write_outputs(translator, sources[:HELD_OUT], 10**9)
        for name, sources in read_domains(shared, 5 * HELD_OUT).items()
    }
    token_ids_W = choose_proposed_tokens(outputs, COVERAGE)
    print(f"{len(outputs):,} outputs, {len(token_ids_W):,} tokens that are proposed, {budget * limit:,.0f} tokens of training")
    print("| way | parameters | training | domain | k = 2, 3, 4, 5 | first to third choice of each proposal |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in names or WAYS:
        way = WAYS[name](model, token_ids_W)
        start = time.perf_counter()
        train(way, model, outputs, token_ids_W, start_id, round(budget * limit))
        seconds = time.perf_counter() - start
        size = sum(parameter.numel() for parameter in way.parameters() if parameter.requires_grad)
        for domain, held_out in domains.items():
            rates, shares = measure(way.eval(), model, held_out, token_ids_W, start_id, top=3)
            choices = "; ".join(" ".join(f"{share:.2f}" for share in row) for row in shares)
            row = (
                f"| {name} | {size:,} | {seconds:.0f} s | {domain} | {', '.join(f'{rate:.2f}' for rate in rates)} | {choices} |"
            )
            print(row, flush=True)


if __name__ == "__main__":
    main()
