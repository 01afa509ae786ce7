"""Conversion of Argos packages: round trips, installed packages, and archives that are hostile or damaged."""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from damaged_sources import check_refusal, converts_or_raises, damage_bytes
from dragoman.bundle import Bundle, load_bundle, save_bundle
from dragoman.conversion import zip_archive
from dragoman.export.argos import export_argos
from dragoman.model.weights import collect_weights
from torch_models import bundle_model

pytest.importorskip("ctranslate2", reason="a package holds a model of CTranslate2, which is not installed")
pytestmark = pytest.mark.usefixtures("one_core")
FOLDER = "translate-en_de-1_0"


@pytest.fixture(scope="module")
def exported(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("argos") / "en_de.argosmodel"
    export_argos(load_bundle(bundle), path)
    return path


@pytest.fixture(scope="module")
def contents(exported: Path) -> dict[str, bytes]:
    """Entries of the package by name."""
    with zipfile.ZipFile(exported) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_package(path: Path, contents: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def translate(path: Path, lines: list[str]) -> list[str]:
    translator = dragoman.load(path, task="translation", device="cpu", precision="float32")
    options: Any = {"beam_size": 4, "length_penalty": "power", "alpha": 0.2, "early_stopping": "beam_full", "min_length": 0}
    return [translation.text for translation in translator.translate(lines, max_extra_tokens=9, **options)]


def dequantized(bundle: Bundle) -> Bundle:
    """Return the model with the weights that int8 leaves: each row rounded to whole numbers times max |w| / 127."""
    model = copy.deepcopy(bundle.model)
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and "positions" not in name:
            scale = 127 / weight.data.abs().amax(1, keepdim=True).clamp_min(1e-30)
            weight.data = (weight.data * scale).round() / scale
    return bundle_model(bundle.recipe, bundle.tokenizer, model, bundle.metadata)


def test_package_of_dragoman_converts_back(bundle: Path, exported: Path, corpus: Path, tmp_path: Path) -> None:
    """The weights of the package are int8, and so are those of the reference."""
    result = dragoman.convert(exported, tmp_path / "again")
    assert (result.origin.format, result.origin.name) == ("argos", "en_de")
    assert (result.origin.source_languages, result.origin.target_languages) == (["en"], ["de"])
    assert any("sentences" in note for note in result.notes)
    recipe = load_bundle(tmp_path / "again").recipe
    assert (recipe.decoding.beam_size, recipe.decoding.alpha, recipe.decoding.length_penalty) == (4, 0.2, "power")
    rounded = dequantized(load_bundle(bundle))
    save_bundle(
        tmp_path / "rounded",
        recipe=rounded.recipe,
        tokenizer=rounded.tokenizer,
        weights=collect_weights(rounded.model),
        metadata=rounded.metadata,
    )
    lines = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert translate(tmp_path / "again", lines) == translate(tmp_path / "rounded", lines)


def test_installed_package_gives_the_same_bundle(exported: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(exported) as archive:
        archive.extractall(tmp_path)
    dragoman.convert(exported, tmp_path / "first")
    dragoman.convert(tmp_path / FOLDER, tmp_path / "second")
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("first", "second")]
    assert weights[0] == weights[1]


def test_other_files_are_ignored(contents: dict[str, bytes], tmp_path: Path) -> None:
    """The sentence splitter is never unpacked, and names that lead out of the folder are not written."""
    names = [f"{FOLDER}/stanza/en/tokenize.pt", "../../outside.txt", "/outside.txt", f"{FOLDER}/model/../../../outside.txt"]
    package = write_package(tmp_path / "package.argosmodel", contents | dict.fromkeys(names, b"other"))
    dragoman.convert(package, tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "package.argosmodel"]
    assert not list(tmp_path.parent.glob("**/outside.txt"))


def test_codes_split_the_text(contents: dict[str, bytes], tmp_path: Path) -> None:
    """Old packages have codes of subword-nmt, whose text the Moses tokenizer splits."""
    changed = {name: content for name, content in contents.items() if not name.endswith("sentencepiece.model")}
    vocabulary = f"{FOLDER}/model/shared_vocabulary.json"
    tokens = [token.replace("▁", "_") for token in json.loads(changed[vocabulary])]
    tokens[4:6] = ["ab@@", "ab"]
    changed[vocabulary] = json.dumps(tokens).encode()
    changed[f"{FOLDER}/bpe.model"] = b"#version: 0.2\na b\na b</w>\n"
    result = dragoman.convert(write_package(tmp_path / "x.argosmodel", changed), tmp_path / "bundle")
    assert any("Moses" in note for note in result.notes)
    assert load_bundle(tmp_path / "bundle").tokenizer.encode_source("ab abx")[:2] == [5, 4]


# Refusals


def edit_metadata(**changes: Any) -> Callable[[dict[str, bytes]], object]:
    """Return a change of metadata.json."""

    def change(contents: dict[str, bytes]) -> None:
        name = f"{FOLDER}/metadata.json"
        contents[name] = json.dumps(json.loads(contents[name]) | changes).encode()

    return change


def drop(name: str) -> Callable[[dict[str, bytes]], object]:
    return lambda contents: contents.pop(f"{FOLDER}/{name}")


def put(name: str, content: bytes) -> Callable[[dict[str, bytes]], object]:
    return lambda contents: contents.update({name: content})


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (edit_metadata(type="sbd"), "conversion-unsupported", "type"),
        (edit_metadata(target_prefix="__de__"), "conversion-unsupported", "target_prefix"),
        (drop("metadata.json"), "source-damaged", "metadata.json"),
        (put("other/metadata.json", b"{}"), "source-damaged", "2 files metadata.json"),
        (put(f"{FOLDER}/metadata.json", b"["), "source-damaged", "metadata.json"),
        (drop("sentencepiece.model"), "source-damaged", "sentencepiece.model"),
        (put(f"{FOLDER}/sentencepiece.model", b"x"), "tokenizer-damaged", "sentencepiece.model"),
        (drop("model/model.bin"), "source-damaged", "model.bin"),
        (put(f"{FOLDER}/model/model.bin", b""), "source-damaged", "model.bin"),
        (put(f"{FOLDER}/model/model.bin", b"x" * 100), "conversion-unsupported", "version"),
        (drop("model/shared_vocabulary.json"), "source-damaged", "shared_vocabulary.json"),
    ],
)
def test_false_package_raises(
    change: Callable[[dict[str, bytes]], object], code: str, name: str, contents: dict[str, bytes], tmp_path: Path
) -> None:
    changed = dict(contents)
    change(changed)
    package = write_package(tmp_path / "x.argosmodel", changed)
    check_refusal(package, code, name)


