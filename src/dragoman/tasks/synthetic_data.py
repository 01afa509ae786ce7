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
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.resumable import ResumableFile
from dragoman.formats.text import to_data_error
from dragoman.io.storage import MANIFEST_FILE
from dragoman.tasks.translation import TranslationStatus

SynthesisMethod = Literal["back-translate", "self-train", "distil"]
PairFileFormat = Literal["tsv", "jsonl"]
DROPPED_STATUSES: tuple[TranslationStatus, ...] = ("truncated", "looped", "copied")
"""Outputs that hold text but seldom teach; dropped unless they are to be kept."""
TABS = "tabs"
WINDOW_LINES = 512
"""Lines that are translated together, and lost where a process is killed."""


class TranslationOutput(Protocol):
    """What a model made of a line, as the engine tells it."""

    @property
    def text(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def status(self) -> TranslationStatus: ...
    @property
    def alternatives(self) -> Sequence[TranslationOutput]: ...


TranslateFn = Callable[[Sequence[str], int], Sequence[TranslationOutput]]
"""(lines, the number of the first among all) → what was made of each."""


@dataclass(frozen=True)
class Augmentation:
    """How a pair comes of what was given and what was made of it.

    tag: stands before the source, with a space; nothing where it is empty
    kept: the doubtful outputs that are written all the same
    by: what several outputs are compared with the pair's own target by
    original: where the output cannot be used, the pair is written as it was
    """

    method: SynthesisMethod
    tag: str = ""
    keep_statuses: frozenset[str] = frozenset()
    similarity: Literal["bleu", "chrf"] = "bleu"
    fallback_to_reference: bool = False
    tokenized: bool = False

    def apply(self, pair: Pair, output: TranslationOutput) -> tuple[str, Pair | None, TranslationOutput | None]:
        """What became of a line ("written", "original", "blank" or a status), its pair, and the output that is in it.

        given: its source is what was translated, its target the reference where there is one
        """
        if not _has_text(pair.source):
            return "blank", None, None
        usable_outputs = [candidate for candidate in (output, *output.alternatives) if self._is_usable(candidate)]
        if not usable_outputs:
            if self.fallback_to_reference and _has_text(pair.target):
                return "original", pair, None
            return self._get_drop_reason(output), None, None
        chosen = self._choose_most_similar(usable_outputs, pair.target)
        text, tag = to_single_line(chosen.text), f"{self.tag} " if self.tag else ""
        source, target = (text, pair.source) if self.method == "back-translate" else (pair.source, text)
        return "written", Pair(tag + source, target, pair.origin), chosen

    def _is_usable(self, output: TranslationOutput) -> bool:
        return _has_text(to_single_line(output.text)) and (output.status == "ok" or output.status in self.keep_statuses)

    def _get_drop_reason(self, output: TranslationOutput) -> str:
        """Why an output is of no use; of one that might be kept, that it holds no text."""
        return "empty" if output.status == "ok" or output.status in self.keep_statuses else output.status

    def _choose_most_similar(self, outputs: Sequence[TranslationOutput], reference: str) -> TranslationOutput:
        """The first, or of several the one most like the reference."""
        if len(outputs) == 1 or not reference.strip():
            return outputs[0]
        lines = [*(output.text for output in outputs), reference]
        similarities = (
            pairwise_chrf(lines)
            if self.similarity == "chrf"
            else pairwise_bleu(lines, tokenize="none" if self.tokenized else "13a")
        )
        return outputs[int(similarities[:-1, -1].argmax())]


def describe_request(
    augmentation: Augmentation,
    file_format: PairFileFormat,
    bundles: Sequence[Path],
    files: Sequence[Path],
    decoding: DecodingConfig,
    *,
    precision: str,
) -> dict[str, Any]:
    """All that decides what is written, as JSON holds it; files and bundles by their digests. Raises DataError for no file."""
    fields = {**vars(augmentation), "kept": sorted(augmentation.keep_statuses)}
    file_digests = [_digest(path) for path in files]
    bundle_digests = [_digest(path / MANIFEST_FILE) for path in bundles]
    settings = {"decoding": decoding.model_dump(mode="json"), "precision": precision}
    return {"form": file_format, **fields, "text": file_digests, "bundle": bundle_digests, **settings}


def _digest(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is not a file; what may have to go on later has to be one")
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise to_data_error(path, error) from None


def augment(
    pairs: Iterable[Pair],
    augmentation: Augmentation,
    translate: TranslateFn,
    output: ResumableFile,
    *,
    file_format: PairFileFormat,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Counter[str]:
    """Write a pair for each line beyond those that the output has read already; returns what became of all of them, and of the
    pairs that were written how many had tabs that a TSV cannot hold (`tabs`).

    advance: told how many lines are done, those from before first
    """
    lines = iter(pairs)
    on_progress(sum(1 for _ in islice(lines, output.num_read)))
    while window := list(islice(lines, WINDOW_LINES)):
        translations = translate([pair.source for pair in window], output.num_read)
        counts: Counter[str] = Counter()
        output_lines = []
        for pair, translation in zip(window, translations, strict=True):
            outcome, result, chosen = augmentation.apply(pair, translation)
            counts[outcome] += 1
            if result is not None:
                if file_format == "tsv" and "\t" in result.source + result.target:
                    counts[TABS] += 1
                output_lines.append(_format_line(result, chosen, augmentation.method, file_format))
        output.append("".join(output_lines), num_read=len(window), counts=counts)
        on_progress(len(window))
    return output.counts


def _has_text(text: str) -> bool:
    """Whether there is more in it than white space and marks of a file's beginning, which a reader takes away."""
    return bool(text.replace("\ufeff", "").strip())


def _format_line(pair: Pair, chosen: TranslationOutput | None, method: SynthesisMethod, file_format: PairFileFormat) -> str:
    """A line of the file: of a TSV both sides; of JSON lines also where they come from, and how sure the model was."""
    if file_format == "tsv":  # at the head of a file the mark would be taken for the file's
        source, target = (side.replace("\t", " ").lstrip("\ufeff") for side in (pair.source, pair.target))
        return f"{source}\t{target}\n"
    provenance = {"made": "original"} if chosen is None else {"made": method, "score": chosen.score, "status": chosen.status}
    document = {"source": pair.source, "target": pair.target, "origin": pair.origin, **provenance}
    return json.dumps(document, ensure_ascii=False) + "\n"
