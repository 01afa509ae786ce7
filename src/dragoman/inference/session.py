"""Bundles that are open, whatever they do: models of one task that may vote together, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypedDict

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, Recipe, update_section
from dragoman.errors import BundleError, DeviceError, RecipeError
from dragoman.inference.backends.device import choose_fastest_precision, resolve_device, supports_compiled, validate_count
from dragoman.inference.backends.packed.matmul import Precision
from dragoman.inference.backends.select import build_inference_model, uses_pointer_on_gpu
from dragoman.inference.parallel.scheduler import BatchScheduler
from dragoman.inference.parallel.worker import build_worker_spec
from dragoman.inference.shortlist import read_shortlist
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id

TaskKind = Literal["translation", "parsing"]
WRONG_TASK_HINTS: dict[TaskKind, str] = {
    "translation": "is a parser, not a translator: use dragoman parse, or a Parser",
    "parsing": "is a translator, not a parser: use dragoman translate, or a Translator",
}
"""What a bundle is that was opened for this task, and does the other."""
ENSEMBLE_REQUIREMENTS: dict[TaskKind, str] = {
    "translation": "subword models, tokenizer.lowercase",
    "parsing": "subword models, labels, task.pos_tags",
}
"""What those that vote have in common, besides what the model's section says."""


class DeviceOptions(TypedDict, total=False):
    """Where models compute, and how; see `dragoman.load`."""

    device: str
    precision: str
    intra_threads: int | None
    inter_threads: int | None


class InferenceSession:
    """One bundle, or several that vote as an ensemble."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        task: TaskKind,
        *,
        device: str = "auto",
        precision: str = "auto",
        intra_threads: int | None = None,
        inter_threads: int | None = None,
        shortlist: str | Path | None = None,
        release_mapped_weights: bool = False,
        bundle_paths: Sequence[Path] = (),
    ) -> None:
        """What `dragoman.load` takes. The weights must stay what they are.

        forgetful: they are those on disk, so that the memory that reading them fills may be given back
        folders: where the bundles stand, so that other processes may open them; none for threads alone
        """
        _check_task(bundles, task)
        _check_ensemble(bundles, task)
        self.bundle, self.task = bundles[0], task
        placement = resolve_device(device, precision)
        self.device, self.models = placement.device, [bundle.model.to(placement.device).eval() for bundle in bundles]
        if uses_pointer_on_gpu(self.models, self.device):
            if precision not in ("auto", "float32"):
                raise DeviceError(
                    f"precision = {precision!r}: on {self.device}, model.pointer computes in float32; leave it out"
                )
            self.precision: Precision = "float32"
        else:
            self.precision = placement.precision or choose_fastest_precision(self.models[0])
        if shortlist is not None and task == "parsing":
            raise DeviceError("a shortlist is a translator's: leave it out")
        self.shortlist = None if shortlist is None else read_shortlist(Path(shortlist), self.bundle)
        self.release_weights: Callable[[], None] = partial(
            _call_all, [bundle.release for bundle in bundles] if release_mapped_weights else []
        )
        is_cpu = self.device.type == "cpu"
        is_compiled = is_cpu and self.precision == "int8" and supports_compiled(self.models[0])
        self.scheduler = BatchScheduler(
            validate_count("replicas", inter_threads) if is_cpu else 1,
            validate_count("threads", intra_threads),
            f"replicas, {self.precision}{' compiled' * is_compiled}, d_model {self.recipe.model.d_model}",
            build_worker_spec(bundle_paths, self.precision, shortlist) if is_cpu else None,
        )

    @cached_property
    def inference_model(self) -> InferenceModel:
        """The models made ready to be searched; who only scores or aligns does without."""
        return build_inference_model(self.models, self.device, self.precision, self.shortlist, release=self.release_weights)

    @property
    def recipe(self) -> Recipe:
        return self.bundle.recipe

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        config = update_section(self.recipe.decoding, decoding, where="decoding")
        if self.task == "parsing" and (fault := config.find_parsing_problem()):
            raise RecipeError(f"decoding.{fault}")
        return config


def _call_all(release_fns: Sequence[Callable[[], None]]) -> None:
    for release_fn in release_fns:
        release_fn()


def _check_task(bundles: Sequence[Bundle], task: TaskKind) -> None:
    """Raise BundleError where one does another task, or they do several."""
    names = {bundle.recipe.task.kind: bundle.recipe.name for bundle in bundles}
    if len(names) > 1:
        raise BundleError(f"{names['translation']} and {names['parsing']}: a translator and a parser cannot vote together")
    if task not in names:
        raise BundleError(f"{bundles[0].recipe.name}: {WRONG_TASK_HINTS[task]}")


def _check_ensemble(bundles: Sequence[Bundle], task: TaskKind) -> None:
    """Raise BundleError where one reads or says other ids than the first."""
    first, *members = bundles
    for member in members:
        if _build_vocabulary_key(member) != _build_vocabulary_key(first):
            raise BundleError(
                f"{member.recipe.name} and {first.recipe.name} cannot vote as an ensemble: their {ENSEMBLE_REQUIREMENTS[task]}, "
                "model.append_source_eos or model.decoder_start_token differ"
            )


def _build_vocabulary_key(bundle: Bundle) -> tuple[object, ...]:
    """All that decides which ids a model reads and says for a text."""
    tokenizer, task = bundle.tokenizer, bundle.recipe.task
    sides = tokenizer.source.serialized_model, tokenizer.source.lowercase, tokenizer.target.serialized_model
    tags = task.pos_tags if task.kind == "parsing" else None
    return (*sides, tags, tokenizer.append_source_eos, get_decoder_start_id(bundle.recipe.model))
