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
from dragoman.trees.tree import Tree, events

Kind = Literal["label", "tag", "rest"]

_RARE = 10
"""Words met more often say nothing of words never met."""
_LONGEST_ENDING = 4
_TRUST_WORD = 1.0
_TRUST_ENDING = 5.0
"""How many sightings what is known of a shorter ending, or of a word's ending, is worth beside the longer one, or the word."""
_NONE: tuple[float, tuple[()]] = (-math.inf, ())
_CHAIN = 4
"""Brackets over the same words, at most, between two that branch."""


class Symbol(NamedTuple):
    """What a rule is made of.

    kind: a constituent, a word's tag, or the rest of a rule that was cut in two
    parent: the constituent's around it
    before: of a rest, the siblings that it remembers
    """

    kind: Kind
    label: str
    parent: str
    before: tuple[str, ...] = ()


class Binary(NamedTuple):
    parent: Symbol
    left: Symbol
    right: Symbol


class Unary(NamedTuple):
    parent: Symbol
    child: Symbol


Chain = tuple[float, tuple[Symbol, ...]]
"""The log of its probability, and all symbols of it, the first and the last among them."""


@dataclass(frozen=True)
class Grammar:
    """Rules with the logarithms of their probabilities, and what tags a word may bear.

    chains: from a symbol to another over the same words
    prior: how much of the treebank each symbol is, in logs: what a symbol is worth before anything around it is known
    """

    root: Symbol
    binary: Mapping[Binary, float]
    chains: Mapping[Unary, Chain]
    prior: Mapping[Symbol, float]
    lexicon: Lexicon


class Lexicon:
    """Which tags a word may have."""

    def __init__(self) -> None:
        self.words: dict[str, Counter[Symbol]] = defaultdict(Counter)
        self.tags = Counter[str]()
        self.parents: dict[str, Counter[Symbol]] = defaultdict(Counter)
        self.endings: dict[str, Counter[str]] = defaultdict(Counter)

    def meet(self, word: str, symbol: Symbol) -> None:
        self.words[word][symbol] += 1
        self.tags[symbol.label] += 1
        self.parents[symbol.label][symbol] += 1

    def learn_endings(self) -> None:
        """To be called once, when all words were met."""
        for word, symbols in self.words.items():
            if symbols.total() <= _RARE:
                for symbol, count in symbols.items():
                    for ending in _endings(word):
                        self.endings[ending][symbol.label] += count

    def scores(self, word: str, tag: str | None = None, *, least: float = 1e-4) -> dict[Symbol, float]:
        """log P(tag | word) - log P(tag) of each that is at least `least` times as probable as the best; P(word) is left out.

        With a tag given, the others are nothing; one that was never met stands for any tag.
        """
        met = self.words.get(word, Counter[Symbol]())
        given = tag if tag in self.parents else None
        shares = {given: 1.0} if given is not None else self._tags(word, met)
        bound = least * max(shares.values())
        total = self.tags.total()
        found: dict[Symbol, float] = {}
        for label, share in shares.items():
            if share < bound:
                continue
            here = sum(met[symbol] for symbol in self.parents[label])
            for symbol, count in self.parents[label].items():
                inner = (met[symbol] + _TRUST_WORD * count / self.tags[label]) / (here + _TRUST_WORD)
                if inner >= least:
                    found[symbol] = math.log(share * inner / count * total)
        return found

    def _tags(self, word: str, met: Counter[Symbol]) -> dict[str, float]:
        """P(tag | word), from the shortest ending to the word itself."""
        whole = self.tags.total()
        shares = {tag: count / whole for tag, count in self.tags.items()}
        for ending in _endings(word):
            if seen := self.endings.get(ending):
                shares = _interpolated(seen, shares, _TRUST_ENDING)
        labels = Counter[str]()
        for symbol, count in met.items():
            labels[symbol.label] += count
        return _interpolated(labels, shares, _TRUST_WORD)


def _interpolated(seen: Counter[str], shares: Mapping[str, float], trust: float) -> dict[str, float]:
    total = seen.total() + trust
    return {label: (seen[label] + trust * share) / total for label, share in shares.items()}


