"""A thousand damaged or hostile folders of each family: no code runs, no file leaves the target, and each error is one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

import dragoman
import fsmt_folders
import marian_folders
from dragoman.bundle import load_bundle
from dragoman.errors import DragomanError

pytestmark = pytest.mark.slow

NUM_FILES = 1000
MAX_LOADED = 20
"""Bundles of a family that are loaded, of those that were converted despite their damage."""
MAX_GROWTH_BYTES = 48 << 20
"""Resident memory that all conversions of a family may add; a zip bomb of the test would add 64 MiB."""
CLEAR_REFS = Path("/proc/self/clear_refs")
HOSTILE_VALUES: list[Any] = [
    -1, 0, 1, 3, 10**9, 2**63, 10**400, 0.5, True, None, "", "../../outside", "/etc/passwd", "a" * 10_000, [], {}, [[]], [-1],
    {"a": {"b": []}}, "\n\n", "\x00",
]  # fmt: skip
HOSTILE_NAMES = ["../outside.safetensors", "/etc/passwd", "..", ".", "", "a/../../b", "model.safetensors\x00", "~/x"]


class RunsCode:
    """Object whose pickle runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


class Family:
    """Folder of one family, and its hostile variants.

    contents: content of each file
    """

    def __init__(self, folder: Path, marker: Path) -> None:
        self.folder = folder
        self.marker = marker
        self.contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.is_fairseq = "model.pt" in self.contents
        self.weights_name = "model.pt" if self.is_fairseq else "model.safetensors"
        self.checkpoint_name = "model.pt" if self.is_fairseq else "pytorch_model.bin"
        # The checkpoint is a file of this test, so torch may read it as a pickle.
        document: Any = (
            torch.load(folder / "model.pt", weights_only=False) if self.is_fairseq else load_file(folder / "model.safetensors")
        )
        self.document: dict[str, Any] = document
        tensors: Any = self.document["model"] if self.is_fairseq else self.document
        self.tensors: dict[str, Any] = tensors
        self.bomb = _make_zip({"archive/data.pkl": b"\x80\x02}.", "archive/data/0": bytes(64 << 20)}, zipfile.ZIP_DEFLATED)

    def damage(self, chance: random.Random) -> dict[str, bytes | None]:
        """Return new contents of files; None removes a file."""
        choices: list[Callable[[random.Random], dict[str, bytes | None]]] = [
            self._flip_bytes, self._flip_bytes, self._add_code, self._change_shape, self._change_setting, self._lead_outside,
            self._claim_size, self._compress, self._remove,
        ]  # fmt: skip
        return chance.choice(choices)(chance)

    def _flip_bytes(self, chance: random.Random) -> dict[str, bytes | None]:
        name = chance.choice(sorted(self.contents))
        data = bytearray(self.contents[name])
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[start] ^= 1 << chance.randrange(8)
                case 1:
                    del data[start : start + chance.randint(1, 64)]
                case 2:
                    data[start:start] = chance.randbytes(chance.randint(1, 16))
        return {name: bytes(data)}

    def _add_code(self, chance: random.Random) -> dict[str, bytes | None]:
        hostile = RunsCode(self.marker)
        name = chance.choice(sorted(self.tensors))
        values: list[Any] = [hostile, [hostile], {"x": hostile}, {**self.document, "extra": hostile}, {hostile: 1}]
        values += [self._with_tensors({**self.tensors, name: hostile})]
        if chance.random() < 0.2:
            return self._as_checkpoint(pickle.dumps(chance.choice(values[:3])))
        return self._save(chance.choice(values), chance)

    def _change_shape(self, chance: random.Random) -> dict[str, bytes | None]:
        name = chance.choice(sorted(self.tensors))
        tensor = self.tensors[name]
        changed: list[Any] = [
            tensor.flatten()[:-1], tensor[None], tensor.flatten()[:0], torch.zeros(()), tensor.long(), tensor * torch.nan,
            torch.zeros(2, 3), torch.zeros(1).expand(1000, 1000),
        ]  # fmt: skip
        tensors = dict(self.tensors) | {name: chance.choice(changed)}
        if chance.random() < 0.2:
            del tensors[name]
        if self.is_fairseq or chance.random() < 0.5:
            return self._save(self._with_tensors(tensors), chance)
        return {self.weights_name: save({key: value.clone().contiguous() for key, value in tensors.items()})}

    def _change_setting(self, chance: random.Random) -> dict[str, bytes | None]:
        value = chance.choice(HOSTILE_VALUES)
        if self.is_fairseq:
            args = vars(self.document["args"])
            key = chance.choice(sorted(args))
            return self._save({**self.document, "args": type(self.document["args"])(**{**args, key: value})}, chance)
        name = chance.choice(sorted(name for name in self.contents if name.endswith(".json")))
        document = json.loads(self.contents[name])
        document[chance.choice(sorted(document) or ["x"])] = value
        return {name: json.dumps(document).encode()}

    def _lead_outside(self, chance: random.Random) -> dict[str, bytes | None]:
        name = chance.choice(HOSTILE_NAMES)
        if self.is_fairseq:
            args = vars(self.document["args"]) | {chance.choice(["source_lang", "target_lang"]): name}
            return self._save({**self.document, "args": type(self.document["args"])(**args)}, chance)
        index = chance.choice(["model.safetensors.index.json", "pytorch_model.bin.index.json"])
        weight_map: Any = dict.fromkeys(self.tensors, name)
        if chance.random() < 0.2:
            weight_map = chance.choice(HOSTILE_VALUES)
        return {self.weights_name: None, index: json.dumps({"weight_map": weight_map}).encode()}

    def _claim_size(self, chance: random.Random) -> dict[str, bytes | None]:
        """Write a huge number where a file states a size."""
        size = chance.choice([2**31 - 1, 2**32 - 1, 2**40, 2**60, 2**63 - 1])
        if not self.is_fairseq and chance.random() < 0.5:
            data = bytearray(self.contents["model.safetensors"])
            if chance.random() < 0.5:
                data[:8] = struct.pack("<Q", size)
                return {"model.safetensors": bytes(data)}
            return {"model.safetensors": bytes(data).replace(b"[0,", b"[%d," % size, 1)}
        (data,) = (bytearray(data) for data in self._save(self.document, chance).values() if data is not None)
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(data) - 8)
            data[start : start + 8] = struct.pack("<Q", size)
        if data[:2] == b"PK" and chance.random() < 0.5:
            struct.pack_into("<L", data, data.rfind(b"PK\x05\x06") + chance.choice([12, 16]), size & 0xFFFFFFFF)
        return self._as_checkpoint(bytes(data))

    def _compress(self, chance: random.Random) -> dict[str, bytes | None]:
        """Write a zip bomb, or a zip file with names of other folders."""
        if chance.random() < 0.5:
            return self._as_checkpoint(self.bomb)
        names = [f"archive/data/{name}" for name in HOSTILE_NAMES] + [f"../{name}" for name in HOSTILE_NAMES]
        return self._as_checkpoint(_make_zip({"archive/data.pkl": b"\x80\x02}.", **dict.fromkeys(names, b"x")}))

    def _remove(self, chance: random.Random) -> dict[str, bytes | None]:
        return {chance.choice(sorted(self.contents)): chance.choice([None, b"", b"[" * 100_000])}

    def _with_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.document, "model": tensors} if self.is_fairseq else dict(tensors)

    def _save(self, value: Any, chance: random.Random) -> dict[str, bytes | None]:
        """Return a checkpoint in one of PyTorch's two formats."""
        buffer = io.BytesIO()
        torch.save(value, buffer, _use_new_zipfile_serialization=chance.random() < 0.5)
        return self._as_checkpoint(buffer.getvalue())

    def _as_checkpoint(self, data: bytes) -> dict[str, bytes | None]:
        return {self.weights_name: None, self.checkpoint_name: data}


