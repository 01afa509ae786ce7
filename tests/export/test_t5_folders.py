"""Exports to T5, checked with `transformers`: tokens, logits, outputs, the way back, and refused features."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
import t5_folders
from dragoman.bundle import Bundle, load_bundle
from dragoman.config import make_recipe
from dragoman.data.tokenization.extra_tokens import add_extra_tokens
from dragoman.data.tokenization.pair_tokenizer import train_tokenizer
from dragoman.errors import BundleError
from dragoman.export.huggingface import export_huggingface
from dragoman.export.huggingface_t5 import get_new_id
from dragoman.io.storage import verify_checksums
from expected_errors import raises_code
from noisy_bundles import make_noisy_bundle, write_bundle
from odd_texts import PLAIN
from torch_models import bundle_model

transformers: Any = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
pytestmark = pytest.mark.usefixtures("one_core", "quiet")
MAX_EXTRA_TOKENS = 20
T5: dict[str, Any] = {
    "encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2, "norm": "pre", "norm_type": "rms",
    "feed_forward_bias": False, "position_encoding": "relative", "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "scale_embeddings": False, "decoder_start_token": "bos",
}  # fmt: skip
"""Section `model` of a small T5."""
UNIGRAM = {"model_type": "unigram", "vocab_size": 310, "reserved_tokens": 3, "extra_tokens": ["<ui>"]}


def open_export(folder: Path) -> tuple[Any, Any]:
    verify_checksums(folder, BundleError)
    return (
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )


def make_bundle(tokenizer_keys: dict[str, Any], **settings: Any) -> Bundle:
    """Return a model of dragoman's own with random weights."""
    languages = {"source_language": "en", "target_language": "de"}
    document = {"preset": "paper", "model": T5 | settings, "tokenizer": tokenizer_keys, "task": languages}
    config = make_recipe(document).tokenizer
    texts = [*PLAIN, "0123456789 abcdefghijklmnopqrstuvwxyz"] * 4
    tokenizer = add_extra_tokens(train_tokenizer(texts, texts, config, append_source_eos=True, seed=1), config.extra_tokens)
    return make_noisy_bundle(tokenizer, document, get_scale=lambda name: 0.0 if name == "output_bias" else 0.4)


