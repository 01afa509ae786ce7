"""Parsing: words to ids, ids to trees, and scores of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig, Recipe, TaskConfig
from dragoman.data.padding import pad_sequences, split_by_tokens
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import DataError
from dragoman.evaluation.metrics import Score
from dragoman.formats.pair import Pair
from dragoman.parsing.evalb.parse_scores import ParseComparison
from dragoman.parsing.evalb.scorer import sum_scores
from dragoman.parsing.tree_constraint import TreeConstraint
from dragoman.parsing.tree_labels import XX_ID, TreeLabels, normalize_tree, to_source_text
from dragoman.parsing.trees.constraint_automaton import ConstraintAutomaton
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.repair import RepairedTree, repair_tree
from dragoman.parsing.trees.tree import Tree, get_leaves
from dragoman.tasks.generation import BatchSearch, ConstraintFactory, MapFn, OnProgress, generate
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id
from dragoman.tasks.translation import build_decoding_constraints, get_source_limit

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer

ParseStatus = Literal["ok", "repaired", "truncated", "empty", "too_long"]
"""Outcome of one sentence:

    ok          the output is a tree over the words
    repaired    the output was no tree over the words, and was repaired
    truncated   the output reached the longest allowed length, and was repaired
    empty       the sentence has no words
    too_long    the sentence was not parsed, because it is longer than the model reads
"""
TAGGING_BATCH_TOKENS = 8192
"""Padded source tokens in a batch of the POS tagger."""
UNLIMITED_POSITIONS = 2**31
"""Number of positions of a model whose positions never end."""


@dataclass(frozen=True)
class ParsedSentence:
    """Hypotheses of one sentence, best first, with the tree of each; none if the sentence is empty or too long."""

    words: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    repaired_trees: tuple[RepairedTree, ...]
    status: ParseStatus

    @property
    def tree(self) -> Tree | None:
        return self.repaired_trees[0].tree if self.repaired_trees else None


def parser_options(task: TaskConfig) -> dict[str, Any]:
    """Return the arguments of `build_model` that only a parser has; empty for translation."""
    return {"word_id": XX_ID, "tagging": task.has_tagging_head} if not task.has_text_target else {}


def fill_word_tables(model: Transformer, tokenizer: PairTokenizer) -> None:
    """Fill the word tables of a new parser: source pieces that begin a word, and target tokens that consume a word."""
    if model.words is not None:
        labels = get_labels(tokenizer)
        begins = tokenizer.source.word_start_mask.nonzero()[0].tolist()
        model.words.fill(begins=begins, shifts=labels.shift_ids, hidden=labels.hidden_ids)


def get_labels(tokenizer: PairTokenizer) -> TreeLabels:
    assert isinstance(tokenizer.target, TreeLabels), "a translator, not a parser"
    return tokenizer.target


def encode_words(tokenizer: PairTokenizer, words: Sequence[str]) -> list[int]:
    """Return the source ids of these words. Raises DataError for a lone surrogate, which UTF-8 cannot encode."""
    return tokenizer.encode_source(to_source_text(words))


class Tagger(Protocol):
    """Model of a parser that predicts the POS tag of each word."""

    def compute_tag_log_probs(self, source_BS: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the log-probability of each tag of each word; −∞ for other tokens. → (B, W, V)"""
        ...


@dataclass(frozen=True)
class SentenceParser:
    """Parser of sentences, with the same models and options. taggers: the models, which a parser with a tag head needs"""

    inference_model: InferenceModel
    taggers: Sequence[Tagger]
    tokenizer: PairTokenizer
    recipe: Recipe
    decoding: DecodingConfig

    def parse(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        constrained: bool = True,
        tags: Sequence[Sequence[str] | None] | None = None,
        sample_ids: Sequence[int] | None = None,
        on_progress: OnProgress = lambda _: None,
        map_fn: MapFn = map,
    ) -> list[ParsedSentence]:
        """Parse each sentence, in order.

        sentences: words of each sentence; brackets may be plain or escaped, such as -LRB-
        constrained: allow only tokens that a tree over the words can continue with; otherwise repair the output afterwards
        tags: POS tags of each sentence, one a word; predicted for a sentence with None
        sample_ids: number of each sentence in its text, which selects the random stream of sampling; default 0, 1, …
        Raises DataError if the numbers of tags and words differ.
        """
        labels, inference_model = get_labels(self.tokenizer), self.inference_model
        source_limit = get_source_limit(inference_model.max_positions, self.decoding)
        sources = [encode_words(self.tokenizer, words) if words else [] for words in sentences]
        limits = [
            min(len(source) + self.decoding.max_extra_tokens, inference_model.max_positions or UNLIMITED_POSITIONS)
            for source in sources
        ]
        readable = [
            index
            for index, (words, source) in enumerate(zip(sentences, sources, strict=True))
            if words and len(source) <= source_limit and limits[index] >= ConstraintAutomaton.min_tokens(len(words))
        ]
        on_progress(len(sentences) - len(readable))
        resolved_tags = _resolve_tags(
            self.taggers, self.tokenizer, sentences, [sources[index] for index in readable], readable, self.recipe.task, tags
        )
        hypotheses_by_sentence = generate(
            BatchSearch(
                inference_model,
                self.decoding,
                start_id=get_decoder_start_id(self.recipe.model),
                decoding_constraints=_build_constraints(self.decoding, labels),
                constraint_factory=_make_constraint_factory(
                    labels, [len(sentences[index]) for index in readable], inference_model
                )
                if constrained
                else None,
            ),
            [sources[index] for index in readable],
            sample_ids=readable if sample_ids is None else [sample_ids[index] for index in readable],
            on_progress=on_progress,
            map_fn=map_fn,
        )
        results = {
            index: _repair_hypotheses(labels, sentences[index], hypotheses, sentence_tags)
            for index, hypotheses, sentence_tags in zip(readable, hypotheses_by_sentence, resolved_tags, strict=True)
        }
        return [
            results.get(index) or ParsedSentence(tuple(words), (), (), "too_long" if words else "empty")
            for index, words in enumerate(sentences)
        ]


