"""Text in, results out: one for each line and in order, whatever else stands in the batch."""

from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dragoman
from conftest import WORDS, MakeRecipe, edit_config
from dragoman import Translation, Translator
from dragoman.bundle import Bundle, load_bundle
from dragoman.data.tokenization.tokenizer import train_tokenizer
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.formats.text import read_lines
from dragoman.inference.load import _paused_garbage_collection
from dragoman.model.attention import Attention
from dragoman.model.factory import build_model
from dragoman.model.local_attention import Mask
from dragoman.tasks.generation import compute_cross_attention, generate
from dragoman.tasks.inference_model import as_inference_model, get_max_positions

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    opened: Translator = dragoman.load(bundle, device="cpu", precision="float32")
    return opened


@pytest.fixture(scope="module")
def lines(corpus: Path) -> list[str]:
    """Thirty different lines of one to five words."""
    found = dict.fromkeys(itertools.chain(read_lines(corpus / "test.en"), read_lines(corpus / "train.en")))
    return list(found)[:30]


def untrained(recipe: Any, *, seed: int = 1) -> Bundle:
    tokeniser = train_tokenizer(
        WORDS, WORDS.values(), recipe.subword, append_source_eos=recipe.model.append_source_eos, seed=recipe.training.seed
    )
    torch.manual_seed(seed)
    model = build_model(recipe.model, source_vocab_size=len(tokeniser.source), target_vocab_size=len(tokeniser.target))
    return Bundle(recipe, tokeniser, model.eval(), {})


def assert_alike(mine: list[Translation], theirs: list[Translation]) -> None:
    """The same texts, and scores to the rounding of a matrix product over another number of rows."""
    assert [one.text for one in mine] == [one.text for one in theirs]
    assert [one.tokens for one in mine] == [one.tokens for one in theirs]
    assert [one.status for one in mine] == [one.status for one in theirs]
    assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-5)


# Lines


def test_as_many_results_as_lines_and_in_order(translator: Translator, lines: list[str]) -> None:
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


def test_no_lines_and_one_line(translator: Translator) -> None:
    assert translator.translate([]) == []
    assert translator.translate([""])[0].status == "empty"
    assert len(translator.translate(("ten",))) == 1


def test_white_space_is_no_text_for_any_normalisation(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "tokenizer.normalization='identity'", "tokenizer.byte_fallback=true", "tokenizer.vocab_size=310")
    blank = ["\t", "\u00a0", "\u2003 ", " ", ""]
    one = Translator([untrained(recipe)], device="cpu")
    assert one.bundle.tokenizer.encode_source("\t") != one.bundle.tokenizer.encode_source("")
    assert [result.status for result in one.translate(blank)] == ["empty"] * 5
    with pytest.raises(DataError, match="line 2: the source holds no text"):
        one.score(["one", "\t"], ["eins", "eins"])


