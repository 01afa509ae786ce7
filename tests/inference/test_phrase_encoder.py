# ruff: noqa: RUF001  (the marks of many scripts look like those of English)
"""Phrases of constraints in the text of outputs. The right answers are Python's own search in the decoded text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import MakeRecipe
from dragoman import TranslationConstraints, Translator
from dragoman.bundle import BundleMetadata
from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, train_tokenizer
from dragoman.errors import RecipeError
from dragoman.inference.phrase_encoder import PhraseEncoder
from dragoman.model.factory import build_model
from torch_models import bundle_model

pytestmark = pytest.mark.usefixtures("one_core")

TEXTS = {
    "zh": ["看：猫（8 m²）很大，是吗？", "大猫和小狗看见了老房子。", "他说：“很大！”", "GPU 很快"],
    "ja": ["猫がとても大きいです。", "「東京タワー」を見ました。"],
    "th": ["แมวตัวใหญ่มาก", "ฉันกำลังทำอาหาร"],
    "km": ["ឆ្មាធំណាស់", "ខ្ញុំស្រឡាញ់អ្នក"],
    "my": ["ကြောင်ကြီးတယ်", "ငါ့အိမ်"],
    "de": ["Die Haustür, das Krankenhaus und der Hausmeister: alle grün.", "Er sagt: „Nein!“ (17.05.2031)"],
}
PHRASES = {
    "zh": ["猫", "很大", "大", "，", "吗？", "m²", "犬", "GPU"],
    "ja": ["大きい", "タワー", "。", "とて"],
    "th": ["ใหญ่", "ำ", "กำลัง"],
    "km": ["ធំ", "ស្រឡាញ់"],
    "my": ["ကြီး", "အိမ်"],
    "de": ["haus", "Haus", "tür", ",", ".", "er", "2031", "das Kranken", "e", "Straße"],
}


def train_pair(language: str, model_type: str) -> PairTokenizer:
    """Return a tokenizer of 400 pieces, or of the most or fewest that the text allows, which the error names."""
    texts, options = TEXTS[language] * 20, {"model_type": model_type, "reserved_tokens": 2}

    def train(vocab_size: int) -> PairTokenizer:
        config = TokenizerConfig.model_validate({"vocab_size": vocab_size, **options})
        return train_tokenizer(texts, texts, config, append_source_eos=True, seed=1)

    try:
        return train(400)
    except RecipeError as error:
        return train(int(str(error).split("set it to ")[1].split()[0]))


def iter_outputs(tokenizer: PairTokenizer, language: str) -> Iterator[list[int]]:
    """Yield token ids of texts in their usual and in random segmentations, and random ids."""
    generator = random.Random(1)
    for seed, text in enumerate(TEXTS[language] * 8):
        alpha = 0.3 if seed >= len(TEXTS[language]) and hasattr(tokenizer.target, "_sampler") else 0.0
        yield tokenizer.target.sample_encode(text, alpha=alpha, seed=seed)
    for _ in range(60):
        yield [generator.randrange(6, len(tokenizer.target)) for _ in range(12)]


def test_phrase_is_found_where_text_holds_it(subtests: pytest.Subtests) -> None:
    for model_type in ["bpe", "unigram", "char", "byte"]:
        for language in TEXTS:
            with subtests.test(language=language, model_type=model_type):
                tokenizer = train_pair(language, model_type)
                encoder = PhraseEncoder(tokenizer.target)  # type: ignore[arg-type]
                for phrase in PHRASES[language]:
                    excluded = encoder.encode_excluded(phrase, "line 1")
                    forms = encoder.encode_included(phrase, "line 1", is_spaced=language == "de")
                    assert tokenizer.target.decode(forms[0].tokens) == phrase
                    for tokens in iter_outputs(tokenizer, language):
                        text = tokenizer.target.decode(tokens)
                        if "\ufffd" not in text:
                            assert excluded.is_in(tokens) == forms[0].is_in(tokens) == (phrase in text)


@pytest.fixture(scope="module", params=["zh", "th", "de"])
def translator(request: pytest.FixtureRequest, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Untrained model, whose outputs are random texts in the pieces of a language."""
    settings = (f"task.target_language={request.param}", "decoding.max_extra_tokens=12", "tokenizer.byte_fallback=true")
    recipe = tiny(tmp_path_factory.mktemp("run"), *settings)
    tokenizer = train_pair(request.param, "bpe")
    torch.manual_seed(3)
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target))
    return Translator.from_bundles([bundle_model(recipe, tokenizer, model.eval(), BundleMetadata())], device="cpu")


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_excluded_phrases_are_absent(translator: Translator, method: Any) -> None:
    lines = [f"{number} one two three" for number in range(12)]
    free = translator.translate(lines, method=method)
    # U+FFFD stands for bytes that are no text, so no phrase finds it.
    phrases = [
        tuple({phrase for phrase in (result.text[:1].strip(), result.text[2:4].strip()) if phrase and "\ufffd" not in phrase})
        for result in free
    ]
    assert sum(map(len, phrases)) > 8
    constraints = [TranslationConstraints(exclude=line_phrases) for line_phrases in phrases]
    for result, constraint in zip(
        translator.translate(lines, constraints=constraints, method=method), constraints, strict=True
    ):
        assert not any(phrase in result.text for phrase in constraint.exclude)
        assert result.unmet_constraints == ()


