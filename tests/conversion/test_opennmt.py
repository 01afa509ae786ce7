"""Converted models of OpenNMT-py and Eole against a forward pass from nn.functional, and errors of one line."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dragoman
from damaged_sources import RunsCode, change_json, check_refusal
from dragoman.bundle import load_bundle
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from fairseq_checkpoints import list_merges, list_subwords
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, make_lines, train_model
from opennmt_checkpoints import (
    SPECIAL_TOKENS,
    compute_logits,
    make_config,
    make_model,
    make_opt,
    make_state,
    torchtext_classes,
    write_checkpoint,
    write_eole_folder,
)

LINES = ["xyz abc", "a", *make_lines(SOURCE_LETTERS, 10, 2)]
SOURCE_TOKENS = list_subwords(SOURCE_LETTERS)
TARGET_TOKENS = list_subwords(TARGET_LETTERS)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no biases": {"attention_bias": False, "ffn_bias": False, "output_bias": False, "share_decoder_embeddings": False},
    "shared": {"share_embeddings": True, "activation": "gelu", "layout": "SinusoidalConcat"},
    "encoder shares": {"share_embeddings": True, "share_decoder_embeddings": False, "final_bias": False, "norm_eps": 1e-4},
}
EOLE_VARIANTS = VARIANTS | {"learned": {"layout": "Learned", "activation": "silu"}}
CASES = [
    *((f"version {version}", variant) for version in (2, 3) for variant in VARIANTS),
    ("safetensors", "plain"),
    *(("eole", variant) for variant in EOLE_VARIANTS),
]


def write_variant(
    folder: Path, form: str = "version 3", *, options: dict[str, Any] | None = None, **changes: Any
) -> tuple[dict[str, Tensor], dict[str, Any], tuple[list[str], list[str]]]:
    """Write a folder, and return the tensors under the names of Eole, the traits and the tokens of both sides.

    options: changes of `opt`, or of the top level of `config.json`
    """
    model = make_model(**changes)
    # In version 2, a source that does not share its vocabulary has no begin and end tokens.
    source_special = SPECIAL_TOKENS[:2] if form == "version 2" else SPECIAL_TOKENS
    tokens = [*source_special, *SOURCE_TOKENS], [*SPECIAL_TOKENS, *TARGET_TOKENS]
    if model["share_embeddings"]:
        tokens = tokens[1], tokens[1]
    state = make_state(model, len(tokens[0]), len(tokens[1]))
    if form == "eole":
        write_eole_folder(folder, config=make_config(model) | (options or {}), state=state, tokens=tokens)
    else:
        version = 2 if form == "version 2" else 3
        opt = make_opt(model, **(options or {}))
        write_checkpoint(folder, version=version, opt=opt, state=state, tokens=tokens, has_safetensors=form == "safetensors")
    return state, model, tokens


def map_ids(tokens: list[str]) -> Tensor:
    """Return dragoman's id of each token: the special ones are 0 to 3, and the others follow in their order."""
    special = {"<blank>": 0, "<unk>": 1, "<s>": 2, "</s>": 3}
    others = iter(range(len(SPECIAL_IDS), len(tokens) + len(SPECIAL_IDS)))
    return torch.tensor([special[token] if token in special else next(others) for token in tokens])


@pytest.mark.parametrize(("form", "variant"), CASES)
@torch.no_grad()
def test_logits_are_equal(form: str, variant: str, tmp_path: Path) -> None:
    state, model, tokens = write_variant(tmp_path / "source", form, **EOLE_VARIANTS[variant])
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle", source_language="en", target_language="de")
    assert result.origin.format == ("eole" if form == "eole" else "opennmt-py")
    assert result.origin.target_languages == ["de"]
    bundle, chance = load_bundle(tmp_path / "bundle"), torch.Generator().manual_seed(1)
    assert bundle.recipe.decoding.length_penalty == ("none" if form == "version 2" else "power")
    source_ids, target_ids = map_ids(tokens[0]), map_ids(tokens[1])
    for length in (1, 5, 20):
        source = torch.randint(4, len(tokens[0]), (3, length), generator=chance)
        inputs = torch.cat([torch.full((3, 1), 2), torch.randint(3, len(tokens[1]), (3, 12), generator=chance)], dim=1)
        expected = compute_logits(state, model, source, inputs)
        logits = bundle.model(source_ids[source], target_ids[inputs])
        torch.testing.assert_close(logits[:, :, target_ids], expected, rtol=1e-6, atol=1e-5)