def _endings(word: str) -> Iterator[str]:
    """What a word looks like, after a space, then its endings, the shortest first."""
    told = {
        "A": word[0].isupper(),
        "B": any(one.isupper() for one in word[1:]),
        "0": any(one.isdigit() for one in word),
        "-": "-" in word[1:],
        "a": any(one.islower() for one in word),
    }
    yield " " + "".join(sign for sign, true in told.items() if true)
    for length in range(1, min(_LONGEST_ENDING, len(word)) + 1):
        yield word[-length:].lower()


def learn(trees: Iterable[Tree], *, parents: bool = True, siblings: int = 1) -> Grammar:
    """The grammar of trees that share a root, as `simplify(tree, root="top")` leaves them. Raises ValueError without trees.

    parents: whether labels and tags know what is around them
    siblings: how many the rest of a rule remembers
    """
    binary, unary, lexicon, root = Counter[Binary](), Counter[Unary](), Lexicon(), None
    for tree in trees:
        root = _count(tree, binary, unary, lexicon, parents=parents, siblings=siblings)
    if root is None:
        raise ValueError("a grammar needs trees to be learnt from")
    lexicon.learn_endings()
    totals = Counter[Symbol]()
    for rules in (binary, unary):
        for rule, count in rules.items():
            totals[rule.parent] += count
    for symbols in lexicon.parents.values():
        totals.update(symbols)
    whole = totals.total()
    return Grammar(
        root,
        {rule: math.log(count / totals[rule.parent]) for rule, count in binary.items()},
        _chains({rule: math.log(count / totals[rule.parent]) for rule, count in unary.items()}),
        {symbol: math.log(count / whole) for symbol, count in totals.items()},
        lexicon,
    )


class _Open(NamedTuple):
    symbol: Symbol
    children: list[Symbol]


def _count(
    tree: Tree, binary: Counter[Binary], unary: Counter[Unary], lexicon: Lexicon, *, parents: bool, siblings: int
) -> Symbol | None:
    """Count a tree's rules and words; its root, if it has a bracket."""
    path: list[_Open] = []
    symbol = None
    for kind, label, word in events(tree):
        around = path[-1].symbol.label if path and parents else ""
        if kind == "open":
            path.append(_Open(Symbol("label", label or "", around), []))
        elif kind == "leaf":
            tag = Symbol("tag", XX if label is None else label, around)
            lexicon.meet(word, tag)
            if path:
                path[-1].children.append(tag)
        else:
            symbol, children = path.pop()
            if path:
                path[-1].children.append(symbol)
            if len(children) == 1:
                unary[Unary(symbol, children[0])] += 1
            else:
                binary.update(_cut(symbol, children, siblings))
    return symbol


def _cut(symbol: Symbol, children: Sequence[Symbol], siblings: int) -> Iterator[Binary]:
    """`A → B C D` as `A → B A|B`, `A|B → C D`."""
    parent = symbol
    for number, child in enumerate(children[:-2], start=1):
        before = tuple(one.label for one in children[max(0, number - siblings) : number])
        rest = Symbol("rest", symbol.label, symbol.parent, before)
        yield Binary(parent, child, rest)
        parent = rest
    if len(children) > 1:
        yield Binary(parent, children[-2], children[-1])


def _chains(unary: Mapping[Unary, float]) -> dict[Unary, Chain]:
    """The best way from each symbol to each other over the same words, of at most `_CHAIN` rules."""
    below: dict[Symbol, list[tuple[Symbol, float]]] = defaultdict(list)
    for (parent, child), score in unary.items():
        below[parent].append((child, score))
    best: dict[Unary, Chain] = {rule: (score, (rule.parent, rule.child)) for rule, score in unary.items()}
    newest = best
    for _ in range(_CHAIN - 1):
        longer: dict[Unary, Chain] = {}
        for (top, bottom), (score, way) in newest.items():
            for child, more in below.get(bottom, ()):
                ends = Unary(top, child)
                if child not in way and score + more > max(best.get(ends, _NONE)[0], longer.get(ends, _NONE)[0]):
                    longer[ends] = (score + more, (*way, child))
        best |= longer
        newest = longer
    return best
