"""Training, bundles and translation with every kind of tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from conftest import MakeRecipe
from dragoman.config import make_recipe
from dragoman.data.manifest import hash_prepared_files
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.data.tokenization.subword_nmt import parse_codes
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.parsing.trees.tree import get_words
from dragoman.training.validation import get_references
from toy_treebank import BANK

pytestmark = pytest.mark.usefixtures("one_core")

CODES = ["#version: 0.2", "e i", "e n</w>", "r e", "o n", "s e"]
SIDES = (("source", "en"), ("target", "de"))
KINDS = {
    "word": ["tokenizer.byte_fallback=false"],
    "char": ["tokenizer.byte_fallback=true", "tokenizer.vocab_size=400", "data.max_length=100"],
    "byte": ["tokenizer.byte_fallback=true", "data.max_length=100"],
    "subword-nmt": ["tokenizer.byte_fallback=false", "tokenizer.codes_file=codes"],
}


@pytest.fixture
def root(corpus: Path, tmp_path: Path) -> Path:
    """Folder with the corpus, a codes file, and the corpus in the pieces of these codes (`bpe.train.en` and others)."""
    scheme = parse_codes(CODES, "codes")
    for path in corpus.iterdir():
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
        segmented = [" ".join(scheme.split(line)) for line in text.splitlines()]
        (tmp_path / f"bpe.{path.name}").write_text("\n".join(segmented) + "\n", encoding="utf-8")
    (tmp_path / "codes").write_text("\n".join(CODES) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_and_translates(kind: str, tiny: MakeRecipe, root: Path) -> None:
    settings = [f"data.root={root}", f"tokenizer.model_type={kind}", *KINDS[kind], "training.max_steps=3"]
    dragoman.train(tiny(root / "run", *settings, "training.batch_tokens=400"))
    translator = dragoman.load(root / "run" / "bundle", task="translation", precision="float32")
    tokenizer = translator.bundle.tokenizer
    assert isinstance(tokenizer.source, TokenListTokenizer)
    assert tokenizer.source.scheme.kind == kind
    source = (root / "test.en").read_text(encoding="utf-8").splitlines()[0]
    result = translator.translate([source], attention=True)[0]
    assert tokenizer.source.decode(tokenizer.source.encode(source)) == source
    assert result.source_tokens == tuple(tokenizer.source.ids_to_pieces(tokenizer.encode_source(source)))
    assert result.text == tokenizer.target.decode([tokenizer.target.piece_to_id(token) or 0 for token in result.tokens])


@pytest.mark.slow
def test_published_pieces_train_as_plain_text_does(tiny: MakeRecipe, root: Path) -> None:
    """Text that holds the pieces already gives the same ids and the same run as plain text."""
    settings = [f"data.root={root}", "tokenizer.model_type=subword-nmt", *KINDS["subword-nmt"], "training.max_steps=3"]
    pieces = [f"data.{name}.{side}=bpe.{name}.{code}" for name in ("train", "valid", "test") for side, code in SIDES]
    reports = [
        dragoman.train(tiny(root / run, *settings, *changes, "training.validate_every_steps=3"))
        for run, changes in (("plain", []), ("pieces", pieces))
    ]
    plain, segmented = (hash_prepared_files(root / run / "data") for run in ("plain", "pieces"))
    assert plain == segmented
    assert "source.tokens.json" in plain
    assert reports[0]["bleu"] == reports[1]["bleu"]
    assert reports[0]["chrf"] == reports[1]["chrf"]


def test_references_join_published_pieces() -> None:
    pairs = [Pair("a@@ b", "un@@ ter Baum", "x:1")]
    assert get_references(pairs, make_recipe({}).tokenizer) == ["un@@ ter Baum"]
    recipe = make_recipe({"tokenizer": {"model_type": "subword-nmt", "byte_fallback": False}})
    assert get_references(pairs, recipe.tokenizer) == ["unter Baum"]


@pytest.mark.slow
def test_parser_reads_whole_words(tmp_path: Path) -> None:
    """An unknown word is one piece, so that the tree has it as one word."""
    (tmp_path / "bank.mrg").write_text(BANK, encoding="utf-8")
    corpus = {"file": str(tmp_path / "bank.mrg"), "format": "brackets"}
    document = {
        "run": str(tmp_path / "run"),
        "preset": "modern",
        "size": "tiny",
        "task": {"kind": "parsing"},
        "data": {"train": corpus, "valid": corpus, "max_length": 60},
        "tokenizer": {"model_type": "word", "joint": False, "normalization": "identity", "byte_fallback": False},
        "model": {
            "tie_embeddings": "none",
            "encoder_layers": 1,
            "decoder_layers": 1,
            "d_model": 16,
            "d_ff": 32,
            "num_heads": 2,
        },
        "training": {"max_steps": 3, "batch_tokens": 200, "num_validation_translations": 5},
        "decoding": {"max_extra_tokens": 40},
    }
    dragoman.train(make_recipe(document))
    parser = dragoman.load(tmp_path / "run" / "bundle", task="parsing", precision="float32")
    words = ["the", "zebra", "saw", "a", "dog", "."]
    [result] = parser.parse([words])
    assert result.tree is not None
    assert get_words(result.tree) == words
    assert parser.bundle.tokenizer.encode_source(" ".join(words)).count(UNKNOWN_ID) == 1


@pytest.mark.parametrize("kind", ["char", "byte", "subword-nmt"])
def test_parser_needs_pieces_that_start_a_word(kind: str) -> None:
    tokenizer = {"model_type": kind, "joint": False, "normalization": "identity", "byte_fallback": kind != "subword-nmt"}
    with pytest.raises(RecipeError) as caught:
        make_recipe({"task": {"kind": "parsing"}, "model": {"tie_embeddings": "none"}, "tokenizer": tokenizer})
    assert f"tokenizer.model_type = {kind!r}: a parser needs pieces that start a word" in str(caught.value)
