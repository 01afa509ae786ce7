"""Model card of an export: `README.md` with front matter, written from the metadata of the bundle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dragoman.bundle import Bundle, BundleMetadata
from dragoman.languages import get_language

SCORES = {"bleu": "BLEU", "chrf": "chrF", "paper_bleu": "BLEU with split compounds", "exact_match": "exact match, percent"}
"""Scores of a card: key in `report.json` → label."""


def build_model_card(
    bundle: Bundle,
    *,
    usage: str,
    notes: Sequence[str],
    scores: Mapping[str, float] | None = None,
    tags: Sequence[str] = (),
    library: str | None = None,
) -> str:
    """Return a model card in Markdown.

    Args:
        bundle: the model
        usage: Markdown that shows how to use the export
        notes: differences to dragoman, one sentence each
        scores: scores on a test set by the name of the metric
        tags: tags of the front matter
        library: library of the front matter that opens the model
    """
    task, metadata = bundle.recipe.task, bundle.metadata
    pair = f"{task.source_language or 'source'} → {task.target_language or 'target'}"
    sections = [
        _build_front_matter(bundle, tags, library),
        f"# {bundle.recipe.name}: {pair}",
        'An encoder-decoder Transformer of "Attention Is All You Need", exported by dragoman.',
        "## Use",
        usage,
        "## Training",
        _list_items(_describe_training(bundle)),
    ]
    if scores:
        rows = "".join(f"\n| {name} | {score:.2f} |" for name, score in scores.items())
        sections += ["## Scores", f"| metric | test set |\n| --- | ---: |{rows}"]
    if metadata.paper_deviations:
        sections += ["## Differences to the paper", _list_items(metadata.paper_deviations)]
    if notes:
        sections += ["## Differences to dragoman", _list_items(notes)]
    return "\n\n".join(sections) + "\n"


def read_scores(bundle_path: Path, metadata: BundleMetadata) -> dict[str, float]:
    """Return the scores in the report of the run around a bundle; none without a report of this model."""
    try:
        report = json.loads((bundle_path.absolute().parent / "report.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(report, dict) or metadata.finished is None or report.get("finished") != metadata.finished:
        return {}
    scores = {label: report.get(key) for key, label in SCORES.items()}
    return {label: float(score) for label, score in scores.items() if isinstance(score, int | float)}


def _build_front_matter(bundle: Bundle, tags: Sequence[str], library: str | None) -> str:
    """Return the YAML of a card. Each value is a JSON string, which is YAML too."""
    task, origin = bundle.recipe.task, bundle.metadata.origin
    codes = [task.source_language, task.target_language]
    if origin is not None:
        codes += [*(origin.source_languages or []), *(origin.target_languages or [])]
    lines = ["---"]
    lines += _format_list("language", dict.fromkeys(get_language(code) for code in codes if code))
    if origin is not None and origin.license is not None:
        lines.append(f"license: {json.dumps(origin.license, ensure_ascii=False)}")
    if library is not None:
        lines += [f"library_name: {library}", "pipeline_tag: translation"]
    lines += _format_list("tags", tags)
    return "\n".join([*lines, "---"])


def _format_list(key: str, values: Iterable[str]) -> list[str]:
    items = [f"- {json.dumps(value, ensure_ascii=False)}" for value in values]
    return [f"{key}:", *items] if items else []


def _describe_training(bundle: Bundle) -> list[str]:
    """Return the known facts about the origin of the model, one phrase each."""
    metadata, config = bundle.metadata, bundle.recipe.model
    facts = [
        f"layers: {config.encoder_layers} in the encoder, {config.decoder_layers} in the decoder; "
        f"d_model {config.d_model}, d_ff {config.d_ff}, {config.num_heads} heads"
    ]
    if metadata.origin is not None:
        facts.append(f"converted from: {metadata.origin.name} ({metadata.origin.format})")
        if metadata.origin.license is None:
            facts.append("license: not stated by the source")
    return facts + [f"{label}: {text}" for label, text in _list_numbers(metadata)]


def _list_numbers(metadata: BundleMetadata) -> list[tuple[str, str]]:
    """Return the labels and texts of the known training metadata."""
    values: list[tuple[str, object, str]] = [
        ("training files", ", ".join(metadata.training_files or []) or None, "{}"),
        ("sentence pairs", metadata.pairs, "{:,}"),
        ("parameters", metadata.parameters, "{:,}"),
        ("steps", metadata.steps, "{:,}"),
        ("epochs", metadata.epochs, "{:.1f}"),
        ("target tokens", metadata.target_tokens, "{:,}"),
        ("training time", None if metadata.seconds is None else metadata.seconds / 3600, "{:.2f} hours"),
        ("machine", metadata.machine, "{}"),
        ("averaged checkpoints", ", ".join(metadata.averaged_checkpoints or []) or None, "{}"),
        ("finished", metadata.finished, "{}"),
        ("dragoman", metadata.dragoman, "{}"),
        ("PyTorch", metadata.torch, "{}"),
    ]
    return [(label, template.format(value)) for label, value, template in values if value is not None]


def _list_items(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
