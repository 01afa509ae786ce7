"""What a run came to: scores on the test set, curves and attention, as `report.json` and for people as `report.html`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import Recipe
from dragoman.formats.pair import Pair
from dragoman.io.storage import write_json, write_lines
from dragoman.tasks.generation import compute_cross_attention
from dragoman.tasks.inference_model import get_decoder_start_id, get_max_positions
from dragoman.tasks.parsing import encode_words, get_labels
from dragoman.training.monitoring.callbacks import Callback
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.validation import EvaluationResult, Sample, evaluate
from dragoman.trees.ptb import read_tree
from dragoman.viz import Panel, ReportTable, Series, render_attention_heatmap, render_learning_curve, render_report

NUM_REPORT_SAMPLES = 10
TRANSLATIONS_FILE = "translations.txt"
"""What the bundle made of the test set, line by line, for comparisons with what others made of it."""


def write_report(
    folder: Path,
    recipe: Recipe,
    metadata: dict[str, Any],
    test_pairs: Sequence[Pair] | None,
    callback: Callback,
    attention_source: str | None,
    device: torch.device,
) -> dict[str, Any]:
    """Score the test set if there is one, and write `report.json`, `curve.svg` and `report.html`."""
    log_entries = read_metrics_log(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    valid_entries = [entry for entry in log_entries if entry["type"] == "valid"]
    report: dict[str, Any] = {"name": recipe.name, "bundle": str(folder / "bundle"), **metadata}
    if valid_entries:
        score_name = "f1" if recipe.task.kind == "parsing" else "bleu"
        report["valid"] = {key: valid_entries[-1][key] for key in ("step", "loss", "perplexity", score_name)}
    evaluation = None
    heatmap = None
    if test_pairs is not None:
        callback.notice("scoring the test set")
        bundle = load_bundle(folder / "bundle")
        bundle.model.to(device)
        evaluation = evaluate(bundle.model, bundle.tokenizer, recipe, test_pairs, recipe.decoding)
        for name, score in evaluation.scores.items():
            report[name] = round(score.value, 2)
        report["signatures"] = {name: score.signature for name, score in evaluation.scores.items()}
        report["test_sentences"] = len(evaluation.samples)
        report["test_incomplete"] = evaluation.incomplete_outputs
        for status, count in evaluation.incomplete_outputs.items():
            callback.notice(f"test: {count} lines {status}")
        report["samples"] = [vars(sample) for sample in evaluation.samples[:NUM_REPORT_SAMPLES]]
        write_lines(folder / TRANSLATIONS_FILE, [sample.translation for sample in evaluation.samples], overwrite=True)
        attention_sample = _select_attention_sample(bundle, evaluation.samples, attention_source)
        heatmap = draw_attention(bundle, attention_sample) if attention_sample is not None else None
    curve = draw_curve(log_entries, recipe.name)
    write_json(folder / "report.json", report, overwrite=True)
    write_lines(folder / "curve.svg", [curve], overwrite=True)
    figures = [("Learning curve", curve)]
    if heatmap is not None:
        write_lines(folder / "attention.svg", [heatmap], overwrite=True)
        figures.append(("Where the decoder looked in the source (mean of all heads, last layer)", heatmap))
    page = render_report(
        f"{recipe.name}: training report",
        facts=_format_facts(report),
        figures=figures,
        tables=_build_tables(evaluation, metadata),
    )
    write_lines(folder / "report.html", [page], overwrite=True)
    return report


def _select_attention_sample(bundle: Bundle, samples: Sequence[Sample], attention_source: str | None) -> Sample | None:
    """The first sample that can be drawn, those that were asked for or are of fitting length before others."""
    max_positions = get_max_positions([bundle.model]) or sys.maxsize
    drawable = [sample for sample in samples if sample.translation and len(_encode_sample(bundle, sample)[1]) < max_positions]
    requested = [sample for sample in drawable if sample.source == attention_source]
    fitting = [sample for sample in drawable if 3 <= len(sample.source.split()) <= 16]
    return next(iter(requested or fitting or drawable), None)


def draw_attention(bundle: Bundle, sample: Sample) -> str:
    """The attention over the source while the sample's translation is forced, mean of the last layer's heads."""
    source, target = _encode_sample(bundle, sample)
    weights_LHTS = compute_cross_attention(bundle.model, source, target, start_id=get_decoder_start_id(bundle.recipe.model))
    return render_attention_heatmap(
        weights_LHTS[-1].mean(dim=0).tolist(),
        rows=[*bundle.tokenizer.target.ids_to_pieces(target), "</s>"],
        columns=bundle.tokenizer.source.ids_to_pieces(source),
        title=sample.source,
    )


def _encode_sample(bundle: Bundle, sample: Sample) -> tuple[list[int], list[int]]:
    """What the encoder read, and what the decoder said."""
    tokenizer = bundle.tokenizer
    if bundle.recipe.task.kind == "translation":
        return tokenizer.encode_source(sample.source), tokenizer.encode_target(sample.translation)
    labels = get_labels(tokenizer)
    return encode_words(tokenizer, sample.source.split(" ")), labels.hide_tags(
        labels.encode_tree(read_tree(sample.translation))
    )


def draw_curve(log_entries: Sequence[dict[str, Any]], name: str) -> str:
    """Negative log-likelihood of training and validation, and BLEU or F1 of validation, over the steps."""
    entries_by_type = {kind: [entry for entry in log_entries if entry["type"] == kind] for kind in ("train", "valid")}

    def points(entry_type: str, key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in entries_by_type[entry_type] if entry.get(key) is not None]

    series = [Series("training", points("train", "loss")), Series("validation", points("valid", "nll"))]
    panels = [Panel("nats per token", [curve for curve in series if curve.points])]
    for score, key in (("BLEU", "bleu"), ("F1", "f1")):
        if score_points := points("valid", key):
            panels.append(Panel(score, [Series("validation", score_points)]))
    return render_learning_curve(panels, title=f"{name}: learning curve", x_label="step")


def _format_facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The report's plain values, for people."""
    facts = []
    for key, value in report.items():
        if isinstance(value, str | int | float):
            facts.append((key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)))
    return facts


def _build_tables(evaluation: EvaluationResult | None, metadata: dict[str, Any]) -> list[ReportTable]:
    tables = []
    if evaluation is not None:
        scores = [(score.name, f"{score.value:.2f}", score.signature) for score in evaluation.scores.values()]
        tables.append(ReportTable("Scores on the test set", ["metric", "value", "signature"], scores))
        samples = [(sample.source, sample.reference, sample.translation) for sample in evaluation.samples[:NUM_REPORT_SAMPLES]]
        output_name = "parse" if "f1" in evaluation.scores else "translation"
        tables.append(ReportTable("The first lines of the test set", ["source", "reference", output_name], samples))
    if metadata["departures"]:
        rows = [(sentence,) for sentence in metadata["departures"]]
        tables.append(ReportTable("Departures from the paper's text", ["knob"], rows))
    return tables
