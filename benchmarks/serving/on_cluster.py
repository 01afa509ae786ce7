"""Overhead of serving on a cluster: `make bench-serving-cluster`, QUICK=1 in under four minutes, BUNDLE=… for a bundle.

The same bundle is served by one process with one thread, and by Ray on this machine with one replica of one thread. The servers
take turns. The client sends sentences over connections that stay open.

With --scaling, Ray alone serves, with one or two replicas: 16 clients send until there are two, then one client until there is
one again. An answer other than success ends the measurement.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Ratio, Section, Table
from common.usage import limit_cores

from dragoman.bundle import read_config
from serving.run import PAIR, Measurement, ServerCommand, build_base_model, run_server, send_load

CLIENTS = (1, 4, 16)
SLICE_SECONDS = 2.0
"""Time between two looks at the number of replicas."""
SCALING_SECONDS = 240.0
SCALING_TOKENS = 60
"""Unfinished tokens for which there is one replica: less than those of 16 clients, more than those of one."""
SENTENCES = (
    "Two dogs run through the snow.",
    "A man sits on a bench and reads.",
    "The children play in front of the old house.",
)


@dataclass
class Phase:
    """Load until a number of replicas is reached. seconds: time until then"""

    clients: int
    replicas: int
    seconds: float
    latencies: list[float]


def count_replicas(admin_url: str) -> int:
    """Return the number of replicas of the bundle that answer."""
    with urllib.request.urlopen(admin_url + "/readyz", timeout=30) as answer:
        return int(json.load(answer)["replicas"]["dragoman-bundle-1"])


def load_until(url: str, admin_url: str, sentences: list[str], pair: tuple[str, str], *, clients: int, replicas: int) -> Phase:
    """Send requests until the bundle has a number of replicas."""
    start, latencies = time.monotonic(), list[float]()
    while count_replicas(admin_url) != replicas:
        if time.monotonic() - start > SCALING_SECONDS:
            raise click.ClickException(f"{clients} clients did not lead to {replicas} replicas in {SCALING_SECONDS:g} s")
        latencies += send_load(url, sentences, pair, SLICE_SECONDS, clients=clients)[0]
    seconds = time.monotonic() - start
    latencies += send_load(url, sentences, pair, SLICE_SECONDS, clients=clients)[0]
    return Phase(clients, replicas, seconds, latencies)


def measure_scaling(words: list[str], environment: dict[str, str], sentences: list[str], pair: tuple[str, str]) -> Section:
    """Return the times from one to two replicas and back. A request that fails is an error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        admin_port = free.getsockname()[1]
    options = ["--max-replicas", "2", "--tokens-per-replica", str(SCALING_TOKENS), "--admin-port", str(admin_port)]
    command = ServerCommand("cluster", "dragoman serve --cluster local", [*words, *options])
    admin_url = f"http://127.0.0.1:{admin_port}"
    with run_server(command, environment) as url:
        send_load(url, sentences, pair, SLICE_SECONDS, clients=1)
        phases = [
            load_until(url, admin_url, sentences, pair, clients=clients, replicas=replicas)
            for clients, replicas in ((16, 2), (1, 1))
        ]
    table = Table("scaling under load; every answer was a success", ["clients", "replicas", "after", "requests", "p50", "p99"])
    for phase in phases:
        ordered = sorted(phase.latencies)
        p50, p99 = (f"{1000 * ordered[len(ordered) * percent // 100]:.0f} ms" for percent in (50, 99))
        table.rows.append([str(phase.clients), str(phase.replicas), f"{phase.seconds:.0f} s", str(len(ordered)), p50, p99])
    figures = {f"{phase.clients} clients": vars(phase) for phase in phases}
    return Section([table], [f"one replica for {SCALING_TOKENS} unfinished tokens"], [], figures)


@click.command()
@click.option("--quick", is_flag=True, help="Two short rounds, in under four minutes.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Bundle, instead of a base model with random weights.")
@click.option("--scaling", is_flag=True, help="Measure the scaling from one to two replicas and back.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(quick: bool, bundle: Path | None, scaling: bool, report: Path | None) -> None:
    """Measure the latency and the requests per second of a local Ray beside those of the server."""
    started = time.monotonic()
    console = open_console()
    cores = limit_cores(2)
    machine = print_machine(console, cores=cores, quick=quick, libraries=("dragoman", "torch", "fastapi", "uvicorn", "ray"))
    pair, sentences = PAIR, list(SENTENCES)
    if bundle is None:
        work = Path(__file__).resolve().parent.parent / "inference" / ".work"
        work.mkdir(parents=True, exist_ok=True)
        model = build_base_model(work)
        bundle, sentences = model.bundle, model.sentences
    else:
        task = read_config(bundle)[0].task
        pair = (task.source_language, task.target_language)
    plain = [sys.executable, "-m", "dragoman", "serve", str(bundle), "--no-retry", "--precision", "int8"]
    plain += ["--intra-threads", "1", "--inter-threads", "1"]
    environment = {**os.environ, "DRAGOMAN_COMPILE": "wait"}
    if scaling:
        section = measure_scaling([*plain, "--cluster", "local"], environment, sentences, pair)
        print_section(console, section)
        print_end(console, {"scaling": section}, machine, seconds=time.monotonic() - started, json_path=report)
        return
    commands = [
        ServerCommand("plain", "dragoman serve", plain),
        ServerCommand("cluster", "dragoman serve --cluster local", [*plain, "--cluster", "local", "--max-replicas", "1"]),
    ]
    rounds, seconds = (2, 4.0) if quick else (3, 10.0)
    measurements = {(command.group, clients): Measurement() for command in commands for clients in CLIENTS}
    for number in range(rounds):
        for command in commands if number % 2 == 0 else reversed(commands):
            print(f"  round {number + 1} of {rounds}: {command.name}", file=sys.stderr, flush=True)
            with run_server(command, environment) as url:
                send_load(url, sentences, pair, seconds, clients=4)
                for clients in CLIENTS:
                    measurements[command.group, clients].add(*send_load(url, sentences, pair, seconds, clients=clients))
    columns = ["server", *(f"{clients} clients" for clients in CLIENTS)]
    table = Table("requests per second; 50th and 99th percentile of the latency in milliseconds", columns)
    for command in commands:
        table.rows.append([command.name, *(measurements[command.group, clients].describe() for clients in CLIENTS)])
    overheads = [
        1000 * (measurements["cluster", clients].median - measurements["plain", clients].median) for clients in CLIENTS
    ]
    table.rows.append(["difference of the 50th percentile", *(f"{overhead:+.1f} ms" for overhead in overheads)])
    ratios = [
        Ratio(f"latency_{clients}", measurements["plain", clients].median / measurements["cluster", clients].median, None)
        for clients in CLIENTS
    ]
    figures = {f"{group}, {clients} clients": vars(item) for (group, clients), item in measurements.items()}
    section = Section([table], [f"{len(sentences)} sentences"], ratios, figures)
    print_section(console, section)
    print_end(console, {"cluster": section}, machine, seconds=time.monotonic() - started, json_path=report)


if __name__ == "__main__":
    main()