def _make_zip(entries: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def write_marian(folder: Path) -> None:
    marian_folders.write_folder(folder)


def write_m2m100(folder: Path) -> None:
    pytest.importorskip("transformers", reason="M2M-100 needs transformers: dragoman[test]")
    from test_huggingface_m2m100 import write_folder

    write_folder(folder, "m2m100")


def write_fsmt(folder: Path) -> None:
    fsmt_folders.write_folder(folder, is_shared=True)


def write_fairseq(folder: Path) -> None:
    from test_fairseq_transformer import write_variant

    write_variant(folder, share_all_embeddings=True)


def read_resident_bytes(key: str) -> int:
    """Return VmRSS, or VmHWM: the peak since it was last cleared."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("write", [write_marian, write_m2m100, write_fsmt, write_fairseq])
def test_thousand_hostile_folders(write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output, marker = tmp_path / "source", tmp_path / "target" / "bundle", tmp_path / "executed"
    write(source)
    (tmp_path / "empty").mkdir()
    output.parent.mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    family, chance = Family(source, marker), random.Random(1)
    outcomes: list[str] = []
    dragoman.convert(source, output.with_name("first"))  # imports what conversions need
    peak = 0
    for _ in range(NUM_FILES):
        changes = family.damage(chance)
        for name, data in changes.items():
            write_or_remove(source / name, data)
        if can_measure := os.access(CLEAR_REFS, os.W_OK):
            CLEAR_REFS.write_text("5")
            before = read_resident_bytes("VmRSS")
        outcomes.append(convert(source, output, must_load=outcomes.count("converted") < MAX_LOADED))
        if can_measure:
            peak = max(peak, read_resident_bytes("VmHWM") - before)
        for name in changes:
            write_or_remove(source / name, family.contents.get(name))
    assert not marker.exists()
    assert peak < MAX_GROWTH_BYTES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "source", "target"]
    assert not list((tmp_path / "empty").iterdir())
    assert [path.name for path in output.parent.iterdir()] == ["first"]
    assert {"source-damaged", "checkpoint-unsafe", "conversion-unsupported"} <= set(outcomes)
    assert not {"several lines", "written"} & set(outcomes)
    assert outcomes.count("converted") < NUM_FILES / 2


def convert(source: Path, output: Path, *, must_load: bool) -> str:
    """Return the code of the error of one line, or `converted`. must_load: load the new bundle before it is removed"""
    try:
        dragoman.convert(source, output)
    except DragomanError as error:
        message, is_written = str(error), output.exists()
        return "several lines" if "\n" in message else "written" if is_written else error.code
    if must_load:
        load_bundle(output)
    shutil.rmtree(output)
    return "converted"


def write_or_remove(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)
