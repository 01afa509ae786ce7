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
from dragoman.tasks.generation import cross_attention
from dragoman.tasks.inference_model import most_positions, start_id
from dragoman.tasks.parsing import encode_words, labels_of
from dragoman.training.monitoring.callbacks import Listener
from dragoman.training.monitoring.metrics_log import read_journal
from dragoman.training.validation import Judgement, Sample, judge
from dragoman.trees.ptb import read_tree
from dragoman.viz import Panel, Series, Table, attention_heatmap, learning_curve, report_page

SHOWN = 10
TRANSLATIONS = "translations.txt"
"""What the bundle made of the test set, line by line, for comparisons with what others made of it."""


def write_report(
    folder: Path,
    recipe: Recipe,
    story: dict[str, Any],
    test: Sequence[Pair] | None,
    listener: Listener,
    picture_of: str | None,
    device: torch.device,
) -> dict[str, Any]:
    """Score the test set if there is one, and write `report.json`, `curve.svg` and `report.html`."""
    journal = read_journal(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    valid = [entry for entry in journal if entry["type"] == "valid"]
    report: dict[str, Any] = {"name": recipe.name, "bundle": str(folder / "bundle"), **story}
    if valid:
        judged = "f1" if recipe.task.kind == "parsing" else "bleu"
        report["valid"] = {key: valid[-1][key] for key in ("step", "loss", "perplexity", judged)}
    judgement = None
    heatmap = None
    if test is not None:
        listener.notice("scoring the test set")
        bundle = load_bundle(folder / "bundle")
        bundle.model.to(device)
        judgement = judge(bundle.model, bundle.tokeniser, recipe, test, recipe.decoding)
        for name, score in judgement.scores.items():
            report[name] = round(score.value, 2)
        report["signatures"] = {name: score.signature for name, score in judgement.scores.items()}
        report["test_sentences"] = len(judgement.samples)
        report["test_incomplete"] = judgement.incomplete
        for status, count in judgement.incomplete.items():
            listener.notice(f"test: {count} lines {status}")
        report["samples"] = [vars(sample) for sample in judgement.samples[:SHOWN]]
        write_lines(folder / TRANSLATIONS, [sample.translation for sample in judgement.samples], overwrite=True)
        pictured = _pictured(bundle, judgement.samples, picture_of)
        heatmap = draw_attention(bundle, pictured) if pictured is not None else None
    curve = draw_curve(journal, recipe.name)
    write_json(folder / "report.json", report, overwrite=True)
    write_lines(folder / "curve.svg", [curve], overwrite=True)
    figures = [("Learning curve", curve)]
    if heatmap is not None:
        write_lines(folder / "attention.svg", [heatmap], overwrite=True)
        figures.append(("Where the decoder looked in the source (mean of all heads, last layer)", heatmap))
    page = report_page(
        f"{recipe.name}: training report", facts=_facts(report), figures=figures, tables=_tables(judgement, story)
    )
    write_lines(folder / "report.html", [page], overwrite=True)
    return report


def _pictured(bundle: Bundle, samples: Sequence[Sample], picture_of: str | None) -> Sample | None:
    """The first sample that can be drawn, those that were asked for or are of fitting length before others."""
    most = most_positions([bundle.model]) or sys.maxsize
    drawable = [one for one in samples if one.translation and len(_ids(bundle, one)[1]) < most]
    wanted = [sample for sample in drawable if sample.source == picture_of]
    fitting = [sample for sample in drawable if 3 <= len(sample.source.split()) <= 16]
    return next(iter(wanted or fitting or drawable), None)


def draw_attention(bundle: Bundle, sample: Sample) -> str:
    """The attention over the source while the sample's translation is forced, mean of the last layer's heads."""
    source, target = _ids(bundle, sample)
    weights_LHTS = cross_attention(bundle.model, source, target, start_id=start_id(bundle.recipe.model))
    return attention_heatmap(
        weights_LHTS[-1].mean(dim=0).tolist(),
        rows=[*bundle.tokeniser.target.pieces(target), "</s>"],
        columns=bundle.tokeniser.source.pieces(source),
        title=sample.source,
    )


def _ids(bundle: Bundle, sample: Sample) -> tuple[list[int], list[int]]:
    """What the encoder read, and what the decoder said."""
    tokeniser = bundle.tokeniser
    if bundle.recipe.task.kind == "translation":
        return tokeniser.encode_source(sample.source), tokeniser.encode_target(sample.translation)
    labels = labels_of(tokeniser)
    return encode_words(tokeniser, sample.source.split(" ")), labels.said(labels.encode_tree(read_tree(sample.translation)))


def draw_curve(journal: Sequence[dict[str, Any]], name: str) -> str:
    """Negative log-likelihood of training and validation, and BLEU or F1 of validation, over the steps."""
    kinds = {kind: [entry for entry in journal if entry["type"] == kind] for kind in ("train", "valid")}

    def points(kind: str, key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in kinds[kind] if entry.get(key) is not None]

    series = [Series("training", points("train", "loss")), Series("validation", points("valid", "nll"))]
    panels = [Panel("nats per token", [one for one in series if one.points])]
    for score, key in (("BLEU", "bleu"), ("F1", "f1")):
        if judged := points("valid", key):
            panels.append(Panel(score, [Series("validation", judged)]))
    return learning_curve(panels, title=f"{name}: learning curve", x_label="step")


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The report's plain values, for people."""
    facts = []
    for key, value in report.items():
        if isinstance(value, str | int | float):
            facts.append((key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)))
    return facts


def _tables(judgement: Judgement | None, story: dict[str, Any]) -> list[Table]:
    tables = []
    if judgement is not None:
        scores = [(score.name, f"{score.value:.2f}", score.signature) for score in judgement.scores.values()]
        tables.append(Table("Scores on the test set", ["metric", "value", "signature"], scores))
        samples = [(one.source, one.reference, one.translation) for one in judgement.samples[:SHOWN]]
        made = "parse" if "f1" in judgement.scores else "translation"
        tables.append(Table("The first lines of the test set", ["source", "reference", made], samples))
    if story["departures"]:
        rows = [(sentence,) for sentence in story["departures"]]
        tables.append(Table("Departures from the paper's text", ["knob"], rows))
    return tables
