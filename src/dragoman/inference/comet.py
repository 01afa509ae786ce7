"""COMET (Rei et al. 2020, 2022): a neural metric of translations, from a checkpoint on this machine.

The library `unbabel-comet` defines the model. Its own loader reads the checkpoint with Python's pickle machine, which can run
any code. So this module builds the model by itself: plain YAML gives its sizes, and `read_checkpoint` its weights, without
pickle. Nothing is downloaded. The tokenizer and the sizes of the encoder come from the folder `encoder` beside the checkpoint,
or from the local cache of Hugging Face.

    MODEL/hparams.yaml             class and sizes of the model
    MODEL/checkpoints/model.ckpt   weights
    MODEL/encoder/                 optional: tokenizer and config.json of the encoder, such as those of xlm-roberta-large
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.conversion.checkpoint_reader import read_checkpoint
from dragoman.conversion.mapped_arrays import Array
from dragoman.conversion.source_files import is_state_dict
from dragoman.errors import DataError, MissingDependencyError
from dragoman.evaluation.metrics import Score
from dragoman.evaluation.pairwise_similarity import ScoreMatrix
from dragoman.io.bfloat16 import widen

HPARAMS_FILE, CHECKPOINT_FILE, ENCODER_DIR = "hparams.yaml", "checkpoints/model.ckpt", "encoder"
SUPPORTED_CLASSES = ("regression_metric", "referenceless_regression_metric", "unified_metric")
LIGHTNING_CLASSES = (
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.callbacks.early_stopping.EarlyStopping",
)
"""Classes whose objects a checkpoint of Lightning may hold beside the weights. They are read as plain data and not used."""
OPTIONAL_BUFFER = "position_ids"
"""Buffer that some versions of transformers store; it is the same in all models."""
BATCH_SIZE = 16
"""Pairs in a batch, as in COMET itself. Its layer normalization depends a little on the batch."""


@dataclass(frozen=True)
class CometScorer:
    """COMET model in evaluation mode.

    name: name of the model's folder
    model: a model of `unbabel-comet`, or any object with its methods `requires_references`, `prepare_for_inference` and
        `predict_step`
    """

    name: str
    model: Any
    device: torch.device

    @torch.no_grad()
    def score(
        self,
        sources: Sequence[str],
        hypotheses: Sequence[str],
        references: Sequence[str] | None = None,
        *,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> list[float]:
        """Return the score of each hypothesis, about 0 to 1; higher is better.

        Raises DataError for lists of different lengths, and without references for a model that needs them.
        """
        if len(sources) != len(hypotheses) or (references is not None and len(references) != len(sources)):
            raise DataError(
                f"COMET: {len(sources)} sources, {len(hypotheses)} hypotheses"
                + (f" and {len(references)} references" if references is not None else "")
                + "; give lists of equal length",
                code="length-mismatch",
            )
        if references is None and self.model.requires_references():
            raise DataError(f"{self.name}: this COMET model reads references; give them", code="invalid-argument")
        samples = [{"src": source, "mt": hypothesis} for source, hypothesis in zip(sources, hypotheses, strict=True)]
        for sample, reference in zip(samples, references or (), strict=False):
            sample["ref"] = reference
        scores = np.zeros(len(samples))
        order = np.argsort([len(source) for source in sources], kind="stable")
        for start in range(0, len(order), BATCH_SIZE):
            indices = order[start : start + BATCH_SIZE]
            batch = self.model.prepare_for_inference([samples[index] for index in indices])
            scores[indices] = self.model.predict_step(_move(batch, self.device))["scores"].float().cpu().numpy()
            on_progress(len(indices))
        return [float(score) for score in scores]

    def score_reference_sets(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return the mean score of each hypothesis over the reference sets; they are not read by a model without references."""
        if not self.model.requires_references():
            return self.score(sources, hypotheses)
        scores = np.mean([self.score(sources, hypotheses, lines) for lines in references], axis=0)
        return [float(score) for score in scores]

    def pairwise(self, source: str, texts: Sequence[str]) -> ScoreMatrix:
        """Return 100 times the score of each text with each text as its reference, for minimum Bayes risk. → (N, N)

        Raises DataError for a model that reads no references.
        """
        if not self.model.requires_references():
            raise DataError(
                f"{self.name}: minimum Bayes risk compares hypotheses, and this COMET model reads no references; give a model "
                "such as wmt22-comet-da",
                code="invalid-argument",
            )
        count = len(texts)
        scores = self.score(
            [source] * count**2,
            [text for text in texts for _ in range(count)],
            [text for _ in range(count) for text in texts],
        )
        return 100.0 * np.array(scores).reshape(count, count)

    def summarize(self, segment_scores: Sequence[float]) -> Score:
        """Return 100 times the mean of the segment scores as a score of the test set."""
        return Score("COMET", 100.0 * float(np.mean(segment_scores)), f"model:{self.name}|scale:100|comet:{_get_version()}")


