"""Converted BART folders against the `transformers` library, and errors of one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dragoman
from damaged_sources import change_json, check_any_refusal, check_refusal
from dragoman.bundle import load_bundle
from dragoman.data.tokenization.byte_level_bpe import BYTE_ALPHABET, ByteLevelBpeScheme
from dragoman.data.tokenization.token_list import TokenListTokenizer, read_token_list
from generation_parity import Peer, shrink_and_favor_end
from odd_texts import PLAIN, make_odd_texts
from tuned_folders import write_bart

transformers: Any = pytest.importorskip("transformers", reason="parity with BART needs transformers: dragoman[test]")
tokenizers: Any = pytest.importorskip("tokenizers", reason="byte-level BPE is compared with tokenizers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
LINES = [*PLAIN, "a", "It's 2026!", "Zwölf 🙂 Boxkämpfer", *(f"{line} {line[:9]}" for line in PLAIN)]
SIZES: dict[str, Any] = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}


def tune(model: Any) -> None:
    """Give the biases and norms values of their own, a bias of −∞ to padding, and an end to most outputs."""
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm | torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
    for stack in (model.model.encoder, model.model.decoder):
        torch.nn.init.normal_(stack.layernorm_embedding.weight, mean=1.0, std=0.1)
    torch.nn.init.normal_(model.final_logits_bias, std=0.05)
    model.final_logits_bias[0, 1] = -torch.inf
    shared = model.model.shared.weight
    shrink_and_favor_end([shared], shared, model.model.decoder.layers[-1].final_layer_norm.bias, 2)


@pytest.fixture(scope="module", params=["tokenizer.json", "vocab.json"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    folder = tmp_path_factory.mktemp("peer")
    model, tokenizer = write_bart(folder / "source", change_model=tune, max_position_embeddings=128, **SIZES)
    if request.param == "vocab.json":
        for name in ("vocab.json", "merges.txt"):
            (folder / "source-first" / name).rename(folder / "source" / name)
        (folder / "source" / "tokenizer.json").unlink()
    dragoman.convert(folder / "source", folder / "bundle")
    translator = dragoman.load(folder / "bundle", task="translation", device="cpu", precision="float32")
    vocabulary = translator.bundle.tokenizer.target
    assert isinstance(vocabulary, TokenListTokenizer)
    ids = [vocabulary.tokens.index(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    return Peer(model, translator, lambda line: list(tokenizer(line)["input_ids"]), ids, ids, [0, 1], [0])


def test_source_tokens_are_equal(peer: Peer) -> None:
    for line in LINES:
        assert peer.translator.bundle.tokenizer.encode_source(line) == [peer.source_ids[index] for index in peer.encode(line)]


def test_logits_are_equal(peer: Peer) -> None:
    peer.check_logits(LINES[:10])


@pytest.mark.parametrize("search", ["greedy", pytest.param("beam", marks=pytest.mark.slow)])
def test_outputs_are_equal(search: str, peer: Peer) -> None:
    assert peer.check_outputs(LINES, search) >= 6


def test_bytes_keep_every_text(peer: Peer) -> None:
    """The tokens of the library tokenizers are equal for odd texts, and a file gives the same tokenizer again."""
    vocabulary = peer.translator.bundle.tokenizer.source
    assert isinstance(vocabulary, TokenListTokenizer)
    assert isinstance(vocabulary.scheme, ByteLevelBpeScheme)
    original = tokenizers.ByteLevelBPETokenizer(
        {token: index for index, token in enumerate(vocabulary.tokens)}, list(vocabulary.scheme.merges)
    )
    copy = read_token_list(vocabulary.serialized_model, lowercase=False, name="copy")
    for text in make_odd_texts(["'s", "'ll", "\u2029", "x\u0301", "²", "Ⅷ", " \n\t ", "\x85"]):
        tokens = vocabulary.scheme.split(text)
        assert tokens == original.encode(text).tokens, text
        assert vocabulary.scheme.join(tokens) == text
        assert copy.encode(text) == vocabulary.encode(text)
        ids = [index for index in vocabulary.encode(text) if index > 3]
        assert [vocabulary.piece_to_id(piece) for piece in vocabulary.ids_to_pieces(ids)] == ids


def test_merges_follow_their_ranks() -> None:
    """The library tokenizers applies a new pair of a lower rank at once."""
    merges = [("ab", "a"), ("a", "b")]
    vocabulary = {token: index for index, token in enumerate([*BYTE_ALPHABET, "ab", "aba"])}
    original = tokenizers.ByteLevelBPETokenizer(vocabulary, merges)
    for text in ("abab", "aabab", "ababa"):
        assert ByteLevelBpeScheme(merges).split(text) == original.encode(text).tokens


def test_lengths_of_the_tokenizer_are_those_of_its_training(tmp_path: Path) -> None:
    """A tokenizer that was saved with a truncation and a padding splits texts as before."""
    write_bart(tmp_path / "source")
    path = str(tmp_path / "source" / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    tokenizer.save(path)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")


def test_bundle_has_origin_and_begin_token(tmp_path: Path) -> None:
    write_bart(tmp_path / "source")
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle", source_language="en", target_language="de")
    assert result.origin.format == "huggingface-bart"
    assert "begins with <s>" in result.notes[0]
    bundle = load_bundle(tmp_path / "bundle")
    assert (bundle.recipe.model.norm, bundle.recipe.model.embedding_norm) == ("post", True)
    assert (bundle.recipe.task.target_language, bundle.tokenizer.decoder_prompt) == ("de", (2,))
    source = bundle.tokenizer.encode_source("The house")
    assert (source[0], source[-1], bundle.tokenizer.source.decode(source)) == (2, 3, "The house")


@pytest.mark.parametrize(
    ("file_name", "change", "name"),
    [
        ("config.json", lambda document: document.update(tie_word_embeddings=False), "tie_word_embeddings"),
        ("config.json", lambda document: document.update(activation_function="gelu_new"), "gelu_new"),
        ("generation_config.json", lambda document: document.update(forced_bos_token_id=9), "forced_bos_token_id"),
        ("tokenizer.json", lambda document: document["pre_tokenizer"].update(add_prefix_space=True), "pre_tokenizer"),
        ("tokenizer_config.json", lambda document: document.update(add_prefix_space=True), "add_prefix_space"),
        ("tokenizer.json", lambda document: document.update(normalizer={"type": "NFC"}), "NFC"),
        ("tokenizer.json", lambda document: document["model"]["vocab"].pop("Ġ"), "32"),
        ("tokenizer.json", lambda document: document["model"]["merges"].append(["Ġ", "Ġ"]), "merge"),
        ("tokenizer.json", lambda document: document.update(added_tokens=1), "added_tokens"),
    ],
)
def test_false_settings_raise(file_name: str, change: Callable[[Any], object], name: str, tmp_path: Path) -> None:
    write_bart(tmp_path / "source")
    change_json(tmp_path / "source" / file_name, change)
    check_any_refusal(tmp_path / "source", name)


def test_false_tensors_raise(tmp_path: Path) -> None:
    write_bart(tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    positions = "model.decoder.embed_positions.weight"
    for changes, code, name in (
        ({positions: tensors[positions][:-1].clone()}, "conversion-unsupported", "63 in the decoder"),
        ({positions: torch.zeros(9)}, "source-damaged", "positions"),
    ):
        save_file(tensors | changes, path)
        check_refusal(tmp_path / "source", code, name)
