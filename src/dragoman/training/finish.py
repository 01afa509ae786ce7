"""The end of a run: averaged weights as a bundle, scores on the test set, and a report that people can look at."""

from __future__ import annotations

import datetime
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import dragoman
from dragoman.bundle import Bundle, load_bundle, put_weights, save_bundle
from dragoman.config import STANDARD_INPUT, Recipe, listed, recipe_from_dict
from dragoman.data.prepare import VALID, prepared_files
from dragoman.data.subword import read_tokeniser
from dragoman.errors import DataError, DragomanError, Interrupted, OutputError, RankError, RunError
from dragoman.formats.lines import name_of
from dragoman.formats.pair import Pair
from dragoman.formats.read import corpus_files
from dragoman.model.build import assemble_model
from dragoman.storage import alone_in, cannot_write, check_seal, write_json, write_lines
from dragoman.tasks.alignment import choose_head, guided_head
from dragoman.tasks.generation import cross_attention, most_positions, start_id
from dragoman.tasks.parsing import encode_words, labels_of, parser_parts
from dragoman.training.checkpoint import Checkpoint, average_checkpoints, best, list_checkpoints, regular
from dragoman.training.identity import refuse_changed_corpus
from dragoman.training.journal import read_journal
from dragoman.training.listener import Listener, Silent
from dragoman.training.loop import Trainer
from dragoman.training.trackers import followed
from dragoman.training.validation import Judgement, Sample, judge, read_text
from dragoman.training.world import joined, world_of
from dragoman.traps import departures
from dragoman.trees.penn import read_tree
from dragoman.views import Panel, Series, Table, attention_heatmap, learning_curve, report_page

SHOWN = 10
TRANSLATIONS = "translations.txt"
"""What the bundle made of the test set, line by line, for comparisons with what others made of it."""
# Validation pairs by which the head is chosen that alignments are read off: more would tell little more.
ALIGNED = 1000


def train(recipe: Recipe, listener: Listener | None = None, *, picture_of: str | None = None) -> dict[str, Any]:
    """Run a recipe to its end and return what `report.json` holds; on all ranks but the first, nothing.

    picture_of: the test source whose attention the report shows; one of fitting length when not given
    """
    listener = listener or Silent()
    test = None
    world = world_of(os.environ, minutes=recipe.training.timeout_minutes)
    with joined(world), ExitStack() as held:
        with world.led():
            if world.leads:
                test = read_test(recipe)
                held.enter_context(alone(recipe))
                listener = followed(recipe, listener)
        if world.from_leader(recipe.model_dump(mode="json")) != recipe.model_dump(mode="json"):
            raise RankError(f"rank {world.rank}: has another recipe than rank 0; give all ranks one file and the same settings")
        listener = listener if world.leads else Silent()
        held.callback(listener.close)
        trainer = Trainer(recipe, listener, world)
        try:
            trainer.run()
            if not world.leads:
                return {}
            report = finish(trainer, test, listener, picture_of)
            listener.finish(report)
            return report
        except KeyboardInterrupt:
            told = f"interrupted after step {trainer.progress.step}; {trainer.kept()}"
            trainer.happened("stopped", trainer.progress.step, told)
            raise Interrupted(told) from None
        except Interrupted:
            raise
        except DragomanError as error:
            trainer.happened("failed", trainer.progress.step, str(error))
            raise


