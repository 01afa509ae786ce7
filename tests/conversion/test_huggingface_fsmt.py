"""Converted FSMT folders against the `transformers` library, and errors of one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dragoman
from damaged_sources import change_json, check_refusal
from dragoman.bundle import load_bundle
from dragoman.data.tokenization.vocabulary import Vocabulary
from fsmt_folders import list_fsmt_tokens, write_folder
from generation_parity import Peer, map_ids
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, make_lines

transformers: Any = pytest.importorskip("transformers", reason="parity with FSMT needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
LINES = ["xyz abc", "a", "abc, de &apos;s", *make_lines(SOURCE_LETTERS, 430, 2)]


def make_finder(vocabulary: Vocabulary) -> Callable[[str], int | None]:
    """Return a function from a token of FSMT to its id in a bundle, whose pieces mark the end of a word with ▁."""
    return lambda token: vocabulary.piece_to_id(token.replace("</w>", "▁"))


@pytest.fixture(scope="module", params=["shared", "separate"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """Text is split at spaces by the tokenizer of transformers too, which then applies its merges (`bypass_tokenizer`)."""
    folder, is_shared = tmp_path_factory.mktemp("peer"), request.param == "shared"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = write_folder(folder / "source", is_shared=is_shared)
        pytest.importorskip("sacremoses", reason="the tokenizer of FSMT needs sacremoses")
        tokenizer = transformers.FSMTTokenizer.from_pretrained(folder / "source")

    def encode(line: str) -> list[int]:
        return [tokenizer._convert_token_to_id(token) for token in tokenizer._tokenize(line, bypass_tokenizer=True)] + [2]

    dragoman.convert(folder / "source", folder / "bundle")
    translator = dragoman.load(folder / "bundle", task="translation", device="cpu", precision="float32")
    bundle = translator.bundle
    assert bundle.recipe.model.tie_embeddings == ("all" if is_shared else "none")
    source_ids, target_ids = (
        map_ids(make_finder(vocabulary), list_fsmt_tokens(SOURCE_LETTERS + TARGET_LETTERS if is_shared else letters))
        for vocabulary, letters in ((bundle.tokenizer.source, SOURCE_LETTERS), (bundle.tokenizer.target, TARGET_LETTERS))
    )
    return Peer(model, translator, encode, source_ids, target_ids, [0, 1])


def test_source_tokens_are_equal(peer: Peer) -> None:
    for line in LINES[:40]:
        assert peer.translator.bundle.tokenizer.encode_source(line) == [peer.source_ids[index] for index in peer.encode(line)]


def test_logits_are_equal(peer: Peer) -> None:
    peer.check_logits(LINES[:10])


@pytest.mark.parametrize("search", ["greedy", pytest.param("beam", marks=pytest.mark.slow)])
def test_outputs_are_equal(search: str, peer: Peer) -> None:
    assert peer.check_outputs(LINES[:20], search) >= 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "source", is_shared=False, lowercase=True)
    return tmp_path / "source"


def test_bundle_has_origin_and_note(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    result = dragoman.convert(folder, tmp_path / "bundle")
    assert (result.origin.format, result.origin.license) == ("huggingface-fsmt", "apache-2.0")
    assert (result.origin.source_languages, result.origin.target_languages) == (["en"], ["de"])
    assert "Moses" in result.notes[0]
    bundle = load_bundle(tmp_path / "bundle")
    assert (bundle.recipe.task.tokenized, bundle.recipe.decoding.beam_size) == (True, 5)
    assert bundle.tokenizer.encode_source("ABC") == bundle.tokenizer.encode_source("abc")


@pytest.mark.parametrize(
    ("file_name", "changes", "code", "name"),
    [
        ("config.json", {"activation_function": "gelu_new"}, "conversion-unsupported", "gelu_new"),
        ("config.json", {"decoder_attention_heads": 2}, "conversion-unsupported", "decoder_attention_heads"),
        ("config.json", {"decoder_start_token_id": 1}, "conversion-unsupported", "decoder_start_token_id"),
        ("config.json", {"src_vocab_size": 50}, "source-damaged", "src_vocab_size"),
        ("tokenizer_config.json", {"do_lower_case": "no"}, "source-damaged", "do_lower_case"),
        ("vocab-tgt.json", {"<unk>": 10**6}, "source-damaged", "vocab-tgt.json"),
        ("vocab-tgt.json", {"<unk>": [3]}, "source-damaged", "vocab-tgt.json"),
    ],
)
def test_false_settings_raise(file_name: str, changes: dict[str, Any], code: str, name: str, folder: Path) -> None:
    change_json(folder / file_name, **changes)
    check_refusal(folder, code, name)


def test_other_positions_raise(folder: Path) -> None:
    positions = {"model.encoder.embed_positions.weight": torch.zeros(130, 32)}
    save_file(load_file(folder / "model.safetensors") | positions, folder / "model.safetensors")
    check_refusal(folder, "conversion-unsupported", "embed_positions")


@pytest.mark.parametrize("name", ["merges.txt", "vocab-src.json", "vocab-tgt.json", "model.safetensors"])
def test_missing_file_raises(name: str, folder: Path) -> None:
    (folder / name).unlink()
    check_refusal(folder, "source-damaged", name)


def test_added_token_raises(folder: Path) -> None:
    (folder / "added_tokens.json").write_text('{"<sep>": 122}', encoding="utf-8")
    check_refusal(folder, "conversion-unsupported", "<sep>")


def test_false_merges_raise(folder: Path) -> None:
    (folder / "merges.txt").write_text("a b c d\n")
    check_refusal(folder, "invalid-format", "merges.txt", "line 1")
