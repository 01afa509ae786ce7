"""Benchmark of documents without a model: `make bench-documents`, with QUICK=1 in under four minutes.

New processes of dragoman and of argos-translate-files, in turns, translate the same HTML and DOCX files of two sizes. A
stand-in for the model takes next to no time. argos-translate-files is under the AGPL and has an environment of its own.

One more process of each has a stand-in that reverses the words of what it is given. It counts the paragraphs that have all
words of the sentence in reverse, each in the element that it had. The last one times the steps that argos-translate-files does
not have.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from common.benchmark import Benchmark, with_options
from common.environments import MissingPeerError, describe_versions, make_environment
from common.results import Ratio, Section, Table
from common.usage import run_commands

WORDS = [
    "the", "a", "of", "in", "on", "with", "house", "river", "teacher", "window", "garden", "letter", "morning", "green",
    "quiet", "large", "small", "old", "new", "opens", "reads", "writes", "finds", "keeps", "sees", "walks", "under", "over",
    "near", "through", "between", "city", "street", "market", "paper", "number", "color", "winter", "summer",
]  # fmt: skip
NUM_PARAGRAPHS, QUICK_PARAGRAPHS = 5_000, 2_000
ROUNDS, QUICK_ROUNDS = 3, 1
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/word/document.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)


def write_sentences(count: int) -> Iterator[list[str]]:
    """Yield the words of sentences of 10 to 22 words, all different."""
    rng = random.Random(1)
    for number in range(count):
        yield f"Item {number} {' '.join(rng.choices(WORDS, k=rng.randint(8, 20)))}.".split()


def write_html(path: Path, count: int) -> None:
    """Write a page of paragraphs, each with a word in bold and a link."""
    paragraphs = (
        f'<p>{" ".join(words[:3])} <b>{words[3]}</b> {" ".join(words[4:6])} <a href="page.html">{" ".join(words[6:])}</a></p>\n'
        for words in write_sentences(count)
    )
    head = "<!DOCTYPE html>\n<html><head><title>Large page</title></head><body>\n"
    path.write_text(f"{head}{''.join(paragraphs)}</body></html>\n", encoding="utf-8")


def write_docx(path: Path, count: int) -> None:
    """Write a text document of paragraphs of three runs each, the second in bold."""
    run = '<w:r>{}<w:t xml:space="preserve">{}</w:t></w:r>'.format
    paragraphs = (
        f"<w:p>{run('', ' '.join(words[:3]) + ' ')}{run('<w:rPr><w:b/></w:rPr>', words[3])}"
        f"{run('', ' ' + ' '.join(words[4:]))}</w:p>"
        for words in write_sentences(count)
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("word/document.xml", f"<w:document {_W}><w:body>{''.join(paragraphs)}</w:body></w:document>")


def run_program(program: str, python: Path, path: Path, *options: str) -> dict[str, Any]:
    """Return what one process of a program measures with a file."""
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))}
    command: list[str | Path] = [python, "-m", "documents.measure", program, path, *options]
    usage = run_commands(command, environment=environment)
    return {**json.loads(usage.output), "process_seconds": usage.cpu_seconds}


def measure_file(path: Path, pythons: dict[str, Path], rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians of the CPU seconds, the MiB and the texts of each program, one process of each in each round."""
    results: dict[str, list[dict[str, float]]] = {program: [] for program in pythons}
    for number in range(rounds):
        for program, python in pythons.items():
            results[program].append(run_program(program, python, path))
        print(f"  {path.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return {
        program: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for program, runs in results.items()
    }


@click.command()
@click.option("--quick", is_flag=True, help="One process of each instead of three, and smaller files.")
@with_options("json")
def main(quick: bool, report: Path | None) -> None:
    """Measure HTML and DOCX files beside argos-translate-files."""
    package_path = Path(__file__).resolve().parent
    work = package_path.parent / "inference" / ".work" / "documents"
    bench = Benchmark(__file__, quick=quick, cores=1, libraries=("dragoman", "numpy"), work=work, report=report)
    pythons = {"dragoman": Path(sys.executable)}
    try:
        peer = make_environment(
            package_path / "peers.txt",
            work.parent / "environments" / "documents",
            install=True,
            probe=["python", "-c", "import argostranslatefiles.argostranslatefiles"],
        )
        pythons["argos"] = peer / "python"
        bench.console.print(describe_versions(peer, "argos-translate-files", "lxml"))
    except MissingPeerError as error:
        bench.console.print(f"argos-translate-files is left out: {error}")
    header = ["file", "KB", "paragraphs", *pythons, "times faster", *pythons]
    titles = {"": "CPU seconds, and peak MiB above the start", "process_": "The same of the whole process, with its imports"}
    tables = {prefix: Table(title, header) for prefix, title in titles.items()}
    kept = Table("Paragraphs that are right if the model reverses the words", ["file", "paragraphs", *pythons])
    steps = Table("Steps of dragoman alone, in CPU microseconds for each paragraph", ["file"])
    section = Section([*tables.values(), kept, steps])
    for suffix, write in (("html", write_html), ("docx", write_docx)):
        for factor in (1, 4):
            path = work / f"{factor}x.{suffix}"
            count = factor * (QUICK_PARAGRAPHS if quick else NUM_PARAGRAPHS)
            write(path, count)
            results = section.figures[path.name] = measure_file(path, pythons, QUICK_ROUNDS if quick else ROUNDS)
            row = [suffix.upper(), f"{path.stat().st_size / 1000:,.0f}", f"{count:,}"]
            for prefix, table in tables.items():
                seconds = {program: result[f"{prefix}seconds"] for program, result in results.items()}
                ratio = seconds["argos"] / seconds["dragoman"] if "argos" in seconds else 0.0
                mebibytes = [f"{result[f'{prefix}mebibytes']:.0f}" for result in results.values()]
                table.rows.append([*row, *map("{:.2f}".format, seconds.values()), f"{ratio:.2f}" if ratio else "", *mebibytes])
                section.ratios += [Ratio(f"{prefix}{suffix}_{factor}x_over_argos", ratio, 1.0)] if ratio else []
        path = work / f"1x.{suffix}"
        num_paragraphs = QUICK_PARAGRAPHS if quick else NUM_PARAGRAPHS
        reversed_runs = {program: run_program(program, python, path, "reversed") for program, python in pythons.items()}
        kept.rows.append([suffix.upper(), f"{num_paragraphs:,}", *(f"{run['kept']:,}" for run in reversed_runs.values())])
        seconds_of_steps = run_program("dragoman", pythons["dragoman"], path, "steps")["steps"]
        section.figures |= {f"reversed.{suffix}": reversed_runs, f"steps.{suffix}": seconds_of_steps}
        steps.header[1:] = seconds_of_steps
        steps.rows.append([suffix.upper(), *(f"{seconds / num_paragraphs * 1e6:.0f}" for seconds in seconds_of_steps.values())])
    bench.add("documents", section)
    bench.finish()


if __name__ == "__main__":
    main()
