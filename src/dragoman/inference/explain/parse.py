"""Why a parse is what it is: as for a translation, with the tree and where each bracket's token looked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import DataError
from dragoman.inference.explain.search_trace import recorded_search
from dragoman.inference.explain.translation import looked_at
from dragoman.inference.parse import Parse
from dragoman.inference.parser import Parser, Sentence
from dragoman.tasks.generation import FORBIDDEN
from dragoman.tasks.inference_model import start_id
from dragoman.tasks.parsing import ENDLESS, encode_words
from dragoman.tasks.translation import longest_source
from dragoman.tasks.tree_constraint import Constraint
from dragoman.viz.attention_page import MOST_TOKENS
from dragoman.viz.explanation import Bracketed, Branch, Explanation


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
    config = parser.check(decoding)
    words = sentence if not isinstance(sentence, str) else _one_line(sentence).split()
    if not words:
        raise DataError("the text is empty: there is nothing to parse, and nothing to explain")
    source = encode_words(parser.bundle.tokeniser, words)
    _refuse_long(len(source), "tokens")
    [parse] = parser.parse([words], tags=None if tags is None else [tags], **decoding)
    if parse.status == "refused":
        longest = longest_source(parser.speaker.positions, config)
        raise DataError(f"the sentence has {len(source)} tokens, and the model reads {longest}; shorten it")
    _refuse_long(len(parse.tokens) + 1, "brackets and words in its tree")
    ids = [parser.labels.tokens.index(token) for token in parse.tokens]
    never = [*FORBIDDEN, *parser.labels.hidden]
    told = looked_at(parser.bundle, source, ids, finished=True, layer=layer, heads=heads, never=never)
    beam: tuple[Branch, ...] = ()
    notes = ["Probabilities are the model's own; the search took only what a tree over the words can go on with."]
    if config.method == "sample":
        notes.append("The parse was drawn by chance, so there is no beam to show.")
    elif len(parser.models) > 1:
        notes.append("Several models voted, so the beam of the first is not shown.")
    else:
        limit = min(len(source) + config.max_extra_tokens, parser.speaker.positions or ENDLESS)
        allow = Constraint(parser.labels.automaton(), parser.device).beside([len(parse.words)], [limit])
        start = start_id(parser.recipe.model)
        record = recorded_search(parser.models[0], source, config, start=start, never=never, allow=allow)
        if record.ids == [*ids, END_ID]:
            beam = record.branches(parser.labels)
        else:
            notes.append("The search that was recorded came to another output than the parse, so its beam is not shown.")
    return replace(
        told,
        source=" ".join(parse.words),
        target=parse.brackets,
        source_words=_word_numbers(parser, source),
        said_words=tuple(range(len(told.said))),
        beam=beam,
        notes=tuple(notes),
        tree=_bracketed(parser, parse),
    )


def _word_numbers(parser: Parser, source: Sequence[int]) -> tuple[int, ...]:
    """The number of each token's word; the end token is a word of its own."""
    tokeniser = parser.bundle.tokeniser
    length = len(source) - tokeniser.append_source_eos
    numbers: list[int] = (tokeniser.source.begins[list(source[:length])].cumsum() - 1).tolist()
    return (*numbers, numbers[-1] + 1) if tokeniser.append_source_eos else tuple(numbers)


def _one_line(text: str) -> str:
    if len(lines := text.splitlines()) > 1:
        raise DataError(f"the text has {len(lines)} lines; one line at a time can be explained")
    return text


def _refuse_long(length: int, what: str) -> None:
    if length > MOST_TOKENS:
        raise DataError(f"the sentence has {length} {what}, and a page holds {MOST_TOKENS}: explain a shorter one")


def _bracketed(parser: Parser, parse: Parse) -> Bracketed:
    actions = parser.labels.how.actions(parse.tokens)
    return Bracketed(
        words=parse.words,
        tags=parse.tags,
        brackets=tuple((label, start, end) for label, start, end in parse.spans),
        openers=tuple(place for place, action in enumerate(actions) if action.kind == "open"),
        points=parser.recipe.model.pointer,
    )
