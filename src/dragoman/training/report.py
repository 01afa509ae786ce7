"""Report of a run: scores on the test sets as `report.json`, learning curve and attention as drawings."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle, BundleMetadata, load_bundle
from dragoman.config import INITIAL_DIR, Recipe
from dragoman.errors import MissingDependencyError
from dragoman.formats.pair import DirectedPair, Pair
from dragoman.io.storage import write_json, write_lines
from dragoman.parsing.sentence_parser import encode_words, get_labels
from dragoman.parsing.trees.ptb import read_tree
from dragoman.runtime.counts import format_count
from dragoman.tasks.forced_decoding import compute_cross_attentions
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import get_max_positions
from dragoman.training.monitoring.events import Callback, Notice, PreparationProgress, Sample
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.monitoring.run_page import ATTENTION_FILE
from dragoman.training.test_sets import TestSetReport, build_test_set_report
from dragoman.training.validation import EvaluationResult, Evaluator
from dragoman.viz.attention_svg import render_matrix
from dragoman.viz.charts import Panel, Series, render_learning_curve

NUM_REPORT_SAMPLES = 10
TRANSLATIONS_FILE = "translations.txt"
"""Output for the test set, line by line, for comparisons with other systems."""


@dataclass(frozen=True)
class ValidationSummary:
    """Scores of the last validation; see `ValidationReport`."""

    step: int
    loss: float
    perplexity: float
    token_accuracy: float | None = None
    bleu: float | None = None
    f1: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingReport(BundleMetadata):
    """Content of `report.json`: the metadata of the bundle, and the scores on the test set in percent. None is left out."""

    name: str
    bundle: str
    """Path of the bundle."""
    valid: ValidationSummary | None = None
    bleu: float | None = None
    chrf: float | None = None
    exact_match: float | None = None
    paper_bleu: float | None = None
    """BLEU of German with split compounds, as in the paper."""
    f1: float | None = None
    f1_gold_tags: float | None = None
    precision: float | None = None
    recall: float | None = None
    tagging: float | None = None
    """Accuracy of the part-of-speech tags."""
    signatures: dict[str, str] | None = None
    """Settings of each score."""
    test_sentences: int | None = None
    incomplete_outputs: dict[str, int] | None = None
    """Number of test outputs by status other than "ok"."""
    samples: list[Sample] | None = None
    """The first lines of the test set."""
    test_sets: dict[str, TestSetReport] | None = None
    """Scores on each of several test sets, and changes against the initial model of a fine-tuning run."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON, without the values that are None."""
        values = super().to_dict()
        if self.valid is not None:
            values["valid"] = {name: value for name, value in values["valid"].items() if value is not None}
        for test_set in values.get("test_sets", {}).values():
            if test_set["changes"] is None:
                del test_set["changes"]
        return {"name": self.name, "bundle": self.bundle} | values


