"""Bundles that are open, whatever they do: models of one task that may vote together, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypedDict

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, Recipe, section_with
from dragoman.errors import BundleError, DeviceError, RecipeError
from dragoman.inference.backends.device import checked_count, compiles, fastest_precision, place
from dragoman.inference.backends.packed.matmul import Precision
from dragoman.inference.backends.select import points_on, ready_speaker
from dragoman.inference.parallel.scheduler import Replicas
from dragoman.inference.parallel.worker import opening_of
from dragoman.inference.shortlist import read_shortlist
from dragoman.tasks.inference_model import Speaker, start_id

Task = Literal["translation", "parsing"]
MISTAKEN: dict[Task, str] = {
    "translation": "is a parser, not a translator: use dragoman parse, or a Parser",
    "parsing": "is a translator, not a parser: use dragoman translate, or a Translator",
}
"""What a bundle is that was opened for this task, and does the other."""
READ_ALIKE: dict[Task, str] = {
    "translation": "subword models, tokenizer.lowercase",
    "parsing": "subword models, labels, task.pos_tags",
}
"""What those that vote have in common, besides what the model's section says."""


class Placing(TypedDict, total=False):
    """Where models compute, and how; see `dragoman.load`."""

    device: str
    precision: str
    threads: int | None
    replicas: int | None


class Opened:
    """One bundle, or several that vote as an ensemble."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        task: Task,
        *,
        device: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        replicas: int | None = None,
        shortlist: str | Path | None = None,
        forgetful: bool = False,
        folders: Sequence[Path] = (),
    ) -> None:
        """What `dragoman.load` takes. The weights must stay what they are.

        forgetful: they are those on disk, so that the memory that reading them fills may be given back
        folders: where the bundles stand, so that other processes may open them; none for threads alone
        """
        _refuse_others(bundles, task)
        _refuse_apart(bundles, task)
        self.bundle, self.task = bundles[0], task
        placement = place(device, precision)
        self.device, self.models = placement.device, [bundle.model.to(placement.device).eval() for bundle in bundles]
        if points_on(self.models, self.device):
            if precision not in ("auto", "float32"):
                raise DeviceError(
                    f"precision = {precision!r}: on {self.device}, model.pointer computes in float32; leave it out"
                )
            self.precision: Precision = "float32"
        else:
            self.precision = placement.precision or fastest_precision(self.models[0])
        if shortlist is not None and task == "parsing":
            raise DeviceError("a shortlist is a translator's: leave it out")
        self.shortlist = None if shortlist is None else read_shortlist(Path(shortlist), self.bundle)
        self.forget: Callable[[], None] = partial(_call_all, [bundle.forget for bundle in bundles] if forgetful else [])
        by_processor = self.device.type == "cpu"
        compiled = by_processor and self.precision == "int8" and compiles(self.models[0])
        self.replicas = Replicas(
            checked_count("replicas", replicas) if by_processor else 1,
            checked_count("threads", threads),
            f"replicas, {self.precision}{' compiled' * compiled}, d_model {self.recipe.model.d_model}",
            opening_of(folders, self.precision, shortlist) if by_processor else None,
        )

    @cached_property
    def speaker(self) -> Speaker:
        """The models made ready to be searched; who only scores or aligns does without."""
        return ready_speaker(self.models, self.device, self.precision, self.shortlist, forget=self.forget)

    @property
    def recipe(self) -> Recipe:
        return self.bundle.recipe

    def check(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        config = section_with(self.recipe.decoding, decoding, where="decoding")
        if self.task == "parsing" and (fault := config.fault_for_trees()):
            raise RecipeError(f"decoding.{fault}")
        return config


def _call_all(forgets: Sequence[Callable[[], None]]) -> None:
    for forget in forgets:
        forget()


def _refuse_others(bundles: Sequence[Bundle], task: Task) -> None:
    """Raise BundleError where one does another task, or they do several."""
    names = {bundle.recipe.task.kind: bundle.recipe.name for bundle in bundles}
    if len(names) > 1:
        raise BundleError(f"{names['translation']} and {names['parsing']}: a translator and a parser cannot vote together")
    if task not in names:
        raise BundleError(f"{bundles[0].recipe.name}: {MISTAKEN[task]}")


def _refuse_apart(bundles: Sequence[Bundle], task: Task) -> None:
    """Raise BundleError where one reads or says other ids than the first."""
    first, *others = bundles
    for other in others:
        if _reading(other) != _reading(first):
            raise BundleError(
                f"{other.recipe.name} and {first.recipe.name} cannot vote as an ensemble: their {READ_ALIKE[task]}, "
                "model.append_source_eos or model.decoder_start_token differ"
            )


def _reading(bundle: Bundle) -> tuple[object, ...]:
    """All that decides which ids a model reads and says for a text."""
    tokeniser, task = bundle.tokeniser, bundle.recipe.task
    sides = tokeniser.source.model, tokeniser.source.lowercase, tokeniser.target.model
    tags = task.pos_tags if task.kind == "parsing" else None
    return (*sides, tags, tokeniser.append_source_eos, start_id(bundle.recipe.model))
