"""Converted MarianMT models against the `transformers` library: tokens, logits, and the outputs of each search."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from generation_parity import Peer
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, list_pieces, make_config, make_lines, train_model

transformers: Any = pytest.importorskip("transformers", reason="parity with MarianMT needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
VARIANTS: dict[str, dict[str, Any]] = {
    "swish": {},
    "gelu": {"activation_function": "gelu", "scale_embedding": False},
    "relu": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3, "end_bias": 20.0},
    "separate": {"share_encoder_decoder_embeddings": False},
    "untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "end starts": {"decoder_start_token_id": 0},
}
FAST_VARIANT = "relu"
LINES = ["xyz ä nop 🙂 abc", "  a   b ", "NOP", "ä", *make_lines(SOURCE_LETTERS, 40, 2)]


@dataclass
class MarianPeer:
    """MarianMT model of transformers with its tokenizer, and the translator of its conversion."""

    peer: Peer
    tokenizer: Any


def write_peer(folder: Path, *, end_bias: float = 13.0, **changes: Any) -> Any:
    """Write a folder of MarianMT with random weights by transformers itself, and return the model."""
    pieces = list_pieces()
    sizes = {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 128}
    config = make_config(len(pieces), **sizes | changes)
    torch.manual_seed(4)
    model = transformers.MarianMTModel(transformers.MarianConfig(init_std=1.0, **config)).eval()
    with torch.no_grad():
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, 0] = end_bias  # so that most outputs end by themselves, some early and some late
        for name in ("shared", "decoder.embed_tokens"):
            if f"model.{name}.weight" in dict(model.named_parameters()):
                model.get_submodule(f"model.{name}").weight[-1].normal_()  # fine-tuning moves the vector of padding from zero
    model.save_pretrained(folder)
    (folder / "source.spm").write_bytes(train_model(SOURCE_LETTERS))
    (folder / "target.spm").write_bytes(train_model(TARGET_LETTERS))
    vocabularies = ["vocab.json"] + ([] if config["share_encoder_decoder_embeddings"] else ["target_vocab.json"])
    for name in vocabularies:
        ids = {piece: index for index, piece in enumerate(pieces)}
        (folder / name).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    separate = not config["share_encoder_decoder_embeddings"]
    tokenizer_config = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    return model


@pytest.fixture(
    scope="module",
    params=[name if name == FAST_VARIANT else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def marian(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MarianPeer:
    folder = tmp_path_factory.mktemp("peer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = write_peer(folder / "marian", **VARIANTS[request.param])
        tokenizer = transformers.MarianTokenizer.from_pretrained(folder / "marian")
    dragoman.convert(folder / "marian", folder / "bundle")
    translator = dragoman.load(folder / "bundle", task="translation", device="cpu", precision="float32")
    pieces, target = list_pieces(), translator.bundle.tokenizer.target
    special = {"</s>": 3, "<unk>": 1, "<pad>": 2}
    ids = [special[piece] if piece in special else target.piece_to_id(piece) or 0 for piece in pieces]
    assert sorted(ids) == sorted({*range(1, len(pieces) + 1)})
    start_id = model.config.decoder_start_token_id

    def encode(line: str) -> list[int]:
        return list(tokenizer(line)["input_ids"])

    return MarianPeer(Peer(model, translator, encode, ids, ids, [len(ids) - 1], start_id=start_id), tokenizer)


def test_source_tokens_are_equal(marian: MarianPeer) -> None:
    peer = marian.peer
    for line in LINES:
        assert peer.translator.bundle.tokenizer.encode_source(line) == [peer.source_ids[index] for index in peer.encode(line)]


def test_logits_are_equal(marian: MarianPeer) -> None:
    marian.peer.check_logits(LINES)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["beam", "beam full", "no length penalty"])
def test_outputs_are_equal(search: str, marian: MarianPeer) -> None:
    assert marian.peer.check_outputs(LINES, search) >= 5


@torch.no_grad()
def test_texts_are_equal(marian: MarianPeer) -> None:
    """Compare texts without an unknown token, which SentencePiece shows as ⁇ and transformers drops."""
    peer = marian.peer
    translations = peer.translator.translate(LINES[:20], method="greedy", repetition_window=0)
    target, num_compared = peer.translator.bundle.tokenizer.target, 0
    for translation in translations:
        if "<unk>" not in translation.tokens:
            ids = [peer.target_ids.index(target.piece_to_id(piece) or 0) for piece in translation.tokens]
            assert translation.text == marian.tokenizer.decode(ids, skip_special_tokens=True)
            num_compared += 1
    assert num_compared > 5


def test_recipe_has_the_options_of_the_source(marian: MarianPeer) -> None:
    decoding = marian.peer.translator.recipe.decoding
    assert (decoding.length_penalty, decoding.alpha, decoding.max_source_tokens) == ("power", 1.0, 128)


@torch.no_grad()
@pytest.mark.parametrize(("options", "expected"), [({"min_length": 9}, 8), ({"min_new_tokens": 9}, 9), ({"min_length": 1}, 0)])
def test_shortest_output_has_the_length_of_transformers(options: dict[str, int], expected: int, tmp_path: Path) -> None:
    """An output ends as soon as it may. transformers counts the start token in `min_length`, but not in `min_new_tokens`."""
    model = write_peer(tmp_path / "marian", end_bias=1000.0)
    model.generation_config.update(num_beams=1, max_length=40, **options)
    model.save_pretrained(tmp_path / "marian")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "marian")
    output = model.generate(**tokenizer(["ab"], return_tensors="pt"))[0].tolist()
    assert (len(output), output.index(0)) == (expected + 2, expected + 1)
    dragoman.convert(tmp_path / "marian", tmp_path / "bundle")
    translator = dragoman.load(tmp_path / "bundle", task="translation", device="cpu", precision="float32")
    (translation,) = translator.translate(["ab"], repetition_window=0)
    assert (translation.status, len(translation.tokens)) == ("ok" if expected else "empty", expected)


def test_checkpoint_of_transformers_gives_the_same_bundle(tmp_path: Path) -> None:
    model = write_peer(tmp_path / "marian")
    dragoman.convert(tmp_path / "marian", tmp_path / "first")
    (tmp_path / "marian" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "marian" / "pytorch_model.bin")
    dragoman.convert(tmp_path / "marian", tmp_path / "second")
    files = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]
