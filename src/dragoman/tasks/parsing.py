"""Parsing: words to ids, ids to trees, and the scores that trees are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.config import DecodingConfig, Recipe, TaskConfig
from dragoman.data.collate import cut, pad
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.data.tokenization.tree_labels import XX_ID, Labels, plain_tree, source_text
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import DataError
from dragoman.evaluation.evalb import total
from dragoman.evaluation.metrics import Score
from dragoman.evaluation.parse_scores import ParseComparison
from dragoman.formats.pair import Pair
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import Advance, Constrain, Spread, generate
from dragoman.tasks.inference_model import Speaker, speaker_of, start_id
from dragoman.tasks.translation import longest_source, rules_of
from dragoman.tasks.tree_constraint import Constraint
from dragoman.trees.constraint_automaton import Automaton
from dragoman.trees.linearization import XX
from dragoman.trees.ptb import read_tree
from dragoman.trees.repair import Mended, Mending, mend
from dragoman.trees.tree import Tree, leaves

Status = Literal["ok", "mended", "truncated", "empty", "refused"]
"""What became of a sentence:

    ok          a tree, as it was said
    mended      a tree, after something was mended in what was said
    truncated   a tree, mended, since what was said was cut where the longest allowed output ends
    empty       no words were given
    refused     not parsed, since the sentence is longer than the model reads
"""
TAGGED_AT_ONCE = 8192
"""Padded source tokens that go through the encoder together where words are tagged."""
ENDLESS = 2**31
"""Positions of a model whose positions never end."""


@dataclass(frozen=True)
class Parsed:
    """What became of one sentence: its hypotheses, best first, with the tree of each; none where it is empty or was refused."""

    words: tuple[str, ...]
    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]
    mended: tuple[Mended, ...]
    tags: tuple[str, ...]
    status: Status

    @property
    def tree(self) -> Tree | None:
        """The best."""
        return self.mended[0].tree if self.mended else None

    @property
    def mendings(self) -> tuple[Mending, ...]:
        """What was mended in the best."""
        return self.mended[0].mendings if self.mended else ()


def parser_parts(recipe: Recipe) -> dict[str, Any]:
    """What `build_model` is told of a recipe's task, beside the vocabularies; nothing for translation."""
    return {"word_id": XX_ID, "tagging": recipe.task.tagging} if recipe.task.kind == "parsing" else {}


def teach_words(model: Transformer, tokeniser: Tokeniser) -> None:
    """Fill a fresh parser's tables: which source pieces begin a word, and which target tokens consume one."""
    if model.words is not None:
        labels = labels_of(tokeniser)
        begins = tokeniser.source.begins.nonzero()[0].tolist()
        model.words.learn(begins=begins, shifts=labels.shifts, hidden=labels.hidden)


def labels_of(tokeniser: Tokeniser) -> Labels:
    """What a parser says."""
    assert isinstance(tokeniser.target, Labels), "a translator, not a parser"
    return tokeniser.target


def encode_words(tokeniser: Tokeniser, words: Sequence[str]) -> list[int]:
    """Words as the encoder reads them. Raises DataError for half a surrogate pair, which no UTF-8 text can hold."""
    return tokeniser.encode_source(source_text(words))


def parse_ids(
    models: Sequence[Transformer],
    tokeniser: Tokeniser,
    sentences: Sequence[Sequence[str]],
    recipe: Recipe,
    decoding: DecodingConfig,
    *,
    speaker: Speaker | None = None,
    constrained: bool = True,
    tags: Sequence[Sequence[str] | None] | None = None,
    places: Sequence[int] | None = None,
    advance: Advance = lambda _: None,
    spread: Spread = map,
) -> list[Parsed]:
    """Parse each sentence, in order.

    sentences: words, brackets among them plain or by their names
    speaker: the models made ready to be searched, so that they point at words as the models do; the models as they are if none
    constrained: only what a tree over the words can go on with is said; otherwise anything, which is mended
    tags: those of each sentence, one a word; predicted where there are none
    places: the number of each sentence in its text, by which sampling draws; 0, 1, … when not given
    Raises DataError for tags that are not as many as the words.
    """
    labels, speaker = labels_of(tokeniser), speaker or speaker_of(models)
    longest = longest_source(speaker.positions, decoding)
    sources = [encode_words(tokeniser, words) if words else [] for words in sentences]
    limits = [min(len(source) + decoding.max_extra_tokens, speaker.positions or ENDLESS) for source in sources]
    read = [
        number
        for number, (words, source) in enumerate(zip(sentences, sources, strict=True))
        if words and len(source) <= longest and limits[number] >= Automaton.least_room(len(words))
    ]
    advance(len(sentences) - len(read))
    tagged = _tags(models, tokeniser, sentences, [sources[number] for number in read], read, recipe, tags)
    rules = replace(rules_of(decoding, labels), repetition_window=0)  # XX XX XX … goes round in no circle
    found = generate(
        speaker,
        [sources[number] for number in read],
        decoding,
        start_id=start_id(recipe.model),
        places=read if places is None else [places[number] for number in read],
        rules=replace(rules, suppressed=(*rules.suppressed, *labels.hidden)),
        constrain=_constrain(labels, [len(sentences[number]) for number in read], speaker) if constrained else None,
        advance=advance,
        spread=spread,
    )
    results = {
        number: _parsed(labels, sentences[number], sources[number], hypotheses, told)
        for number, hypotheses, told in zip(read, found, tagged, strict=True)
    }
    return [results.get(number) or _not_parsed(words, sources[number]) for number, words in enumerate(sentences)]


