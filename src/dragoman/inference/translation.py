"""One translation of one line: its text, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.errors import DataError
from dragoman.inference.segmentation import is_spaced_language, join_segments
from dragoman.io.storage import write_lines
from dragoman.tasks.translation import TranslationStatus
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.viz.explanation import Explanation

AttentionRows = tuple[tuple[float, ...], ...]
# What a line in parts is called by that had parts of several kinds.
STATUSES_WORST_FIRST: tuple[TranslationStatus, ...] = ("refused", "empty", "looped", "truncated", "copied", "ok")


ExplainFn = Callable[[str | None], "Explanation"]
"""Explains the text of a translation: the model's own, or one that is forced."""


@dataclass(frozen=True)
class AttentionPage:
    """The attention page of a translation. A notebook shows it in a frame that runs the page's own script and nothing else."""

    html: str = field(repr=False)
    height: int = 720

    def _repr_html_(self) -> str:
        from dragoman.viz.attention_page import embed_in_iframe

        return embed_in_iframe(self.html, height=self.height)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page. Raises OutputError where the file exists, unless it may be replaced."""
        write_lines(Path(path), [self.html.rstrip("\n")], overwrite=overwrite)


class _Explainable:
    """How to explain it, beside a translation's fields: no part of what it equals, or of what is sent or written of it."""

    __slots__ = ("_explain",)
    _explain: ExplainFn

    def __getstate__(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class Translation(_Explainable):
    """One translation of one line.

    score: log-probability over the length penalty, higher is better; 0 where there was nothing to translate; the sum over the
        parts of a line in parts
    tokens: the pieces of the text
    token_log_probs: natural logarithms, one for each token and one for the end token if the output came to it
    status: "ok"; "truncated" where it reached the longest allowed length; "looped" where it went round in circles; "copied"
        where it is the source once more; "empty" where no text was given or came out; "refused" for one that was too long
    parts: into how many parts a line was cut that is longer than the model reads
    attention: on request, rows of weights over `source_tokens`, one row for each token, and one for the end if it came to it:
        the mean of the heads of the (first) model's last layer
    alignment: on request, for each word of the text the word of the source that it looked at most, where there is one
    missing: of the phrases that its wording was to include, those that it does not hold
    utility: how like the other candidates it is, in percent, where decoding.mbr chose by that; none of a line in parts
    alternatives: the other hypotheses, best first; none of a line in parts
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    status: TranslationStatus = "ok"
    source_tokens: tuple[str, ...] = ()
    num_segments: int = 1
    attention: AttentionRows | None = None
    alignment: tuple[Link, ...] | None = None
    unmet_constraints: tuple[str, ...] = ()
    mbr_score: float | None = None
    alternatives: tuple[Translation, ...] = field(default=(), repr=False)

    def set_explain_fn(self, explain: ExplainFn) -> None:
        """Let `show` make its page this way."""
        object.__setattr__(self, "_explain", explain)
        for alternative in self.alternatives:
            alternative.set_explain_fn(explain)

    def show(self, *, height: int = 720) -> AttentionPage:
        """The page that `dragoman explain` writes, for a notebook: `height` is that of its frame, in pixels.

        What is not what the model says of the text when it is asked again, such as an alternative, is shown as a given
        translation. Raises DataError for a line in parts, or for what the model cannot explain.
        """
        from dragoman.viz.attention_page import render_attention_page  # only here, since who translates need not wait for it

        explain: ExplainFn | None = getattr(self, "_explain", None)
        if explain is None:
            raise DataError("only what translate has returned can be shown, in the process that it was made in")
        if self.num_segments > 1:
            raise DataError(
                f"the line was translated in {self.num_segments} parts: translate one of them by itself, and show that"
            )
        explanation = explain(None)
        if explanation.target != self.text:
            explanation = explain(self.text)
        return AttentionPage(render_attention_page(explanation), height)

    @property
    def coverage(self) -> float | None:
        """How much of the source was looked at: for each of its tokens the attention that it got, at most 1, on average.

        Equation 14 of Wu et al. (2016) without its logarithm; none without `attention`.
        """
        if self.attention is None or not self.source_tokens:
            return None
        token_coverage: list[float] = [min(sum(column), 1.0) for column in zip(*self.attention, strict=True)]
        return sum(token_coverage) / len(self.source_tokens)


def merge_segments(segments: Sequence[Translation], source_texts: Sequence[str], language: str) -> Translation:
    """The translation of a line into this language from those of its parts, which were these texts."""
    if len(segments) == 1:
        return segments[0]
    attention, alignment = None, None
    if all(segment.attention is not None for segment in segments):
        attention = tuple(
            _pad_attention_rows([part.attention or () for part in segments], [len(part.source_tokens) for part in segments])
        )
        alignment = tuple(_shift_links(segments, source_texts, is_spaced=is_spaced_language(language)))
    return Translation(
        text=join_segments([part.text for part in segments], language),
        score=sum(part.score for part in segments),
        tokens=tuple(chain.from_iterable(part.tokens for part in segments)),
        token_log_probs=tuple(chain.from_iterable(part.token_log_probs for part in segments)),
        status=min(
            (part.status for part in segments if not _is_empty_segment(part)), key=STATUSES_WORST_FIRST.index, default="empty"
        ),
        source_tokens=tuple(chain.from_iterable(part.source_tokens for part in segments)),
        num_segments=len(segments),
        attention=attention,
        alignment=alignment,
    )


def _is_empty_segment(segment: Translation) -> bool:
    """Whether nothing was given, of which nothing could come."""
    return segment.status == "empty" and not segment.token_log_probs


def _pad_attention_rows(
    segment_rows: Sequence[Sequence[Sequence[float]]], source_lengths: Sequence[int]
) -> Iterator[tuple[float, ...]]:
    """Rows over the parts of a source as rows over the whole of it."""
    for index, rows in enumerate(segment_rows):
        before, after = sum(source_lengths[:index]), sum(source_lengths[index + 1 :])
        for row in rows:
            yield (0.0,) * before + tuple(row) + (0.0,) * after


def _shift_links(segments: Sequence[Translation], source_texts: Sequence[str], *, is_spaced: bool) -> Iterator[Link]:
    """The links of parts of a line, as links of the whole. Where no space parts them, a word goes on from one to the next."""
    source_offset = target_offset = 0
    for segment, source_text, next_source_text in zip(segments, source_texts, [*source_texts[1:], ""], strict=True):
        for source, target in segment.alignment or ():
            yield source_offset + source, target_offset + target
        is_separated = source_text[-1:].isspace() or next_source_text[:1].isspace()
        source_offset += len(set(get_word_numbers(segment.source_tokens))) - (not is_separated)
        target_offset += len(set(get_word_numbers(segment.tokens))) - (not is_spaced and bool(segment.tokens))
