"""How long a step takes on 8, 64 and 512 GPUs, by simulation: `make bench-scaling`, a few seconds on any machine.

The method, its assumptions and what came out stand in README.md beside this file. The last line holds `name=ratio` pairs;
larger is better in each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import click
from common.report import open_console, show
from common.results import Ratio, Section, Table

from dragoman.config import make_recipe

from .cluster import Cluster
from .forecast import Forecast, foresee
from .loads import LONGEST, Loads, loads_of
from .published import POINTS, foretold, mlperf_epoch_seconds
from .step import ddp_step, fsdp_step
from .work import Block, blocks_of, num_weights, operations_a_token

SIZES = ("base", "big")
DEVICES = (8, 64, 512)
STEPS = {"base": 100_000, "big": 300_000}
"""Of the paper's runs."""
BYTES = {"float32": 4, "bfloat16": 2}


@click.command()
@click.option(
    "--tflops", default=405.0, show_default=True, help="TFLOP/s that a GPU reaches in training; 41 % of an H200's 989."
)
@click.option("--kernel", default=4.0, show_default=True, help="Microseconds that the smallest kernel takes.")
@click.option("--memory", default=3.8, show_default=True, help="TB/s of a GPU's memory; four fifths of an H200's 4.8.")
@click.option("--node", default=450.0, show_default=True, help="GB/s each way of a GPU's link within the node.")
@click.option("--network", default=50.0, show_default=True, help="GB/s each way of a GPU's adapter; 400 Gb/s.")
@click.option("--reached", default=0.8, show_default=True, help="Share of the links' stated speeds that is reached.")
@click.option("--vocabulary", default=37_000, show_default=True, help="Rows of the shared matrix.")
@click.option("--gradients", type=click.Choice(list(BYTES)), default="float32", show_default=True, help="As they travel.")
@click.option("--share", default=3125, show_default=True, help="Tokens a side and GPU where the batch grows with the GPUs.")
@click.option("--noise", default=0.0, show_default=True, help="σ of the logarithm of each rank's pace.")
@click.option("--steps", default=64, show_default=True, type=click.IntRange(min=1), help="Steps to take the mean of.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write everything to this file.")
def main(
    tflops: float,
    kernel: float,
    memory: float,
    node: float,
    network: float,
    reached: float,
    vocabulary: int,
    gradients: str,
    share: int,
    noise: float,
    steps: int,
    report: Path | None,
) -> None:
    """Foretell the time of a training step on many GPUs."""
    cluster = Cluster(
        devices=1,
        rate=tflops * 1e12,
        kernel_seconds=kernel * 1e-6,
        memory=memory * 1e12,
        node=node * reached * 1e9,
        network=network * reached * 1e9,
    )
    console = open_console()
    sections = {
        size: foretell(size, cluster, vocabulary=vocabulary, gradients=gradients, share=share, noise=noise, steps=steps)
        for size in SIZES
    }
    sections["published"] = compare_published(steps)
    for section in sections.values():
        show(console, section)
    if report is not None:
        whole = {"cluster": asdict(cluster), **{name: section.to_dict() for name, section in sections.items()}}
        report.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(" ".join(f"{ratio.name}={ratio.value:.3f}" for section in sections.values() for ratio in section.ratios))


def foretell(size: str, cluster: Cluster, *, vocabulary: int, gradients: str, share: int, noise: float, steps: int) -> Section:
    """One size of the paper's model: two batches that stay as they are, and one that grows with the devices."""
    blocks = blocks_of(make_recipe({"preset": "paper", "size": size}).model, vocabulary=vocabulary)
    section = Section()
    section.tables.append(
        Table(
            f"{size}: {num_weights(blocks) / 1e6:.1f} M weights, {operations_a_token(blocks) / 1e9:.3f} GFLOP a target token; "
            f"batches in tokens a side, times in ms, hours of {STEPS[size]:,} steps",
            ["batch", "GPUs", "a GPU", "step", "compute", "update", "exposed", "uneven", "efficiency", "Mtokens/s", "hours",
             "16-bit", "FSDP2"],
        )
    )  # fmt: skip
    batches = {"25k": 25_000, "400k": 400_000, "share": None}
    for name, batch in batches.items():
        for devices in DEVICES:
            each = share if batch is None else batch // devices
            loads = loads_of(batch_tokens=each, ranks=devices, steps=steps)
            one = 25_000 if batch is not None else each
            alone = loads_of(batch_tokens=one, ranks=(batch or each) // one, steps=steps)
            found = _ways(blocks, replace(cluster, devices=devices), loads, alone, gradients, noise)
            section.figures[f"{name}_{devices}"] = {way: one.to_dict() for way, one in found.items()}
            section.tables[0].rows.append(_row(each * devices, each, found, STEPS[size]))
            section.ratios.append(Ratio(f"{size}_{name}_{devices}", found["ddp"].efficiency))
    section.remarks.append(f"* fewer tokens a GPU than the longest side of a pair, {LONGEST}: longer pairs are left out")
    return section


def _ways(
    blocks: Sequence[Block], cluster: Cluster, loads: Loads, alone: Loads, gradients: str, noise: float
) -> dict[str, Forecast]:
    takes = {
        "ddp": partial(ddp_step, gradient_bytes=BYTES[gradients]),
        "ddp16": partial(ddp_step, gradient_bytes=2),
        "fsdp": partial(fsdp_step, gradient_bytes=BYTES[gradients]),
    }
    return {way: foresee(blocks, cluster, loads, alone, take, noise=noise) for way, take in takes.items()}


def _row(batch: int, each: int, found: dict[str, Forecast], steps: int) -> list[str]:
    ddp = found["ddp"]
    return [
        f"{batch:,}",
        str(ddp.devices),
        f"{each:,}" + ("*" if each < LONGEST else ""),
        f"{ddp.step_seconds * 1e3:.2f}",
        f"{ddp.computing * 1e3:.2f}",
        f"{ddp.updating * 1e3:.2f}",
        f"{ddp.exposed * 1e3:.2f}",
        f"{ddp.imbalance:.2f}",
        f"{ddp.efficiency:.1%}",
        f"{ddp.tokens_a_second / 1e6:.2f}",
        f"{ddp.hours(steps):.2f}",
        f"{found['ddp16'].step_seconds * 1e3:.2f}",
        f"{found['fsdp'].step_seconds * 1e3:.2f}",
    ]


def compare_published(steps: int) -> Section:
    """The same simulation against what others measured."""
    section = Section()
    table = Table(
        "published: tokens a second over as many devices alone",
        ["where", "stated", "equal ranks", "our batches", "and no overlap"],
    )
    for point in POINTS:
        equal, ours, late = foretold(point, steps=steps)
        table.rows.append([point.name, f"{point.efficiency:.1%}", f"{equal:.1%}", f"{ours:.1%}", f"{late:.1%}"])
        section.figures[point.name] = {"stated": point.efficiency, "equal": equal, "ours": ours, "no_overlap": late}
    section.tables.append(table)
    seconds, efficiency = mlperf_epoch_seconds(480, 1536, steps=steps)
    section.figures["480 A100"] = {"epoch_seconds": seconds, "efficiency": efficiency}
    section.remarks.append(
        f"480 A100, 1,536 tokens a GPU: {seconds:.1f} s an epoch foretold, efficiency {efficiency:.1%}; stated: 76 s in all, "
        "start, evaluation and an unstated number of epochs included"
    )
    return section


if __name__ == "__main__":
    main()
