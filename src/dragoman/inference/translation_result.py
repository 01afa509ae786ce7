"""Result of translating one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.errors import DataError
from dragoman.inference.segmentation import join_segments
from dragoman.io.json_fields import HIDDEN, OPTIONAL
from dragoman.languages import is_spaced_language
from dragoman.tasks.translation_status import TranslationStatus
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.viz.explanation import Explanation

AttentionWeights = npt.NDArray[np.floating[Any]]
# A line that was translated in segments has the worst status of its segments.
STATUSES_WORST_FIRST: tuple[TranslationStatus, ...] = (
    "too_long", "empty", "repetition", "truncated", "short", "copied", "ok",
)  # fmt: skip

ExplainFn = Callable[[str | None], "Explanation"]
"""Function that explains the model's own translation (None), or a text that it is forced to output."""


@dataclass(frozen=True)
class AttentionPage:
    """Attention page of a translation; a notebook shows it in an isolated frame."""

    html: str = field(repr=False)
    height: int = 720

    def _repr_html_(self) -> str:
        from dragoman.viz.attention_page import embed_in_iframe

        return embed_in_iframe(self.html, height=self.height)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page to a file. Raises OutputError if the file exists and `overwrite` is false."""
        from dragoman.io.storage import write_lines

        write_lines(Path(path), [self.html.rstrip("\n")], overwrite=overwrite)


class _Explainable:
    """Base class that stores the explain function outside the fields, so that comparison and pickling ignore it."""

    __slots__ = ("_explain",)
    if TYPE_CHECKING:
        _explain: ExplainFn

    def __getstate__(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class Translation(_Explainable):
    """One translation of one line. Its JSON leaves out the hidden fields.

    score: log-probability over the length penalty, higher is better; 0 if nothing was translated; the sum over the segments
        of a line in several segments
    tokens: pieces of the text
    token_log_probs: natural logarithms, one for each token, and one for the end token if the output ends with it
    status: "ok", or the reason why the translation may be wrong or incomplete; see `TranslationStatus`
    num_segments: number of segments of a line that is longer than the model reads
    attention: on request, weights over `source_tokens` (T, S): one row for each token, and one for the end token if the output
        ends with it. They are the mean over the heads of the first model's last layer, and not compared by `==`.
    alignment: on request, for each word of the text, a link to the source word with the most attention. The words do not
        include a language token at the start of the source.
    unmet_constraints: phrases of `TranslationConstraints` that the text should hold and does not, or holds and should not
    mbr_score: mean similarity to the other candidates in percent, if decoding.mbr chose the translation; None for several
        segments
    confidence: on request, the share of the bundle's calibration translations that are no better, from 0 to 1; the lowest
        of the segments of a line in several segments
    alternatives: the other hypotheses, best first; empty for several segments
    pivot: first step of a pivot translation, whose text the second step has translated; None for one step
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_log_probs: tuple[float, ...] = field(default=(), repr=False)
    status: TranslationStatus = "ok"
    source_tokens: Annotated[tuple[str, ...], HIDDEN] = field(default=(), repr=False)
    num_segments: int = 1
    attention: Annotated[AttentionWeights | None, HIDDEN] = field(default=None, compare=False, repr=False)
    alignment: Annotated[tuple[Link, ...] | None, HIDDEN] = field(default=None, repr=False)
    unmet_constraints: tuple[str, ...] = ()
    mbr_score: Annotated[float | None, OPTIONAL] = None
    confidence: Annotated[float | None, OPTIONAL] = None
    alternatives: tuple[Translation, ...] = field(default=(), repr=False)
    pivot: Annotated[Translation | None, OPTIONAL] = field(default=None, repr=False)

    def set_explain_fn(self, explain: ExplainFn) -> None:
        """Set the function that `show` calls, for this translation and its alternatives."""
        object.__setattr__(self, "_explain", explain)
        for alternative in self.alternatives:
            alternative.set_explain_fn(explain)

    def show(self, *, height: int = 720) -> AttentionPage:
        """Return the page that `dragoman explain` writes, for a notebook.

        A text that differs from the model's best translation, such as an alternative, is shown as a forced translation.

        height: height of the frame in pixels
        Raises DataError for a line in several segments, and for a text that the model cannot explain.
        """
        from dragoman.viz.attention_page import render_attention_page  # imported late, because translation does not need it

        explain: ExplainFn | None = getattr(self, "_explain", None)
        if explain is None:
            raise DataError("show: this translation was not returned by translate in this process; call translate again")
        if self.num_segments > 1:
            raise DataError(
                f"show: the line was translated in {self.num_segments} segments; translate one of them alone and show that"
            )
        explanation = explain(None)
        if explanation.target != self.text:
            explanation = explain(self.text)
        return AttentionPage(render_attention_page(explanation), height)

    @property
    def coverage(self) -> float | None:
        """Mean attention that each source token received, at most 1 for each; None without `attention`.

        This is equation 14 of Wu et al. (2016) without the logarithm.
        """
        if self.attention is None or not self.source_tokens:
            return None
        return float(np.minimum(self.attention.sum(axis=0, dtype=np.float64), 1).sum()) / len(self.source_tokens)


