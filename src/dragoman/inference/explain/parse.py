"""Why a parse is what it is: as for a translation, with the tree and where each bracket's token looked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import DataError
from dragoman.inference.explain.search_trace import trace_search
from dragoman.inference.explain.translation import explain_output
from dragoman.inference.parse import Parse
from dragoman.inference.parser import Parser, Sentence
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.parsing import UNLIMITED_POSITIONS, encode_words
from dragoman.tasks.translation import get_source_limit
from dragoman.tasks.tree_constraint import TreeConstraint
from dragoman.viz.attention_page import MAX_TOKENS
from dragoman.viz.explanation import BeamNode, Explanation, ExplanationTree


def explain_parse(
    parser: Parser,
    sentence: Sentence,
    *,
    tags: Sequence[str] | None = None,
    layer: int | None = None,
    heads: Sequence[int] = (),
    **decoding: Any,
) -> Explanation:
    """Parse one sentence, and tell all that the (first) model looked at on the way; the arguments are those of `explain`.

    tags: of its words, where they are given
    Raises DataError for a sentence that cannot be explained, naming the limit where it is too long.
    """
    config = parser.resolve_decoding(decoding)
    words = sentence if not isinstance(sentence, str) else _check_single_line(sentence).split()
    if not words:
        raise DataError("the text is empty: there is nothing to parse, and nothing to explain")
    source = encode_words(parser.bundle.tokenizer, words)
    _check_length(len(source), "tokens")
    [parse] = parser.parse([words], tags=None if tags is None else [tags], **decoding)
    if parse.status == "refused":
        longest = get_source_limit(parser.inference_model.max_positions, config)
        raise DataError(f"the sentence has {len(source)} tokens, and the model reads {longest}; shorten it")
    _check_length(len(parse.tokens) + 1, "brackets and words in its tree")
    ids = [parser.labels.tokens.index(token) for token in parse.tokens]
    suppressed_ids = [*FORBIDDEN_IDS, *parser.labels.hidden_ids]
    explanation = explain_output(
        parser.bundle, source, ids, finished=True, layer=layer, heads=heads, suppressed_ids=suppressed_ids
    )
    beam: tuple[BeamNode, ...] = ()
    notes = ["Probabilities are the model's own; the search took only what a tree over the words can go on with."]
    if config.method == "sample":
        notes.append("The parse was drawn by chance, so there is no beam to show.")
    elif len(parser.models) > 1:
        notes.append("Several models voted, so the beam of the first is not shown.")
    else:
        limit = min(len(source) + config.max_extra_tokens, parser.inference_model.max_positions or UNLIMITED_POSITIONS)
        allowed_tokens_fn = TreeConstraint(parser.labels.build_automaton(), parser.device).build_allowed_tokens_fn(
            [len(parse.words)], [limit]
        )
        decoder_start = get_decoder_start_id(parser.recipe.model)
        trace = trace_search(
            parser.models[0],
            source,
            config,
            start_id=decoder_start,
            suppressed_ids=suppressed_ids,
            allowed_tokens_fn=allowed_tokens_fn,
        )
        if trace.ids == [*ids, END_ID]:
            beam = trace.to_branches(parser.labels)
        else:
            notes.append("The search that was recorded came to another output than the parse, so its beam is not shown.")
    return replace(
        explanation,
        source=" ".join(parse.words),
        target=parse.brackets,
        source_words=_number_source_words(parser, source),
        said_words=tuple(range(len(explanation.output_tokens))),
        beam=beam,
        notes=tuple(notes),
        tree=_build_bracketing(parser, parse),
    )


def _number_source_words(parser: Parser, source: Sequence[int]) -> tuple[int, ...]:
    """The number of each token's word; the end token is a word of its own."""
    tokenizer = parser.bundle.tokenizer
    length = len(source) - tokenizer.append_source_eos
    numbers: list[int] = (tokenizer.source.word_start_mask[list(source[:length])].cumsum() - 1).tolist()
    return (*numbers, numbers[-1] + 1) if tokenizer.append_source_eos else tuple(numbers)


def _check_single_line(text: str) -> str:
    if len(lines := text.splitlines()) > 1:
        raise DataError(f"the text has {len(lines)} lines; one line at a time can be explained")
    return text


def _check_length(length: int, unit: str) -> None:
    if length > MAX_TOKENS:
        raise DataError(f"the sentence has {length} {unit}, and a page holds {MAX_TOKENS}: explain a shorter one")


def _build_bracketing(parser: Parser, parse: Parse) -> ExplanationTree:
    actions = parser.labels.linearization.parse_actions(parse.tokens)
    return ExplanationTree(
        words=parse.words,
        tags=parse.tags,
        brackets=tuple((label, start, end) for label, start, end in parse.spans),
        opener_positions=tuple(index for index, action in enumerate(actions) if action.kind == "open"),
        has_pointer=parser.recipe.model.pointer,
    )
