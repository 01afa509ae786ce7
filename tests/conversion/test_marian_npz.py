"""Conversion of Marian's model.npz: logits against its equations, the same numbers in MarianMT, and errors of one line."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from damaged_sources import check_refusal
from dragoman.bundle import load_bundle
from dragoman.conversion.marian_yaml import parse_settings, parse_vocabulary
from dragoman.data.tokenization.special_tokens import END_ID, UNKNOWN_ID
from dragoman.errors import DataError
from expected_errors import raises_code
from marian_folders import D_MODEL, SOURCE_LETTERS, make_lines, make_tensors
from marian_npz_folders import (
    MODEL,
    SSRU_SETTINGS,
    VOCABULARY,
    compute_logits,
    list_vocabulary,
    make_settings,
    to_marian,
    train_vocabulary,
    use_ssru,
    write_folder,
)

LINES = ["xyz abc", "a", *make_lines(SOURCE_LETTERS, 200, 2)]
SIZE = len(list_vocabulary())


def make_arrays(**options: Any) -> dict[str, Any]:
    """Return random weights of Marian."""
    tensors = make_tensors(SIZE + 1)
    tensors["final_logits_bias"][0, 0] = 3
    return to_marian(tensors, **options)


def separate(arrays: dict[str, Any]) -> None:
    """Give each side an embedding of its own."""
    arrays["encoder_Wemb"] = arrays.pop("Wemb")
    arrays["decoder_Wemb"] = arrays["encoder_Wemb"][::-1].copy()


def separate_all(arrays: dict[str, Any]) -> None:
    separate(arrays)
    arrays["decoder_ff_logit_out_Wt"] = arrays["encoder_Wemb"] * 0.5


def separate_old(arrays: dict[str, Any]) -> None:
    """Marian stored the output matrix with the inputs as rows in its first versions."""
    separate(arrays)
    arrays["decoder_ff_logit_out_W"] = np.ascontiguousarray(arrays["encoder_Wemb"].T * 0.5)


def add_top(arrays: dict[str, Any]) -> None:
    for stack in ("encoder", "decoder"):
        arrays[f"{stack}_top_ln_scale"] = arrays["encoder_l1_ffn_b2"] + 1
        arrays[f"{stack}_top_ln_bias"] = arrays["encoder_l1_ffn_b2"]


def use_ssru_and_top(arrays: dict[str, Any]) -> None:
    use_ssru(arrays)
    add_top(arrays)


def add_positions(arrays: dict[str, Any]) -> None:
    arrays["Wpos"] = np.random.default_rng(2).standard_normal((80, D_MODEL)).astype(np.float32)


UNTIED = {"tied-embeddings-all": False}
PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
VARIANTS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], object], str]] = {
    "tied": ({}, lambda arrays: None, "all"),
    "output tied": ({**UNTIED, "tied-embeddings": True}, separate, "decoder"),
    "untied": (UNTIED, separate_all, "none"),
    "old output": (UNTIED, separate_old, "none"),
    "source tied": (
        {**UNTIED, "tied-embeddings-src": True},
        lambda arrays: arrays.update({"decoder_ff_logit_out_Wt": arrays["Wemb"] * 0.5}),
        "none",
    ),
    "pre-norm": (PRE_NORM, add_top, "all"),
    "ReLU": ({"transformer-ffn-activation": "relu"}, lambda arrays: None, "all"),
    "learned positions": ({"transformer-train-position-embeddings": True}, add_positions, "all"),
    "SSRU": (SSRU_SETTINGS, use_ssru, "all"),
    "SSRU with pre-norm": ({**SSRU_SETTINGS, **PRE_NORM}, use_ssru_and_top, "all"),
    "no output bias": ({"output-omit-bias": True}, lambda arrays: arrays.pop("decoder_ff_logit_out_b"), "all"),
}


def map_ids() -> torch.Tensor:
    """Return dragoman's id of each of Marian's: </s> and <unk> are 3 and 1, and the others move by two."""
    return torch.tensor([3, 1, *range(4, SIZE + 2)])


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_logits_are_equal(variant: str, tmp_path: Path) -> None:
    changes, change, tying = VARIANTS[variant]
    arrays = make_arrays(is_pre_norm="transformer-preprocess" in changes)
    change(arrays)
    write_folder(tmp_path / "marian", arrays=arrays, settings=changes)
    dragoman.convert(tmp_path / "marian", tmp_path / "bundle")
    bundle, ids, chance = load_bundle(tmp_path / "bundle"), map_ids(), torch.Generator().manual_seed(1)
    assert bundle.recipe.model.tie_embeddings == tying
    for length in (1, 5, 20):
        source = [*torch.randint(2, SIZE, (length,), generator=chance).tolist(), 0]
        target = torch.randint(1, SIZE, (12,), generator=chance).tolist()
        inputs = torch.cat([torch.tensor([0]), ids[target]])[None]  # padding is embedded as zeros
        logits = bundle.model(ids[source][None], inputs)[0]
        expected = compute_logits(arrays, make_settings(**changes), source, target)
        torch.testing.assert_close(logits[:, ids], expected, rtol=0, atol=1e-5)
        assert bool((logits[:, [0, 2]] < -1e4).all())


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "eng-deu", make_tensors(SIZE + 1))


def test_bundle_has_origin_license_and_languages(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").write_text("# opus\n\n* source language(s): eng\n* target language(s): deu\n* model: transformer\n")
    (folder / "LICENSE").write_text("Attribution 4.0 International\n\n====\n")
    result = dragoman.convert(folder, tmp_path / "bundle")
    origin, recipe = result.origin, load_bundle(tmp_path / "bundle").recipe
    assert (origin.format, origin.name, origin.license) == ("marian-npz", "eng-deu", "cc-by-4.0")
    assert (origin.source_languages, origin.target_languages) == (["eng"], ["deu"])
    assert (recipe.task.source_language, recipe.task.target_language) == ("eng", "deu")
    assert (recipe.decoding.beam_size, recipe.decoding.alpha, recipe.decoding.suppress_tokens) == (6, 1.0, ["<unk>"])
    assert recipe.model.decoder_start_token == "zero"
    assert result.notes == ()


def test_sentencepiece_vocabulary_splits_and_numbers(tmp_path: Path) -> None:
    """Marian trains its models with </s> and <unk> as the pieces 0 and 1."""
    import sentencepiece

    model = train_vocabulary()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    arrays = make_arrays() | {"Wemb": make_arrays()["Wemb"][:104], "decoder_ff_logit_out_b": np.zeros((1, 104), np.float32)}
    folder = write_folder(tmp_path / "marian", arrays=arrays, settings={"dim-vocabs": [104, 104]})
    for name in (VOCABULARY, "source.spm", "target.spm", "decoder.yml"):
        (folder / name).unlink()
    (folder / "vocab.spm").write_bytes(model)
    result = dragoman.convert(folder, tmp_path / "bundle")
    assert "decoder.yml" in result.notes[0]
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.is_joint
    for line in LINES[:20]:
        expected = [UNKNOWN_ID if index == 1 else index + 2 for index in processor.encode(line)] + [END_ID]
        assert tokenizer.encode_source(line) == expected
        assert tokenizer.target.decode(tokenizer.target.encode("abc d")) == "abc d"


def test_codes_split_the_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "marian", make_tensors(SIZE + 1))
    tokens = ["</s>", "<unk>", "ab@@", "c", "ab", *(f"x{index}" for index in range(SIZE - 5))]
    (folder / VOCABULARY).write_text("".join(f'"{token}": {index}\n' for index, token in enumerate(tokens)))
    for side in ("source", "target"):
        (folder / f"{side}.spm").unlink()
        (folder / f"{side}.bpe").write_text("#version: 0.2\na b\na b</w>\n")
    result = dragoman.convert(folder, tmp_path / "bundle")
    assert any("Moses" in note for note in result.notes)
    assert load_bundle(tmp_path / "bundle").tokenizer.encode_source("abc ab") == [4, 5, 6, END_ID]


def test_languages_are_source_tokens(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "marian", make_tensors(SIZE + 1))
    lines = (folder / VOCABULARY).read_text(encoding="utf-8").splitlines()
    lines[5:7] = ['">>deu<<": 5', '">>fra<<": 6']
    (folder / VOCABULARY).write_text("\n".join(lines), encoding="utf-8")
    result = dragoman.convert(folder, tmp_path / "bundle", target_language="fra")
    assert result.origin.target_languages == ["deu", "fra"]
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.source.ids_to_pieces(tokenizer.encode_source("ab")[:1]) == [">>fra<<"]
    with raises_code("conversion-unsupported", "xyz", "deu, fra"):
        dragoman.convert(folder, tmp_path / "other", target_language="xyz")


def test_vocabulary_of_other_forms_is_equal(folder: Path) -> None:
    """yaml-cpp writes tokens in quotes or plainly, and long tokens on a line of their own."""
    text = (folder / VOCABULARY).read_text(encoding="utf-8")
    expected = parse_vocabulary(text, folder)
    assert list(expected) == list_vocabulary()
    plain = "".join(f"? {json.dumps(token)}\n: {index}\n" for token, index in expected.items())
    assert parse_vocabulary(plain, folder) == expected
    forms = r""""\x85": 0
