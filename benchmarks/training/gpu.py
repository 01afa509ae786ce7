"""Training speed on a GPU in bfloat16, base and big: `make bench-training-gpu`, QUICK=1 in a minute.

Both sides run in this process, alternating, on the same batches in the memory of the GPU, with Adam in one kernel, dropout 0.1
and label smoothing 0.1. The peer is torch.nn.Transformer under autocast with a loss over all logits. The share of the peak
counts the operations of real tokens alone, and divides by those of a matrix product measured here. The last line holds
`name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
import torch
from common.benchmark import Benchmark, with_options
from common.results import Ratio, Section, Table
from torch import Tensor, nn

from dragoman.config import make_recipe
from dragoman.config.model_config import ModelConfig
from dragoman.data.collate import Batch, collate
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.positions import interleaved_sinusoids
from dragoman.training.compute_plan import ComputePlan, measure_peak_flops
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.monitoring.flops import compute_batch_cost

VOCABULARY, NUM_BATCHES, LONGEST = 32_000, 8, 128
SIZES = ("base", "big")
# As many tokens as in the paper (section 5.1), and four times as many, since a modern GPU holds them.
BATCH_TOKENS = (25_000, 100_000)
LossFunction = Callable[[Batch], Tensor]


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings and a tied output matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.d_model, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.layers = nn.Transformer(
            config.d_model, config.num_heads, config.encoder_layers, config.decoder_layers, config.d_ff, 0.1, batch_first=True
        )
        self.register_buffer("positions", torch.from_numpy(interleaved_sinusoids(LONGEST, config.d_model)))

    def forward(self, batch: Batch) -> Tensor:
        """Return the smoothed loss of a batch, summed over its tokens."""
        length, padding = batch.inputs_BT.shape[1], batch.source_BS == 0
        positions = self.get_buffer("positions")
        outputs = self.layers(
            self.embedding(batch.source_BS) + positions[: batch.source_BS.shape[1]],
            self.embedding(batch.inputs_BT) + positions[:length],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length, device=padding.device).isinf(),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        logits = nn.functional.linear(outputs, self.embedding.weight).flatten(0, 1)
        return nn.functional.cross_entropy(
            logits, batch.targets_BT.flatten(), ignore_index=0, label_smoothing=0.1, reduction="sum"
        )


def make_batches(batch_tokens: int) -> list[Batch]:
    """Return batches of pairs whose lengths differ by at most a fifth, as sorted batches of news have them."""
    rng = np.random.default_rng(1)
    batches = []
    for longest in rng.integers(12, 60, NUM_BATCHES):
        lengths = rng.integers(max(2, int(longest * 0.8)), longest + 1, batch_tokens // int(longest))
        rows = [rng.integers(4, VOCABULARY, length, dtype=np.int32) for length in lengths]
        batches.append(collate(rows, [row[:-1] for row in rows], start_id=2))
    return batches


def ours(model: Transformer) -> LossFunction:
    return lambda batch: batch_loss(model, batch, epsilon=0.1, smoothing_mode="uniform")[0]


class Training:
    """Training of one model on the same batches."""

    def __init__(self, model: nn.Module, loss_of: LossFunction, plan: ComputePlan) -> None:
        self.loss_of, self.plan = loss_of, plan
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def measure(self, batches: Sequence[Batch], seconds: float) -> float:
        """Train for some seconds, and return target tokens per second."""
        torch.cuda.synchronize(self.plan.device)
        started, tokens = time.perf_counter(), 0
        while True:
            for batch in batches:
                with self.plan.autocast():
                    loss = self.loss_of(batch)
                (loss / batch.num_target_tokens).backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self.optimizer.zero_grad()
                tokens += batch.num_target_tokens
            torch.cuda.synchronize(self.plan.device)
            elapsed = time.perf_counter() - started
            if elapsed >= seconds:
                return tokens / elapsed


def measure_size(size: str, batch_tokens: int, plan: ComputePlan, *, rounds: int, seconds: float) -> dict[str, float]:
    """Return the median rates of both sides, the memory of ours in MiB, and our share of the peak."""
    config = make_recipe({"preset": "t2t-2017", "size": size, "model": {"decoder_start_token": "bos"}}, ()).model
    torch.manual_seed(1)
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY).to(plan.device)
    plan.apply_to(model)
    peer = TorchTransformer(config).to(plan.device)
    trainings = {"dragoman": Training(model, ours(model), plan), "torch": Training(peer, peer, plan)}
    batches_on_cpu = make_batches(batch_tokens)
    batches = [batch.to(plan.device) for batch in batches_on_cpu]
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    memory: dict[str, float] = {}
    for turn in range(rounds + 1):  # the first one warms up
        for name, training in trainings.items():
            torch.cuda.reset_peak_memory_stats(plan.device)
            rate = training.measure(batches, seconds if turn else 0.0)
            memory[name] = torch.cuda.max_memory_allocated(plan.device) / 2**20
            if turn:
                rates[name].append(rate)
    costs = [compute_batch_cost(config, VOCABULARY, batch) for batch in batches_on_cpu]
    flops_per_token = sum(cost.flops for cost in costs) / sum(batch.num_target_tokens for batch in batches)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {**medians, "memory": memory["dragoman"], "share": medians["dragoman"] * flops_per_token / measure_peak_flops(plan)}


@click.command()
@click.option("--quick", is_flag=True, help="Measure the paper's batches only, in one short round.")
@with_options("json")
def main(quick: bool, report: Path | None) -> None:
    """Measure training speed on a GPU, beside torch.nn.Transformer."""
    if not torch.cuda.is_available():
        raise click.ClickException(
            "no CUDA device: this benchmark measures a GPU; run `make bench-training` to measure the processor"
        )
    section = Section()
    bench = Benchmark(__file__, quick=quick, cores=None, libraries=("dragoman", "torch"), report=report)
    plan = ComputePlan(torch.device("cuda", torch.cuda.current_device()), torch.bfloat16)
    bench.machine["gpu"] = torch.cuda.get_device_name(plan.device)
    bench.console.print(f"{bench.machine['gpu']}, CUDA {torch.version.cuda}", markup=False)
    table = Table(
        f"Training in bfloat16, {VOCABULARY:,} pieces: target tokens per second",
        ["size, padded tokens", "dragoman", "torch.nn", "ratio", "share of the peak", "memory, MiB"],
    )
    for size in SIZES:
        for batch_tokens in BATCH_TOKENS[:1] if quick else BATCH_TOKENS:
            result = measure_size(size, batch_tokens, plan, rounds=1 if quick else 3, seconds=2.0 if quick else 6.0)
            name, ratio = f"{size}_{batch_tokens}", result["dragoman"] / result["torch"]
            table.rows.append(
                [
                    f"{size}, {batch_tokens:,}",
                    f"{result['dragoman']:,.0f}",
                    f"{result['torch']:,.0f}",
                    f"{ratio:.2f}",
                    f"{result['share']:.0%}",
                    f"{result['memory']:,.0f}",
                ]
            )
            section.ratios.append(Ratio(f"over_torch_{name}", ratio))
            section.figures[name] = result
    section.tables.append(table)
    bench.add("gpu", section)
    bench.finish()


if __name__ == "__main__":
    main()
