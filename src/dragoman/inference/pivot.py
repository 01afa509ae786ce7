"""Pivot translation: two steps over a third language, inside one bundle of many languages or between two bundles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.errors import RecipeError
from dragoman.inference.inputs import list_lines
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.translation_result import STATUSES_WORST_FIRST, Translation
from dragoman.inference.translator import Translator
from dragoman.languages import is_same_language
from dragoman.tasks.translation_status import TranslationStatus

UNTRANSLATED_STATUSES = ("empty", "too_long")
"""Statuses of a first step without an output, which the second step cannot translate."""


@dataclass(frozen=True)
class PivotTranslator:
    """Translator in two steps: the second one translates the output of the first one.

    first, second: translators of the steps, which may be one
    language: pivot language: the target of the first step and the source of the second, where a bundle has many languages
    """

    first: Translator
    second: Translator
    language: str = ""

    def translate(
        self,
        texts: Sequence[str],
        *,
        constraints: Sequence[TranslationConstraints | None] | None = None,
        start_index: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> list[Translation]:
        """Translate lines of text; return one result for each, in order, with the first step in `Translation.pivot`.

        The score is the sum of the scores of both steps. The status is the worse of both. A line that the first step leaves
        untranslated has no second step.

        constraints: lexical constraints on the output of the second step
        start_index, on_progress: see `Translator.translate`; both steps together count as one
        decoding: keys of the recipe's [decoding] section for both steps; the languages are those of the text and of the output

        Raises RecipeError for wrong decoding options and unserved pairs, and DataError for impossible constraints.
        """
        texts = list_lines("translate", texts, start_index=start_index)
        first_decoding, second_decoding = self._split_decoding(decoding)
        self.second.select_tokenizer(self.second.resolve_decoding(second_decoding))  # refuses a wrong pair before the work
        first_results = self.first.translate(texts, start_index=start_index, **first_decoding)
        second_results = self.second.translate(
            ["" if result.status in UNTRANSLATED_STATUSES else result.text for result in first_results],
            constraints=constraints,
            start_index=start_index,
            on_progress=on_progress,
            **second_decoding,
        )
        return list(map(join_steps, first_results, second_results))

    def _split_decoding(self, decoding: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the decoding options of each step. The pivot is the target of the first step and the source of the second."""
        first, second = dict(decoding), dict(decoding)
        first["nbest"] = 1
        first["target_language"] = self.language if self.first.bundle.tokenizer.languages is not None else None
        second["source_language"] = self.language if self.second.bundle.tokenizer.languages is not None else None
        return first, second


def build_pivot(first: Translator, second: Translator, language: str = "") -> PivotTranslator:
    """Return the translator over a pivot language: by default the language that a bundle of one pair has in common.

    Raises RecipeError if the pivot language is not known, or if the bundles do not meet in one language.
    """
    names = [
        task_language
        for translator, task_language in (
            (first, first.recipe.task.target_language),
            (second, second.recipe.task.source_language),
        )
        if translator.bundle.tokenizer.languages is None and task_language
    ]
    names += [language] if language else []
    if not names:
        raise RecipeError("pivot: its language is not known; name it, as in --via en", code="missing-key")
    for name in names[1:]:
        if not is_same_language(names[0], name):
            raise RecipeError(
                f"pivot: the first step translates into {names[0]!r}, and the second one from {name!r}; give bundles that "
                "meet in one language",
                code="unsupported-pair",
            )
    return PivotTranslator(first, second, language or names[0])


def join_steps(first: Translation, second: Translation) -> Translation:
    """Return the second step with the score and the status of both, and with the first step as its pivot.

    A line that the first step has left untranslated stays as the first step returned it.
    """
    if first.status in UNTRANSLATED_STATUSES:
        return replace(first, unmet_constraints=second.unmet_constraints, pivot=first)
    return replace(
        second,
        score=first.score + second.score,
        status=_get_worse(first.status, second.status),
        source_tokens=first.source_tokens,
        alternatives=tuple(
            replace(other, score=first.score + other.score, status=_get_worse(first.status, other.status))
            for other in second.alternatives
        ),
        pivot=first,
    )


def _get_worse(first: TranslationStatus, second: TranslationStatus) -> TranslationStatus:
    return min(first, second, key=STATUSES_WORST_FIRST.index)
