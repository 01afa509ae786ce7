"""Confidence on a test set: its rank correlation with sentence chrF, and how many damaged outputs it flags.

    PYTHONPATH=benchmarks python -m quality.confidence BUNDLE SOURCE REFERENCE

The bundle is calibrated on a validation set (training does so, or `dragoman calibrate`). An output is flagged if its
confidence is below the threshold. Damages are those of hallucinated outputs: a repeated group of words, the translation of
another sentence, an omission, a copy of the source, and shuffled words.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import dragoman
from dragoman.evaluation.correlation import spearman_correlation
from dragoman.evaluation.metrics import sentence_chrf
from dragoman.formats.text import read_parallel_lines

NUM_DAMAGED = 200
FALSE_ALARMS = 0.01


def repeat_words(words: list[str], rng: random.Random) -> list[str]:
    """Return the words with one group of one to three words three to five times in a row."""
    size = rng.randint(1, 3)
    start = rng.randrange(max(1, len(words) - size))
    return words[: start + size] + words[start : start + size] * rng.randint(2, 4) + words[start + size :]


def omit_words(words: list[str], rng: random.Random) -> list[str]:
    """Return the first two fifths of the words, and the last word."""
    return [*words[: max(1, len(words) * 2 // 5)], words[-1]]


def shuffle_words(words: list[str], rng: random.Random) -> list[str]:
    """Return the words in random order, the last in its place."""
    return [*rng.sample(words[:-1], len(words) - 1), words[-1]]


WORD_DAMAGES: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "repeated": repeat_words,
    "omission": omit_words,
    "shuffled": shuffle_words,
}


def make_damages(sources: Sequence[str], outputs: Sequence[str], count: int, seed: int) -> list[tuple[str, str, str]]:
    """Return the kind, the source and the damaged output of `count` sentences, equally many of each kind."""
    rng = random.Random(seed)
    kinds = [*WORD_DAMAGES, "detached", "copied"]
    usable = [index for index, output in enumerate(outputs) if len(output.split()) >= 5]
    damages = []
    for number, index in enumerate(rng.choices(usable, k=count)):
        kind = kinds[number % len(kinds)]
        if kind == "detached":
            damaged = outputs[rng.choice([other for other in usable if outputs[other] != outputs[index]])]
        elif kind == "copied":
            damaged = sources[index]
        else:
            damaged = " ".join(WORD_DAMAGES[kind](outputs[index].split(), rng))
        damages.append((kind, sources[index], damaged))
    return damages


def main() -> None:
    """Translate, damage, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sources, references = read_parallel_lines(options.source, options.reference)
    translator = dragoman.load(options.bundle, task="translation", device=options.device, precision="float32")
    translations = translator.translate(sources, confidence=True)
    confidences = np.array([translation.confidence or 0.0 for translation in translations])
    outputs = [translation.text for translation in translations]
    correlation = spearman_correlation(confidences.tolist(), sentence_chrf(outputs, references))
    log_probs = [float(np.mean(translation.token_log_probs or [0.0])) for translation in translations]
    print(f"rank correlation with sentence chrF: {correlation:.3f}")
    print(f"  of the mean log-probability alone: {spearman_correlation(log_probs, sentence_chrf(outputs, references)):.3f}")
    damages = make_damages(sources, outputs, NUM_DAMAGED, options.seed)
    scored = translator.score([source for _, source, _ in damages], [damaged for *_, damaged in damages], confidence=True)
    damaged_confidences = np.array([translation.confidence or 0.0 for translation in scored])
    for name, threshold in (
        ("by the calibration", FALSE_ALARMS),
        ("on this test set", float(np.quantile(confidences, FALSE_ALARMS))),
    ):
        flagged = damaged_confidences < threshold
        by_kind = {
            kind: int(sum(flag for flag, (other, *_) in zip(flagged, damages, strict=True) if other == kind))
            for kind in dict.fromkeys(kind for kind, *_ in damages)
        }
        print(
            f"{FALSE_ALARMS:.0%} false alarms {name} (confidence below {threshold:.4f}): {flagged.sum()} of {len(damages)} "
            f"damaged outputs are flagged {by_kind}, and {np.mean(confidences < threshold):.1%} of the undamaged ones"
        )


if __name__ == "__main__":
    main()