def _build_constraints(decoding: DecodingConfig, labels: TreeLabels) -> DecodingConstraints:
    """Return the constraints of the section [decoding], without labels that no tree shows."""
    constraints = build_decoding_constraints(decoding, labels)
    suppressed = (*constraints.suppress_tokens, *labels.hidden_ids)
    return replace(constraints, suppress_tokens=suppressed, repetition_window=0)  # a correct tree may repeat a label many times


def _make_constraint_factory(labels: TreeLabels, lengths: Sequence[int], inference_model: InferenceModel) -> ConstraintFactory:
    tree_constraint = TreeConstraint(labels.build_automaton(), inference_model.arrays)
    return lambda indices, limits: tree_constraint.build_allowed_tokens_fn([lengths[index] for index in indices], limits)


def _repair_hypotheses(
    labels: TreeLabels,
    words: Sequence[str],
    hypotheses: Sequence[Hypothesis],
    tags: Sequence[str] | None,
) -> ParsedSentence:
    repaired_trees = tuple(
        repair_tree(labels.linearization, labels.ids_to_pieces(hypothesis.tokens), words, tags) for hypothesis in hypotheses
    )
    status: ParseStatus = "truncated" if not hypotheses or not hypotheses[0].finished else "ok"
    if status == "ok" and repaired_trees[0].repairs:
        status = "repaired"
    return ParsedSentence(tuple(words), tuple(hypotheses), repaired_trees, status)


def _resolve_tags(
    taggers: Sequence[Tagger],
    tokenizer: PairTokenizer,
    sentences: Sequence[Sequence[str]],
    sources: Sequence[Sequence[int]],
    readable: Sequence[int],
    task: TaskConfig,
    input_tags: Sequence[Sequence[str] | None] | None,
) -> list[Sequence[str] | None]:
    """Return the tags of each readable sentence: the caller's, or the tagger's; None if the output has the tags."""
    resolved_tags: list[Sequence[str] | None] = [None if input_tags is None else input_tags[index] for index in readable]
    for index, tags in zip(readable, resolved_tags, strict=True):
        if tags is not None and len(tags) != len(sentences[index]):
            raise DataError(
                f"sentence {index + 1}: {len(tags)} tags for {len(sentences[index])} words; give one tag a word",
                code="invalid-tags",
            )
    untagged = [position for position, tags in enumerate(resolved_tags) if tags is None]
    if task.has_tagging_head:
        predicted_tags = predict_tags(taggers, tokenizer, [sources[position] for position in untagged])
        for position, tags in zip(untagged, predicted_tags, strict=True):
            resolved_tags[position] = tags
    return resolved_tags


def predict_tags(taggers: Sequence[Tagger], tokenizer: PairTokenizer, sources: Sequence[Sequence[int]]) -> list[list[str]]:
    """Return the likeliest tag of each word by the tag head; several models average their probabilities."""
    labels = get_labels(tokenizer)
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    tags_by_index: dict[int, list[str]] = {}
    for batch_slice in split_by_tokens([len(sources[index]) for index in order], TAGGING_BATCH_TOKENS):
        indices = order[batch_slice]
        source_BS = pad_sequences([sources[index] for index in indices])
        log_prob_BWV = reduce(np.logaddexp, [tagger.compute_tag_log_probs(source_BS) for tagger in taggers])
        for index, ids in zip(indices, log_prob_BWV.argmax(-1).tolist(), strict=True):
            tags_by_index[index] = labels.ids_to_pieces(ids[: int(tokenizer.source.word_start_mask[sources[index]].sum())])
    return [tags_by_index[index] for index in range(len(sources))]


def read_gold_tree(task: TaskConfig, pair: Pair) -> Tree:
    """Return the tree of a pair in the form that training uses. Raises DataError if it cannot be a gold tree."""
    tree = normalize_tree(read_tree(pair.target, name=pair.origin), function_tags=task.function_tags, traces=task.traces)
    gold_leaves = get_leaves(tree)
    if not gold_leaves:
        raise DataError(f"{pair.origin}: the tree has no words; remove the line", code="empty-data")
    if untagged := [leaf.word for leaf in gold_leaves if leaf.tag is None]:
        raise DataError(
            f"{pair.origin}: the word {untagged[0][:40]!r} has no tag, and EVALB's rules need one; add it", code="invalid-tree"
        )
    return tree


def score_parses(parses: Sequence[Tree | None], gold: Sequence[Tree]) -> dict[str, Score]:
    """Return F1 by the rules of COLLINS.prm, F1 with gold tags, precision, recall and tagging accuracy.

    A sentence without a parse, or with other words by these rules, counts as zero.
    """
    comparison = ParseComparison(parses, gold)
    own_tag_scores, rules = sum_scores(comparison.scores_with_predicted_tags), "EVALB's COLLINS.prm, all lengths, failures zero"
    return {
        "f1": Score("F1", own_tag_scores.f1, rules),
        "f1_gold_tags": Score("F1 with gold tags", sum_scores(comparison.scores_with_gold_tags).f1, rules),
        "precision": Score("precision", own_tag_scores.precision, rules),
        "recall": Score("recall", own_tag_scores.recall, rules),
        "tagging": Score("tags", comparison.tagging_accuracy, "all words, tags as they are"),
    }
