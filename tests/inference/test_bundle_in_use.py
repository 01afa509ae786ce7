"""Bundles and shortlists stay as they were loaded when other programs overwrite or cut their files."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dragoman.bundle import load_bundle
from dragoman.errors import BundleError
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.inference.forced_decoder import build_forced_decoder
from dragoman.inference.lexical_shortlist import build_shortlist
from dragoman.inference.load import load
from dragoman.inference.translator import Translator
from dragoman.io.mapped_file import CHUNK_BYTES, MappedFile
from dragoman.runtime.shared_weights import share_weights
from dragoman.serving.bundle_copies import BundleCopies
from dragoman.shortlist import read_shortlist

TEXTS = ["one red two", "big blue three four", "ten small nine"]
REFERENCES = ["eins rot zwei", "groß", "zehn"]


def overwrite(folder: Path) -> None:
    """Write other bytes into every file of a folder and cut it, as `cp` and `rsync --inplace` do. The inode stays."""
    for path in folder.iterdir():
        half = path.read_bytes()[: path.stat().st_size // 2]
        with path.open("r+b") as file:
            file.write(bytes(byte ^ 0x5A for byte in half))
            file.truncate()


def read_checksum(copy: MappedFile) -> dict[str, object]:
    """Return the checksum that a thread computes of a copy."""
    assert copy.checksum is not None
    return copy.checksum.result()


def describe(translator: Translator) -> list[object]:
    """Return translations, attention and scores: all that reads the weights."""
    translations = translator.translate(TEXTS, attention=True)
    scores = translator.score(TEXTS, REFERENCES)
    return [(item.text, item.score, np.array(item.attention).tolist()) for item in translations] + list(scores)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_answers_stay_when_the_bundle_changes(bundle_copy: Path, precision: str) -> None:
    expected = describe(load(bundle_copy, task="translation", device="cpu", precision=precision))
    used, unused = (load(bundle_copy, task="translation", device="cpu", precision=precision) for _ in range(2))
    used.translate(TEXTS)
    overwrite(bundle_copy)
    assert describe(used) == expected
    assert describe(unused) == expected  # its weights are packed only now


def test_shortlist_stays_when_its_folder_changes(bundle: Path, tmp_path: Path) -> None:
    opened = load_bundle(bundle)
    shortlist, _ = build_shortlist(
        opened, build_forced_decoder(TrainedModel.from_bundle(opened)), TEXTS, REFERENCES, per_token=3, num_frequent=4
    )
    shortlist.save(tmp_path / "shortlist")
    present = read_shortlist(tmp_path / "shortlist", opened.tokenizer)
    overwrite(tmp_path / "shortlist")
    assert np.array_equal(present.candidates_VK, shortlist.candidates_VK)
    assert np.array_equal(present.frequent_F, shortlist.frequent_F)


def test_file_is_read_into_memory_without_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    copy = MappedFile.copy(tmp_path / "file", "sha256").result()
    (tmp_path / "file").write_bytes(b"")
    copy.release()
    assert not isinstance(copy.content, mmap.mmap)
    assert bytes(copy.content) == b"abc" * 1000
    assert read_checksum(copy) == {"bytes": 3000, "sha256": hashlib.sha256(b"abc" * 1000).hexdigest()}


def test_digest_of_a_copy_covers_every_chunk(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2 * CHUNK_BYTES + 3)
    (tmp_path / "file").write_bytes(content)
    copy = MappedFile.copy(tmp_path / "file", "sha256").result()
    assert read_checksum(copy) == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems copy in Python")
def test_copy_is_whole_where_the_system_copies_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may refuse the call, also after some bytes."""
    content = np.random.default_rng(0).bytes(300_000)
    (tmp_path / "file").write_bytes(content)
    send_file = os.sendfile
    parts = iter([100_000])

    def send_part(target: int, source: int, offset: None, count: int) -> int:
        for size in parts:
            return send_file(target, source, offset, size)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", send_part)
    copy = MappedFile.copy(tmp_path / "file", "sha256").result()
    assert bytes(copy.content) == content
    assert read_checksum(copy) == {"bytes": 300_000, "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux reports the resident memory of files")
def test_rows_of_a_copy_take_little_memory(tmp_path: Path) -> None:
    """Linux maps at most 64 KiB around each address, unless the copy was written in larger blocks."""
    (tmp_path / "file").write_bytes(bytes(2**25))
    copy = MappedFile.copy(tmp_path / "file", "sha256").result()
    read_checksum(copy)  # which reads the whole copy
    before = _read_resident_kib()
    for start in range(0, 2**25, 2**21):
        assert copy.content[start] == 0
    assert _read_resident_kib() - before <= 16 * 64 + 256  # the test itself reads pages of libraries


def _read_resident_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))


def test_processes_load_the_same_copy(bundle_copy: Path, tmp_path: Path) -> None:
    """A damaged bundle leaves the copies as they are, and a whole one replaces them."""
    folder = tmp_path / "shared"
    folder.mkdir()
    copies = BundleCopies([bundle_copy], folder)
    copies.update()
    expected = [item.text for item in load(bundle_copy, task="translation", device="cpu").translate(TEXTS)]
    whole = {path.name: path.read_bytes() for path in bundle_copy.iterdir()}
    overwrite(bundle_copy)
    with pytest.raises(BundleError, match=str(bundle_copy)):
        copies.update()
    share_weights(folder)
    try:
        assert [item.text for item in load(bundle_copy, task="translation", device="cpu").translate(TEXTS)] == expected
    finally:
        share_weights(None)
    for name, content in whole.items():
        (bundle_copy / name).write_bytes(content)
    copies.update()
    copies.remove_former()
    assert [path.name for path in (folder / "bundles").iterdir()] == ["3"]
