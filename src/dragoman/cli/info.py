"""Commands `info`, `doctor` and `diagnose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman.console.options import bundle_argument, json_option, run_argument
from dragoman.training.monitoring.diagnostics import Diagnosis
from dragoman.training.monitoring.run_status import RunSummary

if TYPE_CHECKING:
    from dragoman.config import ModelConfig


@dataclass(frozen=True)
class VocabularySizes:
    """Numbers of tokens of the two sides."""

    source: int
    target: int


@dataclass(frozen=True)
class InfoOutput:
    """Output of `dragoman info --json`.

    language_pairs: source and target language of each pair that the bundle was trained on; empty if they are not known
    """

    bundle: str
    bytes: int
    language_pairs: Sequence[Sequence[str]]
    vocabulary: VocabularySizes
    recipe: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class DoctorOutput:
    """Output of `dragoman doctor --json`.

    torch, instructions, bfloat16, gpu: None without PyTorch
    hooks: entries of each hook, those of other distributions with their name
    """

    dragoman: str
    python: str
    torch: str | None
    processors: int | None
    threads: int
    instructions: str | None
    bfloat16: bool | None
    gpu: str | None
    disk_free_gib: float
    hooks: Mapping[str, Sequence[str]]
    remarks: Sequence[str]


@dataclass(frozen=True)
class DiagnoseOutput(RunSummary):
    """Output of `dragoman diagnose --json`: the newest values of a run, and its problems, the most serious first."""

    diagnoses: Sequence[Diagnosis]


@click.command()
@bundle_argument
@click.option("--all", "show_all", is_flag=True, help="Show all that the bundle records, with what differs from the paper.")
@json_option()
def info(bundle: Path, show_all: bool, as_json: bool) -> None:
    """Show what BUNDLE is, and verify the checksum of each file.

    \b
    Example:  dragoman info en-de
    """
    from dragoman.bundle import check_bundle, get_license, list_language_pairs, read_config
    from dragoman.config.recipe import flatten_settings
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.runtime.facts import format_facts

    check_bundle(bundle)
    recipe, vocabulary_sizes, bundle_metadata = read_config(bundle)
    metadata = bundle_metadata.to_dict()
    pairs = list_language_pairs(recipe.task, recipe.tokenizer, bundle_metadata)
    size_bytes = sum(path.stat().st_size for path in bundle.iterdir())
    if as_json:
        print_json(
            InfoOutput(
                bundle=str(bundle),
                bytes=size_bytes,
                language_pairs=pairs,
                vocabulary=VocabularySizes(*vocabulary_sizes),
                recipe=recipe.model_dump(),
                metadata=metadata,
            )
        )
        return
    model, origin = recipe.model, metadata.get("origin", {})
    vocabulary_kind = "joint" if recipe.tokenizer.joint else "separate"
    facts: dict[str, Any] = {
        "purpose": recipe.card.purpose or None,
        "task": f"{recipe.task.kind} {', '.join(f'{source} → {target}' for source, target in pairs) or '? → ?'}",
        "license": get_license(recipe.card.license, bundle_metadata),
        "score": recipe.card.score or None,
        **(_try_examples(bundle, recipe.card.examples) if recipe.card.examples else {}),
        "origin": origin.get("name"),
        "recipe": recipe.name if origin else f"{recipe.name} (preset {recipe.preset}{_describe_size(recipe.size, model)})",
        "layers": f"{model.encoder_layers} encoder, {model.decoder_layers} decoder, {model.norm}-norm",
        "dimensions": f"d_model {model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads of {model.key_width}"
        + (f", {model.key_value_heads} of keys and values" if model.num_key_value_heads else ""),
        "vocabulary": f"{vocabulary_sizes[0]:,} source, {vocabulary_sizes[1]:,} target, {vocabulary_kind}",
        "size on disk": f"{size_bytes / 2**20:.1f} MiB",
        "decoding": f"{recipe.decoding.method}, beam {recipe.decoding.beam_size}, α {recipe.decoding.alpha}",
    }
    shown = metadata if show_all else {name: metadata[name] for name in SHOWN_METADATA if name in metadata}
    scalars = {name: value for name, value in shown.items() if not isinstance(value, list | dict)}
    facts |= format_facts(scalars)
    deviations = metadata.pop("paper_deviations", []) if show_all else []
    if show_all:
        ratios = metadata.pop("length_ratios", [])
        ratio_pairs = (f"{entry['source_language']} → {entry['target_language']}" for entry in ratios)
        facts["length ratios"] = ", ".join(ratio_pairs) or None
        nested = {name: value for name, value in metadata.items() if isinstance(value, list | dict)}
        facts |= {name.replace(".", " ").replace("_", " "): value for name, value in flatten_settings(nested)}
    print_facts(str(bundle), {name: _format_entry(value) for name, value in facts.items() if value is not None})
    for sentence in deviations:
        click.echo(f"  {sentence}")


def _describe_size(size: str | None, model: ModelConfig) -> str:
    """Return the size of a recipe, or nothing if its model has other dimensions."""
    from dragoman.config.presets import SIZES

    stated = SIZES[size]["model"] if size in SIZES else {}
    dimensions = ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers")
    return f", size {size}" if all(getattr(model, key) == stated.get(key) for key in dimensions) else ""


def _try_examples(bundle: Path, examples: Sequence[str]) -> dict[str, str]:
    """Translate the examples one by one. Return the first translation and the words a second, or why there is none."""
    import time

    from dragoman.errors import DragomanError
    from dragoman.inference.load import load

    try:
        translator = load(bundle, task="translation")
        first = translator.translate(examples[:1])[0].text
    except DragomanError as error:
        return {"example": examples[0], "translation": f"none: {error}"}
    started = time.perf_counter()
    for example in examples:
        translator.translate([example])
    words_per_second = sum(len(example.split()) for example in examples) / (time.perf_counter() - started)
    return {
        "example": examples[0],
        "translation": first,
        "speed": f"{words_per_second:,.0f} words a second here, one text at a time",
    }


SHOWN_METADATA = ("parameters", "pairs", "seconds", "finished")


def _format_entry(entry: Any) -> str:
    """Return a value on one line. A list has spaces, and its length if it is long."""
    if not isinstance(entry, list | tuple):
        return str(entry)
    return " ".join(map(str, entry[:10])) + (f" … ({len(entry)})" if len(entry) > 10 else "")


OPTIONAL_LIBRARIES = {
    "babel": ("demo", "the corpus of the quickstart"),
    "num2words": ("demo", "the corpus of the quickstart"),
    "matplotlib": ("plots", "learning curves and charts"),
    "sacremoses": ("moses", "the paper's tokenized BLEU"),
}


class PyTorchFacts(NamedTuple):
    """Facts that PyTorch finds about this machine. bfloat16: whether its products are faster than those of float32"""

    version: str
    instructions: str
    bfloat16: bool
    gpu: str | None


def _describe_pytorch() -> PyTorchFacts | None:
    """Return what PyTorch finds; None if it is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    from dragoman.training.compute_plan import bf16_is_faster

    has_gpu = torch.cuda.is_available()
    return PyTorchFacts(
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        bf16_is_faster(torch.device("cuda" if has_gpu else "cpu")),
        torch.cuda.get_device_name(0) if has_gpu else None,
    )


