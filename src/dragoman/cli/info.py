"""What is there: `info` for a bundle, `doctor` for this machine or for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@JSON_OPTION
def info(bundle: Path, as_json: bool) -> None:
    """Tell what BUNDLE is, what it was trained on and how, after checking every file's digest.

    \b
    Example:  dragoman info runs/quickstart-de/bundle
    """
    from dragoman.bundle import check_bundle, read_config
    from dragoman.cli.console import print_facts, print_json

    check_bundle(bundle)
    recipe, vocabulary_sizes, metadata = read_config(bundle)
    size_bytes = sum(path.stat().st_size for path in bundle.iterdir())
    if as_json:
        print_json(
            {
                "bundle": str(bundle),
                "bytes": size_bytes,
                "vocabulary": {"source": vocabulary_sizes[0], "target": vocabulary_sizes[1]},
                "recipe": recipe.model_dump(mode="json"),
                "story": metadata,
            }
        )
        return
    model = recipe.model
    facts: dict[str, Any] = {
        "task": f"{recipe.task.kind} {recipe.task.source_language or '?'} → {recipe.task.target_language or '?'}",
        "recipe": f"{recipe.name} (preset {recipe.preset}, size {recipe.size})",
        "layers": f"{model.encoder_layers} encoder, {model.decoder_layers} decoder, {model.norm}-norm",
        "dimensions": f"d_model {model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads of {model.key_width}",
        "vocabulary": f"{vocabulary_sizes[0]} source, {vocabulary_sizes[1]} target, {'joint' if recipe.tokenizer.joint else 'separate'}",
        "size on disk": f"{size_bytes / 2**20:.1f} MiB",
        "decoding": f"{recipe.decoding.method}, beam {recipe.decoding.beam_size}, α {recipe.decoding.alpha}",
    }
    for key, value in metadata.items():
        if key != "departures":  # these get a line each
            facts[key.replace("_", " ")] = ", ".join(map(str, value)) if isinstance(value, list) else value
    print_facts(str(bundle), facts)
    deviations = metadata.get("departures")
    for sentence in deviations if isinstance(deviations, list) else []:
        click.echo(f"  {sentence}")


OPTIONAL_LIBRARIES = {
    "babel": ("demo", "the quickstart's corpus"),
    "num2words": ("demo", "the quickstart's corpus"),
    "sacremoses": ("moses", "the paper's tokenised BLEU"),
    "numba": ("fast", "int8 at its full speed, where the processor has AVX-512 with VNNI,"),
}


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@JSON_OPTION
def doctor(run: Path | None, as_json: bool) -> None:
    """Tell what this machine has, what is missing, and what that means; or what goes wrong in the run folder RUN.

    \b
    Example:  dragoman doctor
              dragoman doctor runs/multi30k-ende
    """
    if run is None:
        check_machine(as_json)
    else:
        diagnose_run(run, as_json)


def diagnose_run(run: Path, as_json: bool) -> None:
    """What is seen in a run's journal, what it probably means, and which knob to turn."""
    from dragoman.cli.console import print_facts, print_json
    from dragoman.training.monitoring.diagnostics import diagnose
    from dragoman.training.monitoring.run_status import read_run_status, summarize_run

    run_status = read_run_status(run)
    status_fields, diagnoses = summarize_run(run_status), diagnose(run_status)
    if as_json:
        print_json({**status_fields, "findings": [vars(diagnosis) for diagnosis in diagnoses]})
        return
    format_specs = {
        "step": ",",
        "epoch": ".2f",
        "loss": ".3f",
        "perplexity": ",.5g",
        "tokens_per_second": ",.0f",
        "ceiling": ".0%",
    }
    numbers = {
        name.replace("_", " "): f"{status_fields[name]:{format_spec}}"
        for name, format_spec in {**format_specs, "skipped": ","}.items()
        if isinstance(status_fields[name], int | float)
    }
    print_facts(str(run), {"state": status_fields["state"], **numbers})
    for number, diagnosis in enumerate(diagnoses, start=1):
        click.echo(
            f"{number}. {diagnosis.name}: {diagnosis.evidence}.\n   Probably {diagnosis.cause}.\n   Turn: {diagnosis.remedy}."
        )
    if diagnoses:
        click.echo("What the run folder refuses to change goes with run=FOLDER, as a new run.")
    elif len(run_status.train) < 8:
        click.echo("Nothing is wrong so far, but the journal has too few lines to tell much; look again later.")
    else:
        click.echo("Nothing is wrong that the journal shows.")


def check_machine(as_json: bool) -> None:
    """What this machine has, and remarks on what it lacks."""
    import importlib.util
    import os
    import platform
    import shutil

    import torch

    from dragoman.cli.console import print_facts, print_json
    from dragoman.training.device import bf16_is_faster
    from dragoman.version import __version__

    has_gpu = torch.cuda.is_available()
    free_bytes = shutil.disk_usage(Path.cwd()).free
    facts: dict[str, Any] = {
        "dragoman": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": bf16_is_faster(torch.device("cuda" if has_gpu else "cpu")),
        "gpu": torch.cuda.get_device_name(0) if has_gpu else None,
        "disk_free_gib": round(free_bytes / 2**30, 1),
    }
    remarks = []
    if not has_gpu:
        remarks.append("No GPU that torch can use: training runs on the processor, which is enough for the small recipes.")
    if not facts["bfloat16"]:
        remarks.append("No faster in bfloat16 here: precision = 'auto' trains in float32.")
    if free_bytes < 5 * 2**30:
        remarks.append(f"Only {free_bytes / 2**30:.1f} GiB free here: a base model's checkpoints take 0.75 GiB each.")
    for library, (extra, purpose) in OPTIONAL_LIBRARIES.items():
        if importlib.util.find_spec(library) is None:
            remarks.append(f"{library} is missing, which {purpose} needs: pip install 'dragoman[{extra}]'")
    if as_json:
        print_json({**facts, "remarks": remarks})
        return
    print_facts("this machine", {key.replace("_", " "): "none" if value is None else value for key, value in facts.items()})
    for remark in remarks or ["Nothing is missing."]:
        click.echo(remark)
