"""A probabilistic context-free grammar, read off a treebank: what a parser is worth that has only counted.

Each label knows its parent's (Johnson 1998), each tag too; rules are cut in two from left to right, and what is left of one
remembers the siblings before it (Klein and Manning 2003: v = 2, h = 1). Probabilities are shares of counts, in natural logs.
The tags of a word are guessed from its endings where it is rare (Brants 2000: interpolated from the shortest to the longest).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dragoman.trees.linearization import XX
from dragoman.trees.tree import Tree, iter_events

SymbolKind = Literal["label", "tag", "rest"]

_MAX_RARE_COUNT = 10
"""Words met more often say nothing of words never met."""
_MAX_SUFFIX_LENGTH = 4
_WORD_PRIOR_WEIGHT = 1.0
_SUFFIX_PRIOR_WEIGHT = 5.0
"""How many sightings what is known of a shorter ending, or of a word's ending, is worth beside the longer one, or the word."""
_NO_CHAIN: tuple[float, tuple[()]] = (-math.inf, ())
_MAX_CHAIN_RULES = 4
"""Brackets over the same words, at most, between two that branch."""


class Symbol(NamedTuple):
    """What a rule is made of.

    kind: a constituent, a word's tag, or the rest of a rule that was cut in two
    parent: the constituent's around it
    before: of a rest, the siblings that it remembers
    """

    kind: SymbolKind
    label: str
    parent: str
    sibling_context: tuple[str, ...] = ()


class BinaryRule(NamedTuple):
    parent: Symbol
    left: Symbol
    right: Symbol


class UnaryRule(NamedTuple):
    parent: Symbol
    child: Symbol


UnaryChain = tuple[float, tuple[Symbol, ...]]
"""The log of its probability, and all symbols of it, the first and the last among them."""


@dataclass(frozen=True)
class Grammar:
    """Rules with the logarithms of their probabilities, and what tags a word may bear.

    chains: from a symbol to another over the same words
    prior: how much of the treebank each symbol is, in logs: what a symbol is worth before anything around it is known
    """

    root: Symbol
    binary_rules: Mapping[BinaryRule, float]
    unary_chains: Mapping[UnaryRule, UnaryChain]
    log_prior: Mapping[Symbol, float]
    lexicon: Lexicon


class Lexicon:
    """Which tags a word may have."""

    def __init__(self) -> None:
        self.symbols_by_word: dict[str, Counter[Symbol]] = defaultdict(Counter)
        self.tag_counts = Counter[str]()
        self.symbols_by_tag: dict[str, Counter[Symbol]] = defaultdict(Counter)
        self.tags_by_suffix: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, word: str, symbol: Symbol) -> None:
        self.symbols_by_word[word][symbol] += 1
        self.tag_counts[symbol.label] += 1
        self.symbols_by_tag[symbol.label][symbol] += 1

    def count_suffixes(self) -> None:
        """To be called once, when all words were met."""
        for word, symbols in self.symbols_by_word.items():
            if symbols.total() <= _MAX_RARE_COUNT:
                for symbol, count in symbols.items():
                    for suffix in _iter_suffixes(word):
                        self.tags_by_suffix[suffix][symbol.label] += count

    def score_symbols(self, word: str, tag: str | None = None, *, min_ratio: float = 1e-4) -> dict[Symbol, float]:
        """log P(tag | word) - log P(tag) of each that is at least `least` times as probable as the best; P(word) is left out.

        With a tag given, the others are nothing; one that was never met stands for any tag.
        """
        symbol_counts = self.symbols_by_word.get(word, Counter[Symbol]())
        known_tag = tag if tag in self.symbols_by_tag else None
        tag_probabilities = {known_tag: 1.0} if known_tag is not None else self._estimate_tag_probabilities(word, symbol_counts)
        min_probability = min_ratio * max(tag_probabilities.values())
        total = self.tag_counts.total()
        log_scores: dict[Symbol, float] = {}
        for label, tag_probability in tag_probabilities.items():
            if tag_probability < min_probability:
                continue
            word_tag_count = sum(symbol_counts[symbol] for symbol in self.symbols_by_tag[label])
            for symbol, count in self.symbols_by_tag[label].items():
                symbol_probability = (symbol_counts[symbol] + _WORD_PRIOR_WEIGHT * count / self.tag_counts[label]) / (
                    word_tag_count + _WORD_PRIOR_WEIGHT
                )
                if symbol_probability >= min_ratio:
                    log_scores[symbol] = math.log(tag_probability * symbol_probability / count * total)
        return log_scores

    def _estimate_tag_probabilities(self, word: str, symbol_counts: Counter[Symbol]) -> dict[str, float]:
        """P(tag | word), from the shortest ending to the word itself."""
        total = self.tag_counts.total()
        tag_probabilities = {tag: count / total for tag, count in self.tag_counts.items()}
        for suffix in _iter_suffixes(word):
            if suffix_counts := self.tags_by_suffix.get(suffix):
                tag_probabilities = _interpolate(suffix_counts, tag_probabilities, _SUFFIX_PRIOR_WEIGHT)
        labels = Counter[str]()
        for symbol, count in symbol_counts.items():
            labels[symbol.label] += count
        return _interpolate(labels, tag_probabilities, _WORD_PRIOR_WEIGHT)


