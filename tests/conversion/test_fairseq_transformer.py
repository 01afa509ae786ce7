"""Converted checkpoints of fairseq against a forward pass from nn.functional, and errors of one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import dragoman
import fsmt_folders
from damaged_sources import RunsCode, check_refusal
from dragoman.bundle import load_bundle
from dragoman.data.tokenization.special_tokens import END_ID
from expected_errors import raises_code
from fairseq_checkpoints import (
    SPECIAL_TOKENS,
    compute_logits,
    list_merges,
    list_subwords,
    make_args,
    make_old_state,
    make_state,
    write_folder,
)
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, make_lines, train_model

LETTERS = SOURCE_LETTERS + TARGET_LETTERS
LINES = ["xyz abc", "a", *make_lines(SOURCE_LETTERS, 10, 2)]
VARIANTS: dict[str, dict[str, Any]] = {
    "separate": {},
    "decoder tied": {"share_decoder_input_output_embed": True, "activation_fn": "gelu", "no_scale_embedding": True},
    "all tied": {"share_all_embeddings": True},
    "pre-norm": {"share_all_embeddings": True, "encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned": {"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
}


def make_codes(letters: str = LETTERS) -> str:
    """Return codes of subword-nmt."""
    return "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in list_merges(letters))


def write_variant(folder: Path, is_old: bool = False, as_config: bool = False, **changes: Any) -> tuple[dict[str, Tensor], Any]:
    """Write a folder, and return its tensors and options."""
    args = make_args(**changes)
    letters = (LETTERS, LETTERS) if args["share_all_embeddings"] else (SOURCE_LETTERS, TARGET_LETTERS)
    dictionaries = {language: list_subwords(text) for language, text in zip(("en", "de"), letters, strict=True)}
    sizes = [len(SPECIAL_TOKENS) + len(tokens) for tokens in dictionaries.values()]
    state = make_state(args, sizes[0], sizes[1])
    stored = make_old_state(state) if is_old else state
    write_folder(folder, args=args, state=stored, dictionaries=dictionaries, codes=make_codes(), as_config=as_config)
    return state, args


def map_ids(size: int) -> Tensor:
    """Return dragoman's id of each of fairseq's: <s>, <pad>, </s>, <unk> are 2, 0, 3, 1, and the others keep their id."""
    return torch.tensor([2, 0, 3, 1, *range(4, size)])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", ["args", "cfg", "old"])
@torch.no_grad()
def test_logits_are_equal(variant: str, form: str, tmp_path: Path) -> None:
    state, args = write_variant(tmp_path / "source", form == "old", form == "cfg", **VARIANTS[variant])
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert (result.origin.format, result.origin.source_languages, result.origin.target_languages) == (
        "fairseq-transformer",
        ["en"],
        ["de"],
    )
    model, chance = load_bundle(tmp_path / "bundle").model, torch.Generator().manual_seed(1)
    sizes = [len(state[f"{stack}.embed_tokens.weight"]) for stack in ("encoder", "decoder")]
    for length in (1, 5, 20):
        source = torch.randint(4, sizes[0], (3, length), generator=chance)
        inputs = torch.cat([torch.full((3, 1), 2), torch.randint(3, sizes[1], (3, 12), generator=chance)], dim=1)
        expected = compute_logits(state, args, source, inputs)
        logits = model(map_ids(sizes[0])[source], map_ids(sizes[1])[inputs])
        torch.testing.assert_close(logits[:, :, map_ids(sizes[1])], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["checkpoint_last.pt", "checkpoint.avg10.pt", "model1.pt", "wmt19.en-de.ffn8192.pt", "10.pt"])
def test_checkpoint_may_have_any_name(name: str, tmp_path: Path) -> None:
    write_variant(tmp_path / "source")
    dragoman.convert(tmp_path / "source", tmp_path / "usual")
    (tmp_path / "source" / "model.pt").rename(tmp_path / "source" / name)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    usual, weights = (load_file(tmp_path / bundle / "weights.safetensors") for bundle in ("usual", "bundle"))
    assert all(torch.equal(weights[name], usual[name]) for name in usual)
    assert load_bundle(tmp_path / "bundle").metadata.origin == load_bundle(tmp_path / "usual").metadata.origin


def test_one_of_several_checkpoints_is_chosen_by_path(tmp_path: Path) -> None:
    """The folder holds an average and two checkpoints, whose weights differ."""
    write_variant(tmp_path / "source")
    names = ("checkpoint.avg10.pt", "checkpoint_best.pt", "checkpoint_last.pt")
    checkpoint = torch.load(tmp_path / "source" / "model.pt", weights_only=False)
    (tmp_path / "source" / "model.pt").unlink()
    for factor, name in enumerate(names, start=1):
        state = {key: tensor * factor if "embed_tokens" in key else tensor for key, tensor in checkpoint["model"].items()}
        torch.save(checkpoint | {"model": state}, tmp_path / "source" / name)
    check_refusal(tmp_path / "source", "source-damaged", "3 checkpoints", *names, "path of one")
    totals = []
    for name in names:
        dragoman.convert(tmp_path / "source" / name, tmp_path / f"bundle-{name}")
        weights = load_file(tmp_path / f"bundle-{name}" / "weights.safetensors")
        totals.append(float(weights["encoder.embedding.weight"].double().abs().sum()))
    assert totals == pytest.approx([totals[0], 2 * totals[0], 3 * totals[0]], rel=1e-6)


def test_checkpoint_without_dictionary_names_what_is_missing(tmp_path: Path) -> None:
    write_variant(tmp_path / "source")
    for language in ("en", "de"):
        (tmp_path / "source" / f"dict.{language}.txt").unlink()
    for before, name in (("model.pt", "model.pt"), ("model.pt", "checkpoint_last.pt")):
        (tmp_path / "source" / before).rename(tmp_path / "source" / name)
        check_refusal(tmp_path / "source", "source-damaged", "fairseq needs its dictionaries dict.*.txt", name)


def test_fsmt_of_transformers_gives_the_same_weights(tmp_path: Path) -> None:
    """FSMT has fairseq's names behind `model.`, so both conversions of one model write the same file."""
    model = fsmt_folders.write_folder(tmp_path / "fsmt", is_shared=True)
    dragoman.convert(tmp_path / "fsmt", tmp_path / "first")
    state = {
        name.removeprefix("model."): tensor for name, tensor in model.state_dict().items() if "embed_positions" not in name
    }
    args = make_args(share_all_embeddings=True)
    dictionaries = {language: list_subwords(LETTERS) for language in ("en", "de")}
    write_folder(tmp_path / "fairseq", args=args, state=state, dictionaries=dictionaries, codes=make_codes())
    dragoman.convert(tmp_path / "fairseq", tmp_path / "second")
    for name in ("weights.safetensors", "source.tokens.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    first, second = (load_bundle(tmp_path / name).recipe.model for name in ("first", "second"))
    assert first.decoder_start_token == second.decoder_start_token == "eos"


def test_codes_split_the_text(tmp_path: Path) -> None:
    """The merges join `a` and `b`, and `bc` at the end of a word; the first one is applied first."""
    write_variant(tmp_path / "source", share_all_embeddings=True)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    expected = [list_subwords(LETTERS).index(token) + 4 for token in ("ab@@", "c", "ab")] + [1, END_ID]
    assert tokenizer.encode_source("abc ab 5") == expected
    assert tokenizer.target.decode(expected[:3]) == "abc ab"


def test_text_without_codes_holds_its_pieces(tmp_path: Path) -> None:
    write_variant(tmp_path / "source", share_all_embeddings=True)
    (tmp_path / "source" / "bpecodes").unlink()
    result = dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    assert "no codes" in result.notes[1]
    tokens = load_bundle(tmp_path / "bundle").tokenizer.encode_source("ab@@ c")
    assert tokens == [list_subwords(LETTERS).index(token) + 4 for token in ("ab@@", "c")] + [END_ID]


def test_sentencepiece_model_splits_the_text(tmp_path: Path) -> None:
    import sentencepiece as spm

    processor = spm.SentencePieceProcessor(model_proto=train_model(LETTERS))
    pieces = [processor.id_to_piece(index) for index in range(3, processor.get_piece_size())]
    args, size = make_args(share_all_embeddings=True), len(pieces) + 4
    state, dictionaries = make_state(args, size, size), {"en": pieces, "de": pieces}
    write_folder(tmp_path / "source", args=args, state=state, dictionaries=dictionaries, codes=None)
    (tmp_path / "source" / "sentencepiece.bpe.model").write_bytes(train_model(LETTERS))
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    for line in LINES:
        assert tokenizer.encode_source(line) == [index + 1 if index else 1 for index in processor.encode(line)] + [END_ID]


def test_languages_are_a_choice_of_the_caller(tmp_path: Path) -> None:
    write_variant(tmp_path / "source", source_lang=None, target_lang=None)
    check_refusal(tmp_path / "source", "unsupported-language", "source_language")
    dragoman.convert(tmp_path / "source", tmp_path / "bundle", source_language="en", target_language="de")
    with raises_code("source-damaged", "dict.fr.txt"):
        dragoman.convert(tmp_path / "source", tmp_path / "other", source_language="fr", target_language="de")


@pytest.mark.parametrize(
    ("changes", "code", "name"),
    [
        ({"arch": "fconv"}, "conversion-unsupported", "fconv"),
        ({"arch": None}, "conversion-unsupported", "arch"),
        ({"activation_fn": []}, "conversion-unsupported", "activation_fn"),
        ({"adaptive_softmax_cutoff": "1000,2000"}, "conversion-unsupported", "adaptive_softmax_cutoff"),
        ({"layernorm_embedding": True}, "conversion-unsupported", "layernorm_embedding"),
        ({"no_token_positional_embeddings": True}, "conversion-unsupported", "no_token_positional_embeddings"),
        ({"activation_fn": "gelu_fast"}, "conversion-unsupported", "gelu_fast"),
        ({"decoder_ffn_embed_dim": 64}, "conversion-unsupported", "decoder_ffn_embed_dim"),
        ({"decoder_normalize_before": True}, "conversion-unsupported", "decoder_normalize_before"),
        ({"decoder_output_dim": 16}, "conversion-unsupported", "decoder_output_dim"),
        ({"encoder_embed_dim": "32", "decoder_embed_dim": "32"}, "conversion-unsupported", "decoder_input_dim"),
        ({"encoder_ffn_embed_dim": 64, "decoder_ffn_embed_dim": 64}, "source-damaged", "feed_forward"),
        ({"share_all_embeddings": True}, "source-damaged", "dictionaries"),
    ],
)
def test_false_options_raise(changes: dict[str, Any], code: str, name: str, tmp_path: Path) -> None:
    args = make_args()
    dictionaries = {"en": list_subwords(SOURCE_LETTERS), "de": list_subwords(TARGET_LETTERS)}
    sizes = [len(tokens) + 4 for tokens in dictionaries.values()]
    state = make_state(args, sizes[0], sizes[1])
    write_folder(tmp_path / "source", args=args | changes, state=state, dictionaries=dictionaries, codes=make_codes())
    check_refusal(tmp_path / "source", code, name)


def add_tensor(name: str, *shape: int) -> Callable[[dict[str, Any]], object]:
    """Return a change that adds or replaces a tensor."""
    return lambda state: state.update({name: torch.zeros(*shape)})


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (
            lambda state: state.pop("encoder.layers.1.fc2.bias"),
            "source-damaged",
            "encoder.layers.1.fc2.bias is missing; copy the file again, or check its options in args or cfg",
        ),
        (add_tensor("extra", 1), "conversion-unsupported", "extra"),
        (add_tensor("encoder.layernorm_embedding.bias", 32), "conversion-unsupported", "layernorm"),
        (lambda state: state["decoder.layers.0.fc1.bias"].fill_(torch.inf), "source-damaged", "feed_forward.inner.bias"),
        (add_tensor("decoder.layers.0.layer_norms.7.bias", 32), "conversion-unsupported", "norms.7"),
        (add_tensor("decoder.layers.0.self_attn.in_proj_bias", 7), "conversion-unsupported", "in_proj"),
        (lambda state: state.update(extra=[1]), "source-damaged", "model"),
    ],
)
def test_false_tensors_raise(change: Callable[[dict[str, Any]], object], code: str, name: str, tmp_path: Path) -> None:
    args = make_args()
    dictionaries = {"en": list_subwords(SOURCE_LETTERS), "de": list_subwords(TARGET_LETTERS)}
    sizes = [len(tokens) + 4 for tokens in dictionaries.values()]
    state = make_state(args, sizes[0], sizes[1])
    change(state)
    write_folder(tmp_path / "source", args=args, state=state, dictionaries=dictionaries, codes=make_codes())
    check_refusal(tmp_path / "source", code, name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_variant(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize(
    ("file_name", "content", "code", "name"),
    [
        ("dict.de.txt", None, "source-damaged", "dict.de.txt"),
        ("dict.de.txt", "", "source-damaged", "4 tokens"),
        ("dict.de.txt", "a 5\nb\n", "source-damaged", "line 2"),
        ("dict.de.txt", "a 5\na 4\n", "source-damaged", "line 2"),
        ("bpecodes", "a b c d\n", "invalid-format", "bpecodes"),
        ("bpecodes", "", "empty-data", "bpecodes"),
        ("codes.txt", "a b\n", "source-damaged", "several files"),
        ("model.pt", "", "source-damaged", "model.pt"),
        ("checkpoint_best.pt", "", "source-damaged", "checkpoint_best.pt"),
        ("spm.model", "no model", "tokenizer-damaged", "spm.model"),
    ],
)
def test_false_file_raises(file_name: str, content: str | None, code: str, name: str, folder: Path) -> None:
    if content is None:
        (folder / file_name).unlink()
    else:
        (folder / file_name).write_text(content)
    check_refusal(folder, code, name)


@pytest.mark.parametrize("value", [{}, [1], {"model": {}}, {"args": 5, "model": {}}, {"cfg": {"model": {1: 2}}}])
def test_file_of_another_program_raises(value: Any, folder: Path) -> None:
    torch.save(value, folder / "model.pt")
    check_refusal(folder, "source-damaged", "neither args nor cfg")


def test_checkpoint_with_code_is_refused(folder: Path) -> None:
    torch.save({"args": RunsCode(), "model": {}}, folder / "model.pt")
    check_refusal(folder, "checkpoint-unsafe", "sys.exit")


def test_overwritten_token_keeps_its_place(folder: Path, tmp_path: Path) -> None:
    """A token that the dictionary repeats with fairseq's mark takes a new id, and text no longer uses it."""
    lines = (folder / "dict.de.txt").read_text(encoding="utf-8").splitlines()
    lines[5] = "<unk> 1 #fairseq:overwrite"
    (folder / "dict.de.txt").write_text("\n".join(lines), encoding="utf-8")
    dragoman.convert(folder, tmp_path / "bundle")
    target = load_bundle(tmp_path / "bundle").tokenizer.target
    assert len(target) == len(lines) + 4
    assert target.ids_to_pieces([8, 10]) == [token.removesuffix("@@") for token in (lines[4].split()[0], lines[6].split()[0])]
