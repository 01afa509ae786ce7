"""Result of an export, and the checks and metadata that all formats share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle import Bundle
from dragoman.config import ModelConfig
from dragoman.errors import BundleError

CARD_FILE = "README.md"
METADATA_FILE = "dragoman.json"
"""File of an export with the origin of the model, and the settings of its text and its search."""


@dataclass(frozen=True)
class ExportResult:
    """Written export, and the search options that correspond to the recipe.

    Attributes:
        path: folder or file of the export
        num_bytes: size in bytes
        max_positions: most tokens of a source and of an output, end token included
        decoding_options: search options of the engine that are nearest to the recipe's [decoding] section
        notes: differences to dragoman, one sentence each
    """

    path: Path
    num_bytes: int
    max_positions: int
    decoding_options: dict[str, Any]
    notes: tuple[str, ...]

    @classmethod
    def of_folder(cls, path: Path, max_positions: int, decoding_options: dict[str, Any], notes: Sequence[str]) -> ExportResult:
        """Return the result for a written folder."""
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        return cls(path, num_bytes, max_positions, decoding_options, tuple(notes))


def unsupported(feature: str, problem: str) -> BundleError:
    """Return the error for a feature that the other engine does not have."""
    return BundleError(f"{feature}: {problem}", code="export-unsupported")


def check_layers(config: ModelConfig, engine: str, *, later_keys: Sequence[str] = ()) -> None:
    """Raise BundleError for layers that the paper's Transformer has not, such as recurrent ones or those of T5.

    later_keys: keys of `ModelConfig.find_later_layers` that the engine has
    """
    if unusual := config.find_unusual_layers():
        raise unsupported(unusual[0], f"{engine} has the layers of the Transformer only; translate with dragoman")
    if other_engines := config.encoder_input.other_engines:
        raise unsupported(f"model.frontend = {config.frontend!r}", f"dragoman exports {other_engines}; use dragoman transcribe")
    for key, value in config.find_later_layers().items():
        if key not in later_keys:
            raise unsupported(f"model.{key} = {value!r}", f"{engine} has no such layers; export to onnx")


def count_positions(bundle: Bundle) -> int:
    """Return the number of rows of a table of positions: the most tokens of a source or output by the recipe."""
    decoding, config = bundle.recipe.decoding, bundle.recipe.model
    if config.position_encoding == "learned":
        return config.max_positions
    return decoding.max_source_tokens + decoding.max_extra_tokens


def check_is_translator(bundle: Bundle, engine: str) -> None:
    """Raise BundleError for a parser, and for a model whose texts begin with the begin token."""
    if bundle.recipe.tokenizer.prepend_bos:
        raise unsupported("tokenizer.prepend_bos = True", f"the export to {engine} has no begin token; translate with dragoman")
    if not bundle.recipe.task.has_text_target:
        raise BundleError(
            f"{bundle.recipe.name}: is a parser, and {engine} cannot run it; use dragoman parse", code="wrong-task"
        )


def check_unique_pieces(engine: str, *sides: Sequence[str]) -> None:
    """Raise BundleError if a vocabulary has a piece twice."""
    for pieces in sides:
        piece, count = next(iter(Counter(pieces).most_common(1)))
        if count > 1:
            raise unsupported(
                f"the tokenizer has two pieces {piece!r}", f"{engine} needs distinct pieces; train another tokenizer"
            )


def describe_text_format(bundle: Bundle) -> list[str]:
    """Return notes on the text that the model reads."""
    notes = []
    if bundle.recipe.tokenizer.source_prefix:
        notes.append(f"the model reads {bundle.recipe.tokenizer.source_prefix!r} before each source; put it there")
    if bundle.recipe.tokenizer.lowercase:
        notes.append("the model reads lower-cased text; lower-case it before tokenization")
    if bundle.recipe.task.tokenized:
        notes.append("the model reads and writes text that the Moses tokenizer has split; split it before tokenization")
    return notes


def collect_metadata(
    bundle: Bundle, *, max_positions: int, decoding_options: dict[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """Return the content of `METADATA_FILE`."""
    task, tokenizer = bundle.recipe.task, bundle.recipe.tokenizer
    return {
        "recipe": bundle.recipe.name,
        "source_language": task.source_language,
        "target_language": task.target_language,
        "lowercase": tokenizer.lowercase,
        "source_prefix": tokenizer.source_prefix,
        "tokenized": task.tokenized,
        "max_positions": max_positions,
        "decoding_options": decoding_options,
        "notes": list(notes),
        "metadata": bundle.metadata.to_dict(),
    }
