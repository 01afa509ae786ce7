"""Treebank of five sentences, and the bundle of a parser with random weights and the labels of its trees."""

from __future__ import annotations

from pathlib import Path

from dragoman.bundle import BundleMetadata, save_bundle
from dragoman.config import make_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.parsing.tree_labels import collect_labels, to_source_text
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.tree import Leaf, Tree, get_leaves, get_words
from random_bundles import draw_weights

BANK = """
(TOP (S (NP (DT the) (NN cat)) (VP (VBD saw) (NP (DT a) (NN dog))) (. .)))
(TOP (S (NP (DT a) (NN dog)) (VP (VBD saw) (NP (NP (DT the) (NN cat)) (PP (IN with) (NP (DT a) (NN telescope)))))))
(TOP (S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT the) (NN cat)) (PP (IN with) (NP (DT a) (NN telescope))))))
(TOP (S (NP (PRP it)) (VP (VBD slept)) (. .)))
(TOP (NP (NN telescope)))
"""
TREES = [read_tree(line) for line in BANK.strip().splitlines()]


def untagged(tree: Tree) -> list[Leaf]:
    return [Leaf(leaf.word, None) for leaf in get_leaves(tree)]


def save_toy_parser(folder: Path) -> Path:
    """Save and return the bundle of a parser with random weights."""
    recipe = make_recipe(
        {
            "preset": "modern",
            "size": "tiny",
            "task": {"kind": "parsing"},
            "data": {"train": {"file": "gold.mrg"}},
            "tokenizer": {"joint": False, "normalization": "identity", "byte_fallback": False},
            "model": {
                "tie_embeddings": "none",
                "encoder_layers": 1,
                "decoder_layers": 1,
                "d_model": 16,
                "d_ff": 32,
                "num_heads": 2,
            },
            "decoding": {"max_extra_tokens": 40},
        }
    )
    labels = collect_labels(TREES, recipe.task)
    source = train_sentencepiece((to_source_text(get_words(tree)) for tree in TREES), recipe.tokenizer, vocab_size=40, seed=1)
    tokenizer = PairTokenizer(source, labels, append_source_eos=recipe.model.append_source_eos)
    weights = draw_weights(recipe, tokenizer, seed=2)
    save_bundle(folder, recipe=recipe, tokenizer=tokenizer, weights=weights, metadata=BundleMetadata())
    return folder