def test_a_string_is_not_a_list_of_lines(translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"write translate\(\[text\]\)"):
        translator.translate("one two")
    with pytest.raises(TypeError, match=r"write score\(\[source\], \[target\]\)"):
        translator.score("one", "two")
    with pytest.raises(TypeError, match="line 2: None is no text, but NoneType"):
        translator.translate(["one", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="line 3: b'two' is no text, but bytes"):
        list(translator.stream(["one", "", b"two"], window=2))  # type: ignore[list-item]


def test_progress_is_told_until_all_lines_are_done(translator: Translator, lines: list[str]) -> None:
    told: list[int] = []
    translator.translate([*lines, "", " "], on_progress=told.append, batch_tokens=60)
    assert sum(told) == len(lines) + 2
    assert len(told) > 3


# Batches


METHODS: dict[str, dict[str, Any]] = {
    "beam": {"beam_size": 4},
    "beam of two, n-best": {"beam_size": 2, "nbest": 2},
    "greedy": {"method": "greedy"},
    "sample": {"method": "sample", "temperature": 1.5, "seed": 3},
}


@pytest.mark.parametrize("method", METHODS)
def test_batches_never_change_a_result(method: str, translator: Translator, lines: list[str]) -> None:
    knobs = METHODS[method]
    wanted = translator.translate(lines, **knobs)
    for batch_tokens in (1, 30, 100_000):
        assert_alike(translator.translate(lines, batch_tokens=batch_tokens, **knobs), wanted)
    assert len({one.text for one in wanted}) > 10


@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_neither_order_nor_company_changes_a_result(method: str, translator: Translator, lines: list[str]) -> None:
    knobs = METHODS[method]
    wanted = dict(zip(lines, translator.translate(lines, **knobs), strict=True))
    for order in (lines[::-1], sorted(lines), lines[::2] + lines[1::2]):
        assert_alike(translator.translate(order, **knobs), [wanted[line] for line in order])
    long = " ".join([*lines[0].split()] * 12)
    company = [long, *lines, long]
    assert_alike(translator.translate(company, **knobs)[1:-1], [wanted[line] for line in lines])


def test_no_result_hangs_on_a_tie(translator: Translator, lines: list[str]) -> None:
    # The margin that the tests above stand on: no best hypothesis is as near to the next as rounding errors are large.
    margins = [one.score - one.alternatives[0].score for one in translator.translate(lines, nbest=2)]
    assert sum(margin < 1e-4 for margin in margins) == 0


# Hypotheses


def test_nbest_are_different_and_fall_in_score(translator: Translator, lines: list[str]) -> None:
    for best in translator.translate(lines[:8], nbest=4):
        ranked = [best, *best.alternatives]
        assert len(ranked) == 4
        assert len({one.tokens for one in ranked}) == 4
        finished = [one.score for one in ranked if one.status == "ok"]
        assert finished == sorted(finished, reverse=True)
        assert all(one.source_tokens == best.source_tokens and one.alternatives == () for one in best.alternatives)


def test_a_score_is_the_sum_over_the_penalty(translator: Translator, lines: list[str]) -> None:
    for name, alpha in (("gnmt", 0.6), ("power", 1.0), ("none", 1.0)):
        for one in translator.translate(lines[:5], length_penalty=name, alpha=alpha, nbest=2):
            assert len(one.token_log_probs) == len(one.tokens) + (one.status == "ok")
            penalty = LengthPenalty(name, alpha)(float(len(one.token_log_probs)))
            assert one.score == pytest.approx(sum(one.token_log_probs) / penalty, rel=1e-5)
            assert all(value <= 0 for value in one.token_log_probs)


def test_tokens_are_the_pieces_of_the_text(translator: Translator, lines: list[str]) -> None:
    for line, one in zip(lines, translator.translate(lines), strict=True):
        assert "".join(one.tokens).replace("▁", " ").strip() == one.text
        assert "".join(one.source_tokens).replace("▁", " ").strip() == f"{line}</s>"


def test_an_output_that_does_not_end_is_flagged(translator: Translator, lines: list[str]) -> None:
    results = translator.translate(lines, max_extra_tokens=0, method="greedy")
    cut = [one for one in results if one.status == "truncated"]
    assert cut, "no line of this corpus needs more tokens than it has"
    for one in cut:
        assert len(one.tokens) == len(one.token_log_probs) == len(one.source_tokens)


def test_a_line_that_is_too_long_harms_no_other(translator: Translator, lines: list[str]) -> None:
    wanted = translator.translate(lines[:4])
    long = " ".join(["one"] * 50)
    most = max(len(one.source_tokens) for one in wanted)
    results = translator.translate([long, *lines[:2], long, *lines[2:4]], max_source_tokens=most, long_input="error")
    assert [one.status for one in results] == ["refused", "ok", "ok", "refused", "ok", "ok"]
    assert results[0].text == ""
    assert results[0].score == 0.0
    assert_alike([results[1], results[2], results[4], results[5]], wanted)


# Sampling


def test_sampling_is_a_function_of_seed_and_place(translator: Translator, lines: list[str]) -> None:
    knobs: dict[str, Any] = {"method": "sample", "temperature": 2.0}
    first = translator.translate(lines, seed=5, **knobs)
    assert translator.translate(lines, seed=5, **knobs) == first
    assert [one.text for one in translator.translate(lines, seed=6, **knobs)] != [one.text for one in first]
    same = translator.translate(["one two three"] * 12, seed=5, **knobs)
    assert len({one.text for one in same}) > 6
    several = translator.translate(["one two three"], seed=5, nbest=12, **knobs)[0]
    assert len({one.text for one in [several, *several.alternatives]}) > 6


def test_a_text_in_parts_is_sampled_like_the_whole(translator: Translator, lines: list[str]) -> None:
    knobs: dict[str, Any] = {"method": "sample", "temperature": 2.0, "seed": 2**31 - 1}
    text = [*lines[:5], "", *lines[5:20]]
    whole = translator.translate(text, **knobs)
    parts = [translator.translate(text[place : place + 4], start_index=place, **knobs) for place in range(0, len(text), 4)]
    assert_alike(list(itertools.chain(*parts)), whole)


def test_a_cold_sample_is_the_greedy_one(translator: Translator, lines: list[str]) -> None:
    greedy = translator.translate(lines, method="greedy")
    assert_alike(translator.translate(lines, method="sample", top_k=1), greedy)
    assert_alike(translator.translate(lines, method="sample", temperature=1e-4), greedy)


# Knobs


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"beam": 4}, "beam is not a key; did you mean beam_size"),
        ({"beam_size": 0}, "beam_size = 0"),
        ({"beam_size": "wide"}, "beam_size = 'wide'"),
        ({"nbest": 5}, "nbest = 5 is more than beam_size = 4"),
        ({"method": "greedy", "nbest": 2}, "nbest = 2"),
        ({"method": "best"}, "method = 'best'"),
        ({"alpha": -1}, "alpha = -1"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"temperature": 0}, "temperature = 0"),
        ({"top_p": 1.5}, "top_p = 1.5"),
    ],
)
def test_knobs_are_checked(knobs: dict[str, Any], says: str, translator: Translator) -> None:
    with pytest.raises(RecipeError) as caught:
        translator.translate(["one"], **knobs)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecipeError):
        translator.score(["one"], ["eins"], **knobs)


