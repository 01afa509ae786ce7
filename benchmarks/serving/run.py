"""Serving benchmark: `make bench-serving`, with QUICK=1 in under four minutes, with BUNDLE=… for a trained bundle.

README.md beside this file describes what is measured. The last line holds `name=ratio` pairs; larger is better.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from common.benchmark import Benchmark, print_progress, with_options
from common.environments import MissingPeerError, make_environment
from common.results import Ratio, Section, Table
from common.usage import list_descendants
from inference.captions import Captions, MissingCaptionsError, find_captions
from inference.fixed import make_sources
from inference.models import BASE, build_random_model
from inference.serve import SOURCE_TOKENS, TARGET_TOKENS

from dragoman.bundle import load_bundle, save_bundle
from dragoman.config import update_section
from dragoman.model.weights import collect_weights

CLIENTS = (1, 16, 64)
BEAM = 5
OPEN_LOOP_SHARE = 0.7
PAIR = ("en", "de")
NUM_RANDOM_SENTENCES = 256
START_SECONDS = 120.0
TARGETS = {"over_one_at_a_time_16": 3.0, "over_batched_16": 1.3, "latency_1": 1.0}
TARGET_MEBIBYTES = {"at_rest": 150, "16_clients": 250}
"""Most memory of the server with the base model."""


@dataclass(frozen=True)
class ServerCommand:
    """Server to measure. group: name in the report; the fastest server of a group counts"""

    group: str
    name: str
    words: list[str]


@dataclass(frozen=True)
class MeasuredModel:
    """Model in the formats of both engines, and sentences. num_tokens: length of each output; None if the model ends it"""

    name: str
    bundle: Path
    ctranslate2: Path
    sentences: list[str]
    num_tokens: int | None = None


@dataclass
class Measurement:
    """Latencies of one load of one server, over all rounds."""

    rates: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)

    def add(self, latencies: Sequence[float], seconds: float) -> None:
        ordered = sorted(latencies)
        self.rates.append(len(ordered) / seconds)
        self.medians.append(ordered[len(ordered) // 2])
        self.tails.append(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def median(self) -> float:
        return statistics.median(self.medians)

    def describe(self) -> str:
        """Return requests per second, and the latencies in milliseconds."""
        return f"{self.rate:.1f}; {1000 * self.median:.0f}, {1000 * statistics.median(self.tails):.0f}"


@contextmanager
def run_server(command: ServerCommand, environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Run a server on a free port, and give its address and its process once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [*command.words, "--port", str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            end = time.monotonic() + START_SECONDS
            while not answers(url):
                if process.poll() is not None or time.monotonic() > end:
                    raise click.ClickException(f"{command.name}: the server did not start")
                time.sleep(0.2)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(30)


def write_served_bundle(bundle: Path, folder: Path, search: dict[str, Any]) -> Path:
    """Write the bundle again with the search that CTranslate2 has, so that the servers do the same work; return its folder.

    The beam ends when all its places are finished, scores are divided by the length, and an output that repeats itself is not
    searched again.
    """
    model = load_bundle(bundle)
    search = {
        "method": "beam", "beam_size": BEAM, "length_penalty": "power", "alpha": 1.0, "early_stopping": "beam_full",
        "repetition_window": 0, **search,
    }  # fmt: skip
    decoding = update_section(model.recipe.decoding, search, where="decoding")
    task = model.recipe.task.model_copy(update={"source_language": PAIR[0], "target_language": PAIR[1]})
    save_bundle(
        folder,
        recipe=model.recipe.model_copy(update={"decoding": decoding, "task": task}),
        tokenizer=model.tokenizer,
        weights=collect_weights(model.model),
        metadata=model.metadata,
        overwrite=True,
    )
    return folder


def read_memory(process: int, name: str) -> float:
    """Return the memory of all processes of a server in MiB. name: VmRSS, or VmHWM for its peak"""
    paths = [Path(f"/proc/{pid}/status") for pid in (process, *list_descendants(process))]
    lines = [line for path in paths for line in path.read_text(encoding="ascii").splitlines() if line.startswith(name)]
    return sum(int(line.split()[1]) for line in lines) / 1024


def answers(url: str) -> bool:
    """Return whether a server accepts connections."""
    try:
        urllib.request.urlopen(url + "/openapi.json", timeout=2).close()
    except OSError:
        return False
    return True


def send_load(url: str, sentences: list[str], pair: tuple[str, str], seconds: float, **load: Any) -> tuple[list[float], float]:
    """Load a server by a client process; return the latencies and the time."""
    request = {"url": url, "sentences": sentences, "source": pair[0], "target": pair[1], "seconds": seconds, **load}
    client = [sys.executable, str(Path(__file__).with_name("load_client.py"))]
    result = subprocess.run(client, input=json.dumps(request), capture_output=True, text=True, check=False)
    if result.returncode:
        raise click.ClickException(f"the client failed: {result.stderr.strip().splitlines()[-1]}")
    answer = json.loads(result.stdout)
    return answer["latencies"], answer["seconds"]


@click.command()
@click.option("--quick", is_flag=True, help="One short round, in under four minutes.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Trained bundle, instead of a small one.")
@with_options("isa", "cores", "shared", "json")
def main(quick: bool, bundle: Path | None, max_cores: int, shared: Path, report: Path | None) -> None:
    """Measure requests per second and latencies beside servers over CTranslate2."""
    package_path = Path(__file__).resolve().parent
    work = package_path.parent / "inference" / ".work"  # the trained model is that of the inference benchmark
    libraries = ("dragoman", "torch", "fastapi", "uvicorn")
    bench = Benchmark(__file__, quick=quick, cores=max_cores, libraries=libraries, work=work, report=report)
    try:
        programs = make_environment(
            package_path / "peers.txt",
            work / "environments" / "serving",
            install=True,
            probe=["python", "-c", "import ctranslate2, fastapi"],
        )
        models = [build_base_model(work)]
        if bundle is not None or not quick:
            captions = find_captions(shared, work, bundle, quick=quick)
            models.append(build_captions_model(captions, work))
    except (MissingPeerError, MissingCaptionsError) as error:
        raise click.ClickException(str(error)) from error
    for model in models:
        bench.add(model.name, measure_model(model, programs, quick=quick))
    bench.finish()


def measure_model(model: MeasuredModel, programs: Path, *, quick: bool) -> Section:
    """Return the figures of all servers with one model."""
    package_path = Path(__file__).resolve().parent
    peer = [str(programs / "python"), "-m"]
    options = [str(model.ctranslate2), "--beam", str(BEAM), "--length", str(model.num_tokens or 0)]
    dragoman = [sys.executable, "-m", "dragoman", "serve", str(model.bundle), "--no-retry", "--precision", "int8"]
    one_thread, two_workers = ["--threads", "1"], ["--workers", "2", "--threads", "1"]
    commands = [
        ServerCommand("dragoman", "dragoman", dragoman),
        ServerCommand("dragoman", "dragoman, 2 processes", [*dragoman, "--processes", "2"]),
        ServerCommand(
            "one at a time", "one at a time, 1 thread", [*peer, "serving.serve_one_at_a_time", *options, *one_thread]
        ),
        ServerCommand("one at a time", "one at a time, 2 threads", [*peer, "serving.serve_one_at_a_time", *options]),
        ServerCommand("batched", "batched, 1 × 2 threads", [*peer, "serving.serve_batched", *options]),
        ServerCommand("batched", "batched, 2 × 1 thread", [*peer, "serving.serve_batched", *options, *two_workers]),
    ]
    environment = {**os.environ, "PYTHONPATH": str(package_path.parent)}
    rounds, seconds = (1, 4.0) if quick else (3, 10.0)
    measurements: dict[tuple[str, str], Measurement] = {}
    memory: dict[str, tuple[float, float]] = {}

    def measure(command: ServerCommand, loads: dict[str, dict[str, Any]]) -> None:
        """Add the figures of one round of one server."""
        with run_server(command, environment) as (url, process):
            at_rest = read_memory(process, "VmRSS")
            send_load(url, model.sentences, PAIR, seconds / 2, clients=16)
            memory[command.name] = at_rest, read_memory(process, "VmHWM")
            for name, load in loads.items():
                latencies, elapsed = send_load(url, model.sentences, PAIR, seconds, **load)
                measurements.setdefault((command.name, name), Measurement()).add(latencies, elapsed)

    closed = {f"{clients} clients": {"clients": clients} for clients in CLIENTS}
    for number in range(rounds):
        for command in commands if number % 2 == 0 else reversed(commands):
            print_progress(f"{model.name}, round {number + 1} of {rounds}: {command.name}, closed loop")
            measure(command, closed)
    batched = [command for command in commands if command.group == "batched"]
    rate = OPEN_LOOP_SHARE * max(measurements[command.name, "16 clients"].rate for command in batched)
    for command in (*commands[:2], *batched):  # a server that is too slow for the rate would only show how long its queue grows
        print_progress(f"{model.name}, {command.name}, open loop")
        measure(command, {"open loop": {"rate": rate}})
    section = build_section(model, commands, measurements, rate)
    rows = [[server, *(f"{size:.0f}" for size in sizes)] for server, sizes in memory.items()]
    section.tables.append(Table("memory in MiB, at most", ["server", "at rest", "16 clients"], rows))
    if model.name == "base":
        limits = zip(TARGET_MEBIBYTES.items(), memory["dragoman"], strict=True)
        section.ratios += [Ratio(f"base_memory_{name}", limit / size, 1.0) for (name, limit), size in limits]
    section.figures["memory"] = memory
    return section


def build_base_model(work: Path) -> MeasuredModel:
    """Return the base model with random weights, and sentences of 26 words. Each output has exactly 30 tokens."""
    forms = build_random_model(BASE, work / BASE.name)
    tokenizer = load_bundle(forms.bundle).tokenizer
    search = {"min_length": TARGET_TOKENS, "max_extra_tokens": TARGET_TOKENS - SOURCE_TOKENS}
    served = write_served_bundle(forms.bundle, work / "served-base", search)
    sentences = [tokenizer.source.decode(source) for source in make_sources(NUM_RANDOM_SENTENCES)]
    return MeasuredModel("base", served, forms.ctranslate2, sentences, TARGET_TOKENS)


def build_captions_model(captions: Captions, work: Path) -> MeasuredModel:
    """Return a trained model and the captions that it translates."""
    served = write_served_bundle(captions.forms.bundle, work / "served-captions", {})
    return MeasuredModel("captions", served, captions.forms.ctranslate2, captions.lines)


def build_section(
    model: MeasuredModel, commands: Sequence[ServerCommand], measurements: dict[tuple[str, str], Measurement], rate: float
) -> Section:
    """Return the tables and ratios."""
    loads = [*(f"{clients} clients" for clients in CLIENTS), "open loop"]
    table = Table("requests per second; 50th and 99th percentile of the latency in milliseconds", ["server", *loads])
    for command in commands:
        row = [measurements.get((command.name, load)) for load in loads]
        table.rows.append([command.name, *(item.describe() if item else "" for item in row)])

    def best(group: str, load: str) -> Measurement:
        return max(
            (measurements[command.name, load] for command in commands if command.group == group), key=lambda item: item.rate
        )

    ratios = [
        Ratio(
            f"{model.name}_over_{group.replace(' ', '_')}_{clients}",
            best("dragoman", load).rate / best(group, load).rate,
            TARGETS.get(f"over_{group.replace(' ', '_')}_{clients}"),
        )
        for group in ("one at a time", "batched")
        for clients, load in ((clients, f"{clients} clients") for clients in CLIENTS)
    ]
    fastest = min(measurements[command.name, "1 clients"].median for command in commands if command.group != "dragoman")
    ratios.append(Ratio(f"{model.name}_latency_1", fastest / best("dragoman", "1 clients").median, TARGETS["latency_1"]))
    notes = [f"{len(model.sentences)} sentences", f"open loop: {rate:.1f} requests per second"]
    figures = {f"{name}, {load}": vars(item) for (name, load), item in measurements.items()}
    return Section([table], notes, ratios, figures)


if __name__ == "__main__":
    main()