@click.command()
@json_option()
def doctor(as_json: bool) -> None:
    """Show what this machine has, which optional libraries are missing, and what that means.

    \b
    Example:  dragoman doctor
    """
    import importlib.util
    import os
    import platform
    import shutil
    from dataclasses import asdict

    from dragoman.console.terminal import print_facts, print_json
    from dragoman.hooks import HOOKS, describe_entry, find_broken_entries, list_entries
    from dragoman.inference.backends.compiled.backend import find_kernel_obstacle
    from dragoman.runtime.thread_count import get_num_threads
    from dragoman.version import __version__

    pytorch = _describe_pytorch()
    free_gib = shutil.disk_usage(Path.cwd()).free / 2**30
    remarks = []
    if pytorch is None:
        remarks.append("PyTorch is missing. It is needed for training: pip install 'dragoman[train]'")
    elif pytorch.gpu is None:
        remarks.append("torch finds no GPU: training runs on the processor, which is enough for the small recipes.")
    if pytorch is not None and not pytorch.bfloat16:
        remarks.append("bfloat16 is not faster on this machine: precision = 'auto' trains in float32.")
    if free_gib < 5:
        remarks.append(f"{free_gib:.1f} GiB of disk space are free: each checkpoint of a base model takes 0.75 GiB.")
    for library, (extra, purpose) in OPTIONAL_LIBRARIES.items():
        if importlib.util.find_spec(library) is None:
            remarks.append(f"{library} is missing. It is needed for {purpose}: pip install 'dragoman[{extra}]'")
    if (obstacle := find_kernel_obstacle()) is not None:
        remarks.append(f"The compiled back end does not run, because {obstacle.reason}: translation is slower.")
    for hook in HOOKS:
        remarks += find_broken_entries(hook)
    result = DoctorOutput(
        dragoman=__version__,
        python=platform.python_version(),
        torch=pytorch and pytorch.version,
        processors=os.cpu_count(),
        threads=get_num_threads(),
        instructions=pytorch and pytorch.instructions,
        bfloat16=pytorch and pytorch.bfloat16,
        gpu=pytorch and pytorch.gpu,
        disk_free_gib=round(free_gib, 1),
        hooks={hook: list(map(describe_entry, list_entries(hook))) for hook in HOOKS},
        remarks=remarks,
    )
    if as_json:
        print_json(result)
        return
    facts = {key.replace("_", " "): "none" if value is None else value for key, value in asdict(result).items()}
    del facts["remarks"], facts["hooks"]
    facts |= {hook: ", ".join(entries) for hook, entries in result.hooks.items() if entries}
    print_facts("this machine", facts)
    for remark in remarks or ["Nothing is missing."]:
        click.echo(remark)


