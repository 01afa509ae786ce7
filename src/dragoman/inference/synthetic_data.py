"""Synthetic training data: sentence pairs with one side written by a model.

    back-translate   text in the target language → a source for each line, from a model of the other direction
                     (Sennrich et al. 2016); a tag before the source marks synthetic pairs (Caswell et al. 2019)
    self-train       text in the source language → a target for each line
    distill          pairs → the same sources with the teacher's targets (Kim and Rush 2016); of several hypotheses the
                     one most similar to the reference (their interpolation)

Every input line is written, or counted under the reason why it was dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from dragoman.config import DecodingConfig
from dragoman.errors import DataError
from dragoman.evaluation.pairwise_similarity import pairwise_bleu, pairwise_chrf
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.resumable import ResumableFile
from dragoman.formats.text import to_data_error
from dragoman.inference.translation_result import Translation
from dragoman.io.storage import MANIFEST_FILE

SynthesisMethod = Literal["back-translate", "self-train", "distill"]
PairFileFormat = Literal["tsv", "jsonl"]
ItemT = TypeVar("ItemT")
TABS = "tabs"
WINDOW_LINES = 512
"""Lines that are translated together; a killed process loses at most these."""


TranslateFn = Callable[[Sequence[str], int], Sequence[Translation]]
"""(lines, index of the first line in the input) → the translation of each."""


@dataclass(frozen=True)
class Augmentation:
    """Rule that makes a pair of an input pair and the model's output.

    tag: text before the source, followed by a space; empty for none
    keep_statuses: statuses of doubtful outputs that are kept
    similarity: metric that compares several outputs with the reference
    fallback_to_reference: write the input pair unchanged if no output is usable
    bleu_tokenizer: sacreBLEU's tokenizer, for the similarity BLEU
    """

    method: SynthesisMethod
    tag: str = ""
    keep_statuses: frozenset[str] = frozenset()
    similarity: Literal["bleu", "chrf"] = "bleu"
    fallback_to_reference: bool = False
    bleu_tokenizer: str = "13a"

    def apply(self, pair: Pair, output: Translation) -> tuple[str, Pair | None, Translation | None]:
        """Return the outcome of a line ("written", "original", "blank" or a status), its pair, and the output in that pair.

        pair: its source is the translated text; its target is the reference, or empty
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

    def format_pairs(
        self, pairs: Sequence[Pair], outputs: Sequence[Translation], file_format: PairFileFormat
    ) -> tuple[str, Counter[str]]:
        """Return the lines of the file for input pairs and their outputs, and the number of pairs by outcome."""
        counts: Counter[str] = Counter()
        lines = []
        for pair, output in zip(pairs, outputs, strict=True):
            outcome, result, chosen = self.apply(pair, output)
            counts[outcome] += 1
            if result is not None:
                if file_format == "tsv" and "\t" in result.source + result.target:
                    counts[TABS] += 1
                lines.append(_format_line(result, chosen, self.method, file_format))
        return "".join(lines), counts

    def _is_usable(self, output: Translation) -> bool:
        return _has_text(to_single_line(output.text)) and (output.status == "ok" or output.status in self.keep_statuses)

    def _get_drop_reason(self, output: Translation) -> str:
        """Return the reason why an output is dropped; "empty" for one with an accepted status but without text."""
        return "empty" if output.status == "ok" or output.status in self.keep_statuses else output.status

    def _choose_most_similar(self, outputs: Sequence[Translation], reference: str) -> Translation:
        """Return the output that is most similar to the reference; the first output if there is no reference."""
        if len(outputs) == 1 or not reference.strip():
            return outputs[0]
        lines = [*(output.text for output in outputs), reference]
        similarities = pairwise_chrf(lines) if self.similarity == "chrf" else pairwise_bleu(lines, tokenize=self.bleu_tokenizer)
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
    """Return everything that determines the output, as JSON, with files and bundles as digests.

    Raises DataError if a path is not a readable file.
    """
    fields = {**vars(augmentation), "keep_statuses": sorted(augmentation.keep_statuses)}
    file_digests = [digest_file(path) for path in files]
    bundle_digests = [digest_file(path / MANIFEST_FILE) for path in bundles]
    settings = {"decoding": decoding.model_dump(), "precision": precision}
    return {"file_format": file_format, **fields, "text": file_digests, "bundle": bundle_digests, **settings}


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file. Raises DataError if it is not a readable file."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is not a regular file, so an interrupted command could not resume; give a file")
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise to_data_error(path, error) from None


@dataclass(frozen=True)
class _WindowAugmentation:
    """Function of the number of lines before a window and its pairs: the number of pairs, their lines, and the outcomes."""

    augmentation: Augmentation
    translate: TranslateFn
    file_format: PairFileFormat

    def __call__(self, window: tuple[int, list[Pair]]) -> tuple[int, str, Counter[str]]:
        start, pairs = window
        translations = self.translate([pair.source for pair in pairs], start)
        return len(pairs), *self.augmentation.format_pairs(pairs, translations, self.file_format)


def augment(
    pairs: Iterable[Pair],
    augmentation: Augmentation,
    translate: TranslateFn,
    output: ResumableFile,
    *,
    file_format: PairFileFormat,
    map_windows: Callable[..., Iterable[Any]] = map,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Counter[str]:
    """Write a pair for each line after those that the output has read already; return the number of lines by outcome.

    The counter `tabs` is the number of written pairs with tabs, which a TSV file cannot hold.

    map_windows: calls a function for windows of lines, and returns the results in order
    on_progress: called with the number of lines that are done; the first call counts the lines of an earlier run
    """
    lines, counts = iter(pairs), Counter(output.summary)
    on_progress(sum(1 for _ in islice(lines, output.num_read)))
    function = _WindowAugmentation(augmentation, translate, file_format)
    for num_pairs, text, window_counts in map_windows(function, number_windows(lines, WINDOW_LINES, output.num_read)):
        counts.update(window_counts)
        output.append(text, num_read=num_pairs, summary=counts)
        on_progress(num_pairs)
    return counts


def number_windows(items: Iterable[ItemT], size: int, start: int) -> Iterator[tuple[int, list[ItemT]]]:
    """Yield windows of at most `size` items, each with the number of items before it. start: number before the first"""
    iterator = iter(items)
    while window := list(islice(iterator, size)):
        yield start, window
        start += len(window)


def _has_text(text: str) -> bool:
    """Return whether there is more than white space and byte order marks, which a reader removes."""
    return bool(text.replace("\ufeff", "").strip())


def _format_line(pair: Pair, chosen: Translation | None, method: SynthesisMethod, file_format: PairFileFormat) -> str:
    """Return a line of the file: both sides for TSV; for JSON lines also the origin, the score and the status."""
    if file_format == "tsv":  # a reader would take a mark on the first line for the file's byte order mark
        source, target = (side.replace("\t", " ").lstrip("\ufeff") for side in (pair.source, pair.target))
        return f"{source}\t{target}\n"
    provenance = (
        {"method": "original"} if chosen is None else {"method": method, "score": chosen.score, "status": chosen.status}
    )
    document = {"source": pair.source, "target": pair.target, "origin": pair.origin, **provenance}
    return json.dumps(document, ensure_ascii=False) + "\n"
