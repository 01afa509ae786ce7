"""The end of a run: averaged weights as a bundle with its story, and the report."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import put_weights, save_bundle
from dragoman.config import STANDARD_INPUT, Recipe, listed, recipe_from_dict
from dragoman.config.paper_settings import departures
from dragoman.data.manifest import prepared_files
from dragoman.data.prepare import VALID
from dragoman.data.tokenization.tokenizer import Tokeniser, read_tokeniser
from dragoman.errors import (
    DataError,
    DragomanError,
    Interrupted,
    MemoryShortError,
    OutputError,
    RankError,
    RunError,
    out_of_memory,
)
from dragoman.formats.pair import Pair
from dragoman.formats.readers import corpus_files, refuse_missing
from dragoman.formats.text import name_of
from dragoman.io.storage import alone_in, cannot_write, check_seal
from dragoman.model.factory import assemble_model
from dragoman.tasks.attention_alignment import choose_head, guided_head
from dragoman.tasks.parsing import parser_parts
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    all_checkpoints,
    average_checkpoints,
    best,
    regular,
    set_aside_if_damaged,
    set_aside_the_unreadable,
)
from dragoman.training.distributed.process_group import joined, world_of
from dragoman.training.distributed.signals import interrupted_by_signals
from dragoman.training.monitoring.callbacks import Listener, Silent
from dragoman.training.monitoring.trackers import followed
from dragoman.training.report import write_report
from dragoman.training.resume_checks import refuse_changed_corpus
from dragoman.training.trainer import Trainer
from dragoman.training.validation import read_text
from dragoman.version import __version__

# Validation pairs by which the head is chosen that alignments are read off: more would tell little more.
ALIGNED = 1000


def train(
    recipe: Recipe,
    listener: Listener | None = None,
    *,
    picture_of: str | None = None,
    like: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end and return what `report.json` holds; on all ranks but the first, nothing.

    picture_of: the test source whose attention the report shows; one of fitting length when not given
    like: what `Machine.memory` told of runs that this one is compared with; measured when not given
    """
    listener = listener or Silent()
    test = None
    world = world_of(os.environ, minutes=recipe.training.distributed_timeout_minutes)
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
        trainer = Trainer(recipe, listener, world, like=like)
        if world.size == 1:  # ranks that wait for each other hear a signal only if it ends them
            held.enter_context(interrupted_by_signals())
        try:
            trainer.run()
            if not world.leads:
                return {}
            if world.size > 1:
                held.enter_context(interrupted_by_signals())
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
    refuse_missing(recipe, [recipe.data.test])
    pairs = read_text(recipe.data.test, recipe)
    if not pairs:
        files = " and ".join(str(path) for path in corpus_files(recipe.data.test, Path(recipe.data.root)))
        raise DataError(f"{files}: the test set is empty")
    return pairs


def finish(trainer: Trainer, test: Sequence[Pair] | None, listener: Listener, picture_of: str | None) -> dict[str, Any]:
    """Write bundle and report of a run that has come to its end. Raises MemoryShortError."""
    try:
        return _bundle_and_report(trainer, test, listener, picture_of)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
    told = "out of memory as the bundle was made and judged; lower decoding.batch_tokens or decoding.beam_size"
    raise MemoryShortError(f"{told}; {trainer.kept()}")


def _bundle_and_report(
    trainer: Trainer, test: Sequence[Pair] | None, listener: Listener, picture_of: str | None
) -> dict[str, Any]:
    recipe, folder = trainer.recipe, trainer.folder
    chosen = _whole_ones(trainer, listener)
    listener.notice(f"writing {folder / 'bundle'} from {', '.join(one.path.name for one in chosen)}")
    weights = final_weights(chosen, recipe.training.checkpoint_averaging)
    aligning = _aligning(recipe, trainer.prepared.tokeniser, trainer.judge.pairs, weights, where=folder)
    story = {**tell_story(trainer, chosen), **aligning}
    save_bundle(
        folder / "bundle",
        recipe=recipe,
        tokeniser=trainer.prepared.tokeniser,
        weights=weights,
        story=story,
        overwrite=True,
    )
    return write_report(folder, recipe, story, test, listener, picture_of, trainer.machine.device)


