"""Parsers made of chance: bundles that say trees, though they have learnt nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from dragoman.bundle import save_bundle, weights_of
from dragoman.config import make_recipe
from dragoman.data.tokenization.sentencepiece import learn_subword
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.data.tokenization.tree_labels import learn_labels
from dragoman.model.factory import build_model
from dragoman.tasks.parsing import parser_parts, teach_words
from dragoman.trees.linearization import Name
from dragoman.trees.ptb import read_tree
from dragoman.trees.tree import words

TREES = [
    "(S (NP (DT the) (NN cat)) (VP (VBD sat) (PP (IN on) (NP (DT the) (JJ red) (NN mat)))) (. .))",
    "(NP (NP (NNS dogs)) (CC and) (NP (NNS cats)))",
    "(FRAG (RB Not) (ADVP (RB now)))",
]


def parser_bundle(path: Path, *settings: str, how: Name = "typed", seed: int = 1, tags: str = "head") -> Path:
    """A parser of the labels of `TREES` with weights drawn from this seed; settings as a recipe has them."""
    trees = [read_tree(text) for text in TREES]
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
    labels = learn_labels(trees, recipe.task)
    source = learn_subword([" ".join(words(tree)) for tree in trees], recipe.tokenizer, vocab_size=300, seed=1)
    tokeniser = Tokeniser(source, labels, append_source_eos=recipe.model.append_source_eos)
    torch.manual_seed(seed)
    parts = parser_parts(recipe)
    model = build_model(recipe.model, source_vocabulary=len(source), target_vocabulary=len(labels), **parts)
    teach_words(model, tokeniser)
    save_bundle(path, recipe=recipe, tokeniser=tokeniser, weights=weights_of(model), story={})
    return path