def merge_segments(
    segments: Sequence[Translation], source_texts: Sequence[str], language: str, num_language_tokens: int = 0
) -> Translation:
    """Return the translation of a line from the translations of its segments and the texts of the segments.

    num_language_tokens: number of tokens at the start of each source that are no words
    """
    if len(segments) == 1:
        return segments[0]
    attention, alignment = None, None
    all_weights = [segment.attention for segment in segments if segment.attention is not None]
    if len(all_weights) == len(segments):
        attention = _stack_diagonally(all_weights)
        alignment = tuple(
            _shift_links(
                segments, source_texts, is_spaced=is_spaced_language(language), num_language_tokens=num_language_tokens
            )
        )
    return Translation(
        text=join_segments([segment.text for segment in segments], language),
        score=sum(segment.score for segment in segments),
        tokens=tuple(chain.from_iterable(segment.tokens for segment in segments)),
        token_log_probs=tuple(chain.from_iterable(segment.token_log_probs for segment in segments)),
        status=min(
            (segment.status for segment in segments if not _is_empty_segment(segment)),
            key=STATUSES_WORST_FIRST.index,
            default="empty",
        ),
        source_tokens=tuple(chain.from_iterable(segment.source_tokens for segment in segments)),
        num_segments=len(segments),
        attention=attention,
        alignment=alignment,
        confidence=min((segment.confidence for segment in segments if segment.confidence is not None), default=None),
    )


def _is_empty_segment(segment: Translation) -> bool:
    """Return whether the source segment had no text."""
    return segment.status == "empty" and not segment.token_log_probs


def _stack_diagonally(all_weights: Sequence[AttentionWeights]) -> AttentionWeights:
    """Return the weights of segments over the source tokens of all; those over the tokens of other segments are 0."""
    shapes = np.array([weights_TS.shape for weights_TS in all_weights])
    stacked_TS = np.zeros(shapes.sum(axis=0), all_weights[0].dtype)
    for weights_TS, (last_row, last_column) in zip(all_weights, shapes.cumsum(axis=0), strict=True):
        num_rows, num_columns = weights_TS.shape
        stacked_TS[last_row - num_rows : last_row, last_column - num_columns : last_column] = weights_TS
    return stacked_TS


def _shift_links(
    segments: Sequence[Translation], source_texts: Sequence[str], *, is_spaced: bool, num_language_tokens: int
) -> Iterator[Link]:
    """Yield the links of the segments as links of the whole line. Segments without a space between them share a word."""
    source_offset = target_offset = 0
    for segment, source_text, next_source_text in zip(segments, source_texts, [*source_texts[1:], ""], strict=True):
        for source, target in segment.alignment or ():
            yield source_offset + source, target_offset + target
        is_separated = source_text[-1:].isspace() or next_source_text[:1].isspace()
        source_offset += len(set(get_word_numbers(segment.source_tokens[num_language_tokens:]))) - (not is_separated)
        target_offset += len(set(get_word_numbers(segment.tokens))) - (not is_spaced and bool(segment.tokens))
