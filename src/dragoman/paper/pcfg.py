"""Probabilistic context-free grammar, estimated from a treebank: the baseline of a parser that only counts.

Labels and tags are annotated with their parent (Johnson 1998). Rules are binarized from left to right, with a limited memory
of earlier siblings (Klein and Manning 2003: v = 2, h = 1). Probabilities are relative frequencies, as natural logarithms.
The tags of rare words are estimated from suffixes, interpolated from the shortest to the longest (Brants 2000).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dragoman.parsing.trees.linearization import XX
from dragoman.parsing.trees.tree import Tree, iter_events

SymbolKind = Literal["label", "tag", "remainder"]

_MAX_RARE_COUNT = 10
"""Maximum count of a word that contributes to the suffix statistics."""
_MAX_SUFFIX_LENGTH = 4
_MIN_RATIO = 1e-4
_WORD_PRIOR_WEIGHT = 1.0
_SUFFIX_PRIOR_WEIGHT = 5.0
"""Weights of the priors, as numbers of observations: of the suffixes for a word, and of a shorter suffix for a longer one."""
_NO_CHAIN: tuple[float, tuple[()]] = (-math.inf, ())
_MAX_CHAIN_RULES = 4
"""Maximum number of unary rules in a chain."""


class Symbol(NamedTuple):
    """Symbol of a rule.

    kind: a constituent label, the tag of a word, or the remainder of a binarized rule
    parent: label of the parent constituent
    sibling_context: earlier siblings that a remainder symbol records
    """

    kind: SymbolKind
    label: str
    parent: str
    sibling_context: tuple[str, ...] = ()

    @property
    def is_label(self) -> bool:
        return self.kind == "label"

    @property
    def is_tag(self) -> bool:
        return self.kind == "tag"


class BinaryRule(NamedTuple):
    """Rule with two children."""

    parent: Symbol
    left: Symbol
    right: Symbol


class UnaryRule(NamedTuple):
    """Rule with one child, or the two ends of a chain of such rules."""

    parent: Symbol
    child: Symbol


UnaryChain = tuple[float, tuple[Symbol, ...]]
"""Log-probability of a chain of unary rules, and all its symbols from the top to the bottom."""


@dataclass(frozen=True)
class Grammar:
    """Rules with log-probabilities, and a lexicon.

    root: start symbol
    binary_rules: log-probability of each rule with two children
    unary_chains: the best chain of unary rules between two symbols
    log_prior: log of each symbol's relative frequency in the treebank
    lexicon: tags of words
    """

    root: Symbol
    binary_rules: Mapping[BinaryRule, float]
    unary_chains: Mapping[UnaryRule, UnaryChain]
    log_prior: Mapping[Symbol, float]
    lexicon: Lexicon


class Lexicon:
    """Counts of words, tags and suffixes, and the tag probabilities that follow from them."""

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
        """Count the tags of suffixes of rare words. Must be called once, after all words were added."""
        for word, symbols in self.symbols_by_word.items():
            if symbols.total() <= _MAX_RARE_COUNT:
                for symbol, count in symbols.items():
                    for suffix in _iter_suffixes(word):
                        self.tags_by_suffix[suffix][symbol.label] += count

    def score_symbols(self, word: str, tag: str | None = None) -> dict[Symbol, float]:
        """Return log P(tag | word) − log P(tag) of each tag symbol, without the constant log P(word).

        Tags below `_MIN_RATIO` of the best probability are left out.

        tag: the only possible tag; an unknown tag is ignored
        """
        symbol_counts = self.symbols_by_word.get(word, Counter[Symbol]())
        known_tag = tag if tag in self.symbols_by_tag else None
        tag_probabilities = {known_tag: 1.0} if known_tag is not None else self._estimate_tag_probabilities(word, symbol_counts)
        min_probability = _MIN_RATIO * max(tag_probabilities.values())
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
                if symbol_probability >= _MIN_RATIO:
                    log_scores[symbol] = math.log(tag_probability * symbol_probability / count * total)
        return log_scores

    def _estimate_tag_probabilities(self, word: str, symbol_counts: Counter[Symbol]) -> dict[str, float]:
        """Return P(tag | word), interpolated from the shortest suffix to the whole word."""
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
    """Yield a code for the word's shape (after a space), then its suffixes from the shortest."""
    shape_features = {
        "A": word[0].isupper(),
        "B": any(character.isupper() for character in word[1:]),
        "0": any(character.isdigit() for character in word),
        "-": "-" in word[1:],
        "a": any(character.islower() for character in word),
    }
    yield " " + "".join(sign for sign, is_present in shape_features.items() if is_present)
    for length in range(1, min(_MAX_SUFFIX_LENGTH, len(word)) + 1):
        yield word[-length:].lower()


def induce_pcfg(trees: Iterable[Tree]) -> Grammar:
    """Return the grammar of trees with the same root label, as `simplify(tree, root="top")` returns them.

    Labels and tags are annotated with their parent, and a binarized rule records one earlier sibling. Raises ValueError
    without trees.
    """
    binary_counts, unary_counts, lexicon, root = Counter[BinaryRule](), Counter[UnaryRule](), Lexicon(), None
    for tree in trees:
        root = _count_rules(tree, binary_counts, unary_counts, lexicon)
    if root is None:
        raise ValueError("trees: none given; a grammar needs at least one tree")
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
    tree: Tree, binary_counts: Counter[BinaryRule], unary_counts: Counter[UnaryRule], lexicon: Lexicon
) -> Symbol | None:
    """Count the rules and words of a tree. Return its root symbol, or None for a tree without a bracket."""
    path: list[_OpenConstituent] = []
    symbol = None
    for kind, label, word in iter_events(tree):
        parent_label = path[-1].symbol.label if path else ""
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
                binary_counts.update(_binarize(symbol, children))
    return symbol


def _binarize(symbol: Symbol, children: Sequence[Symbol]) -> Iterator[BinaryRule]:
    """Yield the binary rules of a rule: `A → B A|B` and `A|B → C D` for `A → B C D`."""
    parent = symbol
    for child in children[:-2]:
        remainder = Symbol("remainder", symbol.label, symbol.parent, (child.label,))
        yield BinaryRule(parent, child, remainder)
        parent = remainder
    if len(children) > 1:
        yield BinaryRule(parent, children[-2], children[-1])


def _find_unary_chains(unary_rules: Mapping[UnaryRule, float]) -> dict[UnaryRule, UnaryChain]:
    """Return the best chain of at most `_MAX_CHAIN_RULES` unary rules between each two symbols."""
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
