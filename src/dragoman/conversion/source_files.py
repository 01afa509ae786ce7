"""Files of a model to convert: names inside of one folder, bounded sizes, and tensors that are mapped into memory."""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from safetensors import SafetensorError

from dragoman.conversion.checkpoint_reader import CheckpointContent, read_checkpoint
from dragoman.conversion.mapped_arrays import Array, NamedArrays, damaged, map_file, unreadable
from dragoman.errors import BundleError, DataError
from dragoman.io.mapped_file import MappedFile
from dragoman.io.safetensors import StoredArrays

MAX_JSON_BYTES = 2**27
"""Size of the largest JSON file that is read: a vocabulary of a few million pieces."""
MAX_FILE_BYTES = 2**28
"""Size of the largest other file that is read as a whole, such as a SentencePiece model."""
SAFETENSORS_FILE, CHECKPOINT_FILE = "model.safetensors", "pytorch_model.bin"
MAX_UNUSED_IDS = 2**16
"""Largest number of ids without a piece."""
MAX_INTEGER = 2**63 - 1
"""Largest whole number of a setting."""
CHECKPOINT_SUFFIX = ".pt"
"""Ending of the checkpoints of fairseq and OpenNMT-py."""
OTHER_CHECKPOINTS = (".vocab.pt", "optimizer.pt", "scheduler.pt", "scaler.pt")
"""Endings of files beside a model: vocabularies of OpenNMT-py, and the state of a training by OpenNMT-py or transformers."""
SETTINGS_FILE = "config.json"
"""File that tells which tensors a folder of Hugging Face has."""


SourceTensors = NamedArrays[Array]
"""Tensors of a model by name, as arrays that are views of mapped files."""