def test_zip_bomb_raises(contents: dict[str, bytes], tmp_path: Path) -> None:
    """Forty MiB of zeros are compressed to 40 KiB."""
    changed = contents | {f"{FOLDER}/model/model.bin": bytes(40 * 2**20)}
    package = write_package(tmp_path / "x.argosmodel", changed)
    assert package.stat().st_size < 2**20
    check_refusal(package, "source-damaged", "times its size")


def test_false_size_of_an_entry_raises(contents: dict[str, bytes], tmp_path: Path) -> None:
    """The directory states fewer bytes than the entry has, so that a limit on the stated size does not hold."""
    package = write_package(tmp_path / "x.argosmodel", {f"{FOLDER}/metadata.json": bytes(20 * 2**20)})
    data = bytearray(package.read_bytes())
    directory = data.rfind(b"PK\x01\x02")
    struct.pack_into("<L", data, directory + 24, 100)
    package.write_bytes(data)
    check_refusal(package, "source-damaged")


def test_huge_directory_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_archive, "MAX_DIRECTORY_BYTES", 1000)
    package = write_package(tmp_path / "x.argosmodel", {f"x{index}": b"" for index in range(100)})
    check_refusal(package, "source-damaged", "directory")


@pytest.mark.parametrize("content", [b"", b"PK", b"\0" * 1000, b"PK\x05\x06" + bytes(18)])
def test_other_file_raises(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.argosmodel").write_bytes(content)
    check_refusal(tmp_path / "x.argosmodel", "source-damaged")
    check_refusal(Path(shutil.copy(tmp_path / "x.argosmodel", tmp_path / "x.zip")), "unknown-format", ".argosmodel")


@pytest.mark.slow
def test_damaged_packages_give_one_line(contents: dict[str, bytes], tmp_path: Path) -> None:
    """Damage the archive, or an entry, in 1,000 ways: the result is a bundle, or one error of one line."""
    chance, num_good = random.Random(1), 0
    package = tmp_path / "x.argosmodel"
    data = write_package(package, contents, zipfile.ZIP_STORED).read_bytes()
    directory = data.find(b"PK\x01\x02")
    for index in range(1000):
        match index % 3:
            case 0:
                package.write_bytes(data[:directory] + damage_bytes(data[directory:], chance))
            case 1:
                package.write_bytes(damage_bytes(data, chance))
            case _:
                name = chance.choice(sorted(contents))
                head = contents[name][:2000]
                changed = contents | {name: damage_bytes(head, chance) + contents[name][2000:]}
                package.write_bytes(write_package(io.BytesIO(), changed, zipfile.ZIP_STORED).getvalue())  # type: ignore[arg-type, attr-defined]
        num_good += converts_or_raises(package, tmp_path / "damaged", is_written=index % 20 == 0)
        assert {path.name for path in tmp_path.iterdir()} <= {"x.argosmodel"}
    assert num_good == 1000
