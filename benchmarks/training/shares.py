"""Where a training step's time goes at base's sizes: `PYTHONPATH=benchmarks python -m training.shares`.

Steps are profiled with two threads after some that warm up. For each operation on each shape, its calls times the fastest of
them, so that what other programs did to some calls does not count. A product's rate is that of its operations, those on padding
included, since they are computed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import torch
from common.report import open_console, show
from common.results import Section, Table
from common.usage import keep_to_cores
from torch.profiler import ProfilerActivity, profile

from dragoman.config import read_recipe
from dragoman.data.dataloader import BatchStream, DataPosition, TrainingBatches
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.training.checkpoints.checkpoint import TrainerState
from dragoman.training.device import ComputePlan, choose_compute_plan, limit_kernel_cache
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.gradient_guard import GradientGuard
from dragoman.training.train_state import TrainState
from dragoman.training.train_step import TrainStep

from . import ours
from .sizes import SIZES
from .text import make_corpus
from .timed import THREADS

PRODUCTS = ("mkldnn::_linear_pointwise", "aten::mm", "aten::addmm")
# Kinds of work by words in the names of operations; the first that fits counts.
KINDS = {
    "products with weights": PRODUCTS,
    "attention's products": ("bmm",),
    "rows turned and copied": ("copy_", "channel_shuffle", "aten::cat"),
    "dropout": ("Dropout", "bitwise_and", "ge_", "neg_"),
    "normalisation, softmax, relu": ("layer_norm", "softmax", "threshold"),
    "sums, additions, scalings": ("aten::sum", "add", "mul", "norm", "amax", "aten::sub", "aten::div"),
    "Adam": ("adam",),
    "memory taken and cleared": ("fill_", "empty", "resize_", "zero"),
}
REST = "all else, the interpreter's share included"


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="base", show_default=True)
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="That are profiled.")
def main(size: str, precision: str, steps: int) -> None:
    """Tell what a training step's time goes to, and how fast its products are."""
    keep_to_cores(THREADS)
    torch.set_num_threads(THREADS)
    stepper, stream, machine = _prepare(size, precision)
    for step in range(1, 4):
        _take(stepper, stream, step)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for step in range(4, 4 + steps):
            _take(stepper, stream, step)
    console = open_console()
    console.print(machine.describe())
    show(console, _tell(profiled.events() or [], size, steps))


def _prepare(name: str, precision: str) -> tuple[TrainStep, BatchStream, ComputePlan]:
    here = Path(__file__).resolve().parent
    work, size = here / ".work", SIZES[name]
    corpus = make_corpus(here.parents[1].parent / "shared" / "data", work / "text")
    path = ours.write_recipe(work)
    prepared = ours.prepare(corpus, path, work / "out" / "shares")
    recipe = read_recipe(path, ours.changes(corpus, size, work / "out" / "shares", f"training.precision={precision}"))
    limit_kernel_cache()
    machine, world = choose_compute_plan(recipe.training), DistributedContext()
    batches = TrainingBatches(recipe, prepared, start_id=get_decoder_start_id(recipe.model))
    learner = TrainState(recipe, batches.tokenizer, machine, world)
    learner.model.train()
    guard = GradientGuard.from_state(TrainerState(), machine.device, grad_norm_spike_sigma=None)
    config = recipe.training
    stepper = TrainStep(
        learner.loss, learner.optimizer, config=config, plan=machine, distributed=world, guard=guard, on_split=click.echo
    )
    return stepper, BatchStream(batches, position=DataPosition()), machine


def _take(stepper: TrainStep, stream: BatchStream, step: int) -> None:
    parts = stream.next_batch()
    stepper.__call__(step, [(0, parts)], tokens=sum(part.num_target_tokens for part in parts))


def _tell(events: Iterable[Any], size: str, steps: int) -> Section:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    operations: dict[tuple[str, str], float] = {}
    for event in events:
        key = (event.name, str(event.input_shapes))
        found[key].append(event.self_cpu_time_total * 1e-6)
        if event.name in PRODUCTS:
            operations[key] = _operations(event.name, event.input_shapes)
    seconds: dict[str, float] = defaultdict(float)
    for key, times in found.items():
        seconds[_kind(key[0])] += min(times) * len(times) / steps
    total = sum(seconds.values())
    table = Table(f"{size}: a step of {total:.2f} s", ["kind of work", "ms", "share"])
    for kind in sorted(seconds, key=lambda one: -seconds[one]):
        table.rows.append([kind, f"{seconds[kind] * 1e3:,.0f}", f"{seconds[kind] / total:.1%}"])
    section = Section(tables=[table])
    rates = {key: operations[key] / min(found[key]) for key in operations}
    if rates:
        work = sum(operations[key] * len(found[key]) for key in operations) / steps
        mean, best = work / seconds["products with weights"], max(rates.values())
        faster = total - seconds["products with weights"] + work / best
        section.remarks.append(
            f"products: {work / 1e9:,.0f} GFLOP at {mean / 1e9:,.0f} GFLOP/s, the best shape at {best / 1e9:,.0f}: "
            f"all at that, a step would take {faster:.2f} s; them alone, {work / best:.2f} s"
        )
    return section


def _kind(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), REST)


def _operations(name: str, shapes: list[list[int]]) -> float:
    """Of a product with a weight, which comes as (out, in), or to PyTorch's own routes as (in, out)."""
    left, right = shapes[1:3] if name == "aten::addmm" else shapes[:2]
    return 2.0 * math.prod(left) * (right[0] if name == PRODUCTS[0] else right[1])


if __name__ == "__main__":
    main()
