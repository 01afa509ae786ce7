"""Options for reading and translating whole texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dragoman.inference.translation_result import Translation
from dragoman.languages import get_language
from dragoman.text.inline_codes import Markup
from dragoman.text.inline_rules import COMMON_RULES, InlineRules
from dragoman.text.length_ratios import LengthRatios
from dragoman.text.other_scripts import find_other_scripts

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.text.glossary import Glossary

PlaceholderMethod = Literal["auto", "mask", "projection"]
"""Way to keep placeholders and tags without content: by a mask on the search or by attention; auto prefers the mask."""


@dataclass(frozen=True)
class ModelLimits:
    """Facts about the texts that a model reads and writes; one that its bundle does not have is None.

    length_ratios: usual lengths of translations for the pair of languages
    low_score: mean log-probability of the tokens, in nats, below which a translation has a low score
    reads: function that returns whether the tokenizer has pieces for a text; None for any text
    """

    length_ratios: LengthRatios | None = None
    low_score: float | None = None
    reads: Callable[[str], bool] | None = None

    @classmethod
    def read(cls, bundle: Bundle, source_language: str, target_language: str) -> ModelLimits:
        """Return the limits of a bundle for a pair of languages."""
        languages = get_language(source_language), get_language(target_language)
        ratios = [
            item
            for item in bundle.metadata.length_ratios or ()
            if (get_language(item.source_language), get_language(item.target_language)) == languages
        ]
        calibration = bundle.metadata.confidence
        low_score = None if calibration is None else calibration.low_score
        return cls(ratios[0] if ratios else None, low_score, bundle.tokenizer.reads)

    def has_low_score(self, translation: Translation) -> bool:
        """Return whether the model was less sure of a translation than of nearly all in its calibration set."""
        log_probs = translation.token_log_probs
        return self.low_score is not None and bool(log_probs) and sum(log_probs) / len(log_probs) < self.low_score


@dataclass(frozen=True)
class TextOptions:
    """Options for reading texts.

    markup: "none" for plain text, whose codes are kept, too; in "html" and "xml", character references are characters
    source_language, target_language: codes that select the rules for sentences and for the spaces between them
    split_sentences: translate each sentence by itself; if false, each line or block
    keep_line_breaks: a line break ends a sentence; without markup only
    opaque_tags: elements that are kept with their content
    retry: translate a segment that fails a check once more, with other settings
    attention: request attention for every segment, also for those without codes
    limits: what the model reads and writes
    mask_codes: the model reads codes without content as marks, and the search keeps each exactly once
    glossary: terms that translations have to use. A segment that lacks a term is translated again, with its terms required,
        and that translation is taken if it costs at most `MAX_TERM_COST`.
    strict_terms: take it at any cost
    annotate_terms: the model was trained to read the translation of a term behind it, see `term_annotation`
    rules: rules for the codes of the texts
    splitting_tags, non_splitting_tags: names of elements that always, or never, divide a text with markup
    detects_outline: elements of XML that stand side by side without text between them are texts of their own
    language_check: keep a segment that is in the target language already, see `target_language`, and what is in the script of
        neither language, see `other_scripts`
    """

    markup: Markup = "none"
    source_language: str = ""
    target_language: str = ""
    split_sentences: bool = True
    keep_line_breaks: bool = True
    opaque_tags: frozenset[str] = frozenset()
    retry: bool = True
    attention: bool = False
    limits: ModelLimits = ModelLimits()
    mask_codes: bool = False
    glossary: Glossary | None = None
    strict_terms: bool = False
    annotate_terms: bool = False
    rules: InlineRules = COMMON_RULES
    splitting_tags: frozenset[str] = frozenset()
    non_splitting_tags: frozenset[str] = frozenset()
    detects_outline: bool = False
    language_check: bool = False

    @property
    def other_scripts(self) -> frozenset[str]:
        """Scripts whose words stay as they are."""
        return find_other_scripts(self.source_language, self.target_language) if self.language_check else frozenset()
