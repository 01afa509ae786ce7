"""Parsers and sentences of the benchmark: a given bundle, or one of the recipe's size with random weights."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from dragoman.bundle import save_bundle
from dragoman.config import read_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.model.factory import build_model
from dragoman.model.weights import collect_weights
from dragoman.parsing.sentence_parser import fill_word_tables, parser_options
from dragoman.parsing.tree_labels import TreeLabels, collect_labels, to_source_text
from dragoman.parsing.treebank import read_trees
from dragoman.parsing.trees.simplify import simplify
from dragoman.parsing.trees.tree import Tree, get_words

RECIPE = Path("parsing-craft")
# Without a treebank: as many labels as CRAFT has, with synthetic names, and sentences of equal length.
_BRACKETS = [f"B{number}" for number in range(26)]
_TAGS = [f"T{number}" for number in range(45)]
_NUM_SENTENCES = 20_000
_VOCAB_SIZE = 4_000


@dataclass(frozen=True)
class Treebank:
    """Training and development trees; both are empty if the treebank is absent."""

    train: Sequence[Tree] = ()
    dev: Sequence[Tree] = ()


def find_treebank(shared: Path) -> Treebank:
    """Return CRAFT without function tags and traces."""
    folder = shared / "craft"
    if not folder.is_dir():
        return Treebank()
    parts = (
        [simplify(numbered_tree.tree, root="top") for numbered_tree in read_trees(folder / f"{name}.tsv.gz")]
        for name in ("train", "dev")
    )
    return Treebank(*parts)


def pick_sentences(treebank: Treebank, count: int) -> list[list[str]]:
    """Return evenly spaced sentences of the development part, or synthetic ones."""
    if not treebank.dev:
        return _make_sentences(count, seed=2)
    stride = max(1, len(treebank.dev) // count)
    return [get_words(tree) for tree in islice(treebank.dev[::stride], count)]


def _make_sentences(count: int, *, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    lengths = [min(70, max(4, round(rng.gauss(24, 14)))) for _ in range(count)]
    return [["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(length)] for length in lengths]


def random_bundle(treebank: Treebank, folder: Path) -> Path:
    """Return a parser of the CRAFT recipe's size with random weights; it is made once."""
    bundle = folder / "bundle"
    if (folder / "whole").exists():
        return bundle
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    recipe = read_recipe(RECIPE)
    sentences = [get_words(tree) for tree in treebank.train] or _make_sentences(_NUM_SENTENCES, seed=1)
    labels = collect_labels(treebank.train, recipe.task) if treebank.train else TreeLabels("typed", _BRACKETS, _TAGS)
    size = recipe.tokenizer.vocab_size if treebank.train else _VOCAB_SIZE
    source = train_sentencepiece(map(to_source_text, sentences), recipe.tokenizer, vocab_size=size, seed=1)
    tokenizer = PairTokenizer(source, labels, append_source_eos=recipe.model.append_source_eos)
    torch.manual_seed(1)
    options = parser_options(recipe.task)
    model = build_model(recipe.model, source_vocab_size=len(source), target_vocab_size=len(labels), **options)
    fill_word_tables(model, tokenizer)
    save_bundle(bundle, recipe=recipe, tokenizer=tokenizer, weights=collect_weights(model), metadata={})
    (folder / "whole").touch()
    return bundle