def test_excluded_phrase_of_prefix_is_reported(translator: Translator) -> None:
    (phrase,) = PHRASES[translator.recipe.task.target_language][:1]
    (result,) = translator.translate(["one"], constraints=[TranslationConstraints(prefix=phrase, exclude=(phrase,))])
    assert phrase in result.text
    assert result.unmet_constraints == (phrase,)


def test_included_phrases_stand_in_the_text_without_spaces(translator: Translator) -> None:
    language = translator.recipe.task.target_language
    lines = [f"{number} one" for number in range(len(PHRASES[language]))]
    constraints = [TranslationConstraints(include=(phrase,)) for phrase in PHRASES[language]]
    for result, constraint in zip(
        translator.translate(lines, constraints=constraints, beam_size=4, nbest=3), constraints, strict=True
    ):
        (phrase,) = constraint.include
        assert phrase in result.text
        assert result.unmet_constraints == ()
        for alternative in result.alternatives:
            assert (alternative.unmet_constraints == ()) == (phrase in alternative.text)


def test_phrases_are_normalized_as_texts(tmp_path: Path, tiny: MakeRecipe) -> None:
    recipe = tiny(tmp_path, "task.target_language=zh", "tokenizer.byte_fallback=true")
    config = TokenizerConfig(vocab_size=330, reserved_tokens=0, normalization="nfkc")
    tokenizer = train_tokenizer(TEXTS["zh"] * 20, TEXTS["zh"] * 20, config, append_source_eos=True, seed=1)
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target))
    translator = Translator.from_bundles([bundle_model(recipe, tokenizer, model.eval(), BundleMetadata())], device="cpu")
    (included,) = translator.translate(["one"], constraints=[TranslationConstraints(include=("，",))])
    assert "," in included.text
    assert included.unmet_constraints == ()
    (excluded,) = translator.translate(["one"], constraints=[TranslationConstraints(prefix="大，", exclude=("，",))])
    assert excluded.unmet_constraints == ("，",)


def test_terms_begin_words_in_spaced_languages(translator: Translator) -> None:
    """Require what the middle of an output holds already: as a phrase it counts there, as a term only at a word's start."""
    language = translator.recipe.task.target_language
    lines = [f"{number} one" for number in range(8)]
    for result in translator.translate(lines, beam_size=4):
        middle = result.text[2:4]
        if not middle.isalpha() or not result.text[1].isalpha():
            continue
        (phrase,) = translator.translate(
            [lines[0]], beam_size=4, constraints=[TranslationConstraints(include_any=((middle,),))]
        )
        (term,) = translator.translate([lines[0]], beam_size=4, constraints=[TranslationConstraints(terms=((middle,),))])
        assert middle in phrase.text
        assert f" {middle}" in f" {term.text}" if language == "de" else middle in term.text