# Tokenizers


def test_text_holds_its_pieces(tmp_path: Path) -> None:
    write_variant(tmp_path / "source")
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert any("no codes" in note for note in result.notes)
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.encode_source("ab@@ c @@@") == [SOURCE_TOKENS.index("ab@@") + 4, SOURCE_TOKENS.index("c") + 4, 1]


@pytest.mark.parametrize("is_named", [True, False])
def test_codes_split_the_text(is_named: bool, tmp_path: Path) -> None:
    """The merges join `a` and `b`, and `bc` at the end of a word; the first one is applied first."""
    options = {"transforms": ["bpe"], "src_subword_model": "/data/bpe.codes", "share_vocab": True} if is_named else {}
    write_variant(tmp_path / "source", options=options, share_embeddings=True)
    merges = "".join(f"{left} {right}\n" for left, right in list_merges(TARGET_LETTERS))
    (tmp_path / "source" / "bpe.codes").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    expected = [TARGET_TOKENS.index(token) + 4 for token in ("no@@", "p", "no")]
    assert tokenizer.encode_source("nop no") == expected
    assert tokenizer.target.decode(expected) == "nop no"


@pytest.mark.parametrize("form", ["version 3", "eole", "unnamed"])
def test_sentencepiece_models_split_the_text(form: str, tmp_path: Path) -> None:
    import sentencepiece as spm

    names = {"src_subword_model": "${MODEL_PATH}/src.model", "tgt_subword_model": "C:\\data\\tgt.model"}
    options: dict[str, Any] = {}
    if form == "version 3":
        options = {"transforms": ["onmt_tokenize"], "src_subword_type": "sentencepiece", "tgt_subword_type": "sentencepiece"}
        options |= {**names, "src_onmttok_kwargs": "{'mode': 'none'}"}
    elif form == "eole":
        options = {"transforms": ["sentencepiece", "prefix"], "transforms_configs": {"sentencepiece": names}}
    model, folder = make_model(), tmp_path / "source"
    processors = [spm.SentencePieceProcessor(model_proto=train_model(text)) for text in (SOURCE_LETTERS, TARGET_LETTERS)]
    sides = [[*SPECIAL_TOKENS, *(model.id_to_piece(index) for index in range(3, len(model)))] for model in processors]
    state, tokens = make_state(model, len(sides[0]), len(sides[1])), (sides[0], sides[1])
    if form == "eole":
        write_eole_folder(folder, config=make_config(model) | options, state=state, tokens=tokens)
    else:
        write_checkpoint(folder, version=3, opt=make_opt(model, **options), state=state, tokens=tokens)
    for name, letters in (("src.model", SOURCE_LETTERS), ("tgt.model", TARGET_LETTERS)):
        (folder / name).write_bytes(train_model(letters))
    result = dragoman.convert(folder, tmp_path / "bundle")
    assert any("prefix" in note for note in result.notes) == (form == "eole")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    for line in LINES:
        assert tokenizer.encode_source(line) == [index + 1 if index else 1 for index in processors[0].encode(line)]
        assert tokenizer.encode_target(line) == [index + 1 if index else 1 for index in processors[1].encode(line)]


