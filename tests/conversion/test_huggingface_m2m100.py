"""Converted M2M-100, NLLB and mBART-50 folders against the `transformers` library, and errors of one line."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece as spm
import torch
from safetensors.torch import load_file, save_file

import dragoman
from damaged_sources import change_json, check_any_refusal, check_refusal
from dragoman.bundle import load_bundle
from expected_errors import raises_code
from generation_parity import Peer, map_ids, shrink_and_favor_end
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS, make_lines, train_model

transformers: Any = pytest.importorskip("transformers", reason="parity with M2M-100 needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
LETTERS = SOURCE_LETTERS + TARGET_LETTERS
LINES = ["xyz ä nop 🙂 abc", "  a   b ", "ä", *make_lines(SOURCE_LETTERS, 430, 2)]
FIRST_PIECES = ["<s>", "<pad>", "</s>", "<unk>"]
NUM_MADEUP_WORDS = 8
LANGUAGE_PAIRS = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn"), "mbart50": ("en_XX", "de_DE")}


def list_tokens(kind: str) -> list[str]:
    """Return the tokens of the source by id, from the tables of transformers: pieces, languages, and unused ids."""
    processor = spm.SentencePieceProcessor(model_proto=train_model(LETTERS))
    pieces = [*FIRST_PIECES, *(processor.id_to_piece(index) for index in range(3, processor.get_piece_size()))]
    if kind == "nllb":
        from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

        return [*pieces, *FAIRSEQ_LANGUAGE_CODES, "<mask>"]
    if kind == "mbart50":
        from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50_CODES

        return [*pieces, *MBART50_CODES, "<mask>"]
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100_CODES

    languages = [f"__{language}__" for language in M2M100_CODES["m2m100"]]
    start = len(pieces) + len(languages)
    return [*pieces, *languages, *(f"<unused-{index}>" for index in range(start, start + NUM_MADEUP_WORDS))]


def write_folder(folder: Path, kind: str, **changes: Any) -> Any:
    """Write a folder with random weights by transformers itself, and return the model."""
    tokens = list_tokens(kind)
    is_mbart = kind == "mbart50"
    config = (transformers.MBartConfig if is_mbart else transformers.M2M100Config)(
        **{
            "vocab_size": len(tokens),
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 128,
            "init_std": 0.5,
            **({"decoder_start_token_id": 2, "scale_embedding": True} if is_mbart else {}),
            **changes,
        }
    )
    torch.manual_seed(4)
    model_class = transformers.MBartForConditionalGeneration if is_mbart else transformers.M2M100ForConditionalGeneration
    model = model_class(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm | torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
    if is_mbart:
        for stack in (model.model.encoder, model.model.decoder):
            torch.nn.init.normal_(stack.layernorm_embedding.weight, mean=1.0, std=0.1)
        torch.nn.init.normal_(model.final_logits_bias, std=0.05)
        model.final_logits_bias[0, 1] = -torch.inf
    shared = model.model.shared.weight
    shrink_and_favor_end([shared], shared, model.model.decoder.layer_norm.bias, 2)
    model.save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").write_bytes(train_model(LETTERS))
    names = {"src_lang": "en", "tokenizer_class": "M2M100Tokenizer", "language_codes": "m2m100"}
    if kind != "m2m100":
        names = {"src_lang": LANGUAGE_PAIRS[kind][0], "tokenizer_class": "MBart50Tokenizer" if is_mbart else "NllbTokenizer"}
    else:
        pieces = tokens[: tokens.index("__af__")]
        ids = {piece: index for index, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return model


def make_encode(kind: str, folder: Path) -> Callable[[str], list[int]]:
    """Return the tokenizer of transformers for M2M-100, and fairseq's formula for others: the id of SentencePiece plus one."""
    if kind == "m2m100":
        tokenizer = transformers.M2M100Tokenizer.from_pretrained(folder, src_lang="en")
        return lambda line: list(tokenizer(line)["input_ids"])
    processor = spm.SentencePieceProcessor(model_proto=train_model(LETTERS))
    language = list_tokens(kind).index(LANGUAGE_PAIRS[kind][0])
    return lambda line: [language, *((index + 1) if index else 3 for index in processor.encode(line)), 2]


