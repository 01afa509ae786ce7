"""Treebank of five sentences, and the bundle of a parser with random weights and the labels of its trees."""

from __future__ import annotations

from pathlib import Path

from dragoman.parsing.trees.ptb import read_tree
from random_parsers import parser_bundle

BANK = """
(TOP (S (NP (DT the) (NN cat)) (VP (VBD saw) (NP (DT a) (NN dog))) (. .)))
(TOP (S (NP (DT a) (NN dog)) (VP (VBD saw) (NP (NP (DT the) (NN cat)) (PP (IN with) (NP (DT a) (NN telescope)))))))
(TOP (S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT the) (NN cat)) (PP (IN with) (NP (DT a) (NN telescope))))))
(TOP (S (NP (PRP it)) (VP (VBD slept)) (. .)))
(TOP (NP (NN telescope)))
"""
TREES = [read_tree(line) for line in BANK.strip().splitlines()]


def save_toy_parser(folder: Path) -> Path:
    """Save and return the bundle of a parser with random weights."""
    return parser_bundle(folder, "decoding.max_extra_tokens=40", "data.train.file='gold.mrg'", trees=BANK.strip().splitlines())
