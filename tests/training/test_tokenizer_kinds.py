"""Training, bundles and translation with every kind of tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dragoman
from conftest import MakeRecipe
from dragoman.config import make_recipe
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.training.validation import get_references

pytestmark = pytest.mark.usefixtures("one_core")

CODES = ["#version: 0.2", "e i", "e n</w>", "r e", "o n", "s e"]
KINDS = {
    "word": ["tokenizer.byte_fallback=false"],
    "char": ["tokenizer.byte_fallback=true", "tokenizer.vocab_size=400", "data.max_length=100"],
    "byte": ["tokenizer.byte_fallback=true", "data.max_length=100"],
    "subword-nmt": ["tokenizer.byte_fallback=false", "tokenizer.codes_file=codes"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_and_translates(kind: str, tiny: MakeRecipe, corpus: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    (root / "codes").write_text("\n".join(CODES) + "\n", encoding="utf-8")
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


def test_references_join_published_pieces() -> None:
    pairs = [Pair("a@@ b", "un@@ ter Baum", "x:1")]
    assert get_references(pairs, make_recipe({}).tokenizer) == ["un@@ ter Baum"]
    recipe = make_recipe({"tokenizer": {"model_type": "subword-nmt", "byte_fallback": False}})
    assert get_references(pairs, recipe.tokenizer) == ["unter Baum"]


@pytest.mark.parametrize("kind", ["char", "byte", "subword-nmt"])
def test_parser_needs_pieces_that_start_a_word(kind: str) -> None:
    tokenizer = {"model_type": kind, "joint": False, "normalization": "identity", "byte_fallback": kind != "subword-nmt"}
    with pytest.raises(RecipeError) as caught:
        make_recipe({"task": {"kind": "parsing"}, "model": {"tie_embeddings": "none"}, "tokenizer": tokenizer})
    assert f"tokenizer.model_type = {kind!r}: a parser needs pieces that start a word" in str(caught.value)
