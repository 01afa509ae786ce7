"""Exports to MarianMT, checked with `transformers`: tokens, logits, outputs, model card, and refused features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import dragoman
from dragoman.bundle import Bundle, BundleMetadata, ModelOrigin, load_bundle
from dragoman.cli.main import cli
from dragoman.config import make_recipe
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.errors import BundleError
from dragoman.export.huggingface import export_huggingface
from dragoman.io.storage import verify_checksums
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.training.commands.train import describe_missing_export
from expected_errors import raises_code
from noisy_bundles import make_noisy_bundle, write_bundle

transformers: Any = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
pytestmark = pytest.mark.usefixtures("one_core", "quiet")

SMALL = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2, "norm_epsilon": 1e-5}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "MarianMT": {"position_encoding": "halves", "activation": "silu", "attention_bias": True, "output_bias": True},
    "separate vocabularies": {"tie_embeddings": "decoder", "activation": "gelu", "decoder_start_token": "bos"},
    "grouped heads": {"num_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
    "untied": {"tie_embeddings": "none", "scale_embeddings": False},
    "starts with the end token": {"decoder_start_token": "eos"},
}


def random_bundle(base: Bundle, **settings: Any) -> Bundle:
    """Return a model with random weights."""
    document = {
        "preset": "paper",
        "model": SMALL | settings,
        "tokenizer": {"joint": settings.get("tie_embeddings", "all") == "all"},
        "task": {"source_language": "en", "target_language": "de"},
    }
    return make_noisy_bundle(base.tokenizer, document)


def open_export(folder: Path) -> tuple[Any, Any]:
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    return model, transformers.MarianTokenizer.from_pretrained(folder)


@torch.no_grad()
def test_logits_are_equal(subtests: pytest.Subtests, trained_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both models compute in float64, so that only an error of the export can make a difference."""
    for variant in VARIANTS:
        with subtests.test(variant=variant):
            tmp_path = tmp_path_factory.mktemp("case")
            bundle = random_bundle(trained_bundle, **VARIANTS[variant])
            export_huggingface(bundle, tmp_path / "out")
            verify_checksums(tmp_path / "out", BundleError)
            model, _ = open_export(tmp_path / "out")
            rng = torch.Generator().manual_seed(1)
            source = torch.randint(4, len(bundle.tokenizer.source), (3, 9), generator=rng)
            source[1, 6:] = PADDING_ID
            inputs = torch.randint(4, len(bundle.tokenizer.target), (3, 8), generator=rng)
            inputs[:, 0] = model.config.decoder_start_token_id
            assert model.config.decoder_start_token_id == get_decoder_start_id(bundle.recipe.model)
            expected = bundle.model.double()(source, inputs)
            logits = model.double()(input_ids=source, attention_mask=source != PADDING_ID, decoder_input_ids=inputs).logits
            torch.testing.assert_close(logits[:, :, 1:], expected[:, :, 1:], rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("method", [pytest.param("greedy", marks=pytest.mark.slow), "beam"])
def test_texts_are_equal(method: str, trained_bundle: Bundle, corpus: Path, tmp_path: Path) -> None:
    """Compare outputs that end by themselves; at the length limit, transformers counts a cut hypothesis as finished."""
    bundle = random_bundle(trained_bundle, output_bias=True, decoder_start_token="bos")
    assert bundle.model.output_bias is not None
    bundle.model.output_bias[END_ID] = 6.5  # so that most outputs end
    export_huggingface(bundle, tmp_path / "out")
    model, tokenizer = open_export(tmp_path / "out")
    lines = (corpus / "train.en").read_text(encoding="utf-8").splitlines()[:30]
    translator = dragoman.load(write_bundle(bundle, tmp_path / "bundle"), task="translation", device="cpu", precision="float32")
    options: dict[str, Any] = (
        {"num_beams": 4, "early_stopping": True, "length_penalty": 1.0} if method == "beam" else {"num_beams": 1}
    )
    decoding: dict[str, Any] = {"method": method, "early_stopping": "beam_full", "length_penalty": "power", "alpha": 1.0}
    translations = translator.translate(lines, max_extra_tokens=20, repetition_window=0, **decoding)
    num_compared = 0
    for line, translation in zip(lines, translations, strict=True):
        batch = tokenizer(line, return_tensors="pt")
        limit = batch["input_ids"].shape[1] + 20
        output = model.generate(**batch, max_new_tokens=limit, max_length=None, **options)[0]
        if END_ID in output[1:]:
            num_compared += 1
            assert translation.text == tokenizer.decode(output, skip_special_tokens=True)
    assert num_compared >= 10


@torch.no_grad()
@pytest.mark.parametrize("min_length", [1, 6])
def test_shortest_outputs_are_equal(min_length: int, trained_bundle: Bundle, tmp_path: Path) -> None:
    """An output ends as soon as it may: after `min_length` tokens in dragoman, and in transformers by the exported options."""
    base = random_bundle(trained_bundle, output_bias=True, decoder_start_token="bos")
    assert base.model.output_bias is not None
    base.model.output_bias[END_ID] = 1000.0
    update = {"min_length": min_length, "method": "greedy", "repetition_window": 0}
    decoding = base.recipe.decoding.model_copy(update=update)
    bundle = replace(base, recipe=base.recipe.model_copy(update={"decoding": decoding}))
    export_huggingface(bundle, tmp_path / "out")
    model, tokenizer = open_export(tmp_path / "out")
    output = model.generate(**tokenizer(["one two"], return_tensors="pt"))[0].tolist()
    assert (len(output), output.index(END_ID)) == (min_length + 2, min_length + 1)
    dragoman.convert(tmp_path / "out", tmp_path / "converted")
    for path in (write_bundle(bundle, tmp_path / "bundle"), tmp_path / "converted"):
        translator = dragoman.load(path, task="translation", device="cpu", precision="float32")
        assert len(translator.translate(["one two"], repetition_window=0)[0].tokens) == min_length


def test_exported_folder_converts_back(trained_bundle: Bundle, tmp_path: Path) -> None:
    """The conversion of the export has the same logits, in the order of MarianMT's dimensions."""
    bundle = random_bundle(trained_bundle, decoder_start_token="bos")
    export_huggingface(bundle, tmp_path / "out")
    dragoman.convert(tmp_path / "out", tmp_path / "bundle")
    converted = load_bundle(tmp_path / "bundle")
    text = "one two three"
    assert converted.tokenizer.encode_source(text) == bundle.tokenizer.encode_source(text)
    source, inputs = torch.tensor([bundle.tokenizer.encode_source(text)]), torch.tensor([[2, 5, 6, 7]])
    with torch.no_grad():
        expected, logits = bundle.model.double()(source, inputs), converted.model.double()(source, inputs)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


def test_files_describe_model_and_search(trained_bundle: Bundle, tmp_path: Path) -> None:
    base = random_bundle(trained_bundle)
    decoding = base.recipe.decoding.model_copy(update={"min_length": 2, "max_source_tokens": 30, "max_extra_tokens": 10})
    origin = ModelOrigin(format="huggingface-marian", name="someone/model", license="cc-by-4.0")
    metadata = BundleMetadata(pairs=12_345, steps=678, origin=origin)
    bundle = replace(base, recipe=base.recipe.model_copy(update={"decoding": decoding}), metadata=metadata)
    result = export_huggingface(bundle, tmp_path / "out", scores={"BLEU": 27.3})
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_bytes())
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_bytes())
    vocabulary = json.loads((tmp_path / "out" / "vocab.json").read_bytes())
    assert result.max_positions == config["max_position_embeddings"] == generation["max_length"] == 40
    assert result.decoding_options == generation
    assert (generation["min_length"], generation["eos_token_id"]) == (3, END_ID)  # transformers counts the start token
    assert generation["bad_words_ids"] == [[0], [2]]
    assert (tokenizer["source_lang"], tokenizer["target_lang"], tokenizer["model_max_length"]) == ("en", "de", 30)
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    front_matter = card.split("---\n")[1]
    assert '- "en"\n- "de"\n' in front_matter
    assert 'license: "cc-by-4.0"' in front_matter
    for phrase in ("sentence pairs: 12,345", "steps: 678", "| BLEU | 27.30 |", "MarianMTModel", "((5+|Y|)/6)^α"):
        assert phrase in card


