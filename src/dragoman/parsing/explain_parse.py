"""Explanation of one parse: attention, candidate tokens, beam and tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import DataError
from dragoman.inference.explain.explain_translation import check_single_line, explain_output
from dragoman.inference.explain.search_trace import trace_search
from dragoman.parsing.parse_result import Parse, Sentence
from dragoman.parsing.sentence_parser import UNLIMITED_POSITIONS, encode_words
from dragoman.parsing.tree_constraint import TreeConstraint
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import get_source_limit
from dragoman.torch_engine.arrays import TorchArrays
from dragoman.viz.attention_page import MAX_TOKENS
from dragoman.viz.explanation import BeamNode, Explanation, ExplanationTree

if TYPE_CHECKING:
    from dragoman.parsing.parser import Parser

PROBABILITIES_NOTE = (
    "Probabilities are the model's own; the search allows only tokens that a tree over the words can continue with."
)


def explain_parse(
    parser: Parser,
    sentence: Sentence,
    *,
    tags: Sequence[str] | None = None,
    layer: int | None = None,
    heads: Sequence[int] = (),
    **decoding: Any,
) -> Explanation:
    """Parse one sentence and return the attention and the predictions of the first model.

    tags: POS tags of the words, if the parser needs them
    layer, heads, decoding: see `explain`
    Raises DataError for a sentence that cannot be explained, with the limit if it is too long.
    """
    config = parser.resolve_decoding(decoding)
    if isinstance(sentence, str):
        check_single_line(sentence)
    words = sentence.split() if isinstance(sentence, str) else sentence
    if not words:
        raise DataError("the text is empty, so there is nothing to parse; give a sentence")
    source = encode_words(parser.bundle.tokenizer, words)
    _check_length(len(source), "tokens")
    [parse] = parser.parse([words], tags=None if tags is None else [tags], **decoding)
    if parse.status == "too_long":
        source_limit = get_source_limit(parser.inference_model.max_positions, config)
        raise DataError(f"the sentence has {len(source)} tokens, and the model reads {source_limit}; shorten it")
    _check_length(len(parse.tokens) + 1, "brackets and words in its tree")
    ids = [parser.labels.tokens.index(token) for token in parse.tokens]
    suppressed_ids = [*FORBIDDEN_IDS, *parser.labels.hidden_ids]
    explanation = explain_output(
        parser.bundle, source, ids, finished=True, layer=layer, heads=heads, suppressed_ids=suppressed_ids
    )
    beam, notes = _trace_beam(parser, source, len(parse.words), ids, config, suppressed_ids)
    return replace(
        explanation,
        source=" ".join(parse.words),
        target=parse.brackets,
        source_word_ids=_number_source_words(parser, source),
        output_word_ids=tuple(range(len(explanation.output_tokens))),
        beam=beam,
        notes=(PROBABILITIES_NOTE, *notes),
        tree=_build_bracketing(parser, parse),
    )


def _trace_beam(
    parser: Parser,
    source: Sequence[int],
    num_words: int,
    ids: Sequence[int],
    config: DecodingConfig,
    suppressed_ids: Sequence[int],
) -> tuple[tuple[BeamNode, ...], list[str]]:
    """Return the nodes of the beam that ends in these ids; without a beam, return the reason as a note."""
    if config.method == "sample":
        return (), ["The parse was sampled, so there is no beam to show."]
    if len(parser.models) > 1:
        return (), ["An ensemble made the parse, so the beam of its first model is not shown."]
    limit = min(len(source) + config.max_extra_tokens, parser.inference_model.max_positions or UNLIMITED_POSITIONS)
    constraint = TreeConstraint(parser.labels.build_automaton(), TorchArrays(parser.models[0].output.device))
    trace = trace_search(
        parser.models[0],
        parser.labels,
        source,
        config,
        start_id=get_decoder_start_id(parser.recipe.model),
        suppressed_ids=suppressed_ids,
        allowed_tokens_fn=constraint.build_allowed_tokens_fn([num_words], [limit]),
    )
    if trace.ids != (*ids, END_ID):
        return (), ["The recorded search found another output than the parse, so its beam is not shown."]
    return trace.nodes, []


def _number_source_words(parser: Parser, source: Sequence[int]) -> tuple[int, ...]:
    """Return the word number of each source token; the end token is a word of its own."""
    tokenizer = parser.bundle.tokenizer
    length = len(source) - tokenizer.append_source_eos
    numbers: list[int] = (tokenizer.source.word_start_mask[list(source[:length])].cumsum() - 1).tolist()
    return (*numbers, numbers[-1] + 1) if tokenizer.append_source_eos else tuple(numbers)


def _check_length(length: int, unit: str) -> None:
    if length > MAX_TOKENS:
        raise DataError(f"the sentence has {length} {unit}, and a page holds {MAX_TOKENS}; shorten it")


def _build_bracketing(parser: Parser, parse: Parse) -> ExplanationTree:
    actions = parser.labels.linearization.parse_actions(parse.tokens)
    return ExplanationTree(
        words=parse.words,
        tags=parse.tags,
        brackets=tuple((label, start, end) for label, start, end in parse.spans),
        opener_positions=tuple(index for index, action in enumerate(actions) if action.is_open),
        has_pointer=parser.recipe.model.pointer,
    )
