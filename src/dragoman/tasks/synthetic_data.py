"""More to learn from: pairs of which a model wrote one side.

    back-translate   text in the target language → a source for each line, from a model of the other direction
                     (Sennrich et al. 2016); a tag before it tells it from what people wrote (Caswell et al. 2019)
    self-train       text in the source language → a target for each line
    distil           pairs → the same sources with the teacher's targets (Kim and Rush 2016); or of several that one which is
                     most like the pair's own target (their interpolation)

Every line that is read is written or counted with the reason why not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from dragoman.config import DecodingConfig
from dragoman.errors import DataError
from dragoman.evaluation.pairwise_similarity import pairwise_bleu, pairwise_chrf
from dragoman.formats.pair import Pair, one_line
from dragoman.formats.resumable import GrowingFile
from dragoman.formats.text import unreadable
from dragoman.io.storage import MANIFEST
from dragoman.tasks.translation import Status

Kind = Literal["back-translate", "self-train", "distil"]
Form = Literal["tsv", "jsonl"]
DOUBTFUL: tuple[Status, ...] = ("truncated", "looped", "copied")
"""Outputs that hold text but seldom teach; dropped unless they are to be kept."""
TABS = "tabs"
WINDOW = 512
"""Lines that are translated together, and lost where a process is killed."""


class Made(Protocol):
    """What a model made of a line, as the engine tells it."""

    @property
    def text(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def status(self) -> Status: ...
    @property
    def alternatives(self) -> Sequence[Made]: ...


Translate = Callable[[Sequence[str], int], Sequence[Made]]
"""(lines, the number of the first among all) → what was made of each."""


@dataclass(frozen=True)
class Augmentation:
    """How a pair comes of what was given and what was made of it.

    tag: stands before the source, with a space; nothing where it is empty
    kept: the doubtful outputs that are written all the same
    by: what several outputs are compared with the pair's own target by
    original: where the output cannot be used, the pair is written as it was
    """

    kind: Kind
    tag: str = ""
    kept: frozenset[str] = frozenset()
    by: Literal["bleu", "chrf"] = "bleu"
    original: bool = False
    tokenised: bool = False

    def use(self, given: Pair, made: Made) -> tuple[str, Pair | None, Made | None]:
        """What became of a line ("written", "original", "blank" or a status), its pair, and the output that is in it.

        given: its source is what was translated, its target the reference where there is one
        """
        if not _says_anything(given.source):
            return "blank", None, None
        usable = [one for one in (made, *made.alternatives) if self._is_usable(one)]
        if not usable:
            if self.original and _says_anything(given.target):
                return "original", given, None
            return self._reason(made), None, None
        chosen = self._nearest(usable, given.target)
        text, tag = one_line(chosen.text), f"{self.tag} " if self.tag else ""
        source, target = (text, given.source) if self.kind == "back-translate" else (given.source, text)
        return "written", Pair(tag + source, target, given.origin), chosen

    def _is_usable(self, made: Made) -> bool:
        return _says_anything(one_line(made.text)) and (made.status == "ok" or made.status in self.kept)

    def _reason(self, made: Made) -> str:
        """Why an output is of no use; of one that might be kept, that it holds no text."""
        return "empty" if made.status == "ok" or made.status in self.kept else made.status

    def _nearest(self, usable: Sequence[Made], reference: str) -> Made:
        """The first, or of several the one most like the reference."""
        if len(usable) == 1 or not reference.strip():
            return usable[0]
        lines = [*(one.text for one in usable), reference]
        table = (
            pairwise_chrf(lines) if self.by == "chrf" else pairwise_bleu(lines, tokenize="none" if self.tokenised else "13a")
        )
        return usable[int(table[:-1, -1].argmax())]


def request_of(
    augmentation: Augmentation,
    form: Form,
    bundles: Sequence[Path],
    files: Sequence[Path],
    decoding: DecodingConfig,
    *,
    precision: str,
) -> dict[str, Any]:
    """All that decides what is written, as JSON holds it; files and bundles by their digests. Raises DataError for no file."""
    told = {**vars(augmentation), "kept": sorted(augmentation.kept)}
    texts = [_digest(path) for path in files]
    models = [_digest(path / MANIFEST) for path in bundles]
    how = {"decoding": decoding.model_dump(mode="json"), "precision": precision}
    return {"form": form, **told, "text": texts, "bundle": models, **how}


def _digest(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is not a file; what may have to go on later has to be one")
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


def augment(
    given: Iterable[Pair],
    augmentation: Augmentation,
    translate: Translate,
    output: GrowingFile,
    *,
    form: Form,
    advance: Callable[[int], None] = lambda _: None,
) -> Counter[str]:
    """Write a pair for each line beyond those that the output has read already; returns what became of all of them, and of the
    pairs that were written how many had tabs that a TSV cannot hold (`tabs`).

    advance: told how many lines are done, those from before first
    """
    lines = iter(given)
    advance(sum(1 for _ in islice(lines, output.read)))
    while window := list(islice(lines, WINDOW)):
        made = translate([pair.source for pair in window], output.read)
        fates: Counter[str] = Counter()
        written = []
        for pair, one in zip(window, made, strict=True):
            fate, result, chosen = augmentation.use(pair, one)
            fates[fate] += 1
            if result is not None:
                if form == "tsv" and "\t" in result.source + result.target:
                    fates[TABS] += 1
                written.append(_line(result, chosen, augmentation.kind, form))
        output.add("".join(written), read=len(window), tally=fates)
        advance(len(window))
    return output.tally


def _says_anything(text: str) -> bool:
    """Whether there is more in it than white space and marks of a file's beginning, which a reader takes away."""
    return bool(text.replace("\ufeff", "").strip())


def _line(pair: Pair, chosen: Made | None, kind: Kind, form: Form) -> str:
    """A line of the file: of a TSV both sides; of JSON lines also where they come from, and how sure the model was."""
    if form == "tsv":  # at the head of a file the mark would be taken for the file's
        source, target = (side.replace("\t", " ").lstrip("\ufeff") for side in (pair.source, pair.target))
        return f"{source}\t{target}\n"
    told = {"made": "original"} if chosen is None else {"made": kind, "score": chosen.score, "status": chosen.status}
    document = {"source": pair.source, "target": pair.target, "origin": pair.origin, **told}
    return json.dumps(document, ensure_ascii=False) + "\n"