def _whole_ones(trainer: Trainer, listener: Listener) -> list[Checkpoint]:
    """What the bundle is made from; of checkpoints that are damaged, those that stand in for them."""
    training, then = trainer.recipe.training, "the bundle is made without it"
    set_aside_the_unreadable(trainer.checkpoints, listener.notice, then)
    while True:
        chosen = choose_checkpoints(trainer.checkpoints, training.checkpoint_averaging, training.num_averaged_checkpoints)
        chosen = chosen or choose_checkpoints(trainer.checkpoints, "none", 1)
        if not any([set_aside_if_damaged(one.path, listener.notice, then) for one in chosen]):
            return chosen


def _aligning(
    recipe: Recipe, tokeniser: Tokeniser, pairs: Sequence[Pair], weights: dict[str, torch.Tensor], *, where: Path
) -> dict[str, Any]:
    """What the story says of the head that alignments are read off, if there are sentences to find it by."""
    guided, pairs = guided_head(recipe), pairs[:ALIGNED]
    if not pairs or recipe.task.kind == "parsing":
        return {} if guided is None else {"alignment": asdict(guided)}
    sizes = {"source_vocabulary": len(tokeniser.source), "target_vocabulary": len(tokeniser.target)}
    with torch.device("meta"):
        model = assemble_model(recipe.model, **sizes | parser_parts(recipe))
    put_weights(model, weights, where=where)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    among = None if guided is None else [guided]
    found = choose_head(model.eval(), tokeniser, recipe, sources, targets, among=among)
    return {} if found is None else {"alignment": found}


def choose_checkpoints(folder: Path, rule: str, count: int) -> list[Checkpoint]:
    """The newest one (`none`), the newest `count` (`last`), or the best `count` (`best`) of a run; fewer where there are.

    Best are those that were validated: none of a run that never was. Raises RunError where there is none, or one that cannot
    be read.
    """
    checkpoints = all_checkpoints(folder)
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
    """The mean of these checkpoints, or the moving average (`ema`) that the last of them kept. Raises RunError without one.

    Their digests have been checked.
    """
    if rule != "ema":
        return average_checkpoints(list(chosen))
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
    for checkpoint in chosen:
        check_seal(checkpoint.path, RunError)
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
    tokeniser = read_tokeniser(run / "data", recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    weights = final_weights(chosen, rule)
    story |= _aligning(recipe, tokeniser, _valid_text(recipe), weights, where=run)
    save_bundle(output, recipe=recipe, tokeniser=tokeniser, weights=weights, story=story, overwrite=overwrite)
    return story


def _valid_text(recipe: Recipe) -> list[Pair]:
    """What the run was validated by, as text; none where it is not there any more."""
    if recipe.data.valid is None:
        return []
    with suppress(DataError):
        return read_text(recipe.data.valid, recipe, most=recipe.training.num_validation_translations)
    return []


def trained_on(recipe: Recipe) -> list[str]:
    """The files that a recipe learns from, as it names them: at the end of a run they need not be there any more."""
    root = Path(recipe.data.root)
    sides = [side for corpus in recipe.data.training_corpora().values() for side in (corpus.source, corpus.target, corpus.file)]
    return [name_of(None if name == STANDARD_INPUT else root / name) for side in sides for name in listed(side)]


def tell_story(trainer: Trainer, chosen: Sequence[Checkpoint]) -> dict[str, Any]:
    """What the model was trained on and how, as `dragoman info` tells it."""
    recipe, progress = trainer.recipe, trainer.progress
    fates = [fate for name, fate in trainer.prepared.fates.items() if name != VALID]
    not_as_given: Counter[str] = Counter()
    for fate in fates:
        not_as_given.update({**fate.dropped, "overlong_pairs": fate.overlong_pairs})
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
        "dragoman": __version__,
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
