"""The public face of a trained model: text in, translations out, one for each line and in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import DecodingConfig, Recipe, section_with
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import BundleError, DataError
from dragoman.tasks.generation import cross_attention, score_pairs, start_id
from dragoman.tasks.translation import Status, holds_text, longest_source, translate_lines


@dataclass(frozen=True)
class Translation:
    """One translation of one line.

    score: log-probability over the length penalty, higher is better; 0 where there was nothing to translate
    tokens: the pieces of the text
    token_log_probs: natural logarithms, one for each token and one for the end token if the output came to it
    status: "ok"; "unfinished" where it reached the longest allowed length; "empty" for a line without text; "too long" for
        one that was not translated
    attention: on request, rows of weights over `source_tokens`, one row for each token, and one for the end if it came to it
    alternatives: the other hypotheses, best first
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    status: Status = "ok"
    source_tokens: tuple[str, ...] = ()
    attention: tuple[tuple[float, ...], ...] | None = None
    alternatives: tuple[Translation, ...] = field(default=(), repr=False)


class Translator:
    """One bundle, or several that vote as an ensemble, on one device."""

    def __init__(self, bundles: Sequence[Bundle], *, device: str = "auto") -> None:
        self.bundle = bundles[0]
        for other in bundles[1:]:
            if _reading(self.bundle) != _reading(other):
                raise BundleError(
                    f"{other.recipe.name} and {self.bundle.recipe.name} cannot vote as an ensemble: their subword models, "
                    "subword.lowercase, model.source_eos or model.decoder_start differ"
                )
        name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self.models = [bundle.model.to(name).eval() for bundle in bundles]

    @property
    def recipe(self) -> Recipe:
        """How the (first) model was trained."""
        return self.bundle.recipe

    @property
    def story(self) -> dict[str, Any]:
        """What the (first) model was trained on, and how that went."""
        return self.bundle.story

    def check(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        return section_with(self.recipe.decoding, decoding, where="decoding")

    def translate(
        self,
        texts: Sequence[str],
        *,
        attention: bool = False,
        first: int = 0,
        advance: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> list[Translation]:
        """Translate lines of text; one result for each, in order.

        attention: give the weights over the source, too
        first: the number of the first line, counted from 0, where the lines are a part of a text; sampling draws by it
        decoding: knobs of the recipe's [decoding] section to change, such as beam_size=5 or method="greedy"
        advance: told how many lines were finished, as they are
        """
        if isinstance(texts, str):
            raise TypeError("translate takes a list of lines: write translate([text])")
        config = self.check(decoding)
        translated = translate_lines(
            self.models, self.bundle.tokeniser, texts, self.recipe, config, first=first, advance=advance
        )
        return [self._result(one.source, one.hypotheses, one.status, attention) for one in translated]

    def score(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> list[Translation]:
        """Forced scoring: how likely the (first) model holds each given translation to be.

        Raises DataError where the numbers of lines differ or a source holds no text.
        """
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("score takes lists of lines: write score([source], [target])")
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} sources but {len(targets)} translations: line n of one belongs to line n of the other"
            )
        source_ids = [self.bundle.tokeniser.encode_source(text) for text in sources]
        target_ids = [self.bundle.tokeniser.encode_target(text) for text in targets]
        config = self.check(decoding)
        longest = longest_source(self.models[:1], config)
        for number, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True), start=1):
            if not holds_text(text, source):
                raise DataError(f"line {number}: the source holds no text, so no translation of it can be scored")
            if max(len(source), len(target) + 1) > longest:
                raise DataError(f"line {number}: more than the {longest} tokens that can be scored")
        scored = score_pairs(self.models[0], source_ids, target_ids, config, start_id=start_id(self.recipe.model))
        return [self._result(source, [one], "ok", False) for source, one in zip(source_ids, scored, strict=True)]

    def _result(self, source: Sequence[int], hypotheses: Sequence[Hypothesis], status: Status, attention: bool) -> Translation:
        pieces = tuple(self.bundle.tokeniser.source.pieces(source))
        if not hypotheses:
            return Translation("", status=status, source_tokens=pieces)
        results = [
            Translation(
                text=self.bundle.tokeniser.target.decode(one.tokens),
                score=one.score,
                tokens=tuple(self.bundle.tokeniser.target.pieces(one.tokens)),
                token_log_probs=one.token_log_probs,
                status=status if place == 0 else ("ok" if one.finished else "unfinished"),
                source_tokens=pieces,
                attention=self._attention(source, one) if attention else None,
                alternatives=(),
            )
            for place, one in enumerate(hypotheses)
        ]
        best, *others = results
        return Translation(**{**vars(best), "alternatives": tuple(others)})

    def _attention(self, source: Sequence[int], hypothesis: Hypothesis) -> tuple[tuple[float, ...], ...]:
        """Mean of the heads of the (first) model's last layer."""
        weights_LHTS = cross_attention(
            self.models[0],
            source,
            hypothesis.tokens,
            start_id=start_id(self.recipe.model),
            finished=hypothesis.finished,
        )
        return tuple(tuple(row) for row in weights_LHTS[-1].mean(dim=0).tolist())


def _reading(bundle: Bundle) -> tuple[object, ...]:
    """All that decides which ids a model reads and writes for a text."""
    tokeniser, model = bundle.tokeniser, bundle.recipe.model
    sides = tokeniser.source, tokeniser.target
    return (*((side.model, side.lowercase) for side in sides), tokeniser.source_eos, start_id(model))


def load(path: str | Path, *others: str | Path, device: str = "auto") -> Translator:
    """Open a bundle, or several as an ensemble. Raises BundleError naming the file that is missing, cut or changed."""
    return Translator([load_bundle(Path(one)) for one in (path, *others)], device=device)