RUN_FACT_FORMATS = {
    "step": ",",
    "epoch": ".2f",
    "loss": ".3f",
    "perplexity": ",.5g",
    "tokens_per_second": ",.0f",
    "mfu": ".0%",
    "skipped_steps": ",",
}


@click.command()
@run_argument
@json_option()
def diagnose(run: Path, as_json: bool) -> None:
    """Find problems in the metrics log of the run folder RUN: evidence, probable cause, and the recipe keys to change.

    \b
    Example:  dragoman diagnose runs/multi30k-ende
    """
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.training.monitoring.diagnostics import MIN_LOG_LINES
    from dragoman.training.monitoring.diagnostics import diagnose as find_diagnoses
    from dragoman.training.monitoring.run_status import read_run_status, summarize_run

    run_status = read_run_status(run)
    summary, diagnoses = summarize_run(run_status), find_diagnoses(run_status)
    if as_json:
        print_json(DiagnoseOutput(**vars(summary), diagnoses=diagnoses))
        return
    numbers = {
        {"mfu": "share of peak"}.get(name, name.replace("_", " ")): f"{value:{format_spec}}"
        for name, format_spec in RUN_FACT_FORMATS.items()
        if isinstance(value := getattr(summary, name), int | float)
    }
    print_facts(str(run), {"state": summary.state, **numbers})
    for number, diagnosis in enumerate(diagnoses, start=1):
        click.echo(
            f"{number}. {diagnosis.name}: {diagnosis.evidence}.\n"
            f"   Probable cause: {diagnosis.cause}.\n"
            f"   Remedy: {diagnosis.remedy}."
        )
    if diagnoses:
        click.echo("The run folder keeps its recipe. To change other keys, start a new run with run=FOLDER.")
    elif len(run_status.train) < MIN_LOG_LINES:
        remedy = "the run was too short for a diagnosis" if run_status.is_finished else "try again later"
        click.echo(f"No problem found, but the metrics log has too few lines; {remedy}.")
    else:
        click.echo("No problem found in the metrics log.")
