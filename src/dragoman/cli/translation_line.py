"""JSON of `dragoman translate --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from dragoman.inference.translation_result import Translation
from dragoman.io.json_fields import OPTIONAL


@dataclass(frozen=True)
class TermOutput:
    """Term of a glossary in a source, with --glossary.

    source: the term as the source has it
    targets: forms that its translation may have; empty for a term that is not translated
    form: the form that the translation has; null if it has none
    """

    source: str
    targets: Sequence[str]
    form: str | None


@dataclass(frozen=True, kw_only=True)
class TranslationLine(Translation):
    """One line of `dragoman translate --json`. Lines count from 1.

    terms: those of --glossary
    """

    line: int
    source: str
    terms: Annotated[Sequence[TermOutput] | None, OPTIONAL] = None
