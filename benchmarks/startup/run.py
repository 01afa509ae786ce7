"""Startup benchmark: `make bench-startup`, with QUICK=1 in under four minutes, with BUNDLE=… for another bundle.

New processes of dragoman and of CTranslate2, in turns, translate one sentence with the same model. The first column counts from
the start of the process to the translation. A process of `dragoman translate` counts until it has ended.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from common.benchmark import Benchmark, with_options
from common.environments import MissingPeerError, make_environment
from common.results import Ratio, Section, Table
from inference.fixed import make_sources
from inference.models import BASE, build_random_model
from inference.serve import SOURCE_TOKENS, TARGET_TOKENS
from serving.run import write_served_bundle

from dragoman.bundle import WEIGHTS_FILE, load_bundle

ROUNDS, QUICK_ROUNDS = 10, 5
TRAINED_BUNDLE = Path(__file__).resolve().parents[2] / "models/en-de/src/dragoman_en_de/en-de"
INT8 = "dragoman, int8 bundle"
TARGET_SECONDS = {
    ("trained", "dragoman"): 0.25, ("trained", "dragoman translate"): 0.4, ("base", "dragoman"): 0.4, ("base", INT8): 0.4,
}  # fmt: skip
"""Most seconds by model and command, on a machine on which CTranslate2 takes 0.12 s with the trained model."""
TARGET_MEBIBYTES = 60.0
"""Most memory in MiB, beside the weights of a base model in int8."""
FIXED_LENGTH = {"min_length": TARGET_TOKENS, "max_extra_tokens": TARGET_TOKENS - SOURCE_TOKENS, "repetition_window": 0}
SENTENCE = "The file could not be opened."


def measure_process(command: Sequence[str | Path], text: str) -> dict[str, float]:
    """Run a new process, and return its seconds, its processor seconds and its peak memory in MiB."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["START"] = str(time.time())
    result = subprocess.run(
        [str(word) for word in command], input=text + "\n", capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode:
        raise click.ClickException(f"{command[-1]}: the process failed: {result.stderr.strip().splitlines()[-1]}")
    answer: dict[str, float] = json.loads(result.stdout)
    return answer


def format_limit(limit: float | None, value: float, digits: str) -> str:
    """Return a limit with the verdict on a value, or nothing where there is no limit."""
    return "" if limit is None else f"{limit:{digits}} {'met' if value <= limit else 'missed'}"


def measure_model(
    name: str, commands: Mapping[str, Sequence[str | Path]], text: str, rounds: int, target_peaks: Mapping[str, float]
) -> Section:
    """Return the medians of each command, one process of each in each round. A process before them writes Python's bytecode."""
    for words in commands.values():
        measure_process(words, text)
    results: dict[str, list[dict[str, float]]] = {command: [] for command in commands}
    for number in range(rounds):
        for command, words in commands.items():
            results[command].append(measure_process(words, text))
        print(f"  {name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    seconds, processor_seconds, peaks = (
        {command: statistics.median(run[key] for run in runs) for command, runs in results.items()}
        for key in ("seconds", "processor_seconds", "peak")
    )
    headings = ["", "seconds", "limit", "least to most", "processor seconds", "peak MiB", "limit"]
    table = Table(f"First translation of a new process, {name} model", headings)
    for command, runs in results.items():
        times = [run["seconds"] for run in runs]
        time_limit = format_limit(TARGET_SECONDS.get((name, command)), seconds[command], ".2f")
        memory_limit = format_limit(target_peaks.get(command), peaks[command], ".0f")
        row = [command, f"{seconds[command]:.2f}", time_limit, f"{min(times):.2f} to {max(times):.2f}"]
        table.rows.append([*row, f"{processor_seconds[command]:.2f}", f"{peaks[command]:.0f}", memory_limit])
    section = Section([table], figures={"seconds": seconds, "processor_seconds": processor_seconds, "peaks": peaks})
    for command in results:
        label = f"{name}_{command}".replace(", ", "_").replace(" ", "_")
        if (target := TARGET_SECONDS.get((name, command))) is not None:
            section.ratios.append(Ratio(f"{label}_seconds", target / seconds[command], 1.0))
        if (target_peak := target_peaks.get(command)) is not None:
            section.ratios.append(Ratio(f"{label}_memory", target_peak / peaks[command], 1.0))
    if "CTranslate2" in results:
        section.ratios.append(Ratio(f"{name}_over_ctranslate2", seconds["CTranslate2"] / seconds["dragoman"]))
    return section


@click.command()
@click.option("--quick", is_flag=True, help="Five processes of each instead of ten.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Trained bundle.  [default: the model of the repository]")
@with_options("cores", "json")
def main(quick: bool, bundle: Path | None, max_cores: int, report: Path | None) -> None:
    """Measure the first translation of new processes beside CTranslate2."""
    package_path = Path(__file__).resolve().parent
    work = package_path.parent / "inference" / ".work"
    bench = Benchmark(__file__, quick=quick, cores=max_cores, libraries=("dragoman", "numpy"), work=work, report=report)
    peer: Path | None = None
    try:
        peer = make_environment(
            package_path / "peers.txt",
            work / "environments" / "startup",
            install=True,
            probe=["python", "-c", "import ctranslate2, sentencepiece"],
        )
    except MissingPeerError as error:
        bench.console.print(f"CTranslate2 is left out: {error}")
    base = write_served_bundle(build_random_model(BASE, work / BASE.name).bundle, work / "startup-base", FIXED_LENGTH)
    models = {
        "trained": (bundle or TRAINED_BUNDLE, SENTENCE),
        "base": (base, load_bundle(base).tokenizer.source.decode(make_sources(1)[0])),
    }
    probe, program = package_path / "probe.py", Path(sys.executable).with_name("dragoman")
    for name, (path, text) in models.items():
        exported = work / f"startup-{name}-ctranslate2"
        export = [str(program), "export", "--to", "ctranslate2", "--overwrite", str(path), str(exported)]
        subprocess.run(export, check=True, capture_output=True)
        commands: dict[str, list[str | Path]] = {"dragoman": [sys.executable, probe, "dragoman", path]}
        if name == "trained":  # a random model ends no output, which is an error of the command
            commands["dragoman translate"] = [sys.executable, probe, "command", path]
            target_peaks = {"dragoman": TARGET_MEBIBYTES}
        else:
            quantized = work / "startup-base-int8"
            quantize = [str(program), "model", "quantize", str(path), "-o", str(quantized), "--overwrite"]
            subprocess.run(quantize, check=True, capture_output=True)
            commands[INT8] = [sys.executable, probe, "dragoman", quantized]
            int8_mebibytes = (quantized / WEIGHTS_FILE).stat().st_size / 2**20
            target_peaks = dict.fromkeys(("dragoman", INT8), int8_mebibytes + TARGET_MEBIBYTES)
        if peer is not None:
            commands["CTranslate2"] = [peer / "python", probe, "ctranslate2", exported]
        bench.add(name, measure_model(name, commands, text, QUICK_ROUNDS if quick else ROUNDS, target_peaks))
    bench.finish()


if __name__ == "__main__":
    main()
