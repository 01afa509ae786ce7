"""Translation: text to ids, ids to text, and the scores that translations are judged by."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from dragoman.config import DecodingConfig, Recipe
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.tokenizer import Tokeniser
from dragoman.decoding.constraints import NO_WISH, Rules, Wish
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.repetition import loops
from dragoman.errors import MissingExtraError, RecipeError
from dragoman.evaluation.metrics import Score, bleu, chrf, exact_match, paper_bleu, splits_compounds, tokenised_bleu
from dragoman.tasks.generation import Advance, Spread, generate
from dragoman.tasks.inference_model import Speaker, start_id
from dragoman.tasks.mbr import most_alike, searched

Status = Literal["ok", "truncated", "looped", "copied", "empty", "refused"]
"""What became of a line:

    ok          a translation that came to its end
    truncated   cut where the longest allowed output ends
    looped      went round in circles, and was stopped
    copied      is the source once more
    empty       holds no text: nothing was given, or nothing came of it
    refused     not translated, since the source is longer than the model reads
"""
# Letters between other things; of Chinese and Japanese, which write no spaces, each sign.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")
# Fewer words may well be the same in both languages: a name, a title, an address.
COPIED_WORDS = 4
COPIED_SHARE = 0.9


@dataclass(frozen=True)
class Translated:
    """What became of one line: its hypotheses, best first; none where it holds no text or was refused."""

    source: tuple[int, ...]
    hypotheses: tuple[Hypothesis, ...]
    status: Status


def holds_text(line: str, ids: Sequence[int]) -> bool:
    """Whether there is anything to translate: more than white space, and more than the end token."""
    return bool(line.strip()) and any(index != END_ID for index in ids)


def longest_source(positions: int | None, decoding: DecodingConfig) -> int:
    """How many tokens of one line are read: `max_source_tokens`, or fewer where the model's positions end before."""
    return min(decoding.max_source_tokens, positions or decoding.max_source_tokens)


def translate_lines(
    speaker: Speaker,
    tokeniser: Tokeniser,
    lines: Sequence[str],
    recipe: Recipe,
    decoding: DecodingConfig,
    *,
    places: Sequence[int] | None = None,
    wishes: Sequence[Wish] = (),
    branching: bool = False,
    advance: Advance = lambda _: None,
    spread: Spread = map,
) -> list[Translated]:
    """Translate each line, in order; a line without text, or one too long to read, has no hypotheses.

    places: the number of each line in its text, by which sampling draws; 0, 1, … when not given
    wishes: what is asked of the translation of each, or nothing at all
    branching: see `generate`
    """
    longest = longest_source(speaker.positions, decoding)
    sources = [tokeniser.encode_source(line) for line in lines]
    texts = [index for index, (line, source) in enumerate(zip(lines, sources, strict=True)) if holds_text(line, source)]
    full = [index for index in texts if len(sources[index]) <= longest]
    asked = [wishes[index] for index in full] if wishes else [NO_WISH] * len(full)
    going_round = [
        any(loops(tokens, decoding.repetition_window) for tokens in (sources[index], wish.prefix, *wish.include))
        for index, wish in zip(full, asked, strict=True)
    ]
    if any(going_round):  # what the source or its wording repeats, the translation may repeat
        asked = [replace(wish, may_loop=may) for wish, may in zip(asked, going_round, strict=True)]
    advance(len(lines) - len(full))
    found = generate(
        speaker,
        [sources[index] for index in full],
        searched(decoding),
        start_id=start_id(recipe.model),
        places=full if places is None else [places[index] for index in full],
        wishes=asked if wishes or any(going_round) else (),
        rules=rules_of(decoding, tokeniser.target),
        branching=branching,
        advance=advance,
        spread=spread,
    )
    if decoding.mbr != "none":
        found = [
            most_alike(some, [tokeniser.target.decode(one.tokens) for one in some], decoding, tokenised=recipe.task.tokenized)
            for some in found
        ]
    hypotheses = dict(zip(full, found, strict=True))
    status: dict[int, Status] = dict.fromkeys(texts, "refused")
    status |= {index: status_of(some[0]) if some else "truncated" for index, some in hypotheses.items()}
    return [
        Translated(tuple(source), tuple(hypotheses.get(index, ())), status.get(index, "empty"))
        for index, source in enumerate(sources)
    ]


def rules_of(decoding: DecodingConfig, target: Vocabulary) -> Rules:
    """What a config asks of all outputs. Raises RecipeError for a piece that the target's subword model does not have."""
    suppressed = []
    for piece in decoding.suppress_tokens:
        if (token := target.id_of(piece)) is None:
            raise RecipeError(f"decoding.suppress_tokens: {piece!r} is not a piece of the target's subword model")
        suppressed.append(token)
    return Rules(
        decoding.min_length, decoding.no_repeat_ngram_size, tuple(suppressed), repetition_window=decoding.repetition_window
    )


def status_of(hypothesis: Hypothesis, text: str | None = None) -> Status:
    """What its tokens tell, and its text where it is known, since a piece may be a space; of copies `is_copy` tells."""
    if hypothesis.looped:
        return "looped"
    if not hypothesis.finished:
        return "truncated"
    return "ok" if (hypothesis.tokens if text is None else text.strip()) else "empty"


def is_copy(source: str, translation: str) -> bool:
    """Whether the translation is the source once more: four words or more, nine tenths of both the same, in one order."""
    given, made = (WORD.findall(text.casefold()) for text in (source, translation))
    if len(made) < COPIED_WORDS:
        return False
    least = COPIED_SHARE * max(len(made), len(given))
    if (Counter(given) & Counter(made)).total() < least:  # in whatever order: an upper bound, and cheap
        return False
    same = SequenceMatcher(None, given, made, autojunk=False).get_matching_blocks()
    return sum(block.size for block in same) >= least


def best_texts(translated: Sequence[Translated], tokeniser: Tokeniser) -> list[str]:
    """The best translation of each line; an empty line stays empty."""
    return [tokeniser.target.decode(one.hypotheses[0].tokens) if one.hypotheses else "" for one in translated]


def score_translations(hypotheses: Sequence[str], references: Sequence[str], recipe: Recipe) -> dict[str, Score]:
    """BLEU, chrF and exact match; BLEU over the tokens as they stand where the recipe says that the text is tokenised.

    Of German also BLEU as the paper has it, with compounds split, unless plain text has no Moses tokeniser here to cut it.
    """
    task = recipe.task
    judge = tokenised_bleu if task.tokenized else bleu
    scores = {
        "bleu": judge(hypotheses, [references]),
        "chrf": chrf(hypotheses, [references]),
        "exact_match": exact_match(hypotheses, [references]),
    }
    if splits_compounds(task.target_language):
        with suppress(MissingExtraError):
            scores["paper_bleu"] = paper_bleu(hypotheses, [references], task.target_language, tokenised=task.tokenized)
    return scores
