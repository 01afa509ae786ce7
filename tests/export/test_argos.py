"""Exports to Argos Translate: the structure of the package by its documentation, and its model in CTranslate2."""

from __future__ import annotations

import copy
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

import dragoman
from dragoman.bundle import Bundle, load_bundle
from dragoman.export.argos import export_argos
from dragoman.export.ctranslate2 import build_spec
from expected_errors import raises_code

ctranslate2 = pytest.importorskip("ctranslate2", reason="a package holds a model of CTranslate2, which is not installed")
pytestmark = pytest.mark.usefixtures("one_core")
FOLDER = "translate-en_de-1_0"


@pytest.fixture(scope="module")
def trained_bundle(bundle: Path) -> Bundle:
    model = load_bundle(bundle)
    task = model.recipe.task.model_copy(update={"source_language": "en_GB", "target_language": "deu"})
    return replace(model, recipe=model.recipe.model_copy(update={"task": task}))


def test_package_has_documented_files(trained_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "en_de.argosmodel"
    result = export_argos(trained_bundle, path, scores={"BLEU": 12.5})
    assert result.num_bytes == path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        assert {
            f"{FOLDER}/{name}" for name in ("metadata.json", "README.md", "sentencepiece.model", "model/model.bin")
        } <= names
        assert all(name.startswith(f"{FOLDER}/") and ".." not in name for name in names)
        metadata = json.loads(archive.read(f"{FOLDER}/metadata.json"))
        card = archive.read(f"{FOLDER}/README.md").decode()
    expected = {"from_code": "en", "from_name": "English", "to_code": "de", "to_name": "German", "package_version": "1.0"}
    assert metadata.items() >= expected.items()
    assert "| BLEU | 12.50 |" in card


def test_model_of_package_translates(trained_bundle: Bundle, bundle: Path, corpus: Path, tmp_path: Path) -> None:
    """Unpack the package and call its parts as Argos Translate does; a few outputs of int8 weights may differ.

    CTranslate2 computes in float32, because its int8 products saturate where oneDNN has AVX2 only.
    """
    export_argos(trained_bundle, tmp_path / "en_de.argosmodel")
    with zipfile.ZipFile(tmp_path / "en_de.argosmodel") as archive:
        archive.extractall(tmp_path)
    translator = ctranslate2.Translator(str(tmp_path / FOLDER / "model"), intra_threads=1, compute_type="float32")
    pieces = sentencepiece.SentencePieceProcessor(str(tmp_path / FOLDER / "sentencepiece.model"))
    lines = (corpus / "train.en").read_text(encoding="utf-8").splitlines()[:40]
    results = translator.translate_batch(
        [pieces.encode(line, out_type=str) for line in lines], beam_size=4, length_penalty=0.2, replace_unknowns=True
    )
    texts = [pieces.decode_pieces(result.hypotheses[0]) for result in results]
    expected = dragoman.load(bundle, task="translation", device="cpu", precision="float32").translate(lines)
    num_equal = sum(text == translation.text for text, translation in zip(texts, expected, strict=True))
    assert num_equal >= 0.8 * len(lines)  # the share that CTranslate2's beam search is held to in float32


def test_int8_weights_equal_those_of_ctranslate2(trained_bundle: Bundle) -> None:
    """CTranslate2 rounds a copy of the weights, because it rounds in place."""
    spec = build_spec(trained_bundle, 40, is_int8=True)
    reference = build_spec(replace(trained_bundle, arrays=copy.deepcopy(trained_bundle.arrays)), 40)
    reference._quantize("int8")  # the second part of `optimize`; the first one is in `build_spec`
    variables, expected = spec.variables(), reference.variables()
    scales = [name for name in variables if name.endswith("_scale")]
    assert len(scales) > 10
    for name, variable in expected.items():
        if isinstance(variable, str):
            assert variables[name] == variable
        else:
            np.testing.assert_array_equal(variables[name].numpy(), variable.numpy(), err_msg=name)


def test_language_tokens_are_refused(trained_bundle: Bundle, tmp_path: Path) -> None:
    tokenizer = trained_bundle.recipe.tokenizer.model_copy(update={"language_token": ">>{}<<"})
    recipe = trained_bundle.recipe.model_copy(update={"tokenizer": tokenizer})
    with raises_code("export-unsupported", "tokenizer.language_token", "ctranslate2"):
        export_argos(replace(trained_bundle, recipe=recipe), tmp_path / "en_de.argosmodel")


def test_packages_of_one_bundle_are_equal(trained_bundle: Bundle, tmp_path: Path) -> None:
    for name in ("first", "second"):
        export_argos(trained_bundle, tmp_path / name / "en_de.argosmodel")
    entries = []
    for name in ("first", "second"):
        with zipfile.ZipFile(tmp_path / name / "en_de.argosmodel") as archive:
            entries.append([(entry.filename, entry.CRC, entry.date_time) for entry in archive.infolist()])
    assert entries[0] == entries[1]


def test_existing_package_is_kept_or_replaced(trained_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "en_de.argosmodel"
    path.write_text("notes", encoding="utf-8")
    with raises_code("output-exists"):
        export_argos(trained_bundle, path)
    with raises_code("not-replaceable"):
        export_argos(trained_bundle, path, overwrite=True)
    assert path.read_text(encoding="utf-8") == "notes"
    path.unlink()
    export_argos(trained_bundle, path)
    export_argos(trained_bundle, path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["en_de.argosmodel"]


def test_package_needs_its_ending_and_languages(trained_bundle: Bundle, tmp_path: Path) -> None:
    with raises_code("invalid-output", ".argosmodel"):
        export_argos(trained_bundle, tmp_path / "package.zip")
    task = trained_bundle.recipe.task.model_copy(update={"source_language": ""})
    bundle = replace(trained_bundle, recipe=trained_bundle.recipe.model_copy(update={"task": task}))
    with raises_code("export-unsupported", "task.source_language is empty"):
        export_argos(bundle, tmp_path / "en_de.argosmodel")
