"""`dragoman.convert`: read a model of another toolkit and write it as a bundle.

A format is a module with three names: `NAME`, `detect(files)` and `read(files, options)`. The first format that detects the
source reads it, so a new format is one module and one entry of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from dragoman.bundle import BundleMetadata, ModelOrigin, save_bundle
from dragoman.conversion import (
    argos_package,
    ctranslate2_model,
    eole,
    fairseq_transformer,
    huggingface_bart,
    huggingface_fsmt,
    huggingface_m2m100,
    huggingface_marian,
    huggingface_t5,
    huggingface_whisper,
    joeynmt,
    marian_npz,
    opennmt_py,
)
from dragoman.conversion.hub import download_model, is_hub_name
from dragoman.conversion.mapped_arrays import Array
from dragoman.conversion.source_files import CHECKPOINT_SUFFIX, SETTINGS_FILE, SourceFiles
from dragoman.conversion.target import ConversionOptions, ConvertedModel
from dragoman.errors import BundleError, DataError
from dragoman.io.bfloat16 import widen
from dragoman.io.int8_tensors import INPUT_STEP_SUFFIX, STEP_SUFFIX
from dragoman.io.safetensors import TensorStream, get_dtype_name, is_floating_point
from dragoman.io.storage import check_path_is_free
from dragoman.model_weights import list_shapes
from dragoman.version import __version__

ADAPTER_FILE = "adapter_config.json"
"""File that PEFT writes beside the weights of an adapter."""


class SourceFormat(Protocol):
    """Module that reads the models of one format."""

    NAME: str

    @property
    def detect(self) -> Callable[[SourceFiles], bool]:
        """Function that returns whether a folder holds such a model."""

    @property
    def read(self) -> Callable[[SourceFiles, ConversionOptions], ConvertedModel]:
        """Function that returns the model of a folder.

        It raises DataError for a missing or damaged file, and BundleError for a feature that dragoman does not have.
        """


STEP_SUFFIXES = STEP_SUFFIX, INPUT_STEP_SUFFIX
FORMATS: tuple[SourceFormat, ...] = (
    argos_package,
    huggingface_marian,
    huggingface_m2m100,
    huggingface_fsmt,
    huggingface_bart,
    huggingface_t5,
    huggingface_whisper,
    opennmt_py,
    fairseq_transformer,
    eole,
    joeynmt,
    marian_npz,
    ctranslate2_model,
)
"""Formats in the order in which they are tried."""


@dataclass(frozen=True)
class ConversionResult:
    """Written bundle.

    Attributes:
        path: folder of the bundle
        origin: format, name, license and languages of the source
        parameters: number of weights
        num_bytes: size of the bundle in bytes
        notes: differences to the source, one sentence each
    """

    path: Path
    origin: ModelOrigin
    parameters: int
    num_bytes: int
    notes: tuple[str, ...]


def convert(
    source: str | Path,
    output: str | Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    revision: str | None = None,
    on_progress: Callable[[int, int], None] = lambda written, total: None,
) -> ConversionResult:
    """Convert a model of another toolkit into a bundle, which `dragoman.load` opens. Nothing of the source is executed.

    Args:
        source: folder of the model, one checkpoint `*.pt` of such a folder, an `.argosmodel` package, or a name on the Hugging
            Face hub, such as Helsinki-NLP/opus-mt-en-de (extra `hub`)
        output: folder of the new bundle
        source_language, target_language: language codes, if the source does not state them; the default languages of a model
            of many languages
        revision: branch, tag or commit on the hub; the newest one by default
        on_progress: receives the number of bytes that are written, and the number of all bytes

    Raises:
        DataError: the source cannot be read, is damaged, or has an unknown format.
        BundleError: the model has a feature that dragoman does not have.
        OutputError: the output exists or cannot be written.
    """
    output = Path(output)
    check_path_is_free(output)
    files, name = _find_files(str(source), revision)
    source_format = _detect_format(files)
    model = source_format.read(files, ConversionOptions(name, source_language, target_language))
    weights = _check_weights(model, files.folder)
    metadata = BundleMetadata(
        parameters=sum(stream.size for name, stream in weights.items() if not name.endswith(STEP_SUFFIXES)),
        origin=model.origin,
        alignment=model.alignment,
        speech=model.speech,
        dragoman=__version__,
    )
    save_bundle(
        output,
        recipe=model.recipe,
        tokenizer=model.tokenizer,
        weights=_report_progress(weights, on_progress),
        metadata=metadata,
        shortlist=model.shortlist,
    )
    return ConversionResult(
        output,
        model.origin,
        metadata.parameters or 0,
        sum(file.stat().st_size for file in output.iterdir()),
        model.notes,
    )


def _find_files(source: str, revision: str | None) -> tuple[SourceFiles, str]:
    """Return the files of a source, and its name for the metadata."""
    path = Path(source)
    if path.exists() and revision is not None:
        raise DataError(f"revision = {revision!r}: is for models of the hub, and {source} is not one; leave it out")
    if path.is_dir():
        return SourceFiles(path), path.resolve().name
    if path.suffix == argos_package.SUFFIX and path.is_file():
        return argos_package.open_package(path), path.stem
    if path.suffix == CHECKPOINT_SUFFIX and path.is_file():
        return SourceFiles(path.parent, path.name), path.resolve().parent.name
    if path.exists():
        raise DataError(
            f"{source}: is a file; give the folder of the model, a checkpoint {CHECKPOINT_SUFFIX}, or a package "
            f"{argos_package.SUFFIX}",
            code="unknown-format",
        )
    if not is_hub_name(source):
        raise DataError(
            f"{source}: there is no such folder; give a folder or a name such as owner/model", code="file-not-found"
        )
    folder, name = download_model(source, revision)
    return SourceFiles(folder), name


def _detect_format(files: SourceFiles) -> SourceFormat:
    if ADAPTER_FILE in files:
        raise BundleError(
            f"{files.folder}: has an adapter of PEFT ({ADAPTER_FILE}), whose weights are not those of its model; merge it with "
            "merge_and_unload(), and save the model in another folder",
            code="conversion-unsupported",
        )
    for source_format in FORMATS:
        if source_format.detect(files):
            return source_format
    problem = "has no known format"
    if SETTINGS_FILE in files and (model_type := files.read_json_object(SETTINGS_FILE).get("model_type")) is not None:
        known = "bart, fsmt, m2m_100, marian, mbart, mt5, t5 and whisper"
        problem = f"its {SETTINGS_FILE} has model_type = {model_type!r:.60}, and dragoman converts {known}"
    raise DataError(
        f"{files.folder}: {problem}; dragoman converts {', '.join(candidate.NAME for candidate in FORMATS)}",
        code="unknown-format",
    )


def _check_weights(model: ConvertedModel, folder: Path) -> dict[str, TensorStream]:
    """Return the weights, whose values are checked while they are written.

    Raises:
        DataError: the source has other weights, shapes or types than its settings describe.
    """
    source_size, target_size = len(model.tokenizer.source), len(model.tokenizer.target)
    expected = list_shapes(model.recipe.model, source_vocab_size=source_size, target_vocab_size=target_size)
    matrices = {name for name in model.weights if not name.endswith(STEP_SUFFIXES)}
    if different := sorted(expected.keys() ^ matrices):
        raise BundleError(f"{folder}: weight {different[0]} has no counterpart; report this", code="conversion-unsupported")
    for name, shape in expected.items():
        stream = model.weights[name]
        is_int8 = get_dtype_name(stream) == "int8" and name + STEP_SUFFIX in model.weights
        if stream.shape != shape or not (is_floating_point(stream) or is_int8):
            raise DataError(
                f"{folder}: the weights for {name} have the shape {stream.shape} and the type {get_dtype_name(stream)}, but "
                f"the settings describe {shape}; copy the files again",
                code="source-damaged",
            )
    return {name: _check_values(name, stream, folder) for name, stream in model.weights.items()}


def _check_values(name: str, stream: TensorStream, folder: Path) -> TensorStream:
    """Return a stream that raises DataError for a value that is not a finite number."""

    def iter_chunks() -> Iterator[Array]:
        for chunk in stream.iter_chunks():
            values = widen(chunk)
            if values.size and not (np.isfinite(values.min()) and np.isfinite(values.max())):
                raise DataError(
                    f"{folder}: the weights for {name} hold values that are not finite numbers; copy the files again",
                    code="source-damaged",
                )
            yield chunk

    return replace(stream, iter_chunks=iter_chunks)


def _report_progress(weights: Mapping[str, TensorStream], on_progress: Callable[[int, int], None]) -> dict[str, TensorStream]:
    """Return streams that report the bytes that were written."""
    total = sum(stream.nbytes for stream in weights.values())
    written = 0

    def watch(stream: TensorStream) -> TensorStream:
        def iter_chunks() -> Iterator[Array]:
            nonlocal written
            for chunk in stream.iter_chunks():
                yield chunk
                written += chunk.nbytes
                on_progress(written, total)

        return replace(stream, iter_chunks=iter_chunks)

    return {name: watch(stream) for name, stream in weights.items()}
