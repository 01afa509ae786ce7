"""Tensor files are opened with the checksum that their manifest has, and each kind of damage is refused in one line."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import dragoman.io.mapped_file
from conftest import reseal
from dragoman.errors import BundleError
from dragoman.io.storage import MANIFEST_FILE, atomic_dir, verify_checksums
from dragoman.runtime.tensor_files import TensorFiles

NAME = "weights.safetensors"
CHUNK_BYTES, BLOCK = 2**16, 4096


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with a file of random bytes, larger than a chunk of its copy."""
    monkeypatch.setattr(dragoman.io.mapped_file, "CHUNK_BYTES", CHUNK_BYTES)
    with atomic_dir(tmp_path / "folder") as partial:
        (partial / NAME).write_bytes(np.random.default_rng(0).bytes(CHUNK_BYTES + 5 * BLOCK))
        (partial / "config.json").write_text("{}")
    return tmp_path / "folder"


def read(folder: Path) -> bytes:
    with TensorFiles(folder, BundleError) as files:
        return bytes(files[NAME].content)


def flip_bit(content: bytearray) -> None:
    content[CHUNK_BYTES + 1] ^= 0x80


def swap_blocks(content: bytearray) -> None:
    content[:BLOCK], content[2 * BLOCK : 3 * BLOCK] = content[2 * BLOCK : 3 * BLOCK], content[:BLOCK]


def cut(content: bytearray) -> None:
    del content[-1:]


@pytest.mark.parametrize("has_crc32", [True, False])
def test_damage_is_refused(subtests: pytest.Subtests, folder: Path, has_crc32: bool) -> None:
    """A folder without CRC-32, as earlier versions wrote it, is checked by SHA-256."""
    if not has_crc32:
        reseal(folder)
    assert ("crc32" in json.loads((folder / MANIFEST_FILE).read_bytes())) == has_crc32
    path = folder / NAME
    content = path.read_bytes()
    assert read(folder) == content
    for damage in [flip_bit, swap_blocks, cut]:
        with subtests.test(damage=damage.__name__):
            changed = bytearray(content)
            damage(changed)
            path.write_bytes(changed)
            with pytest.raises(BundleError) as caught:
                read(folder)
            assert str(caught.value) == f"{path}: was changed or cut short after it was written; copy it again"


def test_opening_reads_crc32_and_the_full_check_sha256(folder: Path) -> None:
    """The manifest states the SHA-256 of other bytes, with a checksum of the manifest that fits."""
    path = folder / MANIFEST_FILE
    files = json.loads(path.read_bytes())["files"]
    files[NAME]["sha256"] = "0" * 64
    manifest = {"format": 1, "files": files, "crc32": f"{zlib.crc32(json.dumps(files).encode()):08x}"}
    path.write_text(json.dumps(manifest, indent=1))
    assert read(folder) == (folder / NAME).read_bytes()
    with pytest.raises(BundleError, match="was changed"):
        verify_checksums(folder, BundleError)


def test_file_that_cannot_be_opened_is_named(folder: Path) -> None:
    (folder / NAME).unlink()
    with pytest.raises(BundleError) as caught:
        read(folder)
    assert str(caught.value) == f"{folder}: {NAME!r} is missing; copy the folder again"
