"""Word, character and byte level, vocabulary files, and the file of a token list."""

from __future__ import annotations

import json
import pickle
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import TokenizerConfig, make_recipe
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS, ByteScheme
from dragoman.data.tokenization.characters import CharacterScheme
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, UNKNOWN_ID
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme
from dragoman.data.tokenization.token_list import TokenListTokenizer, read_token_list
from dragoman.data.tokenization.vocabulary_file import read_vocabulary_file
from dragoman.data.tokenization.word_boundaries import WordBoundaries, get_word_numbers
from dragoman.data.tokenization.words import WordScheme
from dragoman.errors import RecipeError
from expected_errors import raises_code

SOURCES = ["the cat sees the dog", "a dog sees a cat", "the dog", "ab ab b"]
TARGETS = ["die Katze sieht den Hund", "ein Hund sieht eine Katze", "der Hund", "öö"]
CODES = "#version: 0.2\na t</w>\nt h\nth e</w>\n"
# One text without half surrogates and line breaks.
TEXT = st.text(st.characters(exclude_characters="\r\n▁", exclude_categories=["Cs"]))


def make_config(model_type: str, **keys: Any) -> TokenizerConfig:
    keys = {
        "byte_fallback": model_type in ("char", "byte"),
        "normalization": "identity",
        "vocab_size": 1000,
        "reserved_tokens": 0,
    } | keys
    return TokenizerConfig(model_type=model_type, **keys)  # type: ignore[arg-type]


def train(config: TokenizerConfig, root: Path = Path()) -> PairTokenizer:
    return train_tokenizer(SOURCES, TARGETS, config, append_source_eos=True, seed=1, root=root)


def test_word_vocabulary_has_most_frequent_words_first() -> None:
    """Counts over both sides: the, dog, a and cat; equal counts are in the order of their code points."""
    tokenizer = train(make_config("word", vocab_size=4 + 5)).source
    # the: 3, dog: 3, Hund: 3, and Katze, a, ab, cat, sees, sieht: 2 each
    assert tokenizer.ids_to_pieces(range(9)) == ["<pad>", "▁<unk>", "<s>", "</s>", "▁Hund", "▁dog", "▁the", "▁Katze", "▁a"]
    assert tokenizer.encode("the dog  sees a\tHund") == [6, 5, UNKNOWN_ID, 8, 4]
    assert tokenizer.decode([BEGIN_ID, 6, 5, UNKNOWN_ID, 8, 4, END_ID, PADDING_ID]) == "the dog ⁇ a Hund"
    assert tokenizer.piece_to_id("▁dog") == 5
    assert tokenizer.piece_to_id("<unk>") == tokenizer.piece_to_id("▁<unk>") == UNKNOWN_ID
    assert tokenizer.piece_to_id("dog") is tokenizer.piece_to_id("<s>") is None
    assert tokenizer.word_start_mask.tolist() == [False, True, False, False, True, True, True, True, True]


def test_character_coverage_leaves_rare_characters_out() -> None:
    """The text has 60 letters a, 38 letters b and 2 letters c: a and b cover 98 %."""
    for coverage, characters in ((1.0, ["a", "b", "c"]), (0.99, ["a", "b", "c"]), (0.98, ["a", "b"])):
        texts = ["a" * 60 + "b" * 38 + "c" * 2]
        config = make_config("char", character_coverage=coverage, byte_fallback=False)
        tokenizer = train_tokenizer(texts, texts, config, append_source_eos=False, seed=1).source
        assert tokenizer.ids_to_pieces(range(4, len(tokenizer))) == characters


@given(text=TEXT)
def test_byte_level_loses_nothing(text: str) -> None:
    tokenizer = train(make_config("byte")).source
    assert len(tokenizer) == 260
    ids = tokenizer.encode(text)
    assert ids == [byte + 4 for byte in text.encode()]  # ByT5: byte + number of special tokens
    assert tokenizer.decode(ids) == text


@given(text=TEXT)
def test_character_level_with_byte_fallback_loses_only_spaces(text: str) -> None:
    tokenizer = train(make_config("char")).source
    ids = tokenizer.encode(text)
    assert UNKNOWN_ID not in ids
    assert tokenizer.decode(ids) == re.sub(" +", " ", text).strip(" ")


def test_character_level_without_byte_fallback_has_unknown_characters() -> None:
    tokenizer = train(make_config("char", byte_fallback=False)).source
    assert tokenizer.ids_to_pieces(tokenizer.encode(" a  Qd ")) == ["a", "▁", "<unk>", "d"]
    assert tokenizer.decode(tokenizer.encode("a Qd")) == "a ⁇d"


@pytest.mark.parametrize("model_type", ["word", "char", "byte"])
def test_lowercase_and_normalization_come_first(model_type: str) -> None:
    """nfkc is SentencePiece's rule, which equals Unicode's NFKC on this text."""
    text = "\uff23\uff21\uff34 \ufb01ne \u2460"  # full-width CAT, the ligature fi, and 1 in a circle
    config = make_config(model_type, lowercase=True, normalization="nfkc")
    tokenizer = train_tokenizer([text], [text], config, append_source_eos=False, seed=1).source
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFKC", text.lower())


