"""Bundles of parsers with random weights, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.bundle import save_bundle
from dragoman.config import make_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.parsing.tree_labels import collect_labels
from dragoman.parsing.trees.linearization import LinearizationName
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.tree import get_words
from random_bundles import draw_weights

TREES = [
    "(S (NP (DT the) (NN cat)) (VP (VBD sat) (PP (IN on) (NP (DT the) (JJ red) (NN mat)))) (. .))",
    "(NP (NP (NNS dogs)) (CC and) (NP (NNS cats)))",
    "(FRAG (RB Not) (ADVP (RB now)))",
]


def parser_bundle(
    path: Path,
    *settings: str,
    trees: Sequence[str] = TREES,
    how: LinearizationName = "typed",
    seed: int = 1,
    tags: str = "head",
) -> Path:
    """Save and return the bundle of an untrained parser with the labels of `trees`.

    settings: recipe settings, `key=value`
    how: linearization
    seed: seed of the weights
    tags: value of `task.pos_tags`, except for the tensor2tensor linearization
    """
    recipe = make_recipe(
        {
            "name": "parser",
            "run": str(path),
            "preset": "modern",
            "size": "tiny",
            "task": {"kind": "parsing", "linearization": how, "pos_tags": "sequence" if how == "tensor2tensor" else tags},
            "data": {"train": {"file": "train.mrg", "format": "brackets"}},
            "tokenizer": {"joint": False, "normalization": "identity", "vocab_size": 300, "byte_fallback": True},
            "model": {
                "encoder_layers": 1,
                "decoder_layers": 1,
                "d_model": 16,
                "d_ff": 16,
                "num_heads": 2,
                "tie_embeddings": "decoder",
                "pointer": True,
            },
            "training": {"max_steps": 1},
            "decoding": {"method": "beam", "beam_size": 2, "max_extra_tokens": 12},
        },
        settings,
    )
    read_trees = [read_tree(text) for text in trees]
    labels = collect_labels(read_trees, recipe.task)
    source = train_sentencepiece([" ".join(get_words(tree)) for tree in read_trees], recipe.tokenizer, vocab_size=300, seed=1)
    tokenizer = PairTokenizer(source, labels, append_source_eos=recipe.model.append_source_eos)
    save_bundle(path, recipe=recipe, tokenizer=tokenizer, weights=draw_weights(recipe, tokenizer, seed=seed), metadata={})
    return path
