"""Overhead of serving on a cluster: `make bench-serving-cluster`, QUICK=1 in under four minutes, BUNDLE=… for a bundle.

The same bundle is served by one process with one thread, and by Ray on this machine with one replica of one thread. The servers
take turns. The client sends sentences over connections that stay open.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Ratio, Section, Table
from common.usage import limit_cores

from dragoman.bundle import read_config
from serving.run import PAIR, Measurement, ServerCommand, build_base_model, run_server, send_load

CLIENTS = (1, 4, 16)
SENTENCES = (
    "Two dogs run through the snow.",
    "A man sits on a bench and reads.",
    "The children play in front of the old house.",
)


@click.command()
@click.option("--quick", is_flag=True, help="Two short rounds, in under four minutes.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Bundle, instead of a base model with random weights.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(quick: bool, bundle: Path | None, report: Path | None) -> None:
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
    commands = [
        ServerCommand("plain", "dragoman serve", plain),
        ServerCommand("cluster", "dragoman serve --cluster local", [*plain, "--cluster", "local", "--max-replicas", "1"]),
    ]
    environment = {**os.environ, "DRAGOMAN_COMPILE": "wait"}
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