@contextmanager
def alone(recipe: Recipe) -> Iterator[None]:
    """Keep other runs out of the run folder. Raises OutputError where one is in there."""
    folder = Path(recipe.run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(cannot_write(folder, error)) from None
    with alone_in(folder):
        try:
            yield
        finally:
            with suppress(OSError):  # where nothing came of it, nothing is left behind
                folder.rmdir()


def read_test(recipe: Recipe) -> list[Pair] | None:
    """The test set as text: nothing learns from it, but a mistake in it must not come out after hours of training."""
    if recipe.data.test is None:
        return None
    pairs = read_text(recipe.data.test, recipe)
    if not pairs:
        files = " and ".join(str(path) for path in corpus_files(recipe.data.test, Path(recipe.data.root)))
        raise DataError(f"{files}: the test set is empty")
    return pairs


def finish(trainer: Trainer, test: Sequence[Pair] | None, listener: Listener, picture_of: str | None) -> dict[str, Any]:
    """Write bundle and report of a run that has come to its end."""
    recipe, folder = trainer.recipe, trainer.folder
    chosen = choose_checkpoints(trainer.checkpoints, recipe.training.average, recipe.training.average_count)
    chosen = chosen or choose_checkpoints(trainer.checkpoints, "none", 1)
    listener.notice(f"writing {folder / 'bundle'} from {', '.join(one.path.name for one in chosen)}")
    weights = final_weights(chosen, recipe.training.average)
    story = {**tell_story(trainer, chosen), **_aligning(trainer, weights)}
    save_bundle(
        folder / "bundle",
        recipe=recipe,
        tokeniser=trainer.prepared.tokeniser,
        weights=weights,
        story=story,
        overwrite=True,
    )
    return write_report(folder, recipe, story, test, listener, picture_of, trainer.machine.device)


def _aligning(trainer: Trainer, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What the story says of the head that alignments are read off, if there are sentences to find it by."""
    pairs = [] if trainer.validator is None else trainer.validator.pairs[:ALIGNED]
    guided = guided_head(trainer.recipe)
    if not pairs or trainer.recipe.task.kind == "parsing":
        return {} if guided is None else {"alignment": asdict(guided)}
    recipe, tokeniser = trainer.recipe, trainer.prepared.tokeniser
    sizes = {"source_vocabulary": len(tokeniser.source), "target_vocabulary": len(tokeniser.target)}
    with torch.device("meta"):
        model = assemble_model(recipe.model, **sizes | parser_parts(recipe))
    put_weights(model, weights, where=trainer.folder)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    among = None if guided is None else [guided]
    found = choose_head(model.eval(), tokeniser, recipe, sources, targets, among=among)
    return {} if found is None else {"alignment": found}


def choose_checkpoints(folder: Path, rule: str, count: int) -> list[Checkpoint]:
    """The newest one (`none`), the newest `count` (`last`), or the best `count` (`best`) of a run; fewer where there are.

    Best are those that were validated: none of a run that never was.
    """
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise RunError(f"{folder}: holds no checkpoint")
    match rule:
        case "last":
            return regular(checkpoints)[-count:]
        case "best":
            return best(checkpoints, count)
        case _:
            return checkpoints[-1:]


def final_weights(chosen: Sequence[Checkpoint], rule: str) -> dict[str, torch.Tensor]:
    """The mean of these checkpoints, or the moving average (`ema`) that the last of them kept. Raises RunError without one."""
    if rule != "ema":
        return average_checkpoints(list(chosen))
    check_seal(chosen[-1].path, RunError)
    averages = chosen[-1].averages()
    if averages is None:
        raise RunError(f"{chosen[-1].path}: keeps no moving average; training.ema_decay makes one")
    return chosen[-1].weights() | averages  # a parser's tables of words are no averages


def average_run(run: Path, output: Path, *, rule: str, count: int, overwrite: bool = False) -> dict[str, Any]:
    """Average checkpoints of a run into a bundle elsewhere; returns its story. Raises RunError where there are too few."""
    chosen = choose_checkpoints(run / "checkpoints", rule, count)
    if len(chosen) < count:
        what = "validated checkpoints" if rule == "best" else "checkpoints"
        raise RunError(f"{run}: {count} {what} asked for, but {len(chosen)} are there; training.keep_{rule} keeps more")
    newest = max(chosen, key=lambda one: one.step)
    recipe = recipe_from_dict(newest.recipe, where=str(newest.path))
    story = {
        "trained_on": trained_on(recipe),
        "averaged": [one.path.name for one in chosen],
        "steps": newest.step,
        "target_tokens": newest.progress.target_tokens,
        "seconds": round(newest.progress.minutes * 60.0, 1),
        "departures": [departure.sentence() for departure in departures(recipe.model_dump(mode="json"))],
    }
    refuse_changed_corpus(newest, prepared_files(run / "data"), run)
    tokeniser = read_tokeniser(run / "data", recipe.subword, source_eos=recipe.model.source_eos)
    weights = final_weights(chosen, rule)
    save_bundle(output, recipe=recipe, tokeniser=tokeniser, weights=weights, story=story, overwrite=overwrite)
    return story


def trained_on(recipe: Recipe) -> list[str]:
    """The files that a recipe learns from, as it names them: at the end of a run they need not be there any more."""
    root = Path(recipe.data.root)
    sides = [side for corpus in recipe.data.to_learn_from().values() for side in (corpus.source, corpus.target, corpus.file)]
    return [name_of(None if name == STANDARD_INPUT else root / name) for side in sides for name in listed(side)]


def tell_story(trainer: Trainer, chosen: Sequence[Checkpoint]) -> dict[str, Any]:
    """What the model was trained on and how, as `dragoman info` tells it."""
    recipe, progress = trainer.recipe, trainer.progress
    fates = [fate for name, fate in trainer.prepared.fates.items() if name != VALID]
    not_as_given: Counter[str] = Counter()
    for fate in fates:
        not_as_given.update({**fate.dropped, "over_long": fate.over_long})
    seconds = progress.minutes * 60.0
    return {
        "trained_on": trained_on(recipe),
        "pairs": sum(fate.kept for fate in fates),
        "pairs_not_as_given": dict(not_as_given),
        "parameters": trainer.model.num_parameters(),
        "steps": progress.step,
        "epochs": round(trainer.epochs(), 2),
        "seconds": round(seconds, 1),
        "target_tokens": progress.target_tokens,
        "target_tokens_per_second": round(progress.target_tokens / max(seconds, 1e-9)),
        "machine": trainer.machine.describe(),
        **tell_cost(trainer),
        "averaged": [one.path.name for one in chosen],
        "departures": [departure.sentence() for departure in departures(recipe.model_dump(mode="json"))],
        "dragoman": dragoman.__version__,
        "torch": torch.__version__,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def tell_cost(trainer: Trainer) -> dict[str, Any]:
    """What the steps of a run took, over all its stretches and devices; energy where the machine tells."""
    progress, seconds = trainer.progress, max(trainer.progress.minutes * 60.0, 1e-9)
    cost: dict[str, Any] = {"flops": progress.flops}
    if trainer.ceiling:
        cost["share_of_ceiling"] = round(progress.flops / seconds / trainer.ceiling, 4)
    if progress.joules is not None:
        cost["kilowatt_hours"] = round(progress.joules / 3.6e6, 6)
    waiting = round(progress.waited_minutes * 60.0 / seconds, 4)
    return {**cost, "share_waiting_for_batches": waiting, "skipped_steps": progress.skipped}


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
    valid = [entry for entry in journal if entry["kind"] == "valid"]
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
    kinds = {kind: [entry for entry in journal if entry["kind"] == kind] for kind in ("train", "valid")}

    def points(kind: str, key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in kinds[kind] if entry.get(key) is not None]

    series = [Series("training", points("train", "loss")), Series("validation", points("valid", "nll"))]
    panels = [Panel("nats per token", [one for one in series if one.points])]
    for name, key in (("BLEU", "bleu"), ("F1", "f1")):
        if judged := points("valid", key):
            panels.append(Panel(name, [Series("validation", judged)]))
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
