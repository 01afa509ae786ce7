"""What a model does."""

from __future__ import annotations

from typing import Literal

from dragoman.config.knobs import Section


class TaskConfig(Section):
    kind: Literal["translation"] = "translation"
    """What the model does; the one place where translation and parsing part."""
    source_language: str = ""
    """Language code of the source: for reports, tokenised scores, cleaning, and files that hold many languages."""
    target_language: str = ""
    """Language code of the target, likewise."""
    tokenised: bool = False
    """The text is tokenised already: BLEU counts its tokens as they stand."""
