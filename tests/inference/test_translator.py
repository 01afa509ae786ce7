"""Translator: one result for each line, in order, independent of the batch."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dragoman
from conftest import MakeRecipe, edit_config
from dragoman import Translation, Translator
from dragoman.bundle import Bundle
from dragoman.data.tokenization.pair_tokenizer import train_tokenizer
from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.formats.text import read_lines
from expected_errors import raises_code
from random_bundles import random_bundle
from tiny_runs import WORDS

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def lines(corpus: Path) -> list[str]:
    """Return thirty different lines of one to five words."""
    unique_lines = dict.fromkeys(itertools.chain(read_lines(corpus / "test.en"), read_lines(corpus / "train.en")))
    return list(unique_lines)[:30]


def untrained(recipe: Any, *, seed: int = 1) -> Bundle:
    tokenizer = train_tokenizer(
        WORDS, WORDS.values(), recipe.tokenizer, append_source_eos=recipe.model.append_source_eos, seed=recipe.training.seed
    )
    return random_bundle(recipe, tokenizer.replace(source_prefix=recipe.tokenizer.source_prefix), seed=seed)


def assert_alike(actual: list[Translation], expected: list[Translation]) -> None:
    """Assert equal texts, and equal scores within the rounding of matrix products."""
    assert [translation.text for translation in actual] == [translation.text for translation in expected]
    assert [translation.tokens for translation in actual] == [translation.tokens for translation in expected]
    assert [translation.status for translation in actual] == [translation.status for translation in expected]
    assert [translation.score for translation in actual] == pytest.approx(
        [translation.score for translation in expected], abs=1e-5
    )


# Lines


def test_results_are_as_many_as_lines(translator: Translator, lines: list[str]) -> None:
    alone = {line: translator.translate([line])[0] for line in lines[:6]}
    mixed = ["", *lines[:3], " ", "\t", lines[0], "", "\u3000\u00a0", *lines[3:6], lines[0], ""]
    results = translator.translate(mixed)
    assert len(results) == len(mixed)
    for line, result in zip(mixed, results, strict=True):
        if line.strip():
            assert_alike([result], [alone[line]])
        else:
            assert result == Translation(line, status="empty", source_tokens=result.source_tokens)
            assert set(result.source_tokens) <= {"</s>"} or result.source_tokens[-1] == "</s>"


def test_white_space_is_empty_for_any_normalization(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "tokenizer.normalization='identity'", "tokenizer.byte_fallback=true", "tokenizer.vocab_size=310")
    blank = ["\t", "\u00a0", "\u2003 ", " ", ""]
    translator = Translator.from_bundles([untrained(recipe)], device="cpu")
    assert translator.bundle.tokenizer.encode_source("\t") != translator.bundle.tokenizer.encode_source("")
    assert [result.status for result in translator.translate(blank)] == ["empty"] * 5
    with pytest.raises(DataError, match="line 2: the source has no text"):
        translator.score(["one", "\t"], ["eins", "eins"])


def test_translator_is_not_pickled(translator: Translator) -> None:
    for function in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"call dragoman\.load in each process"):
            function(translator)


def test_any_iterable_of_lines_is_translated(translator: Translator, lines: list[str]) -> None:
    expected = [translation.text for translation in translator.translate(lines[:3])]
    assert [translation.text for translation in translator.translate(iter(lines[:3]))] == expected  # type: ignore[arg-type]
    constraints = (dragoman.TranslationConstraints(prefix=text) for text in expected)
    forced = translator.translate(reversed(lines[:3]), constraints=constraints)  # type: ignore[arg-type]
    assert [translation.text[: len(text)] for translation, text in zip(forced, expected, strict=True)] == expected


def test_line_breaks_tabs_and_characters_without_width_are_not_read(translator: Translator, lines: list[str]) -> None:
    line = next(line for line in lines if " " in line)
    expected = translator.translate([line])[0].text
    for text in (f"\t{line}\n", line.replace(" ", "\r\n"), line.replace(" ", " \u200b"), f"\u202a{line}\u202c"):
        (translation,) = translator.translate([text])
        assert translation.text == expected, text
    assert translator.translate(["\t\n"])[0].text == "\t\n"


def test_a_string_is_not_a_list(translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"write translate\(\[text\]\)"):
        translator.translate("one two")
    with pytest.raises(TypeError, match=r"write translate_texts\(\[text\]\)"):
        translator.translate_texts("one two")
    with pytest.raises(TypeError, match="translate_texts: line 1: None is of type NoneType; give a text"):
        translator.translate_texts([None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"write score\(\[source\], \[target\]\)"):
        translator.score("one", "two")
    with pytest.raises(TypeError, match="line 2: None is of type NoneType; give a text"):
        translator.translate(["one", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="line 3: b'two' is of type bytes; give a text"):
        list(translator.stream(["one", "", b"two"], window=2))  # type: ignore[list-item]


# Batches


METHODS: dict[str, dict[str, Any]] = {
    "beam": {"beam_size": 4},
    "beam of two, n-best": {"beam_size": 2, "nbest": 2},
    "greedy": {"method": "greedy"},
    "sample": {"method": "sample", "temperature": 1.5, "seed": 3},
}


@pytest.mark.parametrize("method", METHODS)
def test_batches_do_not_change_results(method: str, translator: Translator, lines: list[str]) -> None:
    options = METHODS[method]
    expected = translator.translate(lines, **options)
    for batch_tokens in (1, 30, 100_000):
        assert_alike(translator.translate(lines, batch_tokens=batch_tokens, **options), expected)
    assert len({translation.text for translation in expected}) > 10


def test_no_result_depends_on_a_tie(translator: Translator, lines: list[str]) -> None:
    # The tests above need a margin between the best two hypotheses that is larger than rounding errors.
    margins = [translation.score - translation.alternatives[0].score for translation in translator.translate(lines, nbest=2)]
    assert sum(margin < 1e-4 for margin in margins) == 0


# Hypotheses


def test_nbest_are_different_and_sorted_by_score(translator: Translator, lines: list[str]) -> None:
    for best in translator.translate(lines[:8], beam_size=12, nbest=4):
        ranked = [best, *best.alternatives]
        assert len(ranked) == 4
        assert len({translation.text for translation in ranked}) == 4
        finished = [translation.score for translation in ranked if translation.status == "ok"]
        assert finished == sorted(finished, reverse=True)
        assert all(
            translation.source_tokens == best.source_tokens and translation.alternatives == ()
            for translation in best.alternatives
        )


def test_output_without_end_is_truncated(translator: Translator, lines: list[str]) -> None:
    results = translator.translate(lines, max_extra_tokens=0, method="greedy")
    cut = [translation for translation in results if translation.status == "truncated"]
    assert cut, "no line of this corpus needs more tokens than it has"
    for translation in cut:
        assert len(translation.tokens) == len(translation.token_log_probs) == len(translation.source_tokens)


def test_too_long_line_does_not_change_others(translator: Translator, lines: list[str]) -> None:
    expected = translator.translate(lines[:4])
    long_line = " ".join(["one"] * 50)
    limit = max(len(translation.source_tokens) for translation in expected)
    results = translator.translate([long_line, *lines[:2], long_line, *lines[2:4]], max_source_tokens=limit, long_input="error")
    assert [translation.status for translation in results] == ["too_long", "ok", "ok", "too_long", "ok", "ok"]
    assert results[0].text == ""
    assert results[0].score == 0.0
    assert_alike([results[1], results[2], results[4], results[5]], expected)


# Sampling


def test_sampling_depends_on_seed_and_index(translator: Translator, lines: list[str]) -> None:
    options: dict[str, Any] = {"method": "sample", "temperature": 2.0}
    first = translator.translate(lines, seed=5, **options)
    assert translator.translate(lines, seed=5, **options) == first
    assert [translation.text for translation in translator.translate(lines, seed=6, **options)] != [
        translation.text for translation in first
    ]
    same = translator.translate(["one two three"] * 12, seed=5, **options)
    assert len({translation.text for translation in same}) > 6
    several = translator.translate(["one two three"], seed=5, nbest=12, **options)[0]
    assert len({translation.text for translation in [several, *several.alternatives]}) > 6


def test_start_index_continues_the_random_streams(translator: Translator, lines: list[str]) -> None:
    options: dict[str, Any] = {"method": "sample", "temperature": 2.0, "seed": 2**31 - 1}
    text = [*lines[:5], "", *lines[5:20]]
    whole = translator.translate(text, **options)
    parts = [translator.translate(text[start : start + 4], start_index=start, **options) for start in range(0, len(text), 4)]
    assert_alike(list(itertools.chain(*parts)), whole)


# Decoding options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 4}, "beam is not a key; did you mean beam_size"),
        ({"beam_size": 0}, "beam_size = 0"),
        ({"nbest": 5}, "nbest = 5 is more than beam_size = 4"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"top_p": 1.5}, "top_p = 1.5"),
    ],
)
def test_wrong_decoding_options_raise_error(options: dict[str, Any], message: str, translator: Translator) -> None:
    with pytest.raises(RecipeError) as error:
        translator.translate(["one"], **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(RecipeError):
        translator.score(["one"], ["eins"], **options)


# Learned positions


@pytest.fixture(scope="module")
def positioned(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Return an untrained model with sixteen positions, which seldom outputs the end token."""
    settings = ("model.position_encoding='learned'", "model.max_positions=16", "data.max_length=16", "tokenizer.vocab_size=60")
    return Translator.from_bundles([untrained(tiny(tmp_path_factory.mktemp("positioned"), *settings))], device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_learned_positions_limit_sources_and_outputs(method: str, positioned: Translator) -> None:
    encode = positioned.bundle.tokenizer.encode_source
    texts = ["x" * count for count in range(1, 20)]
    lengths = [len(encode(text)) for text in texts]
    assert 16 in lengths
    assert 17 in lengths
    results = positioned.translate(texts, attention=True, max_extra_tokens=1000, long_input="error", **METHODS[method])
    assert [translation.status == "too_long" for translation in results] == [length > 16 for length in lengths]
    longest = 0
    for translation in results:
        for hypothesis in [translation, *translation.alternatives]:
            longest = max(longest, len(hypothesis.token_log_probs))
            assert len(hypothesis.token_log_probs) <= 16
            assert hypothesis.attention is None or len(hypothesis.attention) == len(hypothesis.token_log_probs)
    assert longest == 16


def test_learned_positions_limit_scoring(positioned: Translator) -> None:
    tokens = positioned.bundle.tokenizer.encode_target
    fits, not_fits = " ".join(["ten"] * 5), " ".join(["ten"] * 40)
    assert len(tokens(fits)) < 16 < len(tokens(not_fits))
    assert len(positioned.score(["ten"], [fits])) == 1
    with pytest.raises(DataError, match=r"line 2: has [0-9]+ tokens, and score takes 16 at most"):
        positioned.score(["ten", "ten"], ["ten", not_fits])
    with pytest.raises(DataError, match=r"line 1: has [0-9]+ tokens, and score takes 16 at most"):
        positioned.score([not_fits], ["ten"])


def test_ensemble_has_the_fewest_positions(tiny: MakeRecipe, positioned: Translator, tmp_path: Path) -> None:
    settings = ("model.position_encoding='learned'", "model.max_positions=12", "data.max_length=12", "tokenizer.vocab_size=60")
    shorter, unbounded = untrained(tiny(tmp_path, *settings)), untrained(tiny(tmp_path, "tokenizer.vocab_size=60"))
    torch_models = pytest.importorskip("dragoman.torch_engine.inference_model")
    assert torch_models.get_max_positions([unbounded.model]) is None
    assert torch_models.get_max_positions([positioned.models[0], shorter.model, unbounded.model]) == 12
    together = Translator.from_bundles([positioned.bundle, shorter, unbounded], device="cpu")
    texts = [" ".join(["ten"] * count) for count in range(1, 20)]
    results = together.translate(texts, max_extra_tokens=1000, long_input="error")
    assert {translation.status for translation in results} >= {"too_long"}
    assert all(len(translation.source_tokens) > 12 for translation in results if translation.status == "too_long")
    assert all(len(translation.token_log_probs) <= 12 for translation in results)


# Attention


@pytest.mark.parametrize("method", METHODS)
def test_attention_does_not_change_translations(method: str, translator: Translator, lines: list[str]) -> None:
    plain = translator.translate(lines, **METHODS[method])
    watched = translator.translate(lines, attention=True, **METHODS[method])
    assert [_without_attention(translation) for translation in watched] == plain
    assert translator.translate(lines, **METHODS[method]) == plain
    assert all(translation.attention is None for translation in plain)


def _without_attention(translation: Translation) -> Translation:
    alternatives = tuple(_without_attention(alternative) for alternative in translation.alternatives)
    return Translation(**{**vars(translation), "attention": None, "alignment": None, "alternatives": alternatives})


def test_attention_equals_the_weights_of_the_model(translator: Translator) -> None:
    torch = pytest.importorskip("torch")
    # Computed again: softmax(q·kᵀ/√d_k) of the last layer for each prefix, mean over the heads.
    (translation,) = translator.translate(["one two"], attention=True)
    model = translator.models[0]
    tokenizer = translator.bundle.tokenizer
    source_BS = torch.tensor([tokenizer.encode_source("one two")])
    inputs_BT = torch.tensor([[2, *[tokenizer.target.piece_to_id(piece) for piece in translation.tokens]]])
    recorded: list[tuple[Any, Any]] = []
    attention: Any = model.decoder.layers[-1].cross_attention
    attend = attention.attention_impl

    def record_and_attend(query: Any, key: Any, *options: Any) -> Any:
        recorded.append((query, key))
        return attend(query, key, *options)

    attention.attention_impl = record_and_attend
    try:
        with torch.no_grad():
            model(source_BS, inputs_BT)
    finally:
        attention.attention_impl = attend
    ((query_BHTK, key_BHSK),) = recorded
    weights_BHTS = (query_BHTK @ key_BHSK.transpose(-2, -1) / query_BHTK.shape[-1] ** 0.5).softmax(-1)
    assert translation.attention is not None
    torch.testing.assert_close(torch.tensor(np.array(translation.attention)), weights_BHTS[0].mean(dim=0), rtol=0, atol=1e-6)


# Forced scoring


def test_forced_score_equals_the_search_score(translator: Translator, lines: list[str]) -> None:
    encode = translator.bundle.tokenizer.target
    checked = 0
    for line, translation in zip(lines, translator.translate(lines, method="greedy"), strict=True):
        if tuple(encode.ids_to_pieces(encode.encode(translation.text))) == translation.tokens and translation.status == "ok":
            (scored,) = translator.score([line], [translation.text])
            assert scored.score == pytest.approx(translation.score, abs=1e-5)
            assert scored.token_log_probs == pytest.approx(translation.token_log_probs, abs=1e-5)
            assert (scored.text, scored.tokens, scored.source_tokens) == (
                translation.text,
                translation.tokens,
                translation.source_tokens,
            )
            checked += 1
    assert checked >= 15


def test_score_checks_the_number_of_lines(translator: Translator) -> None:
    assert translator.score([], []) == []
    with raises_code("invalid-data", "2 sources", "1 translation"):
        translator.score(["one", "two"], ["eins"])
    with pytest.raises(DataError, match="line 2: the source has no text"):
        translator.score(["one", " "], ["eins", "zwei"])


# Ensembles


def test_ensemble_of_equal_bundles_changes_nothing(
    bundle: Path, bundle_copy: Path, translator: Translator, lines: list[str]
) -> None:
    twice = dragoman.load(bundle, bundle_copy, task="translation", device="cpu", precision="float32")
    assert_alike(twice.translate(lines), translator.translate(lines))


def test_ensemble_averages_probabilities(tiny: MakeRecipe, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    recipe = tiny(tmp_path, "tokenizer.vocab_size=60")
    members = [untrained(recipe, seed=seed) for seed in (1, 2)]
    translator = Translator.from_bundles(members, device="cpu", precision="float32")
    (together,) = translator.translate(["one two"], method="greedy", max_extra_tokens=1)
    source_BS = torch.tensor([members[0].tokenizer.encode_source("one two")])
    ids = [members[0].tokenizer.target.piece_to_id(piece) for piece in together.tokens]
    with torch.no_grad():
        probs = [member.model(source_BS, torch.tensor([[2, *ids]])).softmax(-1)[0] for member in members]
    mean_TV = (probs[0] + probs[1]) / 2
    expected = [mean_TV[position, token].log().item() for position, token in enumerate(ids)]
    assert list(together.token_log_probs[: len(ids)]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "setting",
    [
        "tokenizer.vocab_size=70",
        "tokenizer.normalization='identity'",
        "model.decoder_start_token='zero'",
        "tokenizer.source_prefix='to German: '",
    ],
)
def test_different_vocabularies_cannot_form_an_ensemble(setting: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    first, second = (
        untrained(tiny(tmp_path, "tokenizer.vocab_size=60")),
        untrained(tiny(tmp_path, "tokenizer.vocab_size=60", setting)),
    )
    with pytest.raises(BundleError, match="cannot form an ensemble") as error:
        Translator.from_bundles([first, second], device="cpu")
    assert "\n" not in str(error.value)


def test_pieces_of_the_source_prefix_are_empty(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Else a tag whose place follows from the attention could go to a word of the prefix."""
    bundle = untrained(tiny(tmp_path, "tokenizer.vocab_size=60", "tokenizer.source_prefix='one: '"))
    empty, translation = Translator.from_bundles([bundle], device="cpu").translate(["", "one two"], attention=True)
    prefix = [""] * len(bundle.tokenizer.source.encode("one: "))
    pieces = bundle.tokenizer.source.ids_to_pieces(bundle.tokenizer.source.encode("one two"))
    assert [*translation.source_tokens] == [*prefix, *pieces, "</s>"]
    assert translation.attention is not None
    assert len(translation.attention[0]) == len(translation.source_tokens)
    assert empty.source_tokens == ("</s>",)


# A model whose numbers are not finite


def test_nan_weights_do_not_raise(tiny: MakeRecipe, tmp_path: Path) -> None:
    broken = untrained(tiny(tmp_path, "tokenizer.vocab_size=60"))
    broken.arrays["output"].fill(np.nan)
    for options in METHODS.values():
        results = Translator.from_bundles([broken], device="cpu").translate(["one", "", "two"], **options)
        assert len(results) == 3
        assert results[1].status == "empty"


# Public API


def test_public_names_exist() -> None:
    pytest.importorskip("torch")
    assert sorted(dragoman.__all__) == dragoman.__all__
    for name in dragoman.__all__:
        assert name == "__version__" or getattr(dragoman, name).__module__.startswith("dragoman.")
        assert name in dir(dragoman)
    with pytest.raises(AttributeError, match="module 'dragoman' has no attribute 'nothing'"):
        dragoman.nothing  # noqa: B018


def test_recipe_sets_the_default_decoding(bundle_copy: Path, translator: Translator, lines: list[str]) -> None:
    edit_config(bundle_copy, lambda document: document["recipe"]["decoding"].update(method="greedy"))
    greedy = dragoman.load(bundle_copy, task="translation", device="cpu", precision="float32")
    assert_alike(greedy.translate(lines), translator.translate(lines, method="greedy"))


def test_options_that_equal_those_of_the_last_call_but_have_another_type_are_checked(translator: Translator) -> None:
    assert translator.resolve_decoding({"beam_size": 1}) is translator.resolve_decoding({"beam_size": 1})
    with raises_code("invalid-recipe", "beam_size"):
        translator.resolve_decoding({"beam_size": True})
    assert translator.resolve_decoding({}).beam_size == translator.recipe.decoding.beam_size
