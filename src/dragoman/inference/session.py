"""Open bundles of one task: the models of an ensemble on one device, with their scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, Recipe, update_section
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, get_identity
from dragoman.errors import BundleError, DeviceError, RecipeError, naming_missing_library
from dragoman.inference.backends.device import resolve_device, validate_count
from dragoman.inference.backends.protocol import Precision
from dragoman.inference.backends.select import build_inference_model, find_float32_reason, supports_compiled
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.inference.parallel.scheduler import BatchScheduler
from dragoman.runtime.device_options import DeviceOptions
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer
    from dragoman.model_forward import NumpyTransformer
    from dragoman.shortlist import Shortlist
    from dragoman.torch_engine.forced_decoder import TorchForcedDecoder

TaskKind = Literal["translation", "parsing", "transcription"]
TASK_NOUNS: dict[TaskKind, str] = {
    "translation": "a translator",
    "parsing": "a parser",
    "transcription": "a transcriber of speech",
}
TASK_HINTS: dict[TaskKind, str] = {
    "translation": "use dragoman translate, or a Translator",
    "parsing": "use dragoman parse, or a Parser",
    "transcription": "use dragoman transcribe, or a Transcriber",
}
ENSEMBLE_REQUIREMENTS: dict[TaskKind, str] = {
    "translation": "tokenizers, tokenizer.lowercase, tokenizer.source_prefix, tokenizer.prepend_bos",
    "parsing": "tokenizers, labels, task.pos_tags",
    "transcription": "tokenizers",
}
"""Properties that members of an ensemble have in common, besides those of the model section."""


class SessionOptions(DeviceOptions, total=False):
    """Options of a session; see `open_session`."""

    shortlist: str | Path | None
    release_mapped_weights: bool


@dataclass(eq=False)
class InferenceSession:
    """One bundle, or an ensemble of several, on one device.

    bundle: the first bundle; its recipe and its tokenizer are those of the session
    trained_models: the models of the bundles, as the back ends take them
    device: "cpu", "cuda", or "cuda" with a number
    """

    bundle: Bundle
    task: TaskKind
    trained_models: list[TrainedModel]
    device: str
    precision: Precision
    shortlist: Shortlist | None
    scheduler: BatchScheduler
    _inference_model: InferenceModel | None = field(default=None, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)
    # Recipe's section, changes and result of the last call of `resolve_decoding`, because most calls repeat the one before.
    _last_resolved: tuple[DecodingConfig, str, DecodingConfig] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        decoding = self.recipe.decoding
        self._last_resolved = decoding, "", decoding

    @property
    def inference_model(self) -> InferenceModel:
        """Models prepared for search. The first access prepares them; scoring and alignment do not need them."""
        purpose = f"{self.recipe.name}: precision {self.precision!r} on this processor"
        with self._lock, naming_missing_library(purpose):
            if self._inference_model is None:
                self._inference_model = build_inference_model(
                    self.trained_models, self.device.partition(":")[0], self.precision, self.shortlist
                )
            return self._inference_model

    @inference_model.setter
    def inference_model(self, inference_model: InferenceModel) -> None:
        self._inference_model = inference_model

    @cached_property
    def forced_decoders(self) -> list[NumpyTransformer | TorchForcedDecoder]:
        """Models as readers of given outputs, for scores, confidence, attention and tags."""
        from dragoman.inference.forced_decoder import build_forced_decoder  # search does not need it

        return [build_forced_decoder(model, self.device) for model in self.trained_models]

    @cached_property
    def models(self) -> list[Transformer]:
        """Models of PyTorch on the device. The first access imports it."""
        return [model.get_transformer() for model in self.trained_models]

    def release_mapped_weights(self) -> None:
        """Release the memory of weights that a search has read where they are mapped, such as embeddings."""
        for model in self.trained_models:
            model.release()

    @property
    def recipe(self) -> Recipe:
        """Recipe of the first bundle."""
        return self.bundle.recipe

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """Return the recipe's decoding settings with these changes. Raises RecipeError for a wrong key or value."""
        section, changes = self.recipe.decoding, repr(decoding)
        last_section, last_changes, config = self._last_resolved
        if section is not last_section or changes != last_changes:
            config = self._resolve_decoding(decoding)
            self._last_resolved = section, changes, config
        return config

    def _resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        config = update_section(self.recipe.decoding, decoding, where="decoding")
        if self.task == "parsing" and (problem := config.find_parsing_problem()):
            raise RecipeError(f"decoding.{problem}")
        for extension in self.recipe.model.model_extensions:
            try:
                extension.check_decoding(config)
            except ValueError as error:
                raise RecipeError(str(error)) from None
        return config