def _constrain(labels: Labels, lengths: Sequence[int], speaker: Speaker) -> Constrain:
    constraint = Constraint(labels.automaton(), speaker.device)
    return lambda numbers, limits: constraint.beside([lengths[number] for number in numbers], limits)


def _not_parsed(words: Sequence[str], source: Sequence[int]) -> Parsed:
    return Parsed(tuple(words), tuple(source), (), (), (), "refused" if words else "empty")


def _parsed(
    labels: Labels, words: Sequence[str], source: Sequence[int], hypotheses: Sequence[Hypothesis], tags: Sequence[str] | None
) -> Parsed:
    mended = tuple(mend(labels.how, labels.pieces(one.tokens), words, tags) for one in hypotheses)
    status: Status = "truncated" if not hypotheses or not hypotheses[0].finished else "ok"
    if status == "ok" and mended[0].mendings:
        status = "mended"
    told = tags if tags is not None else _told_tags(mended[0].tree) if mended else [XX] * len(words)
    return Parsed(tuple(words), tuple(source), tuple(hypotheses), mended, tuple(told), status)


def _told_tags(tree: Tree) -> list[str]:
    return [leaf.tag or XX for leaf in leaves(tree)]


def _tags(
    models: Sequence[Transformer],
    tokeniser: Tokeniser,
    sentences: Sequence[Sequence[str]],
    sources: Sequence[Sequence[int]],
    read: Sequence[int],
    recipe: Recipe,
    given: Sequence[Sequence[str] | None] | None,
) -> list[Sequence[str] | None]:
    """The tags of each sentence that is read: as given, or as the tag head says; none where the sequence tells them."""
    told: list[Sequence[str] | None] = [None if given is None else given[number] for number in read]
    for number, tags in zip(read, told, strict=True):
        if tags is not None and len(tags) != len(sentences[number]):
            raise DataError(f"sentence {number + 1}: {len(tags)} tags for {len(sentences[number])} words")
    missing = [place for place, tags in enumerate(told) if tags is None]
    if recipe.task.tagging:
        for place, tags in zip(missing, predict_tags(models, tokeniser, [sources[place] for place in missing]), strict=True):
            told[place] = tags
    return told


@torch.no_grad()
def predict_tags(models: Sequence[Transformer], tokeniser: Tokeniser, sources: Sequence[Sequence[int]]) -> list[list[str]]:
    """The likeliest tag of each word by the tag head, or by the mean of several models' probabilities."""
    labels, device = labels_of(tokeniser), models[0].output.device
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    found: dict[int, list[str]] = {}
    for part in cut([len(sources[number]) for number in order], TAGGED_AT_ONCE):
        numbers = order[part]
        source_BS = pad([sources[number] for number in numbers]).to(device)
        log_prob_BWV = torch.stack([_tag_log_probs(model, source_BS) for model in models]).logsumexp(0)
        for number, ids in zip(numbers, log_prob_BWV.argmax(-1).tolist(), strict=True):
            found[number] = labels.pieces(ids[: int(tokeniser.source.begins[sources[number]].sum())])
    return [found[number] for number in range(len(sources))]


def _tag_log_probs(model: Transformer, source_BS: Tensor) -> Tensor:
    assert model.words is not None, "a translator, not a parser"
    assert model.tagger is not None, "a parser without a tag head"
    logits_BWV: Tensor = model.tagger(model.words.first(model.encoder(source_BS), source_BS))
    return logits_BWV.log_softmax(-1)


def gold_tree(task: TaskConfig, pair: Pair) -> Tree:
    """The tree of a pair, as it is learnt. Raises DataError for one that no parse can be scored against."""
    tree = plain_tree(read_tree(pair.target, name=pair.origin), functions=task.function_tags, traces=task.traces)
    found = leaves(tree)
    if not found:
        raise DataError(f"{pair.origin}: a tree without words; take it out")
    if bare := [leaf.word for leaf in found if leaf.tag is None]:
        raise DataError(f"{pair.origin}: the word {bare[0][:40]!r} has no tag, which EVALB's rules go by; give it one")
    return tree


def score_parses(parses: Sequence[Tree | None], gold: Sequence[Tree]) -> dict[str, Score]:
    """F1 by COLLINS.prm's rules, what is not parsed or has other words by these rules counted as zero; the same with the gold
    tags put in; and the share of right tags.
    """
    found = ParseComparison(parses, gold)
    own, rules = total(found.by_own_tags), "EVALB's COLLINS.prm, all lengths, failures zero"
    return {
        "f1": Score("F1", own.f1, rules),
        "f1_gold_tags": Score("F1 with gold tags", total(found.by_gold_tags).f1, rules),
        "precision": Score("precision", own.precision, rules),
        "recall": Score("recall", own.recall, rules),
        "tagging": Score("tags", found.tagging, "all words, tags as they are"),
    }