class SourceFiles:
    """Files of a folder. A name never leads out of the folder, except through a link of the folder's owner.

    Args:
        folder: the folder
        checkpoint: the only file `*.pt` that counts; None for all
    """

    def __init__(self, folder: Path, checkpoint: str | None = None) -> None:
        self.folder = folder
        self.checkpoint = checkpoint

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the files in the folder, other checkpoints left out. Raise DataError if it cannot be listed."""
        try:
            names = [entry.name for entry in self.folder.iterdir() if entry.is_file()]
        except OSError as error:
            raise unreadable(self.folder, error) from None
        leaves_out = self.checkpoint is not None
        return frozenset(
            name for name in names if name == self.checkpoint or not (leaves_out and name.endswith(CHECKPOINT_SUFFIX))
        )

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def path(self, name: str) -> Path:
        """Return the path of a file. Raise DataError if the folder has no such file."""
        if name not in self.names:
            raise DataError(
                f"{self.folder}: has no {name[:100]!r}; copy all files of the model into the folder", code="source-damaged"
            )
        return self.folder / name

    def read_bytes(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raise DataError if it is missing, unreadable, or larger than `max_bytes`."""
        path = self.path(name)
        try:
            with path.open("rb") as file:
                # A read of more bytes than the file has reserves memory for all of them.
                data = file.read(min(max_bytes, os.fstat(file.fileno()).st_size) + 1)
        except OSError as error:
            raise unreadable(path, error) from None
        if len(data) > max_bytes:
            raise damaged(path, f"has more than {max_bytes:,} bytes")
        return data

    def map_file(self, name: str) -> mmap.mmap:
        """Return the bytes of a file, mapped for reading. Raise DataError if it is missing, empty or unreadable."""
        return map_file(self.path(name))

    def subfolder(self, name: str) -> SourceFiles:
        """Return the files of a folder inside of this one."""
        return SourceFiles(self.folder / name)

    def read_text(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> str:
        """Return the content of a UTF-8 file; see `read_bytes`."""
        try:
            return self.read_bytes(name, max_bytes).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise damaged(self.folder / name, "is not UTF-8") from None

    def read_json_object(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file. Raise DataError if the file does not hold one."""
        try:
            document = json.loads(self.read_text(name, MAX_JSON_BYTES))
        except (ValueError, RecursionError):  # the first includes a number of thousands of digits
            raise damaged(self.folder / name, "is not valid JSON") from None
        if not isinstance(document, dict):
            raise damaged(self.folder / name, "is not a JSON object")
        return document

    def find_json_object(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file; an empty one without the file."""
        return self.read_json_object(name) if name in self else {}

    def read_settings(self, name: str) -> ModelSettings:
        """Return the settings in a JSON file. Raise DataError if it is missing or damaged."""
        return ModelSettings(self.read_json_object(name), self.folder / name)

    def find_settings(self, name: str) -> ModelSettings:
        """Return the settings in a JSON file; none without the file."""
        return ModelSettings(self.find_json_object(name), self.folder / name)

    @property
    def model_type(self) -> object:
        """Name of the architecture in the `config.json` of Hugging Face; None without one."""
        return self.find_json_object(SETTINGS_FILE).get("model_type")

    def open_tensors(self) -> SourceTensors:
        """Return the tensors of `model.safetensors` or `pytorch_model.bin`, in one file or in the files of an index.

        Raises:
            DataError: there is no such file, or it is damaged.
        """
        for file_name in (SAFETENSORS_FILE, CHECKPOINT_FILE):
            if file_name in self:
                return _open_file(self.path(file_name))
            if (index_name := f"{file_name}.index.json") in self:
                return self._open_shards(index_name)
        raise DataError(
            f"{self.folder}: has neither {SAFETENSORS_FILE} nor {CHECKPOINT_FILE}; copy the weights into the folder",
            code="source-damaged",
        )

    def open_parts(self, names: Sequence[str]) -> SourceTensors:
        """Return the tensors of several safetensors files. Raise DataError if one is missing or damaged."""
        parts = [_open_file(self.path(name)) for name in names]
        tensors = {name: tensor for part in parts for name, tensor in part.items()}

        def release() -> None:
            for part in parts:
                part.release()

        return SourceTensors(tensors, release, parts[0].location, settings=SETTINGS_FILE)

    def _open_shards(self, index_name: str) -> SourceTensors:
        weight_map = self.read_json_object(index_name).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise damaged(self.folder / index_name, "has no weight_map")
        shards = {name: _open_file(self.path(name)) for name in sorted(set(weight_map.values()))}
        tensors = {name: shards[file_name][name] for name, file_name in weight_map.items()}

        def release() -> None:
            for shard in shards.values():
                shard.release()

        return SourceTensors(tensors, release, self.folder / index_name, settings=SETTINGS_FILE)


def list_checkpoints(files: SourceFiles) -> list[str]:
    """Return the names of the files `*.pt` that may hold a model."""
    return sorted(name for name in files.names if name.endswith(CHECKPOINT_SUFFIX) and not name.endswith(OTHER_CHECKPOINTS))


def open_checkpoint(files: SourceFiles, inert_classes: Collection[str]) -> tuple[Path, CheckpointContent]:
    """Return the path and the content of the only checkpoint. Raise DataError if it is damaged, or one of several."""
    names = list_checkpoints(files)
    if len(names) > 1:
        raise DataError(
            f"{files.folder}: has {len(names)} checkpoints: {', '.join(names)[:200]}; give the path of one of them instead of "
            "the folder",
            code="source-damaged",
        )
    path = files.path(names[0])
    return path, read_checkpoint(path, inert_classes=inert_classes)


def is_state_dict(value: Any) -> TypeGuard[dict[str, Array]]:
    """Return whether a value of a checkpoint is a dictionary of tensors."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, np.ndarray) for name, tensor in value.items()
    )


def _open_file(path: Path) -> SourceTensors:
    """Return the tensors of one file. Raise DataError if it is damaged or holds something else."""
    if path.suffix == ".safetensors":
        try:
            mapped = StoredArrays(MappedFile.map(path), keeps_bfloat16=True)
        except (SafetensorError, OSError, ValueError) as error:
            raise damaged(path, f"cannot be read: {str(error).splitlines()[0][:200]}") from None
        return SourceTensors(mapped, mapped.release, path, settings=SETTINGS_FILE)
    checkpoint = read_checkpoint(path)
    value = checkpoint.value
    if not is_state_dict(value):
        raise damaged(path, "is not a dictionary of tensors")
    return SourceTensors(value, checkpoint.release, path, settings=SETTINGS_FILE)


class ModelSettings(Mapping[str, Any]):
    """Settings of a model from a JSON file, checked while they are read; null counts as not set.

    path: the file, for error messages
    """

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self.path = path

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number that is not negative. Raise DataError if it is missing or something else."""
        value = default if self._values.get(name) is None else self._values[name]
        if type(value) is not int or not 0 <= value <= MAX_INTEGER:
            raise damaged(self.path, f"{name} = {value!r:.60} is not a whole number from 0 up")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a finite number. Raise DataError if it is something else."""
        value = default if self._values.get(name) is None else self._values[name]
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise damaged(self.path, f"{name} = {value!r:.60} is not a finite number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return a truth value. Raise DataError if it is something else."""
        value = default if self._values.get(name) is None else self._values[name]
        if type(value) is not bool:
            raise damaged(self.path, f"{name} = {value!r:.60} is neither true nor false")
        return value

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """Return the value that dragoman has for the name in a setting. Raise BundleError for another name."""
        value = default if self._values.get(name) is None else self._values[name]
        if not isinstance(value, str) or value not in choices:
            raise self.refuse(name, f"dragoman has {', '.join(sorted(set(choices.values())))}")
        return choices[value]

    def check_vocab_size(self, vocab_size: int, num_pieces: int) -> None:
        """Raise DataError if a vocabulary has far more ids than pieces, each of which would take memory."""
        if vocab_size > num_pieces + MAX_UNUSED_IDS:
            raise damaged(self.path, f"describes a vocabulary of {vocab_size} tokens, but {num_pieces} pieces have an id")

    def refuse(self, name: str, problem: str) -> BundleError:
        """Return the error of a setting that dragoman cannot represent."""
        return BundleError(
            f"{self.path}: {name} = {self._values.get(name)!r:.60}: {problem}; this model cannot be converted",
            code="conversion-unsupported",
        )

    def require(self, name: str, expected: Any, default: Any) -> None:
        """Raise BundleError unless a setting has the one value that dragoman represents."""
        if self._values.get(name, default) != expected:
            raise self.refuse(name, f"dragoman has {name} = {expected!r} only")