'it''s': 1
": ": 2
"\u00e4\U0001f600\ud83d\ude00\"": 3
:: 4
"""
    assert parse_vocabulary(forms, folder) == {"\x85": 0, "it's": 1, ": ": 2, 'ä😀😀"': 3, ":": 4}


def test_settings_of_other_forms_are_equal() -> None:
    text = "# c\n---\na: [1, 2.5, x]\nb:\n  - true\n  - \"y z\"\nc:\n  []\nd: ~\ne: 1e-4\nf: ''\ng: v1.9 a:b\n"
    expected = {"a": [1, 2.5, "x"], "b": [True, "y z"], "c": [], "d": None, "e": 1e-4, "f": "", "g": "v1.9 a:b"}
    assert parse_settings(text, Path("x")) == expected


@pytest.mark.parametrize(
    "line", ["a: !!python/object:os.system", "a: &x 1", "a: *x", "a: |", "  a: 1", "- 1", "a", '"a: 1', "a: '"]
)
def test_other_yaml_raises(line: str) -> None:
    with pytest.raises(DataError, match="line 2"):
        parse_settings(f"\n{line}", Path("x"))


# Refusals


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"type": "amun"}, "amun"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth"),
        ({"transformer-decoder-dim-ffn": 9}, "transformer-decoder-dim-ffn"),
        ({"transformer-ffn-activation": "gelu"}, "gelu"),
        ({"transformer-preprocess": "n"}, "transformer-preprocess"),
        ({"transformer-postprocess": "dhn"}, "transformer-postprocess"),
        ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb"),
        ({"transformer-postprocess-top": "a"}, "transformer-postprocess-top"),
        ({"input-types": ["class", "sequence"]}, "input-types"),
        ({"dim-vocabs": [SIZE, SIZE, SIZE]}, "dim-vocabs"),
    ],
)
def test_unsupported_setting_raises(settings: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "marian", make_tensors(SIZE + 1), settings=settings)
    check_refusal(tmp_path / "marian", "conversion-unsupported", name, str(tmp_path / "marian" / MODEL))


@pytest.mark.parametrize(
    ("decoder", "code", "name"),
    [
        ({"models": ["a.npz", "b.npz"]}, "conversion-unsupported", "models"),
        ({"vocabs": ["a", "b", "c"]}, "conversion-unsupported", "vocabs"),
        ({"word-penalty": 0.5}, "conversion-unsupported", "word-penalty"),
        ({"models": ["/etc/passwd"]}, "source-damaged", "passwd"),
        ({"models": ["../../x.npz"]}, "source-damaged", "x.npz"),
        ({"models": [5]}, "source-damaged", "5"),
        ({"vocabs": ["no.spm"]}, "source-damaged", "no.spm"),
        ({"beam-size": "x"}, "source-damaged", "beam-size"),
    ],
)
def test_false_decoder_settings_raise(decoder: dict[str, Any], code: str, name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "marian", make_tensors(SIZE + 1), decoder=decoder)
    check_refusal(tmp_path / "marian", code, name)


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (lambda arrays: arrays.pop("Wemb"), "source-damaged", "Wemb"),
        (lambda arrays: arrays.pop("decoder_l2_context_Wk"), "source-damaged", "decoder_l2_context_Wk"),
        (lambda arrays: arrays.update(Wemb=arrays["Wemb"][:9]), "source-damaged", "9 rows"),
        (lambda arrays: arrays.update(Wemb=arrays["Wemb"][0]), "source-damaged", "is a matrix"),
        (lambda arrays: arrays.update(decoder_ff_logit_out_b=arrays["Wemb"][:1]), "source-damaged", "16 values"),
        (lambda arrays: arrays.update(encoder_l1_ffn_b2=arrays["Wemb"][:2]), "source-damaged", "feed_forward.outer.bias"),
        (lambda arrays: arrays.update(encoder_l1_ffn_W1=arrays["encoder_l1_ffn_W1"].astype(np.int8)), "source-damaged", "int8"),
        (lambda arrays: arrays.update(encoder_l1_ffn_W1=arrays["encoder_l1_ffn_W1"] * np.inf), "source-damaged", "finite"),
        (lambda arrays: arrays.update(Wtype=arrays["Wemb"]), "conversion-unsupported", "Wtype"),
        (lambda arrays: arrays.update(Wemb=arrays["Wemb"].astype("S4")), "source-damaged", "Wemb"),
        (lambda arrays: arrays.update(Wemb=np.asfortranarray(arrays["Wemb"])), "source-damaged", "Wemb"),
        (lambda arrays: arrays.update(Wemb=np.array([{}])), "source-damaged", "Wemb"),
    ],
)
def test_false_arrays_raise(change: Callable[[dict[str, Any]], object], code: str, name: str, tmp_path: Path) -> None:
    arrays = make_arrays()
    change(arrays)
    write_folder(tmp_path / "marian", arrays=arrays)
    check_refusal(tmp_path / "marian", code, name)


@pytest.mark.parametrize(
    ("file_name", "content", "name"),
    [
        (VOCABULARY, None, VOCABULARY),
        (VOCABULARY, "", VOCABULARY),
        (VOCABULARY, "a: 1\nb\n", "line 2"),
        (VOCABULARY, "a: 1\na: 2\n", "line 2"),
        (VOCABULARY, "a: 1\nb: 1\n", "number 1"),
        (VOCABULARY, "a: 999999999\n", VOCABULARY),
        (VOCABULARY, "a: 0\nb: 1\n", "</s>"),
        (VOCABULARY, f"</s>: 0\n<unk>: 1\na: {SIZE}\n", f"{SIZE + 1} tokens"),
        ("source.spm", None, "source.spm"),
        ("decoder.yml", "models: !x\n", "line 1"),
        (MODEL, "", MODEL),
        (MODEL, "PK", MODEL),
    ],
)
def test_false_file_raises(file_name: str, content: str | None, name: str, folder: Path) -> None:
    (folder / file_name).unlink()
    if content is not None:
        (folder / file_name).write_text(content)
    check_refusal(folder, "source-damaged", name)


def test_compressed_or_foreign_archives_raise(folder: Path) -> None:
    np.savez_compressed(folder / MODEL, **make_arrays())
    check_refusal(folder, "source-damaged", "compressed")
    np.savez(folder / MODEL, **make_arrays())
    check_refusal(folder, "source-damaged", "special:model.yml")
    with zipfile.ZipFile(folder / MODEL, "w") as archive:
        archive.writestr("../Wemb.npy", b"no array")
    check_refusal(folder, "source-damaged", "../Wemb.npy")


def test_several_models_need_a_choice(folder: Path, tmp_path: Path) -> None:
    (folder / "decoder.yml").unlink()
    shutil.copy(folder / MODEL, folder / "second.npz")
    (folder / f"{MODEL}.optimizer.npz").write_bytes(b"")
    check_refusal(folder, "source-damaged", "several models", "second.npz")
    for name in (f"{MODEL}.decoder.yml", "second.npz.decoder.yml"):
        (folder / name).write_text(f"models: [/training/{MODEL}]\nvocabs: [/training/{VOCABULARY}]\n")
    check_refusal(folder, "source-damaged", "several settings")
    (folder / "second.npz.decoder.yml").unlink()
    dragoman.convert(folder, tmp_path / "bundle")
    decoding = load_bundle(tmp_path / "bundle").recipe.decoding
    assert (decoding.beam_size, decoding.length_penalty) == (12, "none")  # Marian's defaults
