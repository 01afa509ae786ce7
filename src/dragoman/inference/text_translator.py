"""Translator of whole texts, with what the model of a session can do for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dragoman.errors import RecipeError
from dragoman.formats.glossary_file import resolve_glossary
from dragoman.inference.inputs import list_lines
from dragoman.inference.retries import get_check_retry
from dragoman.inference.session import InferenceSession
from dragoman.inference.text_options import ModelLimits, PlaceholderMethod, TextOptions
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TextTranslation, translate_texts
from dragoman.text.glossary import Glossary
from dragoman.text.inline_codes import Markup


@dataclass(frozen=True)
class TextTranslator:
    """Translator of whole texts.

    translate_lines: `Translator.translate`
    """

    session: InferenceSession
    translate_lines: Callable[..., list[Translation]]

    @property
    def reads_terms(self) -> bool:
        """Return whether the first model was trained to read annotated terms, see `dragoman.text.term_annotation`."""
        return self.session.recipe.data.noise.terminology > 0 and self.session.bundle.tokenizer.marked is not None

    @property
    def retry_decoding(self) -> Mapping[str, Any]:
        """Decoding options to change for the second search of a segment."""
        return get_check_retry(self.session.recipe.model)

    def uses_mask(self, placeholders: PlaceholderMethod = "auto") -> bool:
        """Return whether whole texts keep placeholders by a mask on the search; see `Translator.translate_texts`.

        Raises RecipeError for an unknown method, and for a mask if the vocabulary has no reserved tokens for marks.
        """
        if placeholders not in get_args(PlaceholderMethod):
            raise RecipeError(
                f"placeholders = {placeholders!r}: is not a method; choose one of {', '.join(get_args(PlaceholderMethod))}",
                code="invalid-option",
            )
        has_marks = self.session.bundle.tokenizer.marked is not None
        if placeholders == "mask" and not has_marks:
            raise RecipeError(
                "placeholders = 'mask': needs reserved tokens, which the vocabulary of this bundle does not have; choose auto",
                code="invalid-option",
            )
        is_trained = has_marks and self.session.recipe.data.noise.placeholders > 0
        return placeholders == "mask" or (placeholders == "auto" and is_trained)

    def answer(self, request: LineRequest, decoding: Mapping[str, Any]) -> list[Translation]:
        """Translate the lines of a request. decoding: options of the first search of a line"""
        changes = {**decoding, **(self.retry_decoding if request.is_retry else {})}
        return self.translate_lines(
            request.lines, attention=request.attention, constraints=request.build_constraints(), **changes
        )

    def translate(
        self,
        texts: Sequence[str],
        *,
        markup: Markup = "none",
        split_sentences: bool = True,
        placeholders: PlaceholderMethod = "auto",
        glossary: Glossary | str | Path | None = None,
        strict_terms: bool = False,
        **decoding: Any,
    ) -> list[TextTranslation]:
        """Translate whole texts sentence by sentence. Line breaks, spaces, tags and placeholders stay.

        A sentence whose translation fails a check, such as a missing number, is translated once more with a beam.

        markup: "none" for plain text; "html" and "xml" keep tags, and character references are characters
        split_sentences: translate each sentence by itself; if false, each line, or each block of HTML
        placeholders: "mask" keeps placeholders and tags without content by a mask on the search. "projection" places those that
            the model changes by attention. "auto" is the mask if the model was trained with marks of placeholders.
        glossary: terms to use, or the CSV, TSV or TBX file that has them. A sentence that lacks a term is translated once more
            with its terms required. Each segment of a result has the use of its terms.
        strict_terms: take that translation also if the model finds it much less likely
        decoding: keys of the recipe's [decoding] section to change

        Raises RecipeError for wrong decoding options, and DataError for a glossary that cannot be read.
        """
        texts = list_lines("translate_texts", texts)
        config, task = self.session.resolve_decoding(decoding), self.session.recipe.task
        languages = config.source_language or task.source_language, config.target_language or task.target_language
        options = TextOptions(
            markup,
            *languages,
            split_sentences=split_sentences,
            limits=ModelLimits.read(self.session.bundle, *languages),
            mask_codes=self.uses_mask(placeholders),
            glossary=resolve_glossary(glossary, *languages),
            strict_terms=strict_terms,
            annotate_terms=self.reads_terms,
        )
        return translate_texts(texts, options, lambda request: self.answer(request, decoding))
