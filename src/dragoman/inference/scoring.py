"""Scores, confidence and word alignments of translations: the first model reads them with forced decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.errors import BundleError
from dragoman.inference.configured_model import ConfiguredModel
from dragoman.inference.inputs import encode_pairs, find_unfit_pairs
from dragoman.inference.translation_result import Translation
from dragoman.tasks.attention_alignment import extract_pair_links
from dragoman.tasks.confidence import compute_signals
from dragoman.tasks.forced_decoding import score_pairs
from dragoman.tasks.translation import get_source_limit, has_text
from dragoman.word_aligner import Link

Output = tuple[Sequence[int], Sequence[int], bool]
"""Source ids, target ids, and whether the target ends with the end token."""


class ConfidenceEstimator:
    """Estimator of the confidence of outputs. Raises BundleError for a bundle without a calibration."""

    def __init__(self, model: ConfiguredModel) -> None:
        calibration = model.bundle.metadata.confidence
        if calibration is None:
            raise BundleError(
                f"{model.recipe.name}: the bundle has no calibration of the confidence; run dragoman model calibrate",
                code="calibration-missing",
            )
        self._model, self._calibration = model, calibration

    def estimate(self, outputs: Sequence[Output]) -> list[float | None]:
        """Return the confidence of each output by a pass of the first model over it; None for an output without tokens."""
        model = self._model
        signals = compute_signals(
            model.session.forced_decoders[0],
            model.tokenizer,
            [output for output in outputs if output[1]],
            model.decoding,
            start_id=model.start_id,
            head=model.aligner.head,
        )
        confidences = map(self._calibration.compute_confidence, signals)
        return [next(confidences) if target else None for _, target, _ in outputs]


@dataclass(frozen=True)
class PairScorer:
    """Scorer and aligner of pairs with the first model."""

    model: ConfiguredModel

    @property
    def max_tokens(self) -> int:
        """Most tokens of a side."""
        return get_source_limit(self.model.bundle.recipe.model.position_limit, self.model.decoding)

    def score(self, sources: Sequence[str], targets: Sequence[str], *, confidence: bool = False) -> list[Translation]:
        """Return each target with its score; see `Translator.score`."""
        model = self.model
        source_ids, target_ids = encode_pairs("score", model.tokenizer, sources, targets, max_tokens=self.max_tokens)
        hypotheses = score_pairs(
            model.session.forced_decoders[0],
            source_ids,
            target_ids,
            model.decoding,
            start_id=model.start_id,
            prompt=model.tokenizer.decoder_prompt,
        )
        translations = list(map(model.make_detokenizer().to_hypothesis_translation, source_ids, hypotheses))
        if not confidence:
            return translations
        outputs = [(source, target, True) for source, target in zip(source_ids, target_ids, strict=True)]
        confidences = ConfidenceEstimator(model).estimate(outputs)
        return [replace(scored, confidence=value) for scored, value in zip(translations, confidences, strict=True)]

    def find_unscorable(self, sources: Sequence[str], targets: Sequence[str]) -> dict[int, str]:
        """Return the reason of each pair that `score` refuses, by its index."""
        return find_unfit_pairs("score", self.model.tokenizer, sources, targets, max_tokens=self.max_tokens)

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[Link]]:
        """Return the links of the words of each pair; see `Translator.align`."""
        model, aligner = self.model, self.model.aligner
        source_ids, target_ids = encode_pairs(
            "align", model.tokenizer, sources, targets, max_tokens=self.max_tokens, allow_empty=True
        )
        sides = zip(sources, source_ids, target_ids, strict=True)
        text_indices = [index for index, (text, source, target) in enumerate(sides) if has_text(text, source) and target]
        pairs = [(source_ids[index], target_ids[index], True) for index in text_indices]
        weights = aligner.compute_pair_weights(pairs, model.decoding.batch_tokens)
        links_by_pair: list[list[Link]] = [[] for _ in sources]
        for index, weights_2TS in zip(text_indices, weights, strict=True):
            links_by_pair[index] = extract_pair_links(weights_2TS[1], source_ids[index], target_ids[index], model.tokenizer)
        return links_by_pair
