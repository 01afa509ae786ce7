"""One translation of one line: its text, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.data.tokenization.word_boundaries import words_of
from dragoman.errors import DataError
from dragoman.inference.segmentation import join_passage, writes_spaces
from dragoman.io.storage import write_lines
from dragoman.tasks.translation import Status
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.viz.explanation import Explanation

Rows = tuple[tuple[float, ...], ...]
# What a line in parts is called by that had parts of several kinds.
WORST_FIRST: tuple[Status, ...] = ("refused", "empty", "looped", "truncated", "copied", "ok")


Explain = Callable[[str | None], "Explanation"]
"""Explains the text of a translation: the model's own, or one that is forced."""


@dataclass(frozen=True)
class Shown:
    """The attention page of a translation. A notebook shows it in a frame that runs the page's own script and nothing else."""

    page: str = field(repr=False)
    height: int = 720

    def _repr_html_(self) -> str:
        from dragoman.viz.attention_page import framed

        return framed(self.page, height=self.height)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page. Raises OutputError where the file exists, unless it may be replaced."""
        write_lines(Path(path), [self.page.rstrip("\n")], overwrite=overwrite)


class _Explained:
    """How to explain it, beside a translation's fields: no part of what it equals, or of what is sent or written of it."""

    __slots__ = ("_explain",)
    _explain: Explain

    def __getstate__(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class Translation(_Explained):
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
    status: Status = "ok"
    source_tokens: tuple[str, ...] = ()
    parts: int = 1
    attention: Rows | None = None
    alignment: tuple[Link, ...] | None = None
    missing: tuple[str, ...] = ()
    utility: float | None = None
    alternatives: tuple[Translation, ...] = field(default=(), repr=False)

    def explained_by(self, explain: Explain) -> None:
        """Let `show` make its page this way."""
        object.__setattr__(self, "_explain", explain)
        for one in self.alternatives:
            one.explained_by(explain)

    def show(self, *, height: int = 720) -> Shown:
        """The page that `dragoman explain` writes, for a notebook: `height` is that of its frame, in pixels.

        What is not what the model says of the text when it is asked again, such as an alternative, is shown as a given
        translation. Raises DataError for a line in parts, or for what the model cannot explain.
        """
        from dragoman.viz.attention_page import attention_page  # only here, since who translates need not wait for it

        explain: Explain | None = getattr(self, "_explain", None)
        if explain is None:
            raise DataError("only what translate has returned can be shown, in the process that it was made in")
        if self.parts > 1:
            raise DataError(f"the line was translated in {self.parts} parts: translate one of them by itself, and show that")
        explanation = explain(None)
        if explanation.target != self.text:
            explanation = explain(self.text)
        return Shown(attention_page(explanation), height)

    @property
    def coverage(self) -> float | None:
        """How much of the source was looked at: for each of its tokens the attention that it got, at most 1, on average.

        Equation 14 of Wu et al. (2016) without its logarithm; none without `attention`.
        """
        if self.attention is None or not self.source_tokens:
            return None
        seen: list[float] = [min(sum(column), 1.0) for column in zip(*self.attention, strict=True)]
        return sum(seen) / len(self.source_tokens)


def joined(parts: Sequence[Translation], sources: Sequence[str], language: str) -> Translation:
    """The translation of a line into this language from those of its parts, which were these texts."""
    if len(parts) == 1:
        return parts[0]
    attention, alignment = None, None
    if all(part.attention is not None for part in parts):
        attention = tuple(_beside([part.attention or () for part in parts], [len(part.source_tokens) for part in parts]))
        alignment = tuple(_one_after_another(parts, sources, spaced=writes_spaces(language)))
    return Translation(
        text=join_passage([part.text for part in parts], language),
        score=sum(part.score for part in parts),
        tokens=tuple(chain.from_iterable(part.tokens for part in parts)),
        token_log_probs=tuple(chain.from_iterable(part.token_log_probs for part in parts)),
        status=min((part.status for part in parts if not _is_blank(part)), key=WORST_FIRST.index, default="empty"),
        source_tokens=tuple(chain.from_iterable(part.source_tokens for part in parts)),
        parts=len(parts),
        attention=attention,
        alignment=alignment,
    )


def _is_blank(part: Translation) -> bool:
    """Whether nothing was given, of which nothing could come."""
    return part.status == "empty" and not part.token_log_probs


def _beside(many: Sequence[Sequence[Sequence[float]]], widths: Sequence[int]) -> Iterator[tuple[float, ...]]:
    """Rows over the parts of a source as rows over the whole of it."""
    for index, rows in enumerate(many):
        before, after = sum(widths[:index]), sum(widths[index + 1 :])
        for row in rows:
            yield (0.0,) * before + tuple(row) + (0.0,) * after


def _one_after_another(parts: Sequence[Translation], sources: Sequence[str], *, spaced: bool) -> Iterator[Link]:
    """The links of parts of a line, as links of the whole. Where no space parts them, a word goes on from one to the next."""
    read = said = 0
    for part, source_text, after in zip(parts, sources, [*sources[1:], ""], strict=True):
        for source, target in part.alignment or ():
            yield read + source, said + target
        parted = source_text[-1:].isspace() or after[:1].isspace()
        read += len(set(words_of(part.source_tokens))) - (not parted)
        said += len(set(words_of(part.tokens))) - (not spaced and bool(part.tokens))