def write_report(
    folder: Path,
    recipe: Recipe,
    metadata: BundleMetadata,
    test_sets: Mapping[str, Sequence[Pair]],
    callback: Callback,
    attention_source: str | None,
    device: torch.device,
) -> dict[str, Any]:
    """Score the test sets, and write `report.json`, `curve.svg` and `attention.svg`. Return the report as JSON.

    The scores at the top level of the report are those of the first test set. A fine-tuned model is compared with the initial
    one on each set. Without matplotlib there are no drawings.
    """
    log_entries = read_metrics_log(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    attention_sample = None
    test_values: dict[str, Any] = {}
    if test_sets:
        bundle = load_bundle(folder / "bundle")
        bundle.model.to(device)
        scored_sets = TestSets(recipe, test_sets, callback)
        evaluations = scored_sets.evaluate(bundle)
        evaluation = next(iter(evaluations.values()))
        test_values = _collect_test_values(evaluation)
        _write_translations(folder, evaluations, "")
        if len(test_sets) > 1 or recipe.training.init_from is not None:
            test_values["test_sets"] = scored_sets.build_reports(folder, evaluations, device)
        bundle = _select_languages(bundle, next(iter(test_sets.values())))
        attention_sample = _select_attention_sample(bundle, evaluation.samples, attention_source)
    metadata_values = {field.name: getattr(metadata, field.name) for field in fields(BundleMetadata)}
    report = TrainingReport(
        name=recipe.name,
        bundle=str(folder / "bundle"),
        valid=_summarize_last_validation(log_entries),
        **metadata_values,
        **test_values,
    ).to_dict()
    try:
        write_lines(folder / "curve.svg", [draw_curve(log_entries, recipe.name)], overwrite=True)
        if attention_sample is not None and recipe.model.num_cross_attentions:
            write_lines(folder / ATTENTION_FILE, [draw_attention(bundle, attention_sample)], overwrite=True)
    except MissingDependencyError as error:
        callback(Notice(f"report.html has no curves: {error}"))
    write_json(folder / "report.json", report, overwrite=True)
    return report


def _summarize_last_validation(log_entries: Sequence[dict[str, Any]]) -> ValidationSummary | None:
    valid_entries = [entry for entry in log_entries if entry["type"] == "valid"]
    if not valid_entries:
        return None
    values: dict[str, Any] = {field.name: valid_entries[-1].get(field.name) for field in fields(ValidationSummary)}
    return ValidationSummary(**values)


@dataclass(frozen=True)
class TestSets:
    """Test sets of a run, and their scores. pairs: by name"""

    __test__ = False  # not a class of tests

    recipe: Recipe
    pairs: Mapping[str, Sequence[Pair]]
    callback: Callback

    def evaluate(self, bundle: Bundle, model_name: str = "") -> dict[str, EvaluationResult]:
        """Score a model on each test set. model_name: name of the model in messages; empty for the trained model"""
        evaluator = Evaluator(bundle.model, bundle.tokenizer, self.recipe)
        return {name: self._evaluate(evaluator, name, model_name) for name in self.pairs}

    def _evaluate(self, evaluator: Evaluator, name: str, model_name: str) -> EvaluationResult:
        title = "test set" if name == "test" else f"test set {name}"
        task_name = f"scoring the {title}{f' with {model_name}' if model_name else ''}"
        self.callback(Notice(task_name))
        pairs, num_done = self.pairs[name], 0

        def report_progress(num_newly_done: int) -> None:
            nonlocal num_done
            num_done += num_newly_done
            self.callback(PreparationProgress(task_name, num_done, len(pairs), unit="sentences"))

        report_progress(0)
        evaluation = evaluator.evaluate(pairs, self.recipe.decoding, report_progress)
        for status, count in evaluation.incomplete_outputs.items():
            self.callback(Notice(f"{title}: {format_count(count, 'output')} with the status {status}"))
        for note in evaluation.notes:
            self.callback(Notice(f"{title}: {note}"))
        return evaluation

    def build_reports(
        self, folder: Path, evaluations: Mapping[str, EvaluationResult], device: torch.device
    ) -> dict[str, TestSetReport]:
        """Return the report of each test set, for a fine-tuned model with the scores of the initial model."""
        initial_evaluations: dict[str, EvaluationResult] = {}
        if self.recipe.training.init_from is not None:
            bundle = load_bundle(folder / INITIAL_DIR)
            bundle.model.to(device)
            initial_evaluations = self.evaluate(bundle, "the initial model")
            _write_translations(folder, initial_evaluations, ".initial")
        task, tokenizer = self.recipe.task, self.recipe.tokenizer
        return {
            name: build_test_set_report(task, tokenizer, pairs, evaluations[name], initial_evaluations.get(name))
            for name, pairs in self.pairs.items()
        }


def _write_translations(folder: Path, evaluations: Mapping[str, EvaluationResult], suffix: str) -> None:
    """Write `translations.txt` of data.test, or `translations.NAME.txt` of a named test set, with a suffix in the name."""
    for name, evaluation in evaluations.items():
        stem, extension = TRANSLATIONS_FILE.split(".")
        file_name = f"{stem}{'' if name == 'test' else f'.{name}'}{suffix}.{extension}"
        write_lines(folder / file_name, [sample.translation for sample in evaluation.samples], overwrite=True)


def _collect_test_values(evaluation: EvaluationResult) -> dict[str, Any]:
    """Return the fields of the report that come from the test set."""
    return {
        **{name: round(score.value, 2) for name, score in evaluation.scores.items()},
        "signatures": {name: score.signature for name, score in evaluation.scores.items()},
        "test_sentences": len(evaluation.samples),
        "incomplete_outputs": evaluation.incomplete_outputs,
        "samples": list(evaluation.samples[:NUM_REPORT_SAMPLES]),
    }


def _select_attention_sample(bundle: Bundle, samples: Sequence[Sample], attention_source: str | None) -> Sample | None:
    """Return the first drawable sample: the requested one if possible, else one of a readable length, else any."""
    max_positions = get_max_positions([bundle.model]) or sys.maxsize
    drawable = [sample for sample in samples if sample.translation and len(_encode_sample(bundle, sample)[1]) < max_positions]
    requested = [sample for sample in drawable if sample.source == attention_source]
    readable = [sample for sample in drawable if 3 <= len(sample.source.split()) <= 16]
    return next(iter(requested or readable or drawable), None)


def _select_languages(bundle: Bundle, pairs: Sequence[Pair]) -> Bundle:
    """Return the bundle with the languages of the first of these pairs, for a model of many languages."""
    if not isinstance(pairs[0], DirectedPair):
        return bundle
    languages = pairs[0].source_language, pairs[0].target_language
    return replace(bundle, tokenizer=bundle.tokenizer.select_languages(*languages, zero_shot=True))


def draw_attention(bundle: Bundle, sample: Sample) -> str:
    """Return an SVG of the cross-attention for the sample's translation, the mean of the last layer's heads."""
    source, target = _encode_sample(bundle, sample)
    [weights_LHTS] = compute_cross_attentions(
        TorchForcedDecoder(bundle.model),
        [source],
        [target],
        start_id=get_decoder_start_id(bundle.recipe.model),
        prompt=bundle.tokenizer.decoder_prompt,
        finished=[True],
    )
    return render_matrix(
        weights_LHTS[-1].mean(0).tolist(),
        [*bundle.tokenizer.target.ids_to_pieces(target), "</s>"],
        bundle.tokenizer.source.ids_to_pieces(source),
        title=sample.source,
        subtitle="mean of the heads of the last layer",
        description="Attention from each target token, one a row, to the source tokens.",
        tooltips=True,
    )


def _encode_sample(bundle: Bundle, sample: Sample) -> tuple[list[int], list[int]]:
    """Return the encoder input and the decoder output as token ids."""
    tokenizer = bundle.tokenizer
    if bundle.recipe.task.has_text_target:
        return tokenizer.encode_source(sample.source), tokenizer.encode_target(sample.translation)
    labels = get_labels(tokenizer)
    return encode_words(tokenizer, sample.source.split(" ")), labels.hide_tags(
        labels.encode_tree(read_tree(sample.translation))
    )


def draw_curve(log_entries: Sequence[dict[str, Any]], name: str) -> str:
    """Return an SVG chart of the training and validation losses, and of the validation's BLEU or F1, over the steps."""
    entries_by_type = {kind: [entry for entry in log_entries if entry["type"] == kind] for kind in ("train", "valid")}

    def points(entry_type: str, key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in entries_by_type[entry_type] if entry.get(key) is not None]

    series = [Series("training", points("train", "loss")), Series("validation", points("valid", "nll"))]
    panels = [Panel("nats per token", [curve for curve in series if curve.points])]
    for score, key in (("BLEU", "bleu"), ("F1", "f1")):
        if score_points := points("valid", key):
            panels.append(Panel(score, [Series("validation", score_points)]))
    return render_learning_curve(panels, title=f"{name}: learning curve", x_label="step")