# Features that dragoman does not have


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"encoder_type": "brnn"}, "encoder_type = 'brnn'"),
        ({"max_relative_positions": 20}, "max_relative_positions = 20"),
        ({"position_encoding_type": "Learned"}, "position_encoding_type"),
        ({"pos_ffn_activation_fn": "silu"}, "gated"),  # OpenNMT-py gates SiLU
        ({"src_feats_vocab": {"pos": "x"}}, "src_feats_vocab"),
        ({"transforms": ["sentencepiece", "bpe"]}, "transforms"),
        ({"transforms": ["onmt_tokenize"], "src_onmttok_kwargs": "{'mode': 'aggressive'}"}, "src_onmttok_kwargs"),
        ({"transforms": ["onmt_tokenize"], "src_subword_type": "bpe", "tgt_subword_type": "bpe"}, "src_subword_type"),
    ],
)
def test_unsupported_option_is_refused(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", options=options)
    check_refusal(tmp_path / "source", "conversion-unsupported", name, "model_step_10.pt")


@pytest.mark.parametrize(
    ("section", "options", "name"),
    [
        ("embeddings", {"position_encoding_type": "Rotary"}, "position_encoding_type = 'Rotary'"),
        ("encoder", {"encoder_type": "rnn"}, "encoder.encoder_type"),
        ("encoder", {"heads": 8}, "decoder.heads"),
        ("decoder", {"heads_kv": 2}, "multi-query"),
        ("decoder", {"mlp_activation_fn": "gated-silu"}, "gated"),
        ("decoder", {"q_gating": True}, "q_gating"),
        (None, {"left_pad": True}, "left_pad"),
    ],
)
def test_unsupported_option_of_eole_is_refused(section: str | None, options: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", "eole")
    path = tmp_path / "source" / "config.json"
    change_json(path, lambda config: (config["model"][section] if section else config["model"]).update(options))
    check_refusal(tmp_path / "source", "conversion-unsupported", name, str(path))


# Damaged files


def add_tensor(name: str, *shape: int) -> Callable[[dict[str, Tensor]], object]:
    """Return a change that adds or replaces a tensor."""
    return lambda state: state.update({name: torch.zeros(*shape)})


@pytest.mark.parametrize("form", ["version 3", "eole"])
@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (lambda state: state.pop("encoder.transformer_layers.1.mlp.down_proj.weight"), "source-damaged", "down_proj"),
        (lambda state: state.pop("decoder.transformer_layers.1.input_layernorm.bias"), "source-damaged", "input_layernorm"),
        (lambda state: state.pop("generator.weight"), "source-damaged", "generator.weight"),
        (add_tensor("decoder.transformer_layers.0.mlp.up_proj.weight", 48, 32), "conversion-unsupported", "up_proj"),
        (add_tensor("decoder.transformer_layers.7.input_layernorm.bias", 32), "conversion-unsupported", "layers.7"),
        (add_tensor("src_emb.embeddings.weight", 9, 32), "source-damaged", "(9, 32)"),
        (add_tensor("generator.bias", 7), "source-damaged", "(7,)"),
        (add_tensor("src_emb.pe.pe", 64, 1, 32), "conversion-unsupported", "src_emb.pe.pe"),
        (add_tensor("encoder.transformer_layers.0.mlp.gate_up_proj.weight", 20, 32), "source-damaged", "feed_forward.inner"),
        (lambda state: state["encoder.layer_norm.bias"].fill_(torch.nan), "source-damaged", "encoder.norm.bias"),
    ],
)
def test_false_tensors_raise(
    change: Callable[[dict[str, Tensor]], object], code: str, name: str, form: str, tmp_path: Path
) -> None:
    model, tokens = (
        make_model(share_decoder_embeddings=False),
        ([*SPECIAL_TOKENS, *SOURCE_TOKENS], [*SPECIAL_TOKENS, *TARGET_TOKENS]),
    )
    state = make_state(model, len(tokens[0]), len(tokens[1]))
    change(state)
    if form == "eole":
        write_eole_folder(tmp_path / "source", config=make_config(model), state=state, tokens=tokens)
    else:
        write_checkpoint(tmp_path / "source", version=3, opt=make_opt(model), state=state, tokens=tokens)
    check_refusal(tmp_path / "source", code, name)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"enc_layers": 10**9}, "encoder.transformer_layers.2"),
        ({"enc_layers": 0}, "without layers"),
        ({"enc_layers": "2"}, "enc_layers"),
        ({"heads": 5}, "num_heads"),
        ({"share_embeddings": 1}, "share_embeddings"),
        ({"dropout": ["a"]}, "dropout"),
        ({"transforms": ["sentencepiece"], "src_subword_model": "../../spm.model"}, "spm.model"),
        ({"transforms": ["sentencepiece"]}, "has no ''"),
    ],
)
def test_false_options_raise(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", options=options)
    check_refusal(tmp_path / "source", "source-damaged", name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_variant(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize(
    "value", [{}, [1], {"opt": 5, "vocab": {}}, {"opt": {"layers": 6}, "vocab": {"src": []}, "model": {1: 2}, "generator": {}}]
)
def test_file_of_another_program_raises(value: Any, folder: Path) -> None:
    torch.save(value, folder / "model_step_10.pt")
    check_refusal(folder, "source-damaged", "opt and vocab")


def test_checkpoint_with_code_is_refused(folder: Path) -> None:
    torch.save({"opt": RunsCode(), "vocab": {}}, folder / "model_step_10.pt")
    check_refusal(folder, "checkpoint-unsafe", "sys.exit")


def make_nested(depth: int) -> list[Any]:
    """Return a list that holds the same list twice, and so on: a short pickle, whose text would have 2 ** depth parts."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value", [make_nested(24), torch.zeros(2), {"a": make_nested(24)}], ids=["list", "tensor", "dictionary"]
)
def test_value_without_a_short_text_is_refused(value: Any, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", options={"copy_attn": value})
    check_refusal(tmp_path / "source", "conversion-unsupported", "copy_attn = ", "<object>")


def test_field_of_fields_is_refused(tmp_path: Path) -> None:
    """A field of torchtext that holds itself has no vocabulary."""
    _, model, _ = write_variant(tmp_path / "source", "version 2")
    with torchtext_classes() as classes:
        field = classes["TextMultiField"]()
        field.fields = [("src", field)]
        content = {"opt": Namespace(**make_opt(model)), "vocab": {"src": field, "tgt": field}, "model": {}, "generator": {}}
        torch.save(content, tmp_path / "source" / "model_step_10.pt")
    check_refusal(tmp_path / "source", "source-damaged", "vocabulary src")


def test_several_checkpoints_raise(folder: Path) -> None:
    (folder / "model_step_20.pt").write_bytes(b"")
    check_refusal(folder, "source-damaged", "model_step_10.pt, model_step_20.pt")


def test_several_segmenters_raise(folder: Path) -> None:
    for name in ("a.model", "b.model"):
        (folder / name).write_bytes(train_model(SOURCE_LETTERS))
    check_refusal(folder, "source-damaged", "a.model, b.model")


@pytest.mark.parametrize(
    ("vocabulary", "name"),
    [
        ({"src": ["<unk>", "a", "a"]}, "src"),
        ({"src": "abc"}, "src"),
        ({"src": ["a", "b"]}, "<unk>"),
        ({"tgt": ["<unk>", "<s>", "a"]}, "no end token"),
        ({"specials": {"unk_token": 5}}, "special token"),
        ({"decoder_start_token": "a@@"}, "decoder_start_token"),
    ],
)
def test_false_vocabulary_raises(vocabulary: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", "eole")
    change_json(tmp_path / "source" / "vocab.json", **vocabulary)
    code = "conversion-unsupported" if "decoder_start_token" in vocabulary else "source-damaged"
    check_refusal(tmp_path / "source", code, name)