def _move(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _move(value, device) for key, value in batch.items()}
    return tuple(_move(value, device) for value in batch) if isinstance(batch, list | tuple) else batch


def _get_version() -> str:
    try:
        return version("unbabel-comet")
    except PackageNotFoundError:
        return "none"


@lru_cache(maxsize=2)  # each call of a translator searches with the same model
def load_comet(path: str | Path, *, device: str = "cpu") -> CometScorer:
    """Return the COMET model of a folder with `hparams.yaml` and `checkpoints/model.ckpt`, or of that checkpoint.

    Raises MissingDependencyError without `unbabel-comet`, and DataError for a model that is missing, damaged, of an unsupported
    class, or that names anything but tensors and plain data.
    """
    folder = Path(path)
    if folder.is_file():
        folder = folder.parents[1] if len(folder.parents) > 1 else folder
    checkpoint = folder / CHECKPOINT_FILE
    for file in (folder / HPARAMS_FILE, checkpoint):
        if not file.is_file():
            raise DataError(
                f"{file}: does not exist; give the folder of a COMET model, which is never downloaded", code="file-not-found"
            )
    hparams = _read_hparams(folder / HPARAMS_FILE)
    model = _build_model(folder, hparams)
    content = read_checkpoint(checkpoint, inert_classes=LIGHTNING_CLASSES)
    weights = content.value.get("state_dict") if isinstance(content.value, dict) else None
    if not is_state_dict(weights):
        raise DataError(f"{checkpoint}: holds no state_dict of tensors; copy the model again", code="source-damaged")
    _load_weights(model, weights, checkpoint)
    content.release()
    return CometScorer(folder.name, model.to(device).eval(), torch.device(device))


def _read_hparams(path: Path) -> dict[str, Any]:
    """Return the settings of a COMET model. Raises DataError if they are not plain YAML with a supported class."""
    yaml = _import_library("yaml")
    try:
        hparams = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: is not plain YAML: {reason}; copy the model again", code="invalid-format") from None
    identifier = hparams.get("class_identifier") if isinstance(hparams, dict) else None
    if identifier not in SUPPORTED_CLASSES:
        raise DataError(
            f"{path}: class_identifier = {identifier!r} is not supported; give a model of {', '.join(SUPPORTED_CLASSES)}",
            code="unknown-format",
        )
    return dict(hparams)


def _import_library(name: str) -> Any:
    """Import a module that the extra `comet` installs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError("unbabel-comet", "comet", "COMET") from error


def _build_model(folder: Path, hparams: Mapping[str, Any]) -> Any:
    """Return the model without weights. It reads the tokenizer and the sizes of its encoder from this machine alone."""
    model_class = _import_library("comet.models").str2model[hparams["class_identifier"]]
    arguments = {name: value for name, value in hparams.items() if name in inspect.signature(model_class).parameters}
    if (folder / ENCODER_DIR).is_dir():
        arguments["pretrained_model"] = str(folder / ENCODER_DIR)
    if arguments.get("layer_transformation") == "sparsemax_patch":  # unbabel-comet 2.2.4 and later replace it in the same way
        arguments["layer_transformation"] = "softmax"
    try:
        return model_class(**arguments | {"load_pretrained_weights": False, "local_files_only": True})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{folder}: the model cannot be built: {reason[:200]}; put the tokenizer and config.json of the encoder "
            f"{hparams.get('pretrained_model')!r} into {folder / ENCODER_DIR}",
            code="source-damaged",
        ) from None


def _load_weights(model: Any, weights: Mapping[str, Array], path: Path) -> None:
    """Copy the weights into the model. Raises DataError for a missing, an unknown or a misshapen weight."""
    expected = {name: value for name, value in model.state_dict().items() if not name.endswith(OPTIONAL_BUFFER)}
    stored = {name: value for name, value in weights.items() if not name.endswith(OPTIONAL_BUFFER)}
    if differing := sorted(expected.keys() ^ stored.keys()):
        problem = "is missing" if differing[0] in expected else "does not belong to the model"
        raise DataError(f"{path}: {differing[0]} {problem}; copy the model again", code="source-damaged")
    for name, value in expected.items():
        if value.shape != stored[name].shape:
            raise DataError(
                f"{path}: {name} has shape {tuple(stored[name].shape)}, but {HPARAMS_FILE} describes {tuple(value.shape)}; "
                "copy the model again",
                code="source-damaged",
            )
        value.copy_(torch.from_numpy(np.require(widen(stored[name]), requirements="A")))
