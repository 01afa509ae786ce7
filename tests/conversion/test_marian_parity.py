"""Converted MarianMT models against the `transformers` library: tokens, logits, and the outputs of each search."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.inference.translator import Translator
from dragoman.torch_engine.inference_model import as_inference_model
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, list_pieces, make_config, make_lines, train_model

transformers: Any = pytest.importorskip("transformers", reason="parity with MarianMT needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
NUM_SENTENCES = 200
"""Sentences of the first variant whose outputs are compared; the other variants have fewer."""
MAX_EXTRA_TOKENS = 24
VARIANTS: dict[str, dict[str, Any]] = {
    "swish": {},
    "gelu": {"activation_function": "gelu", "scale_embedding": False},
    "relu": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3, "end_bias": 20.0},
    "separate": {"share_encoder_decoder_embeddings": False},
    "untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "end starts": {"decoder_start_token_id": 0},
}
FAST_VARIANT = "relu"


@dataclass
class Peer:
    """MarianMT model of transformers and the translator of its conversion.

    ids: dragoman's target id of each of Marian's
    """

    model: Any
    float64_model: Any
    tokenizer: Any
    translator: Translator
    lines: list[str]
    ids: list[int]
    num_sentences: int


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
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    folder = tmp_path_factory.mktemp("peer")
    changes = VARIANTS[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = write_peer(folder / "marian", **changes)
        tokenizer = transformers.MarianTokenizer.from_pretrained(folder / "marian")
    dragoman.convert(folder / "marian", folder / "bundle")
    translator = dragoman.load(folder / "bundle", task="translation", device="cpu", precision="float32")
    # Both search in float64, because the rounding of float32 decides a few near ties of these flat distributions.
    models = [copy.deepcopy(member).double() for member in translator.session.models]
    translator.session.__dict__["inference_model"] = as_inference_model(models)
    pieces = list_pieces()
    target = translator.bundle.tokenizer.target
    special = {"</s>": 3, "<unk>": 1, "<pad>": 2}
    ids = [special[piece] if piece in special else target.piece_to_id(piece) or 0 for piece in pieces]
    assert sorted(ids) == sorted({*range(1, len(pieces) + 1)})
    num_sentences, num_lines = (NUM_SENTENCES, 2 * NUM_SENTENCES) if request.param == "swish" else (5, 30)
    # More lines than sentences, because some outputs have no end.
    lines = ["xyz ä nop 🙂 abc", "  a   b ", "NOP", "ä", *make_lines(SOURCE_LETTERS, num_lines, 2)]
    return Peer(model, copy.deepcopy(model).double(), tokenizer, translator, lines, ids, num_sentences)


def test_source_tokens_are_equal(peer: Peer) -> None:
    for line in peer.lines:
        expected = [peer.ids[index] for index in peer.tokenizer(line)["input_ids"]]
        assert peer.translator.bundle.tokenizer.encode_source(line) == expected


@torch.no_grad()
def test_logits_are_equal(peer: Peer) -> None:
    chance = torch.Generator().manual_seed(1)
    start = peer.model.config.decoder_start_token_id
    for line in peer.lines[:40]:
        source = peer.tokenizer(line, return_tensors="pt")["input_ids"]
        target = torch.randint(1, len(peer.ids) - 1, (1, 12), generator=chance)
        inputs = torch.cat([torch.tensor([[start]]), target], dim=1)
        expected = peer.model(input_ids=source, decoder_input_ids=inputs).logits[0]
        ids = torch.tensor(peer.ids)
        logits = peer.translator.bundle.model(ids[source], ids[inputs])[0]
        torch.testing.assert_close(logits[:, ids], expected, rtol=0, atol=1e-5)
        assert bool((logits[:, 0] < -1e4).all())


SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"num_beams": 1}, {"method": "greedy"}),
    "beam": ({"num_beams": 4, "early_stopping": False}, {"method": "beam", "beam_size": 4, "early_stopping": "heuristic"}),
    "beam full": ({"num_beams": 4, "early_stopping": True}, {"method": "beam", "beam_size": 4, "early_stopping": "beam_full"}),
    "no length penalty": (
        {"num_beams": 4, "early_stopping": False, "length_penalty": 0.0},
        {"method": "beam", "beam_size": 4, "early_stopping": "heuristic", "alpha": 0.0},
    ),
}


def generate(peer: Peer, lines: list[str], options: dict[str, Any]) -> list[list[int]]:
    """Return the outputs of transformers in dragoman's ids. Sources of one length form a batch, so none has padding."""
    sources = [peer.tokenizer(line)["input_ids"] for line in lines]
    outputs: dict[int, list[int]] = {}
    for length in sorted({len(source) for source in sources}):
        indices = [index for index, source in enumerate(sources) if len(source) == length]
        batch = peer.float64_model.generate(
            torch.tensor([sources[index] for index in indices]),
            max_new_tokens=length + MAX_EXTRA_TOKENS,
            max_length=None,
            forced_eos_token_id=None,
            bad_words_ids=[[len(peer.ids) - 1]],
            do_sample=False,
            **options,
        )
        outputs |= {index: [peer.ids[token] for token in row[1:]] for index, row in zip(indices, batch.tolist(), strict=True)}
    return [outputs[index] for index in range(len(lines))]


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_outputs_are_equal(search: str, peer: Peer) -> None:
    """Compare outputs that end by themselves; at the length limit, transformers counts a cut hypothesis as finished."""
    generate_options, decoding = SEARCHES[search]
    translator, target = peer.translator, peer.translator.bundle.tokenizer.target
    translations = translator.translate(peer.lines, max_extra_tokens=MAX_EXTRA_TOKENS, repetition_window=0, **decoding)
    outputs = generate(peer, peer.lines, generate_options)
    num_compared = 0
    for line, translation, output in zip(peer.lines, translations, outputs, strict=True):
        if END_ID not in output:
            assert decoding["method"] == "beam" or translation.status == "truncated"
            continue
        num_compared += 1
        expected = output[: output.index(END_ID)]
        assert [target.piece_to_id(piece) for piece in translation.tokens] == expected, line
    assert num_compared >= peer.num_sentences


@torch.no_grad()
def test_texts_are_equal(peer: Peer) -> None:
    """Compare texts without an unknown token, which SentencePiece shows as ⁇ and transformers drops."""
    translations = peer.translator.translate(peer.lines[:20], method="greedy", repetition_window=0)
    target, num_compared = peer.translator.bundle.tokenizer.target, 0
    for translation in translations:
        if "<unk>" not in translation.tokens:
            ids = [peer.ids.index(target.piece_to_id(piece) or 0) for piece in translation.tokens]
            assert translation.text == peer.tokenizer.decode(ids, skip_special_tokens=True)
            num_compared += 1
    assert num_compared > 5


def test_recipe_has_the_options_of_the_source(peer: Peer) -> None:
    decoding = peer.translator.recipe.decoding
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