def open_session(
    bundles: Sequence[Bundle],
    task: TaskKind,
    *,
    device: str = "auto",
    precision: str = "auto",
    intra_threads: int | None = None,
    inter_threads: int | None = None,
    shortlist: str | Path | None = None,
    release_mapped_weights: bool = False,
) -> InferenceSession:
    """Check the bundles, choose device and precision, and return the session. The weights must not change afterwards.

    device, precision, intra_threads, inter_threads, shortlist: see `dragoman.load`
    release_mapped_weights: the weights are mapped from disk, so the memory that reading them fills may be released

    Raises BundleError for bundles of another task or of different vocabularies, and DeviceError for an unavailable device.
    """
    _check_task(bundles, task)
    _check_ensemble(bundles, task)
    choice = resolve_device(device, precision)
    trained_models = [TrainedModel.from_bundle(bundle, choice.device, is_mapped=release_mapped_weights) for bundle in bundles]
    is_cpu, configs = choice.device == "cpu", [bundle.recipe.model for bundle in bundles]
    if (float32_reason := find_float32_reason(configs, choice.device_type)) is not None:
        if precision not in ("auto", "float32"):
            raise DeviceError(
                f"precision = {precision!r}: on {choice.device}, {float32_reason} computes in float32; leave precision out"
            )
        if shortlist is not None and is_cpu:
            raise DeviceError(
                f"shortlist: {float32_reason} computes all words of the vocabulary; leave it out", code="shortlist-unsupported"
            )
        chosen_precision: Precision = "float32"
    else:
        chosen_precision = choice.precision or ("int8" if supports_compiled(configs[0]) else "float32")
    return InferenceSession(
        bundle=bundles[0],
        task=task,
        trained_models=trained_models,
        device=choice.device,
        precision=chosen_precision,
        shortlist=None if shortlist is None else _read_shortlist(Path(shortlist), bundles[0].tokenizer),
        scheduler=BatchScheduler(
            validate_count("inter_threads", inter_threads) if is_cpu else 1,
            validate_count("intra_threads", intra_threads),
        ),
    )


def _read_shortlist(folder: Path, tokenizer: PairTokenizer) -> Shortlist:
    from dragoman.shortlist import read_shortlist  # most searches have none

    return read_shortlist(folder, tokenizer)


def _check_task(bundles: Sequence[Bundle], task: TaskKind) -> None:
    """Raise BundleError for a bundle of another task."""
    names: dict[TaskKind, str] = {bundle.recipe.task.kind: bundle.recipe.name for bundle in bundles}
    if len(names) > 1:
        (first, first_name), (second, second_name), *_ = names.items()
        raise BundleError(
            f"{first_name} and {second_name}: {TASK_NOUNS[first]} and {TASK_NOUNS[second]} cannot form an ensemble; give "
            "bundles of one task",
            code="ensemble-mismatch",
        )
    if task not in names:
        [(kind, name)] = names.items()
        raise BundleError(f"{name}: is {TASK_NOUNS[kind]}, not {TASK_NOUNS[task]}; {TASK_HINTS[kind]}")


def _check_ensemble(bundles: Sequence[Bundle], task: TaskKind) -> None:
    """Raise BundleError for a bundle that reads or writes other ids than the first."""
    first, *members = bundles
    if members and (names := [bundle.recipe.name for bundle in bundles if not bundle.recipe.model.is_autoregressive]):
        raise BundleError(
            f"{names[0]}: predicts all tokens at once, so it has no probabilities of the next token "
            "to average; translate with it alone",
            code="ensemble-mismatch",
        )
    for member in members:
        if _build_vocabulary_key(member) != _build_vocabulary_key(first):
            raise BundleError(
                f"{member.recipe.name} and {first.recipe.name} cannot form an ensemble: their {ENSEMBLE_REQUIREMENTS[task]}, "
                "model.append_source_eos or model.decoder_start_token differ; train them with one tokenizer",
                code="ensemble-mismatch",
            )


def _build_vocabulary_key(bundle: Bundle) -> tuple[object, ...]:
    """Return everything that determines the ids of a text."""
    tokenizer, task = bundle.tokenizer, bundle.recipe.task
    sides = get_identity(tokenizer.source), tokenizer.source.lowercase, get_identity(tokenizer.target)
    tags = task.pos_tags if not task.has_text_target else None
    ends = tokenizer.append_source_eos, tokenizer.prepend_bos, tokenizer.source_prefix
    return (*sides, tags, *ends, get_decoder_start_id(bundle.recipe.model))