def test_unsupported_feature_is_named(
    subtests: pytest.Subtests, trained_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"norm": "pre"}, "model.norm = 'pre'"),
        ({"final_norm": True}, "model.final_norm = True"),
        ({"norm_epsilon": 0.01}, "model.norm_epsilon = 0.01"),
        ({"position_encoding": "learned"}, "model.position_encoding = 'learned'"),
        ({"position_encoding": "concatenated"}, "model.position_encoding = 'concatenated'"),
        ({"position_offset": 2}, "model.position_offset = 2"),
        ({"d_k": 3}, "model.d_k = 3"),
        ({"embedding_norm": True}, "model.embedding_norm = True"),
        ({"target_space_embedding": True}, "model.target_space_embedding = True"),
        ({"attention_window": 3}, "model.attention_window = 3"),
        ({"decoder_autoregression": "ssru"}, "model.decoder_autoregression = 'ssru'"),
        ({"norm_type": "rms"}, "model.norm_type = 'rms'"),
        ({"position_encoding": "rotary"}, "model.position_encoding = 'rotary'"),
        ({"activation": "swiglu"}, "model.activation = 'swiglu'"),
        ({"feed_forward_bias": False}, "model.feed_forward_bias = False"),
    ]
    for settings, feature in cases:
        with subtests.test(settings=settings, feature=feature):
            tmp_path = tmp_path_factory.mktemp("case")
            with raises_code("export-unsupported", feature):
                export_huggingface(random_bundle(trained_bundle, **settings), tmp_path / "out")
            assert not (tmp_path / "out").exists()