@torch.no_grad()
@pytest.mark.parametrize(
    "variant",
    [pytest.param(variant, marks=pytest.mark.slow if variant in ("t5-v1.1", "mt5") else []) for variant in t5_folders.VARIANTS],
)
def test_converted_models_return_as_they_came(variant: str, tmp_path: Path) -> None:
    """Tokens and ids are those of the source. MADLAD's padding has another id, so only its outputs are compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original, original_tokenizer = t5_folders.write_folder(tmp_path / "source", variant, with_json=variant == "mt5")
    is_madlad = variant == "madlad"
    dragoman.convert(tmp_path / "source", tmp_path / "bundle", target_language="de" if is_madlad else None)
    bundle = load_bundle(tmp_path / "bundle")
    export_huggingface(bundle, tmp_path / "out")
    model, tokenizer = open_export(tmp_path / "out")
    prefix = "<2de> " if is_madlad else ""
    expected_start, expected_padding = original.config.decoder_start_token_id, original.config.pad_token_id
    chance = torch.Generator().manual_seed(1)
    for line in [*PLAIN, " two  spaces\u3000here ", *([] if is_madlad else ["a <extra_id_3> b", "café 🙂"])]:
        text = prefix + line
        source, ids = original_tokenizer(text).input_ids, tokenizer(text).input_ids
        assert original_tokenizer.convert_ids_to_tokens(source) == tokenizer.convert_ids_to_tokens(ids), line
        assert ids == [get_new_id(index) for index in bundle.tokenizer.encode_source(line)]
        if not is_madlad:
            assert ids == source
            inputs = torch.randint(4, 60, (1, 12), generator=chance)
            inputs[:, 0] = expected_start
            expected = original(input_ids=torch.tensor([source]), decoder_input_ids=inputs).logits
            logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=inputs).logits
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        options: dict[str, Any] = {"max_new_tokens": MAX_EXTRA_TOKENS, "max_length": None, "do_sample": False, "num_beams": 1}
        silent = [[index] for index in {expected_start, expected_padding}]
        output = original.generate(torch.tensor([source]), bad_words_ids=silent, **options)[0, 1:]
        copy = model.generate(torch.tensor([ids]), **options)[0, 1:]
        assert original_tokenizer.convert_ids_to_tokens(output) == tokenizer.convert_ids_to_tokens(copy)


@torch.no_grad()
@pytest.mark.parametrize(
    ("tokenizer_keys", "settings"),
    [
        (UNIGRAM, {}),
        (UNIGRAM, {"activation": "gelu", "tie_embeddings": "inputs"}),
        (
            {"model_type": "byte", "reserved_tokens": 0, "normalization": "identity"},
            {"activation": "swiglu", "d_k": 12, "d_v": 12},
        ),
        (UNIGRAM | {"byte_fallback": False, "vocab_size": 58}, {"activation": "geglu", "output_bias": True}),
    ],
    ids=["unigram", "untied", "bytes", "no byte fallback"],
)
def test_own_models_have_equal_tokens_logits_and_outputs(
    tokenizer_keys: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    bundle = make_bundle(tokenizer_keys, **settings)
    export_huggingface(bundle, tmp_path / "out")
    model, tokenizer = open_export(tmp_path / "out")
    odd = ["a  b", " x ", "\u3000a", "e\u0301", "\ufb01n", "\uff21", "m² 10", "日本語 🙂", "<ui>old", "a <ui> b", "x" * 30]
    for text in [*PLAIN, *odd]:
        assert tokenizer(text).input_ids == [get_new_id(index) for index in bundle.tokenizer.encode_source(text)], text
    source = bundle.tokenizer.encode_source(PLAIN[0])
    inputs = torch.randint(4, len(bundle.tokenizer.source), (1, 9), generator=torch.Generator().manual_seed(1))
    inputs[:, 0] = 2
    expected = bundle.model.double()(torch.tensor([source]), inputs)
    new_source, new_inputs = (torch.tensor([[get_new_id(index) for index in ids]]) for ids in (source, inputs[0].tolist()))
    logits = model.double()(input_ids=new_source, decoder_input_ids=new_inputs).logits
    order = [get_new_id(index) for index in range(1, len(bundle.tokenizer.source))]
    scale = expected.abs().max().item()
    torch.testing.assert_close(logits[:, :, order], expected[:, :, 1:], rtol=0, atol=1e-6 * scale)
    translator = dragoman.load(write_bundle(bundle, tmp_path / "bundle"), task="translation", device="cpu", precision="float32")
    options: dict[str, Any] = {"max_new_tokens": 12, "max_length": None, "do_sample": False, "num_beams": 1}
    for line in PLAIN:
        ids = bundle.tokenizer.encode_source(line)
        translation = translator.translate([line], method="greedy", repetition_window=0, max_extra_tokens=12)[0]
        output = model.float().generate(torch.tensor([[get_new_id(index) for index in ids]]), **options)[0, 1:].tolist()
        tokens = [get_new_id(index) for piece in translation.tokens if (index := bundle.tokenizer.target.piece_to_id(piece))]
        count = output.index(1) if 1 in output else len(output)
        assert count
        assert tokens[:count] == output[:count]


@torch.no_grad()
def test_exported_folder_converts_back(tmp_path: Path) -> None:
    bundle = make_bundle(UNIGRAM | {"byte_fallback": False, "vocab_size": 58}, activation="geglu")
    export_huggingface(bundle, tmp_path / "out")
    dragoman.convert(tmp_path / "out", tmp_path / "bundle")
    converted = load_bundle(tmp_path / "bundle")
    text = "The house is <ui> old"
    ids, own_ids = converted.tokenizer.encode_source(text), bundle.tokenizer.encode_source(text)
    assert converted.tokenizer.source.ids_to_pieces(ids) == bundle.tokenizer.source.ids_to_pieces(own_ids)
    assert (converted.recipe.model.activation, converted.recipe.model.norm_type) == ("geglu", "rms")
    target = torch.tensor([[2, 5, 6, 7]])
    expected, logits = (model.model.double()(torch.tensor([own_ids]), target) for model in (bundle, converted))
    torch.testing.assert_close(logits[:, :, 1:], expected[:, :, 1:], rtol=0, atol=1e-6 * expected.abs().max().item())


def test_files_describe_model_and_search(tmp_path: Path) -> None:
    base = make_bundle(UNIGRAM | {"source_prefix": "translate: "})
    result = export_huggingface(base, tmp_path / "out", scores={"BLEU": 27.3})
    config, generation = (
        json.loads((tmp_path / "out" / name).read_bytes()) for name in ("config.json", "generation_config.json")
    )
    assert (config["model_type"], config["prefix"], config["feed_forward_proj"]) == ("t5", "translate: ", "relu")
    assert config["vocab_size"] == len(base.tokenizer.source) - 1
    assert generation["bad_words_ids"] == [
        [0],
        *([index] for index in sorted(map(get_new_id, base.tokenizer.target.reserved_ids))),
    ]
    assert result.decoding_options == generation
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for phrase in ("| BLEU | 27.30 |", "AutoModelForSeq2SeqLM", '["translate: A sentence."]'):
        assert phrase in card


def test_unsupported_feature_is_named(subtests: pytest.Subtests, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"norm": "post", "final_norm": True}, "model.norm = 'post'"),
        ({}, {"norm_type": "layer"}, "model.norm_type = 'layer'"),
        ({}, {"final_norm": False}, "model.final_norm = False"),
        ({}, {"attention_bias": True}, "model.attention_bias = True"),
        ({}, {"feed_forward_bias": True}, "model.feed_forward_bias = True"),
        ({}, {"d_v": 5}, "model.d_v = 5"),
        ({}, {"scale_embeddings": True}, "model.scale_embeddings = True"),
        ({}, {"embedding_norm": True}, "model.embedding_norm = True"),
        ({}, {"tie_embeddings": "none"}, "model.tie_embeddings = 'none'"),
        ({}, {"decoder_start_token": "zero"}, "model.decoder_start_token = 'zero'"),
        ({}, {"attention_window": 3}, "model.attention_window = 3"),
        ({"model_type": "bpe"}, {}, "tokenizer.model_type = 'bpe'"),
    ]
    for tokenizer_keys, settings, feature in cases:
        with subtests.test(feature=feature), raises_code("export-unsupported", feature):
            export_huggingface(make_bundle(UNIGRAM | tokenizer_keys, **settings), tmp_path / "out")
    bundle = make_bundle(UNIGRAM, output_bias=True)
    assert bundle.model.output_bias is not None
    with torch.no_grad():
        bundle.model.output_bias[5] = 0.5
    with raises_code("export-unsupported", "model.output_bias = True"):
        export_huggingface(bundle_model(bundle.recipe, bundle.tokenizer, bundle.model), tmp_path / "out")
    assert not (tmp_path / "out").exists()
