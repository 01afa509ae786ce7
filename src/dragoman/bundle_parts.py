"""Parts of a bundle that a command which writes a bundle anew keeps or measures again.

`PARTS` lists those of the metadata, and a shortlist is a file of its own. The recipe with its decoding options and the files
of the tokenizers are no parts, because `save_bundle` takes them in any case. All other fields of the metadata are in
`HISTORY`: they describe one training, so a new one replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.bundle import BundleMetadata
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.errors import BundleError
from dragoman.shortlist import SHORTLIST_FILE, Shortlist, read_shortlist


@dataclass(frozen=True)
class BundlePart:
    """Part of a bundle beside its recipe, tokenizers and weights.

    Attributes:
        name: field of `BundleMetadata`
        title: name in messages
        depends_on_weights: it was measured with the weights, so with others it is an estimate
        remedy: what measures it again; empty if no command does
    """

    name: str
    title: str
    depends_on_weights: bool = False
    remedy: str = ""


PARTS = (
    BundlePart("alignment", "the attention head of word alignments", depends_on_weights=True),
    BundlePart(
        "confidence",
        "the calibration of the confidence",
        depends_on_weights=True,
        remedy="dragoman model calibrate measures the confidence again",
    ),
    BundlePart("length_ratios", "the usual lengths of translations"),
    BundlePart("speech", "the tokens that direct the transcription of speech"),
    BundlePart("language_pairs", "the pairs of languages"),
    BundlePart("origin", "the license and the languages of the converted model"),
)

HISTORY = (
    "training_files", "pairs", "dropped_pairs", "parameters", "steps", "epochs", "seconds", "target_tokens",
    "target_tokens_per_second", "machine", "flops", "mfu", "data_wait_fraction", "skipped_steps", "infeasible_pairs",
    "averaged_checkpoints", "paper_deviations", "init_from", "init_digest", "interpolated_bundles", "adapter", "dragoman",
    "torch", "finished",
)  # fmt: skip


def inherit_parts(metadata: BundleMetadata, bases: Mapping[str, BundleMetadata]) -> tuple[BundleMetadata, list[str]]:
    """Return the metadata of a new bundle with the parts that it lacks, and what users need to know, one sentence each.

    metadata: metadata with the parts that were measured for the new weights
    bases: metadata of the bundles that the new one comes from, by path; the first one with a part gives it
    """
    inherited: dict[str, Any] = {}
    kept, remedies = [], []
    for part in PARTS:
        sources = [path for path, base in bases.items() if getattr(base, part.name) is not None]
        if getattr(metadata, part.name) is not None or not sources:
            continue
        inherited[part.name] = getattr(bases[sources[0]], part.name)
        if part.depends_on_weights:
            kept.append(f"{part.title} of {sources[0]}")
            remedies += [part.remedy] if part.remedy else []
    sentences = []
    if kept:
        sentences.append("; ".join([f"kept as measured with the earlier weights: {', '.join(kept)}", *remedies]))
    return replace(metadata, **inherited), sentences


def without_parts(metadata: BundleMetadata) -> BundleMetadata:
    """Return the metadata without the parts, which `inherit_parts` decides about, for a copy with other weights."""
    return replace(metadata, **{part.name: None for part in PARTS})


def inherit_shortlist(paths: Iterable[str | Path], tokenizer: PairTokenizer) -> tuple[Shortlist | None, list[str]]:
    """Return the first shortlist of these bundles, and what users need to know: whether it does not fit the new tokenizers."""
    path = next((path for path in map(Path, paths) if (path / SHORTLIST_FILE).exists()), None)
    if path is None:
        return None, []
    try:
        return read_shortlist(path, tokenizer), []
    except BundleError as error:
        if error.code != "shortlist-mismatch":
            raise
    return None, [f"the shortlist of {path} is left out, because the tokenizers differ; dragoman model shortlist builds one"]