def test_training_names_an_export_that_cannot_hold_its_layers() -> None:
    texts = [describe_missing_export(make_recipe({"preset": "modern"}, [f"model.norm={norm}"])) for norm in ("post", "pre")]
    assert texts[0] is None
    assert str(texts[1]).startswith("no export to huggingface: model.norm = 'pre': MarianMT ")


def test_command_writes_card_with_scores_of_run(trained_bundle: Bundle, tmp_path: Path) -> None:
    bundle = replace(random_bundle(trained_bundle), metadata=BundleMetadata(finished="2026-01-01T00:00:00"))
    path, out = write_bundle(bundle, tmp_path / "bundle"), tmp_path / "out"
    for finished, has_score in (("2026-01-01T00:00:00", True), ("2025-01-01T00:00:00", False)):
        (tmp_path / "report.json").write_text(json.dumps({"finished": finished, "bleu": 31.25}), encoding="utf-8")
        output = CliRunner().invoke(cli, ["export", str(path), "--to", "huggingface", str(out), "--json", "--overwrite"])
        assert output.exit_code == 0, output.output
        assert ("| BLEU | 31.25 |" in (out / "README.md").read_text(encoding="utf-8")) is has_score
    result = json.loads(output.stdout)
    assert result["format"] == "huggingface"
    assert result["num_bytes"] == sum(file.stat().st_size for file in out.iterdir())


def test_exported_tokenizer_normalizes_each_side_as_the_bundle(trained_bundle: Bundle, tmp_path: Path) -> None:
    """The default recipe composes the source and keeps each character of the target."""
    bundle = random_bundle(trained_bundle)
    export_huggingface(bundle, tmp_path / "hf")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "hf")
    texts = ["gru\u0308n grün", "one\u00a0two three", "m² \uff21\uff22", "rot\u3000blau", "ﬁ e\u0301"]
    assert bundle.tokenizer.encode_source(texts[0]) != bundle.tokenizer.encode_target(texts[0])
    assert tokenizer(texts)["input_ids"] == [bundle.tokenizer.encode_source(text) for text in texts]
    targets = tokenizer(text_target=texts)["input_ids"]
    assert targets == [[*bundle.tokenizer.encode_target(text), END_ID] for text in texts]
