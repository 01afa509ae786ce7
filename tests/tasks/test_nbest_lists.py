"""n-best lists hold each text once, and are filled from the rest of the beam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import dragoman
from dragoman.tasks.generation import BatchSearch, generate

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize("is_native", [True, False])
def test_nbest_list_holds_each_text_once(bundle: Path, is_native: bool) -> None:
    """Let the number of tokens stand for the text, so that many hypotheses are equal."""
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    model = translator.inference_model if is_native else replace(translator.inference_model, native_search=None)
    sources = [translator.bundle.tokenizer.encode_source(line) for line in ("one two three", "ten", "big red")]

    def decode(tokens: Sequence[int]) -> str:
        return str(len(tokens))

    config = translator.resolve_decoding({"beam_size": 8, "nbest": 8})
    whole = generate(BatchSearch(model, config, start_id=2), sources)
    few = generate(BatchSearch(model, config.model_copy(update={"nbest": 3}), start_id=2), sources, decode=decode)
    for all_hypotheses, hypotheses in zip(whole, few, strict=True):
        texts = [decode(hypothesis.tokens) for hypothesis in hypotheses]
        assert len(set(texts)) == len(texts)
        assert len(texts) == min(3, len({decode(hypothesis.tokens) for hypothesis in all_hypotheses}))
        assert hypotheses[0].tokens == all_hypotheses[0].tokens