@pytest.mark.parametrize("model_type", ["word", "char", "byte", "subword-nmt"])
def test_half_surrogate_gives_one_line(model_type: str) -> None:
    tokenizer = train(make_config(model_type)).source
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with raises_code("invalid-encoding"):
            encode("a\ud800")


@pytest.mark.parametrize(
    ("tokenizer", "text", "numbers"),
    [
        (TokenListTokenizer(WordScheme(), ["a", "b"]), "a b x a", [0, 1, 2, 3]),
        (TokenListTokenizer(CharacterScheme(), ["▁", "a", "b"]), "ab a", [0, 0, 1, 1]),
        (TokenListTokenizer(ByteScheme(), BYTE_TOKENS), "ab ä", [0, 0, 1, 1, 1]),
        (TokenListTokenizer(SubwordNmtScheme(None), ["a@@", "b@@", "a", "b"]), "a@@ b a b@@ a@@ b", [0, 0, 1, 2, 2, 2]),
    ],
    ids=["word", "char", "byte", "subword-nmt"],
)
def test_pieces_have_word_numbers(tokenizer: TokenListTokenizer, text: str, numbers: list[int]) -> None:
    ids = tokenizer.encode(text)
    assert get_word_numbers(tokenizer.ids_to_pieces(ids)) == numbers
    boundaries = WordBoundaries(tokenizer.ids_to_pieces(range(len(tokenizer))))
    assert boundaries.get_word_numbers(ids).tolist() == numbers  # type: ignore[arg-type]