@pytest.fixture(scope="module", params=["m2m100", "nllb", "mbart50"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    folder, kind, tokens = tmp_path_factory.mktemp("peer"), request.param, list_tokens(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = write_folder(folder / "source", kind)
        encode = make_encode(kind, folder / "source")
    dragoman.convert(folder / "source", folder / "bundle")
    translator = dragoman.load(folder / "bundle", task="translation", device="cpu", precision="float32")
    ids = map_ids(translator.bundle.tokenizer.target.piece_to_id, tokens)
    languages = LANGUAGE_PAIRS[kind]
    prompt = tokens.index(f"__{languages[1]}__" if kind == "m2m100" else languages[1])
    options = {"source_language": languages[0], "target_language": languages[1]}
    return Peer(model, translator, encode, ids, ids, [0, 1], [prompt], options)


def test_source_tokens_are_equal(peer: Peer) -> None:
    tokenizer = peer.translator.bundle.tokenizer.select_languages(**peer.options)
    for line in LINES[:40]:
        assert tokenizer.encode_source(line) == [peer.source_ids[index] for index in peer.encode(line)]


def test_logits_are_equal(peer: Peer) -> None:
    peer.check_logits(LINES[:10])


@pytest.mark.parametrize("search", ["greedy", pytest.param("beam", marks=pytest.mark.slow)])
def test_outputs_are_equal(search: str, peer: Peer) -> None:
    assert peer.check_outputs(LINES[:20], search) >= 12


def test_target_language_changes_the_output(peer: Peer) -> None:
    """The decoder reads the language token, so the scores of two languages differ."""
    names = {"de": "fr", "deu_Latn": "fra_Latn", "de_DE": "fr_XX"}
    options: Any = {**peer.options, "method": "greedy"}
    scores = [
        peer.translator.translate([LINES[3]], **options | {"target_language": language})[0].score
        for language in (peer.options["target_language"], names[peer.options["target_language"]])
    ]
    assert scores[0] != pytest.approx(scores[1], abs=1e-4)


def test_unknown_language_raises(peer: Peer) -> None:
    """Every piece of NLLB fits the pattern of its language tokens, but only the languages of its origin are allowed."""
    piece, language = list_tokens("nllb")[5], peer.options["target_language"]
    false = "de" if "_" in language else "deu"
    close = {"de": "are de, af", "deu_Latn": "are deu_Latn, ace_Arab", "de_DE": "are de_DE, ar_AR"}[language]
    for language, name in ((piece, ""), (false, close)):
        for key in ("source_language", "target_language"):
            with raises_code("invalid-option", f"decoding.{key} = {language!r}: is not a language of the model", name):
                peer.translator.translate(LINES[:1], **peer.options | {key: language})


@torch.no_grad()
@pytest.mark.parametrize(("options", "expected"), [({"min_length": 9}, 7), ({"min_new_tokens": 9}, 8), ({"min_length": 1}, 0)])
def test_shortest_output_has_the_length_of_transformers(options: dict[str, int], expected: int, tmp_path: Path) -> None:
    """An output ends as soon as it may. transformers counts the start token and the language."""
    model = write_folder(tmp_path / "source", "m2m100")
    shared = model.model.shared.weight
    shrink_and_favor_end([], shared, model.model.decoder.layer_norm.bias, 2)
    model.model.decoder.layer_norm.bias.mul_(20.0)
    german = list_tokens("m2m100").index("__de__")
    model.generation_config.update(num_beams=1, max_length=40, forced_bos_token_id=german, bad_words_ids=[[0], [1]], **options)
    model.save_pretrained(tmp_path / "source")
    source = torch.tensor([make_encode("m2m100", tmp_path / "source")("ab")])
    output = model.generate(source)[0].tolist()
    assert (output[:2], len(output), output.index(2, 1)) == ([2, german], expected + 3, expected + 2)
    dragoman.convert(tmp_path / "source", tmp_path / "bundle")
    translator = dragoman.load(tmp_path / "bundle", task="translation", device="cpu", precision="float32")
    (translation,) = translator.translate(["ab"], source_language="en", repetition_window=0)
    assert (translation.status, len(translation.tokens)) == ("ok" if expected else "empty", expected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "source", "m2m100")
    return tmp_path / "source"


def test_bundle_has_origin_and_default_languages(folder: Path, tmp_path: Path) -> None:
    ids = [token for token in list_tokens("m2m100") if token.startswith("__")]
    change_json(folder / "generation_config.json", forced_bos_token_id=list_tokens("m2m100").index("__fr__"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    origin = dragoman.convert(folder, tmp_path / "bundle").origin
    assert (origin.format, origin.license) == ("huggingface-m2m100", "mit")
    assert origin.source_languages == origin.target_languages == [token[2:-2] for token in ids]
    recipe = load_bundle(tmp_path / "bundle").recipe
    assert (recipe.task.source_language, recipe.task.target_language) == ("en", "fr")
    assert (recipe.model.norm, recipe.model.position_offset, recipe.model.decoder_start_token) == ("pre", 2, "eos")


def test_old_tables_of_positions_are_checked(folder: Path, tmp_path: Path) -> None:
    """Old checkpoints store the sinusoids of fairseq: exponent i / (d/2 − 1), and the first position in row 2."""
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    table = M2M100SinusoidalPositionalEmbedding.get_embedding(130, 32, 1)
    tensors, name = load_file(folder / "model.safetensors"), "model.encoder.embed_positions.weights"
    save_file(tensors | {name: table}, folder / "model.safetensors")
    dragoman.convert(folder, tmp_path / "bundle")
    save_file(tensors | {name: table.flip(1)}, folder / "model.safetensors")
    check_refusal(folder, "conversion-unsupported", name)


@pytest.mark.parametrize(
    ("file_name", "changes", "code", "name"),
    [
        ("config.json", {"tie_word_embeddings": False}, "conversion-unsupported", "tie_word_embeddings"),
        ("config.json", {"activation_function": "gelu_new"}, "conversion-unsupported", "gelu_new"),
        ("config.json", {"decoder_ffn_dim": 64}, "conversion-unsupported", "decoder_ffn_dim"),
        ("config.json", {"decoder_start_token_id": 1}, "conversion-unsupported", "decoder_start_token_id"),
        ("config.json", {"vocab_size": 50}, "source-damaged", "vocab_size"),
        ("generation_config.json", {"forced_bos_token_id": 7}, "conversion-unsupported", "forced_bos_token_id"),
        ("tokenizer_config.json", {"tokenizer_class": "SMALL100Tokenizer"}, "conversion-unsupported", "SMALL100Tokenizer"),
        ("tokenizer_config.json", {"language_codes": "mine"}, "conversion-unsupported", "language_codes"),
        ("tokenizer_config.json", {"legacy_behaviour": True}, "conversion-unsupported", "legacy_behaviour"),
        ("tokenizer_config.json", {"src_lang": "xx"}, "conversion-unsupported", "'xx'"),
        ("tokenizer_config.json", {"src_lang": 5}, "conversion-unsupported", "'5'"),
        ("vocab.json", {"<s>": 9}, "source-damaged", "vocab.json"),
    ],
)
def test_false_settings_raise(file_name: str, changes: dict[str, Any], code: str, name: str, folder: Path) -> None:
    change_json(folder / file_name, **changes)
    check_refusal(folder, code, name)


@pytest.mark.parametrize("kind", ["m2m100", "nllb"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff" * 100])
def test_false_sentencepiece_model_raises(kind: str, content: bytes | None, tmp_path: Path) -> None:
    write_folder(tmp_path / "source", kind)
    (tmp_path / "source" / "sentencepiece.bpe.model").unlink()
    if content is not None:
        (tmp_path / "source" / "sentencepiece.bpe.model").write_bytes(content)
    check_any_refusal(tmp_path / "source", "sentencepiece.bpe.model")