def test_knobs_change_one_call_alone(translator: Translator, lines: list[str]) -> None:
    before = translator.translate(lines[:5])
    translator.translate(lines[:5], method="greedy", length_penalty="none")
    assert translator.translate(lines[:5]) == before


# Learned positions


@pytest.fixture(scope="module")
def positioned(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """An untrained model with sixteen positions: it hardly ever says that it is done."""
    settings = ("model.position_encoding='learned'", "model.max_positions=16", "data.max_length=16", "tokenizer.vocab_size=60")
    return Translator([untrained(tiny(tmp_path_factory.mktemp("positioned"), *settings))], device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_learned_positions_are_never_left(method: str, positioned: Translator) -> None:
    encode = positioned.bundle.tokenizer.encode_source
    texts = ["x" * count for count in range(1, 20)]
    lengths = [len(encode(text)) for text in texts]
    assert 16 in lengths
    assert 17 in lengths
    results = positioned.translate(texts, attention=True, max_extra_tokens=1000, long_input="error", **METHODS[method])
    assert [one.status == "refused" for one in results] == [length > 16 for length in lengths]
    longest = 0
    for one in results:
        for hypothesis in [one, *one.alternatives]:
            longest = max(longest, len(hypothesis.token_log_probs))
            assert len(hypothesis.token_log_probs) <= 16
            assert hypothesis.attention is None or len(hypothesis.attention) == len(hypothesis.token_log_probs)
    assert longest == 16


def test_learned_positions_bound_what_can_be_scored(positioned: Translator) -> None:
    tokens = positioned.bundle.tokenizer.encode_target
    fits, not_fits = " ".join(["ten"] * 5), " ".join(["ten"] * 40)
    assert len(tokens(fits)) < 16 < len(tokens(not_fits))
    assert len(positioned.score(["ten"], [fits])) == 1
    with pytest.raises(DataError, match="line 2: more than the 16 tokens that the model can score"):
        positioned.score(["ten", "ten"], ["ten", not_fits])
    with pytest.raises(DataError, match="line 1: more than the 16 tokens that the model can score"):
        positioned.score([not_fits], ["ten"])


def test_an_ensemble_reads_what_all_of_it_can(tiny: MakeRecipe, positioned: Translator, tmp_path: Path) -> None:
    settings = ("model.position_encoding='learned'", "model.max_positions=12", "data.max_length=12", "tokenizer.vocab_size=60")
    shorter, unbounded = untrained(tiny(tmp_path, *settings)), untrained(tiny(tmp_path, "tokenizer.vocab_size=60"))
    assert get_max_positions([unbounded.model]) is None
    assert get_max_positions([positioned.models[0], shorter.model, unbounded.model]) == 12
    together = Translator([positioned.bundle, shorter, unbounded], device="cpu")
    texts = [" ".join(["ten"] * count) for count in range(1, 20)]
    results = together.translate(texts, max_extra_tokens=1000, long_input="error")
    assert {one.status for one in results} >= {"refused"}
    assert all(len(one.source_tokens) > 12 for one in results if one.status == "refused")
    assert all(len(one.token_log_probs) <= 12 for one in results)


# Attention


@pytest.mark.parametrize("method", METHODS)
def test_attention_is_a_distribution_over_the_source(method: str, translator: Translator, lines: list[str]) -> None:
    for one in translator.translate(["", *lines[:6]], attention=True, **METHODS[method])[1:]:
        for hypothesis in [one, *one.alternatives]:
            assert hypothesis.attention is not None
            assert len(hypothesis.attention) == len(hypothesis.token_log_probs)
            for row in hypothesis.attention:
                assert len(row) == len(one.source_tokens)
                assert sum(row) == pytest.approx(1.0, abs=1e-5)
                assert min(row) >= 0


@pytest.mark.parametrize("method", METHODS)
def test_to_watch_changes_nothing(method: str, translator: Translator, lines: list[str]) -> None:
    plain = translator.translate(lines, **METHODS[method])
    watched = translator.translate(lines, attention=True, **METHODS[method])
    assert [_unwatched(one) for one in watched] == plain
    assert translator.translate(lines, **METHODS[method]) == plain
    assert all(one.attention is None for one in plain)


def _unwatched(one: Translation) -> Translation:
    rest = tuple(_unwatched(other) for other in one.alternatives)
    return Translation(**{**vars(one), "attention": None, "alignment": None, "alternatives": rest})


def test_attention_is_what_the_model_computes_when_it_says_the_token(translator: Translator) -> None:
    # By hand: softmax(q·kᵀ/√d_k) of the last layer for each prefix, mean over the heads.
    (one,) = translator.translate(["one two"], attention=True)
    model = translator.models[0]
    tokeniser = translator.bundle.tokenizer
    source_BS = torch.tensor([tokeniser.encode_source("one two")])
    inputs_BT = torch.tensor([[2, *[tokeniser.target.piece_to_id(piece) for piece in one.tokens]]])
    seen: list[tuple[Tensor, Tensor]] = []
    attention = model.decoder.layers[-1].cross_attention
    assert isinstance(attention, Attention)
    attend = attention.attention_impl

    def look(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
        seen.append((query, key))
        result: Tensor = attend(query, key, value, mask, dropout_p)
        return result

    attention.attention_impl = look
    try:
        with torch.no_grad():
            model(source_BS, inputs_BT)
    finally:
        attention.attention_impl = attend
    ((query_BHTK, key_BHSK),) = seen
    weights_BHTS = (query_BHTK @ key_BHSK.transpose(-2, -1) / query_BHTK.shape[-1] ** 0.5).softmax(-1)
    assert one.attention is not None
    torch.testing.assert_close(torch.tensor(one.attention), weights_BHTS[0].mean(dim=0), rtol=0, atol=1e-6)


def test_the_attention_of_a_cut_output_has_no_row_for_the_end(translator: Translator) -> None:
    source = translator.bundle.tokenizer.encode_source("one two")
    whole = compute_cross_attention(translator.models[0], source, [7, 8, 9], start_id=2)
    cut = compute_cross_attention(translator.models[0], source, [7, 8, 9], start_id=2, finished=False)
    assert whole.shape == (1, 2, 4, len(source))
    torch.testing.assert_close(cut, whole[:, :, :3], rtol=0, atol=1e-6)


# Forced scoring


def test_a_translation_s_own_score_is_what_scoring_it_gives(translator: Translator, lines: list[str]) -> None:
    encode = translator.bundle.tokenizer.target
    checked = 0
    for line, one in zip(lines, translator.translate(lines, method="greedy"), strict=True):
        if tuple(encode.ids_to_pieces(encode.encode(one.text))) == one.tokens and one.status == "ok":
            (scored,) = translator.score([line], [one.text])
            assert scored.score == pytest.approx(one.score, abs=1e-5)
            assert scored.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-5)
            assert (scored.text, scored.tokens, scored.source_tokens) == (one.text, one.tokens, one.source_tokens)
            checked += 1
    assert checked >= 15


def test_scores_do_not_hang_on_the_batch(translator: Translator, lines: list[str]) -> None:
    targets = [" ".join(WORDS[word] for word in line.split()) for line in lines]
    whole = translator.score(lines, targets)
    alone = [translator.score([line], [target])[0] for line, target in zip(lines, targets, strict=True)]
    small = translator.score(lines, targets, batch_tokens=1)
    assert [one.score for one in whole] == pytest.approx([one.score for one in alone], abs=1e-5)
    assert [one.score for one in whole] == pytest.approx([one.score for one in small], abs=1e-5)
    wrong = translator.score(lines, targets[1:] + targets[:1])
    assert sum(one.score for one in whole) > sum(one.score for one in wrong)


def test_scores_are_of_an_empty_translation_too(translator: Translator) -> None:
    (one,) = translator.score(["one"], [""])
    assert one.tokens == ()
    assert len(one.token_log_probs) == 1


def test_scoring_wants_as_many_of_both(translator: Translator) -> None:
    assert translator.score([], []) == []
    with pytest.raises(DataError, match="2 sources but 1 translations"):
        translator.score(["one", "two"], ["eins"])
    with pytest.raises(DataError, match="line 2: the source holds no text"):
        translator.score(["one", " "], ["eins", "zwei"])


# Ensembles


def test_a_bundle_twice_is_the_bundle(bundle: Path, bundle_copy: Path, translator: Translator, lines: list[str]) -> None:
    twice = dragoman.load(bundle, bundle_copy, device="cpu", precision="float32")
    assert_alike(twice.translate(lines), translator.translate(lines))


def test_an_ensemble_is_the_mean_of_probabilities(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "tokenizer.vocab_size=60")
    members = [untrained(recipe, seed=seed) for seed in (1, 2)]
    translator = Translator(members, device="cpu", precision="float32")
    (together,) = translator.translate(["one two"], method="greedy", max_extra_tokens=1)
    source_BS = torch.tensor([members[0].tokenizer.encode_source("one two")])
    ids = [members[0].tokenizer.target.piece_to_id(piece) for piece in together.tokens]
    with torch.no_grad():
        probs = [member.model(source_BS, torch.tensor([[2, *ids]])).softmax(-1)[0] for member in members]
    mean_TV = (probs[0] + probs[1]) / 2
    wanted = [mean_TV[place, token].log().item() for place, token in enumerate(ids)]
    assert list(together.token_log_probs[: len(ids)]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    "setting",
    [
        "tokenizer.vocab_size=70",
        "tokenizer.normalization='identity'",
        "tokenizer.lowercase=true",
        "model.append_source_eos=false",
        "model.decoder_start_token='zero'",
    ],
)
def test_models_that_read_otherwise_cannot_vote(setting: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    mine, other = (
        untrained(tiny(tmp_path, "tokenizer.vocab_size=60")),
        untrained(tiny(tmp_path, "tokenizer.vocab_size=60", setting)),
    )
    with pytest.raises(BundleError, match="cannot vote as an ensemble") as caught:
        Translator([mine, other], device="cpu")
    assert "\n" not in str(caught.value)


def test_models_of_other_shapes_can(tiny: MakeRecipe, tmp_path: Path) -> None:
    mine = untrained(tiny(tmp_path, "tokenizer.vocab_size=60"))
    wide = untrained(tiny(tmp_path, "tokenizer.vocab_size=60", "model.d_model=24", "model.norm='post'", "model.num_heads=3"))
    assert len(Translator([mine, wide], device="cpu").translate(["one", "two three"])) == 2


# A model whose numbers are lost


def test_a_model_that_computes_nonsense_does_not_break_the_call(tiny: MakeRecipe, tmp_path: Path) -> None:
    broken = untrained(tiny(tmp_path, "tokenizer.vocab_size=60"))
    broken.model.output.data.fill_(float("nan"))
    for knobs in METHODS.values():
        results = Translator([broken], device="cpu").translate(["one", "", "two"], **knobs)
        assert len(results) == 3
        assert results[1].status == "empty"


# The public face


def test_what_is_promised_is_there() -> None:
    assert sorted(dragoman.__all__) == dragoman.__all__
    for name in dragoman.__all__:
        assert name == "__version__" or getattr(dragoman, name).__module__.startswith("dragoman.")
        assert name in dir(dragoman)
    with pytest.raises(AttributeError, match="module 'dragoman' has no attribute 'nothing'"):
        dragoman.nothing  # noqa: B018


LAZY = """
import sys, json
import dragoman
dragoman.Recipe, dragoman.read_recipe, dragoman.DragomanError, dragoman.load
import dragoman.config, dragoman.errors, dragoman.io.storage, dragoman.viz, dragoman.evaluation.metrics
before = "torch" in sys.modules
dragoman.Translator
print(json.dumps([before, "torch" in sys.modules]))
"""


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True]


def test_recipe_and_story_are_at_hand(translator: Translator, bundle: Path) -> None:
    document = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    assert translator.metadata == document["story"]
    assert translator.recipe.name == "tiny"


def test_the_recipe_of_the_bundle_decides_how_it_decodes(bundle_copy: Path, translator: Translator, lines: list[str]) -> None:
    edit_config(bundle_copy, lambda document: document["recipe"]["decoding"].update(method="greedy"))
    greedy = dragoman.load(bundle_copy, device="cpu", precision="float32")
    assert_alike(greedy.translate(lines), translator.translate(lines, method="greedy"))


def test_hypotheses_come_in_the_order_of_their_sources(translator: Translator) -> None:
    sources = [translator.bundle.tokenizer.encode_source(text) for text in ("one two three four five", "one", "two three")]
    config = translator.resolve_decoding({"method": "greedy"})
    found = generate(as_inference_model(translator.models), sources, config, start_id=2)
    alone = [generate(as_inference_model(translator.models), [source], config, start_id=2)[0] for source in sources]
    assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in alone]
    assert all(isinstance(one, Hypothesis) for some in found for one in some)


def test_load_reads_bundles_alone(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nowhere: there is no such folder"):
        dragoman.load(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="nowhere: there is no such folder"):
        dragoman.load(str(tmp_path / "nowhere"))


def test_a_loaded_bundle_is_ready_to_translate(bundle: Path) -> None:
    model = load_bundle(bundle).model
    assert not model.training
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def test_python_collects_again_once_all_have_loaded() -> None:
    """Several threads may load at once, and one may fail."""
    one, other = _paused_garbage_collection(), _paused_garbage_collection()
    assert gc.isenabled()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    other.__exit__(None, None, None)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), _paused_garbage_collection():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with _paused_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
