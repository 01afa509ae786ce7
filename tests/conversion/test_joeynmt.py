"""Converted models of JoeyNMT against a forward pass from nn.functional, and errors of one line."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dragoman
from damaged_sources import RunsCode, check_refusal
from dragoman.bundle import load_bundle
from dragoman.data.tokenization.special_tokens import END_ID
from expected_errors import raises_code
from fairseq_checkpoints import list_merges, list_subwords
from joeynmt_folders import SPECIAL_TOKENS, compute_logits, make_config, make_state, write_folder
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, make_lines, train_model

pytest.importorskip("yaml", reason="the configuration needs PyYAML: dragoman[joeynmt]")
SOURCE_TOKENS = list_subwords(SOURCE_LETTERS)
TARGET_TOKENS = list_subwords(TARGET_LETTERS)
MAP_IDS = torch.tensor([1, 0, 2, 3])
"""Dragoman's ids of <unk>, <pad>, <s> and </s>; all others keep their ids."""
VARIANTS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm": "post", "activation": "gelu", "scale": False},
    "all tied": {"tied_embeddings": True, "activation": "swish"},
    "separate": {"tied_softmax": False, "norm": "post"},
}


def write_variant(
    folder: Path, change: Callable[[dict[str, Any]], object] = lambda _: None, **variant: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Write a folder, and return its tensors and options. change: changes the options before they are written"""
    config = make_config(**variant)
    sides = [*SPECIAL_TOKENS, *SOURCE_TOKENS], [*SPECIAL_TOKENS, *TARGET_TOKENS]
    tokens = (sides[1], sides[1]) if config["model"]["tied_embeddings"] else sides
    state = make_state(config, len(tokens[0]), len(tokens[1]))
    change(config)
    write_folder(folder, config=config, state=state, tokens=tokens)
    return state, config


def map_ids(ids: Tensor) -> Tensor:
    """Return dragoman's ids."""
    return torch.where(ids < 4, MAP_IDS[ids.clamp(max=3)], ids)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_logits_are_equal(variant: str, tmp_path: Path) -> None:
    state, config = write_variant(tmp_path / "source", **VARIANTS[variant])
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert (result.origin.format, result.origin.source_languages, result.origin.target_languages) == ("joeynmt", ["en"], ["de"])
    bundle, chance = load_bundle(tmp_path / "bundle"), torch.Generator().manual_seed(1)
    sizes = [len(state[f"{side}_embed.lut.weight"]) for side in ("src", "trg")]
    columns = map_ids(torch.arange(sizes[1]))
    for length in (1, 5, 20):
        source = torch.randint(4, sizes[0], (3, length), generator=chance)
        inputs = torch.cat([torch.full((3, 1), 2), torch.randint(3, sizes[1], (3, 12), generator=chance)], dim=1)
        expected = compute_logits(state, config, source, inputs)
        logits = bundle.model(map_ids(source), map_ids(inputs))
        torch.testing.assert_close(logits[:, :, columns], expected, rtol=1e-6, atol=1e-5)


def test_search_options_become_a_recipe(tmp_path: Path) -> None:
    write_variant(tmp_path / "source")
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    decoding = load_bundle(tmp_path / "bundle").recipe.decoding
    assert (decoding.method, decoding.beam_size, decoding.length_penalty, decoding.alpha) == ("beam", 5, "gnmt", 1.5)
    assert (decoding.max_extra_tokens, decoding.suppress_tokens) == (30, ["<unk>"])


# Tokenizers


def set_tokenizer(**options: Any) -> Callable[[dict[str, Any]], object]:
    """Return a change of the tokenizers of both sides."""
    return lambda config: [config["data"][side].update(options) for side in ("src", "trg")]


def test_words_and_case(tmp_path: Path) -> None:
    write_variant(tmp_path / "source", set_tokenizer(level="word", lowercase=True))
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.encode_source("AB  c ?") == [SOURCE_TOKENS.index("ab") + 4, SOURCE_TOKENS.index("c") + 4, 1, END_ID]


def test_characters(tmp_path: Path) -> None:
    write_variant(tmp_path / "source", set_tokenizer(level="char", normalize=True))
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert any("quotes" in note for note in result.notes)
    assert load_bundle(tmp_path / "bundle").tokenizer.encode_source("a b") == [
        SOURCE_TOKENS.index("a") + 4, 1, SOURCE_TOKENS.index("b") + 4, END_ID,
    ]  # fmt: skip


def test_codes_split_the_text(tmp_path: Path) -> None:
    cfg = {"codes": "/data/codes.txt", "pretokenizer": "moses"}
    write_variant(tmp_path / "source", set_tokenizer(level="bpe", tokenizer_type="subword-nmt", tokenizer_cfg=cfg))
    merges = "".join(f"{left} {right}\n" for left, right in list_merges(SOURCE_LETTERS))
    (tmp_path / "source" / "codes.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert any("Moses" in note for note in result.notes)
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.encode_source("abc ab") == [SOURCE_TOKENS.index(token) + 4 for token in ("ab@@", "c", "ab")] + [END_ID]


def test_sentencepiece_models_split_the_text(tmp_path: Path) -> None:
    import sentencepiece as spm

    config, folder = make_config(), tmp_path / "source"
    processors = {}
    for side, letters in (("src", SOURCE_LETTERS), ("trg", TARGET_LETTERS)):
        processors[side] = spm.SentencePieceProcessor(model_proto=train_model(letters))
        config["data"][side].update(level="bpe", tokenizer_cfg={"model_file": f"models/sp.{side}"})
    pieces = [[processor.id_to_piece(index) for index in range(3, len(processor))] for processor in processors.values()]
    sides = [*SPECIAL_TOKENS, *pieces[0]], [*SPECIAL_TOKENS, *pieces[1]]
    write_folder(folder, config=config, state=make_state(config, len(sides[0]), len(sides[1])), tokens=sides)
    for side, letters in (("src", SOURCE_LETTERS), ("trg", TARGET_LETTERS)):
        (folder / f"sp.{side}").write_bytes(train_model(letters))
    dragoman.convert(folder, tmp_path / "bundle")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    for line in ["xyz abc", *make_lines(SOURCE_LETTERS, 10, 2)]:
        assert tokenizer.encode_source(line) == [index + 1 if index else 1 for index in processors["src"].encode(line)] + [
            END_ID
        ]
        assert tokenizer.encode_target(line) == [index + 1 if index else 1 for index in processors["trg"].encode(line)]


@torch.no_grad()
def test_version_1_is_pre_norm(tmp_path: Path) -> None:
    """Version 1 names the languages in `data`, has one level for both sides, and does not name the place of normalization."""

    def make_old(config: dict[str, Any]) -> None:
        config["data"] = {"src": "de", "trg": "en", "level": "bpe", "lowercase": False}
        config["testing"] = {"beam_size": 1, "alpha": -1}
        for stack in ("encoder", "decoder"):
            del config["model"][stack]["layer_norm"]

    state, _ = write_variant(tmp_path / "source", make_old)
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert result.origin.source_languages == ["de"]
    bundle = load_bundle(tmp_path / "bundle")
    assert (bundle.recipe.decoding.method, bundle.recipe.decoding.length_penalty) == ("greedy", "none")
    assert bundle.tokenizer.encode_source("ab@@ c") == [SOURCE_TOKENS.index(token) + 4 for token in ("ab@@", "c")] + [END_ID]
    source, inputs = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    expected = compute_logits(state, make_config(), source, inputs)
    logits = bundle.model(map_ids(source), map_ids(inputs))[:, :, map_ids(torch.arange(expected.shape[-1]))]
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-5)


# Features that dragoman does not have


def set_model(stack: str | None, **options: Any) -> Callable[[dict[str, Any]], object]:
    """Return a change of one stack, or of both."""
    stacks = ["encoder", "decoder"] if stack is None else [stack]
    return lambda config: [config["model"][name].update(options) for name in stacks]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (set_model("encoder", type="recurrent"), "type = 'recurrent'"),
        (set_model("decoder", type="recurrent"), "Transformer"),
        (set_model(None, activation="tanh"), "activation = 'tanh'"),
        (set_model(None, activation=["relu"]), "activation"),
        (set_model(None, alpha=1.2), "alpha"),
        (set_model(None, layer_norm=None), "layer_norm"),
        (set_model("decoder", layer_norm="pre"), "layer_norm"),
        (set_model("decoder", num_heads=2), "num_heads"),
        (set_model("decoder", embeddings={"scale": False}), "scale"),
        (lambda config: config["data"].update(special_symbols={"lang_tags": ["<de>"]}), "lang_tags"),
        (lambda config: config["testing"].update(repetition_penalty=2), "repetition_penalty"),
        (set_tokenizer(level="byte"), "level"),
        (set_tokenizer(level="bpe", tokenizer_type="fastbpe"), "tokenizer_type"),
        (set_tokenizer(level="bpe", tokenizer_type="subword-nmt", tokenizer_cfg={"codes": "c", "separator": "~"}), "separator"),
        (set_tokenizer(tokenizer_cfg={"pretokenizer": "mecab"}), "pretokenizer"),
        (lambda config: config["data"]["src"].update(level="char"), "level"),
    ],
)
def test_unsupported_option_is_refused(change: Callable[[dict[str, Any]], object], name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", change, norm="post")
    check_refusal(tmp_path / "source", "conversion-unsupported", name, "config.yaml")


# Damaged files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_variant(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (set_model("encoder", num_layers="2"), "num_layers"),
        (lambda config: config.pop("model"), "section model"),
        (lambda config: config["model"].update(encoder=[1]), "section encoder"),
        (lambda config: config["testing"].update(max_output_length=float("inf")), "max_output_length"),
        (lambda config: config["data"].update(special_symbols={"unk_token": [1]}), "special_symbols"),
        (set_tokenizer(level="bpe", tokenizer_cfg={"model_file": "../../sp.model"}), "sp.model"),
        (set_tokenizer(level="bpe"), "model_file"),
        (set_tokenizer(lowercase="no"), "lowercase"),
    ],
)
def test_false_options_raise(change: Callable[[dict[str, Any]], object], name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source", change)
    check_refusal(tmp_path / "source", "source-damaged", name)


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (lambda state: state.pop("decoder.layers.1.dec_layer_norm.bias"), "source-damaged", "dec_layer_norm.bias"),
        (lambda state: state.update(extra=torch.zeros(1)), "conversion-unsupported", "extra"),
        (lambda state: state["encoder.pe.pe"].zero_(), "conversion-unsupported", "encoder.pe.pe"),
        (lambda state: state.update(extra=[1]), "source-damaged", "model_state"),
    ],
)
def test_false_tensors_raise(change: Callable[[dict[str, Any]], object], code: str, name: str, folder: Path) -> None:
    content = torch.load(folder / "10.ckpt", weights_only=False)
    change(content["model_state"])
    torch.save(content, folder / "10.ckpt")
    check_refusal(folder, code, name)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("data: [", "YAML"),
        ("- a\n- b\n", "mapping"),
        ("data: &a {src: 1}\nmodel: *a\n", "section encoder"),
        ("data: &a [*a]\nmodel: 5\n", "section data"),
        ("a: " + "[" * 200_000, "32 nested"),
        ("a: " + "9" * 5000, "YAML"),
        ("a: 0x" + "f" * 5000, "YAML"),
        ("a: !!python/object/apply:os.system ['touch executed']\n", "YAML"),
        ("a: 2001-99-99\n", "YAML"),
        ("a: \x07", "YAML"),
        ("{1: 2}: 3\n", "YAML"),
        ("#" * 300_000, "bytes"),
    ],
)
def test_false_configuration_raises(
    content: str, name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "config.yaml").write_text(content)
    check_refusal(folder, "source-damaged", name, str(folder / "config.yaml"))
    assert not (tmp_path / "executed").exists()


def test_merges_of_aliases_do_not_grow(folder: Path) -> None:
    """Each line doubles the keys that a mapping merges, so that reading this file in full would take days."""
    lines = ["a0: &a0 {x: 1}"] + [f"a{index}: &a{index} {{<<: [*a{index - 1}, *a{index - 1}]}}" for index in range(1, 60)]
    (folder / "config.yaml").write_text("\n".join(lines))
    check_refusal(folder, "source-damaged", "8 aliases")


def test_missing_library_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return import_module(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with raises_code("missing-dependency", "dragoman[joeynmt]"):
        dragoman.convert(folder, tmp_path / "bundle")


def test_checkpoint_with_code_is_refused(folder: Path) -> None:
    torch.save({"model_state": RunsCode()}, folder / "10.ckpt")
    check_refusal(folder, "checkpoint-unsafe", "sys.exit")


def test_best_checkpoint_is_read(folder: Path, tmp_path: Path) -> None:
    (folder / "20.ckpt").write_bytes(b"")
    check_refusal(folder, "source-damaged", "best.ckpt")
    (folder / "best.ckpt").symlink_to("10.ckpt")
    dragoman.convert(folder, tmp_path / "bundle")