def _interpolate(label_counts: Counter[str], prior_probabilities: Mapping[str, float], prior_weight: float) -> dict[str, float]:
    total = label_counts.total() + prior_weight
    return {
        label: (label_counts[label] + prior_weight * prior_probability) / total
        for label, prior_probability in prior_probabilities.items()
    }


def _iter_suffixes(word: str) -> Iterator[str]:
    """What a word looks like, after a space, then its endings, the shortest first."""
    shape_features = {
        "A": word[0].isupper(),
        "B": any(character.isupper() for character in word[1:]),
        "0": any(one.isdigit() for one in word),
        "-": "-" in word[1:],
        "a": any(one.islower() for one in word),
    }
    yield " " + "".join(sign for sign, is_present in shape_features.items() if is_present)
    for length in range(1, min(_MAX_SUFFIX_LENGTH, len(word)) + 1):
        yield word[-length:].lower()


def induce_pcfg(trees: Iterable[Tree], *, parent_annotation: bool = True, horizontal_order: int = 1) -> Grammar:
    """The grammar of trees that share a root, as `simplify(tree, root="top")` leaves them. Raises ValueError without trees.

    parents: whether labels and tags know what is around them
    siblings: how many the rest of a rule remembers
    """
    binary_counts, unary_counts, lexicon, root = Counter[BinaryRule](), Counter[UnaryRule](), Lexicon(), None
    for tree in trees:
        root = _count_rules(
            tree, binary_counts, unary_counts, lexicon, parent_annotation=parent_annotation, horizontal_order=horizontal_order
        )
    if root is None:
        raise ValueError("a grammar needs trees to be learnt from")
    lexicon.count_suffixes()
    totals = Counter[Symbol]()
    for rule_counts in (binary_counts, unary_counts):
        for rule, count in rule_counts.items():
            totals[rule.parent] += count
    for symbols in lexicon.symbols_by_tag.values():
        totals.update(symbols)
    grand_total = totals.total()
    return Grammar(
        root,
        {rule: math.log(count / totals[rule.parent]) for rule, count in binary_counts.items()},
        _find_unary_chains({rule: math.log(count / totals[rule.parent]) for rule, count in unary_counts.items()}),
        {symbol: math.log(count / grand_total) for symbol, count in totals.items()},
        lexicon,
    )


class _OpenConstituent(NamedTuple):
    symbol: Symbol
    children: list[Symbol]


def _count_rules(
    tree: Tree,
    binary_counts: Counter[BinaryRule],
    unary_counts: Counter[UnaryRule],
    lexicon: Lexicon,
    *,
    parent_annotation: bool,
    horizontal_order: int,
) -> Symbol | None:
    """Count a tree's rules and words; its root, if it has a bracket."""
    path: list[_OpenConstituent] = []
    symbol = None
    for kind, label, word in iter_events(tree):
        parent_label = path[-1].symbol.label if path and parent_annotation else ""
        if kind == "open":
            path.append(_OpenConstituent(Symbol("label", label or "", parent_label), []))
        elif kind == "leaf":
            tag = Symbol("tag", XX if label is None else label, parent_label)
            lexicon.add(word, tag)
            if path:
                path[-1].children.append(tag)
        else:
            symbol, children = path.pop()
            if path:
                path[-1].children.append(symbol)
            if len(children) == 1:
                unary_counts[UnaryRule(symbol, children[0])] += 1
            else:
                binary_counts.update(_binarize(symbol, children, horizontal_order))
    return symbol


def _binarize(symbol: Symbol, children: Sequence[Symbol], horizontal_order: int) -> Iterator[BinaryRule]:
    """`A → B C D` as `A → B A|B`, `A|B → C D`."""
    parent = symbol
    for number, child in enumerate(children[:-2], start=1):
        sibling_context = tuple(sibling.label for sibling in children[max(0, number - horizontal_order) : number])
        remainder = Symbol("rest", symbol.label, symbol.parent, sibling_context)
        yield BinaryRule(parent, child, remainder)
        parent = remainder
    if len(children) > 1:
        yield BinaryRule(parent, children[-2], children[-1])


def _find_unary_chains(unary_rules: Mapping[UnaryRule, float]) -> dict[UnaryRule, UnaryChain]:
    """The best way from each symbol to each other over the same words, of at most `_CHAIN` rules."""
    children_by_parent: dict[Symbol, list[tuple[Symbol, float]]] = defaultdict(list)
    for (parent, child), score in unary_rules.items():
        children_by_parent[parent].append((child, score))
    best_chains: dict[UnaryRule, UnaryChain] = {rule: (score, (rule.parent, rule.child)) for rule, score in unary_rules.items()}
    newest_chains = best_chains
    for _ in range(_MAX_CHAIN_RULES - 1):
        longer_chains: dict[UnaryRule, UnaryChain] = {}
        for (top, bottom), (score, chain_symbols) in newest_chains.items():
            for child, child_score in children_by_parent.get(bottom, ()):
                ends = UnaryRule(top, child)
                if child not in chain_symbols and score + child_score > max(
                    best_chains.get(ends, _NO_CHAIN)[0], longer_chains.get(ends, _NO_CHAIN)[0]
                ):
                    longer_chains[ends] = (score + child_score, (*chain_symbols, child))
        best_chains |= longer_chains
        newest_chains = longer_chains
    return best_chains
