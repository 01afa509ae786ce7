"""Adaptation benchmark: recipe `general-ende` without the LibreOffice help, adapted to it in several ways.

    PYTHONPATH=benchmarks python -m quality.adaptation --shared ../shared/data
    PYTHONPATH=benchmarks python -m quality.adaptation --quick

Scores are sacreBLEU and chrF on both domains, with a paired bootstrap against the base. The same command resumes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
from common.report import open_console, print_end, print_machine, print_section
from common.results import Section, Table
from common.usage import CommandError

from dragoman.evaluation.bootstrap import paired_bootstrap

from .adaptation_data import ADAPTATION_SIZES, Corpora, MissingCorpusError, prepare_adaptation
from .adaptation_runs import INTERPOLATED, WAYS, AdaptationRuns, run_dragoman

DOMAINS = {"new": "LibreOffice help", "old": "other domains"}
QUICK_SCALE, QUICK_SENTENCES = 0.01, 20


@click.command()
@click.option("--quick", is_flag=True, help="A hundredth of the steps and 100 pairs only, to check that it works.")
@click.option("--split", type=click.Choice(["test", "dev"]), default="test", show_default=True, help="Sentences to score.")
@click.option("--shared", type=click.Path(path_type=Path), help="Folder of the open corpora.  [default: ../shared/data]")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of the runs; the same command resumes them.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all measurements to this file as JSON.")
def main(quick: bool, split: str, shared: Path | None, work: Path | None, report: Path | None) -> None:
    """Train the base, adapt it to 100, 1,000 and 10,000 pairs in each way, and score both domains."""
    started = time.monotonic()
    package_path = Path(__file__).resolve().parent
    work = (work or package_path / ".work" / ("adaptation-quick" if quick else "adaptation")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    console = open_console()
    machine = print_machine(console, cores=1, quick=quick, libraries=("dragoman", "torch", "numpy"))
    corpora = (shared or package_path.parents[1].parent / "shared" / "data").resolve()
    runs = AdaptationRuns(corpora, work, QUICK_SCALE if quick else 1.0)
    try:
        if not runs.data.exists():
            prepare_adaptation(Corpora(corpora), runs.data)
        section = run_benchmark(
            runs, ADAPTATION_SIZES[:1] if quick else ADAPTATION_SIZES, split, QUICK_SENTENCES if quick else None
        )
    except MissingCorpusError as error:
        section = Section(notes=[str(error)])
    except CommandError as error:
        console.print(str(error), markup=False)
        sys.exit(1)
    print_section(console, section)
    print_end(console, {"adaptation": section}, machine, seconds=time.monotonic() - started, json_path=report)


def run_benchmark(runs: AdaptationRuns, sizes: tuple[int, ...], split: str, sentences: int | None) -> Section:
    """Train and score everything that is not there yet. sentences: how many of each test set; None for all."""
    runs.train_base()
    base = {domain: translate(runs, runs.base_bundle, domain, split, sentences) for domain in DOMAINS}
    section = Section()
    table = Table(
        f"Base, and the base adapted to the LibreOffice help; {split} sets",
        ["pairs", "way", "minutes", *(f"{name}: {cell}" for name in DOMAINS for cell in ("BLEU", "change", "p", "chrF"))],
    )
    for size in sizes:
        for way in (*WAYS, INTERPOLATED):
            name = way if isinstance(way, str) else way.name
            if isinstance(way, str):
                runs.interpolate(size)
            elif size not in way.sizes:
                continue
            else:
                runs.adapt(way, size)
            print(f"  {name}, {size:,} pairs", file=sys.stderr, flush=True)
            outputs = {domain: translate(runs, runs.get_bundle(name, size), domain, split, sentences) for domain in DOMAINS}
            figures = {domain: compare(runs, outputs[domain], base[domain], domain, split) for domain in DOMAINS}
            seconds = runs.read_seconds(name, size)
            section.figures[f"{name}-{size}"] = {"seconds": seconds, **figures}
            table.rows.append([f"{size:,}", name, "" if seconds is None else f"{seconds / 60:.1f}", *format_cells(figures)])
    section.tables.append(table)
    signatures = {
        figure[f"{metric}_signature"]
        for row in section.figures.values()
        for figure in (row["new"], row["old"])
        for metric in ("bleu", "chrf")
    }
    section.notes.append(f"{', '.join(sorted(signatures))}; changes by paired bootstrap, 1,000 resamples")
    return section


def translate(runs: AdaptationRuns, bundle: Path, domain: str, split: str, sentences: int | None) -> list[str]:
    """Return the translations of a test set, which are written beside the run."""
    output = runs.folder / "outputs" / f"{bundle.relative_to(runs.folder / 'runs').parts[0]}.{domain}.{split}"
    if not output.exists():
        output.parent.mkdir(exist_ok=True)
        sides = []
        for side in ("source", "target"):
            lines = (runs.data / f"{domain}-{split}.{side}").read_text(encoding="utf-8").split("\n")[:-1]
            sides.append(output.with_name(f"{domain}-{split}.{side}"))
            sides[-1].write_text("".join(f"{line}\n" for line in lines[:sentences]), encoding="utf-8")
        result = run_dragoman("evaluate", bundle, "--src", sides[0], "--ref", sides[1], "-o", output, "--json")
        output.with_name(f"{output.name}.json").write_text(json.dumps(json.loads(result), indent=1), encoding="utf-8")
    return output.read_text(encoding="utf-8").split("\n")[:-1]


def compare(runs: AdaptationRuns, outputs: list[str], base: list[str], domain: str, split: str) -> dict[str, float | str]:
    """Return BLEU and chrF of both outputs, and the p-values of their differences."""
    references = (runs.data / f"{domain}-{split}.target").read_text(encoding="utf-8").split("\n")[: len(outputs)]
    figures: dict[str, float | str] = {}
    for metric in ("bleu", "chrf"):
        result = paired_bootstrap(outputs, base, [references], metric=metric)
        figures |= {
            metric: result.a.value,
            f"{metric}_before": result.b.value,
            f"{metric}_difference": result.difference,
            f"{metric}_low": result.interval[0],
            f"{metric}_high": result.interval[1],
            f"{metric}_p": result.p_value,
            f"{metric}_signature": result.a.signature,
        }
    return figures


def format_cells(figures: dict[str, dict[str, float | str]]) -> list[str]:
    """Return the cells of both domains: BLEU, its change, the p-value, and chrF."""
    return [
        cell
        for figure in figures.values()
        for cell in (
            f"{figure['bleu']:.2f}",
            f"{figure['bleu_difference']:+.2f}",
            f"{figure['bleu_p']:.3f}",
            f"{figure['chrf']:.1f}",
        )
    ]


if __name__ == "__main__":
    main()