def test_tokenizer_survives_its_file(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for model_type in ["word", "char", "byte", "subword-nmt"]:
        for joint in [True, False]:
            with subtests.test(model_type=model_type, joint=joint):
                tmp_path = tmp_path_factory.mktemp("case")
                (tmp_path / "codes").write_text(CODES, encoding="utf-8")
                config = make_config(model_type, joint=joint, codes_file="codes" if model_type == "subword-nmt" else None)
                tokenizer = train(config, tmp_path)
                folder = tmp_path / "bundle"
                folder.mkdir()
                write_tokenizer(folder, tokenizer)
                assert sorted(path.name for path in folder.iterdir()) == ["source.tokens.json"] + ["target.tokens.json"] * (
                    not joint
                )
                copy = read_tokenizer(folder, config, append_source_eos=True)
                assert copy.is_joint == joint
                for text in (*SOURCES, *TARGETS, "Unbekanntes ß"):
                    for side, other in ((tokenizer.source, copy.source), (tokenizer.target, copy.target)):
                        ids = side.encode(text)
                        assert other.encode(text) == pickle.loads(pickle.dumps(other)).encode(text) == ids
                        assert other.decode(ids) == side.decode(ids)
                        assert other.serialized_model == side.serialized_model
                assert copy.encode_source("the dog")[-1] == END_ID


def test_subword_pieces_come_from_the_text(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text(CODES, encoding="utf-8")
    tokenizer = train(make_config("subword-nmt", codes_file="codes"), tmp_path).source
    assert tokenizer.ids_to_pieces(tokenizer.encode("the cat")) == ["the▁", "c", "at▁"]
    assert tokenizer.encode("the c@@ at") == tokenizer.encode("the cat")
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


def test_sides_may_have_their_own_files(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text(CODES, encoding="utf-8")
    (tmp_path / "target-codes").write_text("a b</w>\n", encoding="utf-8")
    (tmp_path / "dict.en.txt").write_text("the 9\nat 3\nc@@ 2\n", encoding="utf-8")
    (tmp_path / "dict.de.txt").write_text("a@@ 9\nb 3\n", encoding="utf-8")
    files = {"vocab_file": "dict.en.txt", "target_vocab_file": "dict.de.txt"}
    config = make_config("subword-nmt", joint=False, codes_file="codes", **files)
    tokenizer = train(config, tmp_path)
    assert tokenizer.source.encode("the cat") == [4, 6, 5]
    assert tokenizer.target.encode("ab") == [4, 5]  # the codes of the source, which do not merge a and b
    config = make_config("subword-nmt", joint=False, codes_file="codes", target_codes_file="target-codes", **files)
    assert train(config, tmp_path).target.encode("ab") == [4, 5]  # before version 0.2, b and </w> are two symbols
    (tmp_path / "target-codes").write_text("#version: 0.2\na b</w>\n", encoding="utf-8")
    assert train(config, tmp_path).target.encode("ab") == [UNKNOWN_ID]


def test_vocabulary_file_gives_tokens_in_its_order(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, tokens in [
        ("the 9\ndog 3\n\nmadeupword0000 0\n", ["the", "dog", "madeupword0000"]),  # fairseq's dict.txt
        ("the 9\n<unk> 3 #fairseq:overwrite\nx 1 #fairseq:overwrite\n", ["the", "x"]),
        ("<unk>\n<pad>\n<s>\n</s>\nthe\ndog\n", ["the", "dog"]),  # JoeyNMT
        ("the\t9\ndog\t3\n", ["the", "dog"]),  # OpenNMT-py
        ("12\n7\n", ["12", "7"]),
        ("\ufeffthe\r\ndog\r\n", ["the", "dog"]),
        ("\u00a0\n\u3000\n", ["\u00a0", "\u3000"]),
    ]:
        with subtests.test(text=text, tokens=tokens):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "dict.txt"
            path.write_bytes(text.encode())
            assert read_vocabulary_file(path, "vocab_file") == tokens
            tokenizer = train(make_config("word", vocab_file="dict.txt"), tmp_path).source
            assert len(tokenizer) == 4 + len(tokens)


def test_damaged_vocabulary_files_are_refused(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, code, line in [
        ("", "empty-data", None),
        ("<s>\n", "empty-data", None),
        ("the 9\ndog\n", "invalid-format", 2),
        ("the\ndog 3\n", "invalid-format", 2),
        ("the dog\n", "invalid-format", 1),
        ("the\t-3.5\n", "invalid-format", 1),  # SentencePiece's .vocab
        (" 9\n", "invalid-format", 1),
        ("the 9\nthe 8\n", "invalid-format", 2),
    ]:
        with subtests.test(text=text, code=code, line=line):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "dict.txt"
            path.write_text(text, encoding="utf-8")
            with raises_code(code) as caught:
                train(make_config("word", vocab_file="dict.txt"), tmp_path)
            assert str(caught.value).startswith(f"{path} (tokenizer.vocab_file)" + (f", line {line}: " if line else ": "))
            assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["vocab_file", "codes_file"])
def test_missing_files_are_refused(tmp_path: Path, key: str) -> None:
    with raises_code("file-not-found"):
        train(make_config("subword-nmt", **{key: "missing"}), tmp_path)


def test_empty_text_has_no_vocabulary() -> None:
    with raises_code("empty-data"):
        train_tokenizer([" "], [""], make_config("word"), append_source_eos=False, seed=1)


DOCUMENT = {"kind": "word", "normalization": "identity", "tokens": ["a"], "reserved": []}
SUBWORDS = {**DOCUMENT, "kind": "subword-nmt", "end_is_separate": False, "merges": ["a b"]}


def test_damaged_files_of_tokens_are_refused(subtests: pytest.Subtests) -> None:
    for document in [
        [],
        1,
        {},
        {**DOCUMENT, "kind": []},
        {**DOCUMENT, "normalization": "nfd"},
        {**DOCUMENT, "tokens": [1]},
        {**DOCUMENT, "tokens": ["a", "a"]},
        {**DOCUMENT, "tokens": ["\ud800"]},
        {**DOCUMENT, "kind": "subword-nmt"},
        {**SUBWORDS, "merges": ["a"]},
        {**SUBWORDS, "merges": [2]},
        {**SUBWORDS, "end_is_separate": 1},
    ]:
        with subtests.test(document=document), raises_code("tokenizer-damaged"):
            read_token_list(json.dumps(document).encode(), lowercase=False, name="source.tokens.json")
    with raises_code("tokenizer-damaged"):
        read_token_list(b"[" * 100_000, lowercase=False, name="source.tokens.json")


def test_intact_documents_are_read() -> None:
    """The documents of the test above are damaged by one change each."""
    assert len(read_token_list(json.dumps(DOCUMENT).encode(), lowercase=False, name="x")) == 5
    assert read_token_list(json.dumps(SUBWORDS).encode(), lowercase=False, name="x").encode("ab") == [UNKNOWN_ID] * 2


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"model_type": "word"}, "byte_fallback"),
        ({"model_type": "subword-nmt"}, "byte_fallback"),
        ({"model_type": "byte", "byte_fallback": False}, "byte_fallback"),
        ({"model_type": "word", "byte_fallback": False, "model_file": "x"}, "model_file"),
        ({"model_type": "char", "codes_file": "x"}, "codes_file"),
        ({"model_type": "bpe", "vocab_file": "x"}, "vocab_file"),
        ({"model_type": "byte", "vocab_file": "x"}, "vocab_file"),
        ({"model_type": "word", "byte_fallback": False, "character_coverage": 0.99}, "character_coverage"),
        ({"model_type": "char", "split_digits": True}, "split_digits"),
        ({"model_type": "char", "sampling_alpha": 0.1}, "sampling_alpha"),
        ({"model_type": "char", "target_vocab_file": "x"}, "target_vocab_file"),
        ({"model_type": "subword-nmt", "byte_fallback": False, "joint": False, "target_codes_file": "x"}, "codes_file"),
    ],
)
def test_recipe_refuses_keys_of_other_kinds(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make_recipe({"model": {"tie_embeddings": "none"}, "tokenizer": settings})
    assert str(caught.value).startswith(f"recipe: tokenizer: model_type = {settings['model_type']!r}: ")
    assert key in str(caught.value)
