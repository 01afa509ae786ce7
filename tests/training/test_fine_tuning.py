"""Fine-tuning: initial weights, frozen layers, new tokens, moments, adapters, KL, interpolation, and exact resumption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import dragoman
import dragoman.training.losses.chunked
from conftest import MakeRecipe, edit_config, reseal
from dragoman.adapter import load_adapter, merge_adapter
from dragoman.bundle import compute_bundle_digest, load_bundle, read_config
from dragoman.config import INITIAL_DIR, ModelConfig, Recipe, make_recipe
from dragoman.data.collate import collate
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.errors import RecipeError
from dragoman.evaluation.bootstrap import paired_bootstrap
from dragoman.experiments.kl_to_initial.loss import kl_regularized_loss
from dragoman.interpolation import interpolate_bundles
from dragoman.io.safetensors import save_tensors
from dragoman.model.factory import build_model
from dragoman.model_packages import find_model
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.initial_model import copy_initial_bundle
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.run import train
from expected_errors import raises_code
from marian_folders import write_folder
from tiny_runs import NO_DROPOUT
from trainers import Recorder, assert_equal_states, assert_equal_tensors, new_trainer, without

pytestmark = pytest.mark.usefixtures("one_core")

FineTune = Callable[..., Recipe]
"""Function of (run folder, "section.key=value" …) that returns a recipe that starts from the trained bundle."""
SHORT = ("training.max_steps=4", "training.warmup_steps=2", "training.keep_last=5", "training.checkpoint_every_steps=2")


@pytest.fixture
def fine_tune(bundle: Path, tiny: MakeRecipe) -> FineTune:
    def make(run: Path, *settings: str) -> Recipe:
        return tiny(run, f"training.init_from='{bundle}'", *SHORT, *settings)

    return make


def bundle_weights(path: Path) -> dict[str, Tensor]:
    return load_file(path / "weights.safetensors")


# The recipe


def test_bundle_gives_tokenizer_and_model_section(bundle: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    changes = {"residual_dropout": 0.25, "attention_window": 8}
    recipe = make_recipe({"training": {"init_from": str(bundle)}, "model": changes, "preset": "paper"})
    base = load_bundle(bundle).recipe
    assert recipe.model == base.model.model_copy(update=changes)
    assert recipe.tokenizer == base.tokenizer
    assert recipe.task == base.task
    assert recipe.decoding == base.decoding
    assert (recipe.size, recipe.preset) == ("tiny", "paper")
    assert recipe.training.batch_tokens == 25000  # of the preset, not of the bundle


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("model.d_ff=64", ("model.d_ff = 64", "has 32")),
        ("tokenizer.model_file='other.model'", ("tokenizer.model_file = 'other.model'", "has no value")),
        ("task.kind='parsing'", ("task.kind = 'parsing'", "has 'translation'")),
        ("size='base'", ("size = 'base'", "has 'tiny'")),
    ],
)
def test_other_structure_than_the_bundle_is_refused(
    setting: str, names: tuple[str, ...], fine_tune: FineTune, tmp_path: Path
) -> None:
    with raises_code("key-conflict", *names, "training.init_from", "drop the key"):
        fine_tune(tmp_path / "run", setting)


def test_init_from_takes_the_name_of_a_model(tmp_path: Path) -> None:
    recipe = make_recipe({"training": {"init_from": "en-de"}, "run": str(tmp_path / "run"), "preset": "modern"})
    folder = find_model("en-de")
    assert folder is not None
    assert recipe.model == read_config(folder)[0].model
    copy_initial_bundle(tmp_path / "run", recipe.training, has_checkpoint=False, notify=lambda text: None)
    assert compute_bundle_digest(tmp_path / "run" / INITIAL_DIR) == compute_bundle_digest(folder)


def test_init_from_needs_a_bundle(trained: Path, bundle_copy: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    with raises_code("bundle-not-found", "training.init_from", str(tmp_path / "nowhere")):
        tiny(tmp_path / "run", f"training.init_from='{tmp_path / 'nowhere'}'")
    with raises_code("bundle-not-found", "is a run folder", str(trained / "bundle")):
        tiny(tmp_path / "run", f"training.init_from='{trained}'")
    with (bundle_copy / "weights.safetensors").open("r+b") as stream:
        stream.truncate(100)
    with raises_code("bundle-damaged", "weights.safetensors"):
        train(tiny(tmp_path / "run", f"training.init_from='{bundle_copy}'"))
    (bundle_copy / "config.json").write_text("{}", encoding="utf-8")
    with raises_code("bundle-damaged", "config.json"):
        tiny(tmp_path / "run", f"training.init_from='{bundle_copy}'")


@pytest.mark.parametrize(
    "setting",
    ["training.freeze=['encoder.*']", "training.kl_to_init=0.5", "training.lora.rank=2", "training.init_optimizer='keep'"],
)
def test_fine_tuning_options_need_init_from(setting: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    with raises_code("invalid-recipe", "needs a bundle to start from"):
        tiny(tmp_path / "run", setting)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (("training.lora.rank=2", "training.freeze=['encoder.*']"), ("lora and freeze",)),
        (("training.lora.rank=2", "training.init_optimizer='keep'"), ("lora and init_optimizer",)),
        (("training.lora.rank=2", "tokenizer.extra_tokens=['<ui>']"), ("'<ui>'", "training.lora")),
        (("tokenizer.extra_tokens=['a b']",), ("tokenizer.extra_tokens", "without spaces")),
        (("tokenizer.extra_tokens=['<ui>', '<ui>']",), ("names a token twice",)),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    settings: tuple[str, ...], names: tuple[str, ...], fine_tune: FineTune, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as raised:
        fine_tune(tmp_path / "run", *settings)
    assert all(name in str(raised.value) for name in names), raised.value


# Initial weights


def test_new_tokens_have_rows_near_the_mean(bundle: Path, fine_tune: FineTune, tmp_path: Path) -> None:
    trainer = new_trainer(fine_tune(tmp_path / "run", "tokenizer.extra_tokens=['<ui>', '⟦0⟧', '<help>']"))
    old, tokenizer = load_bundle(bundle), trainer.prepared.tokenizer
    size = len(old.tokenizer.source)
    assert tokenizer.source.encode("eins <ui>rot ⟦0⟧") == [
        *tokenizer.source.encode("eins "), tokenizer.source.piece_to_id("▁"), size, *_encode_inside(tokenizer.source, "rot"),
        tokenizer.source.piece_to_id("▁"), size + 1,
    ]  # fmt: skip
    assert tokenizer.source.encode("seven big") == old.tokenizer.source.encode("seven big")
    for name, rows in trainer.model.named_parameters():
        known = bundle_weights(bundle)[name]
        assert torch.equal(rows[: len(known)], known), name
        if len(rows) > len(known):
            ordinary = known[4:].double()
            deviations = (rows[size:].detach().double() - ordinary.mean(dim=0)) / ordinary.std(dim=0)
            # Noise of 0.01 standard deviations: 48 draws from N(0, 1) are within 5, and their mean square is near 1.
            assert deviations.abs().max() < 0.05
            assert 0.3 < (deviations / 0.01).square().mean() < 2.5
            assert not torch.equal(rows[size], rows[size + 1])
    assert len(trainer.model.output) == size + 3


def _encode_inside(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the ids of a text that follows another piece without a space."""
    return vocabulary.encode(f"<ui>{text}")[2:]


@pytest.fixture(scope="module")
def more_tokens(bundle: Path, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of one step of fine-tuning with one more token."""
    run = tmp_path_factory.mktemp("tokens") / "run"
    settings = ("training.max_steps=1", "tokenizer.extra_tokens=['<ui>']", *NO_DROPOUT)
    train(without(tiny(run, f"training.init_from='{bundle}'", *settings), "valid", "test"))
    return run / "bundle"


def test_bundle_names_its_origin(bundle: Path, more_tokens: Path) -> None:
    metadata = load_bundle(more_tokens).metadata
    assert (metadata.init_from, metadata.init_digest) == (str(bundle), compute_bundle_digest(bundle))


def test_tokens_of_the_bundle_are_not_added_again(more_tokens: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    first = more_tokens
    recipe = tiny(tmp_path / "run", f"training.init_from='{first}'", "tokenizer.extra_tokens=['<help>', '<ui>']")
    assert recipe.tokenizer.extra_tokens == ["<ui>", "<help>"]
    trainer = new_trainer(recipe)
    size = len(load_bundle(first).tokenizer.source)
    assert [trainer.prepared.tokenizer.source.piece_to_id(token) for token in ("<ui>", "<help>")] == [size - 1, size]
    assert tiny(tmp_path / "other", f"training.init_from='{first}'").tokenizer.extra_tokens == ["<ui>"]


def test_ordinary_piece_is_no_extra_token(bundle: Path, fine_tune: FineTune, tmp_path: Path) -> None:
    tokenizer = load_bundle(bundle).tokenizer.source
    piece = next(piece for piece in tokenizer.ids_to_pieces(range(4, len(tokenizer))) if piece.isalpha() and len(piece) > 1)
    with raises_code("tokenizer-mismatch", f"'{piece}'"):
        new_trainer(fine_tune(tmp_path / "run", f"tokenizer.extra_tokens=['{piece}']"))


def test_converted_bundle_can_be_fine_tuned(corpus: Path, tmp_path: Path) -> None:
    from dragoman.config import make_recipe

    write_folder(tmp_path / "marian")
    dragoman.convert(tmp_path / "marian", tmp_path / "converted")
    files = {"source": str(corpus / "train.en"), "target": str(corpus / "train.de")}
    training = {"init_from": str(tmp_path / "converted"), "max_steps": 1, "batch_tokens": 300, "schedule": "constant"}
    document = {
        "run": str(tmp_path / "run"),
        "data": {"train": files, "max_length": 100},
        "tokenizer": {"extra_tokens": ["<ui>"]},
        "training": training,
    }
    train(make_recipe(document))
    old, new = load_bundle(tmp_path / "converted"), load_bundle(tmp_path / "run" / "bundle")
    assert new.recipe.decoding == old.recipe.decoding
    assert new.tokenizer.source.encode("ab <ui>") == [*old.tokenizer.source.encode("ab "), *new.tokenizer.source.encode("<ui>")]
    assert len(new.tokenizer.source) == len(new.tokenizer.target) == len(old.tokenizer.source) + 1


# Frozen layers and moments


def test_frozen_layers_keep_the_values_of_the_bundle(bundle: Path, fine_tune: FineTune, tmp_path: Path) -> None:
    pattern = "decoder.layers.0.*"
    recipe = fine_tune(tmp_path / "run", f"training.freeze=['{pattern}', '*norm.bias']", "training.weight_decay=0.1")
    train(without(recipe, "valid", "test"))
    old, new = bundle_weights(bundle), bundle_weights(tmp_path / "run" / "bundle")
    frozen = {name for name in old if name.startswith("decoder.layers.0.") or name.endswith("norm.bias")}
    assert {name for name in old if torch.equal(old[name], new[name])} == frozen
    optimizer_state = list_checkpoints(tmp_path / "run" / "checkpoints")[-1].optimizer_state()
    assert {key.rpartition("/")[0] for key in optimizer_state} == old.keys() - frozen


@pytest.mark.parametrize(
    ("setting", "code", "names"),
    [
        ("training.freeze=['encodr.*']", "invalid-option", ("'encodr.*'", "did you mean encoder.*?")),
        ("training.freeze=['*']", "invalid-recipe", ("nothing is left to train",)),
        ("training.lora.targets=['*.attention.qeury']", "invalid-option", ("qeury", "attention.query?")),
    ],
)
def test_patterns_must_match_some_parameters(
    setting: str, code: str, names: tuple[str, ...], fine_tune: FineTune, tmp_path: Path
) -> None:
    with raises_code(code, *names):
        new_trainer(fine_tune(tmp_path / "run", setting))


def test_kept_moments_are_those_of_the_run(trained: Path, fine_tune: FineTune, tmp_path: Path) -> None:
    settings = ("training.init_optimizer='keep'", "tokenizer.extra_tokens=['<ui>']")
    trainer = new_trainer(fine_tune(tmp_path / "run", *settings))
    expected = list_checkpoints(trained / "checkpoints")[-1].optimizer_state()
    state = trainer.train_state.gather_state().optimizer
    assert state.keys() == expected.keys()
    for key, value in state.items():
        rows = value[: len(expected[key])] if value.dim() else value
        assert torch.equal(rows, expected[key]), key
        if value.dim():
            assert not value[len(expected[key]) :].any(), key  # zeros for the new token


def test_kept_moments_need_the_run(bundle_copy: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    with raises_code("checkpoint-not-found", "training.init_optimizer", "'fresh'"):
        new_trainer(tiny(tmp_path / "run", f"training.init_from='{bundle_copy}'", "training.init_optimizer='keep'"))


# Resumption

VARIANTS = {
    "kl": ("training.kl_to_init=0.5", "training.freeze=['encoder.*']", "tokenizer.extra_tokens=['<ui>']"),
    "lora": ("training.lora.rank=2", "training.kl_to_init=0.5", "training.ema_decay=0.9"),
    "keep": ("training.init_optimizer='keep'",),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_fine_tuning_equals_unbroken_run(
    variant: str, trained: Path, tiny: MakeRecipe, fine_tune: FineTune, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(trained, tmp_path / "source"))
    new_trainer(fine_tune(tmp_path / "unbroken", *VARIANTS[variant])).run()
    settings = (f"training.init_from='{source / 'bundle'}'", *SHORT, *VARIANTS[variant])
    with raises_code("interrupted"):
        new_trainer(tiny(tmp_path / "run", *settings), Recorder(stop_after=1)).run()
    shutil.rmtree(source)  # nothing reads the bundle again
    with raises_code("interrupted"):
        new_trainer(tiny(tmp_path / "run", *settings), Recorder(stop_after=2)).run()
    recorder = Recorder()
    new_trainer(tiny(tmp_path / "run", *settings), recorder).run()
    assert recorder.num_steps == 1
    runs = (tmp_path / "run", tmp_path / "unbroken")
    mine, theirs = (list_checkpoints(run / "checkpoints")[-1] for run in runs)
    assert_equal_states(mine, theirs)


def test_run_that_stopped_before_its_first_step_starts_again(bundle_copy: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", f"training.init_from='{bundle_copy}'", *SHORT)
    new_trainer(recipe)
    weights = bundle_weights(bundle_copy)
    shutil.rmtree(bundle_copy)
    trainer = new_trainer(tiny(tmp_path / "run", f"training.init_from='{bundle_copy}'", *SHORT))
    assert_equal_tensors(dict(trainer.model.named_parameters()), weights)


def test_resume_with_another_bundle_is_refused(bundle_copy: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", f"training.init_from='{bundle_copy}'", *SHORT)
    with raises_code("interrupted"):
        new_trainer(recipe, Recorder(stop_after=1)).run()
    edit_config(bundle_copy, lambda config: config["metadata"].update(steps=1))
    new_trainer(recipe)  # the metadata is no part of the model
    weights = bundle_weights(bundle_copy)
    weights["output" if "output" in weights else "encoder.embedding.weight"][5] += 1.0
    save_tensors(bundle_copy / "new", weights)
    (bundle_copy / "new").replace(bundle_copy / "weights.safetensors")
    reseal(bundle_copy)
    with raises_code("recipe-changed", "another bundle", str(bundle_copy)):
        new_trainer(recipe)
    with raises_code("recipe-changed", "training.init_from"):
        new_trainer(tiny(tmp_path / "run", f"training.init_from='{tmp_path / 'run' / INITIAL_DIR}'", *SHORT))


# KL regularization


@pytest.mark.parametrize("chunk_logits", [40, 2**22], ids=lambda logits: f"{logits} logits in a chunk")
@pytest.mark.parametrize("form", ["uniform", "exclude_target", "exclude_target_and_pad"])
def test_kl_loss_has_the_gradient_of_its_formula(
    form: str, chunk_logits: int, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is float64: the smoothed loss, and weight · Σ p_old · (log p_old − log p_new), by autograd."""
    monkeypatch.setattr(dragoman.training.losses.chunked, "CPU_CHUNK_LOGITS", chunk_logits)
    batch = collate([[5, 6, 7, 3], [8, 3]], [[9, 10, 11], [12]], start_id=2)
    model, initial = (load_bundle(bundle).model for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    loss, nll = kl_regularized_loss(model, initial, batch, epsilon=0.1, smoothing_mode=form, weight=0.7)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}

    exact, exact_initial = load_bundle(bundle).model.double(), initial.double()
    with torch.no_grad():
        for parameter, other in zip(exact.parameters(), model.parameters(), strict=True):
            parameter.copy_(other)
    is_real = batch.find_nonpad_positions()
    log_probs, old_log_probs = (
        net(batch.source_BS, batch.inputs_BT).flatten(0, 1)[is_real].log_softmax(dim=-1) for net in (exact, exact_initial)
    )
    targets = batch.targets_BT.flatten()[is_real]
    vocab_size = log_probs.shape[1]
    share = 0.1 / (vocab_size - {"uniform": 0, "exclude_target": 1, "exclude_target_and_pad": 2}[form])
    q = torch.full_like(log_probs, share).detach()
    q[:, 0] = 0.0 if form == "exclude_target_and_pad" else share
    q[torch.arange(len(targets)), targets] = 0.9 + (share if form == "uniform" else 0.0)
    divergence = (old_log_probs.exp() * (old_log_probs - log_probs)).sum()
    expected = -(q * log_probs).sum() + 0.7 * divergence
    expected.backward()
    assert divergence > 0.01
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(nll.double(), -log_probs.gather(1, targets[:, None]).sum(), rtol=1e-5, atol=0)
    for name, parameter in exact.named_parameters():
        assert parameter.grad is not None
        gradient = gradients[name]
        assert gradient is not None
        torch.testing.assert_close(gradient.double(), parameter.grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("smoothing_mode", ["uniform", "exclude_target"])
def test_frozen_output_matrix_leaves_other_gradients_unchanged(smoothing_mode: str) -> None:
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, num_heads=2, tie_embeddings="none")
    batch = collate([[5, 6], [7]], [[6, 5, 7], [8, 6]], start_id=2)
    model = build_model(config, source_vocab_size=9, target_vocab_size=11).eval()
    gradients = []
    for is_frozen in (False, True):
        model.zero_grad()
        model.output.requires_grad_(not is_frozen)
        loss, _ = batch_loss(model, batch, epsilon=0.1, smoothing_mode=smoothing_mode)
        torch.autograd.backward(loss)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].pop("output").abs().sum() > 0
    assert_equal_tensors(gradients[1], gradients[0])


def test_kl_keeps_the_model_near_the_bundle(bundle: Path, fine_tune: FineTune, tmp_path: Path) -> None:
    batch = collate([[5, 6, 7, 3]], [[9, 10, 11]], start_id=2)
    old = load_bundle(bundle).model(batch.source_BS, batch.inputs_BT).log_softmax(dim=-1)
    divergences = []
    for weight in (0, 100):
        trainer = new_trainer(
            fine_tune(tmp_path / f"kl-{weight}", f"training.kl_to_init={weight}", "training.label_smoothing=0.6", *NO_DROPOUT)
        )
        trainer.run()
        new = trainer.model.eval()(batch.source_BS, batch.inputs_BT).log_softmax(dim=-1)
        divergences.append((old.exp() * (old - new)).sum().item())
    assert 0 < divergences[1] < divergences[0] / 2


# Low-rank adapters


@pytest.fixture(scope="module")
def lora_run(bundle: Path, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("lora") / "run"
    settings = ("training.lora.rank=2", "training.lora.alpha=6", "training.lora.targets=['*attention.query', '*inner']")
    train(without(tiny(run, f"training.init_from='{bundle}'", *SHORT, *settings, "training.peak_lr=0.05"), "valid", "test"))
    return run


def test_adapter_trains_only_its_matrices(bundle: Path, lora_run: Path) -> None:
    weights, base = list_checkpoints(lora_run / "checkpoints")[-1].weights(), bundle_weights(bundle)
    adapter = load_adapter(lora_run / "adapter")
    assert_equal_tensors({name: weights[name] for name in base}, base)
    assert weights.keys() - base.keys() == adapter.weights.keys()
    # Four attentions and two feed-forward networks, of which three are in the decoder.
    names = {name.rpartition(".")[0] for name in adapter.weights}
    assert names == {
        "encoder.layers.0.attention.query", "decoder.layers.0.attention.query", "decoder.layers.0.cross_attention.query",
        "encoder.layers.0.feed_forward.inner", "decoder.layers.0.feed_forward.inner",
    }  # fmt: skip
    assert {tuple(weight.shape) for name, weight in adapter.weights.items() if name.endswith("lora_a")} == {(2, 16)}
    state = list_checkpoints(lora_run / "checkpoints")[-1].optimizer_state()
    assert {key.rpartition("/")[0] for key in state} == adapter.weights.keys()


def test_merged_adapter_is_the_bundle_of_the_run(bundle: Path, lora_run: Path, tmp_path: Path) -> None:
    merge_adapter(bundle, lora_run / "adapter", tmp_path / "merged")
    merged, base, adapter = bundle_weights(tmp_path / "merged"), bundle_weights(bundle), load_adapter(lora_run / "adapter")
    assert_equal_tensors(merged, bundle_weights(lora_run / "bundle"))
    name = "decoder.layers.0.cross_attention.query"
    product = torch.from_numpy(adapter.weights[f"{name}.lora_b"] @ adapter.weights[f"{name}.lora_a"]).double()
    expected = base[f"{name}.weight"].double() + 6.0 / 2.0 * product
    torch.testing.assert_close(merged[f"{name}.weight"].double(), expected, rtol=1e-5, atol=1e-6)
    assert product.abs().max() > 1e-3
    assert load_bundle(tmp_path / "merged").metadata.adapter == str(lora_run / "adapter")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_adapter_is_chosen_by_call(precision: str, bundle: Path, lora_run: Path) -> None:
    paths: dict[str, str | Path] = {"ui": lora_run / "adapter", "help": str(lora_run / "adapter")}
    translator = dragoman.load(bundle, task="translation", device="cpu", precision=precision, adapters=paths)
    base = dragoman.load(bundle, task="translation", device="cpu", precision=precision)
    merged = dragoman.load(lora_run / "bundle", task="translation", device="cpu", precision=precision)
    texts = ["one red seven", "big blue"]
    options: Any = {"beam_size": 2, "max_extra_tokens": 5}
    for name, expected in ((None, base), ("ui", merged), ("help", merged), (None, base)):
        results = translator.translate(texts, adapter=name, **options)
        scores = [result.score for result in expected.translate(texts, **options)]
        assert [result.score for result in results] == scores
    assert translator.score(texts, texts)[0].score != translator.with_adapter("ui").score(texts, texts)[0].score
    assert [result.text for result in translator.stream(texts, adapter="ui")] == [
        result.text for result in merged.translate(texts)
    ]
    shared = translator.with_adapter("ui").models[0].output
    assert shared.data_ptr() == translator.models[0].output.data_ptr()


def test_unknown_adapter_is_refused(bundle: Path, lora_run: Path) -> None:
    translator = dragoman.load(bundle, task="translation", device="cpu", adapters={"ui": lora_run / "adapter"})
    with raises_code("invalid-option", "'uu'", "did you mean ui?"):
        translator.translate(["one"], adapter="uu")
    with raises_code("invalid-option", "no adapter was loaded"):
        translator.with_adapter("ui").translate(["one"], adapter="ui")


def test_adapter_of_another_base_is_refused(bundle: Path, lora_run: Path, tmp_path: Path) -> None:
    other = lora_run / "bundle"
    for action in (
        lambda: merge_adapter(other, lora_run / "adapter", tmp_path / "merged"),
        lambda: dragoman.load(other, adapters={"ui": lora_run / "adapter"}),
    ):
        with raises_code("adapter-mismatch", str(lora_run / "adapter"), str(other)):
            action()
    with raises_code("adapter-mismatch", "ensemble"):
        dragoman.load(bundle, other, adapters={"ui": lora_run / "adapter"})
    with raises_code("bundle-not-found", f"give {lora_run / 'adapter'}"):
        load_adapter(lora_run)
    damaged = Path(shutil.copytree(lora_run / "adapter", tmp_path / "adapter"))
    document = json.loads((damaged / "adapter.json").read_text(encoding="utf-8"))
    (damaged / "adapter.json").write_text(json.dumps(document | {"lora": {"rank": 0}}), encoding="utf-8")
    reseal(damaged)
    with raises_code("bundle-damaged", str(damaged)):
        load_adapter(damaged)


# Interpolation


def test_interpolation_is_the_weighted_mean(bundle: Path, lora_run: Path, tmp_path: Path) -> None:
    shares = interpolate_bundles([bundle, lora_run / "bundle"], tmp_path / "both", shares=[0.75, 0.25])
    first, second, both = (bundle_weights(path) for path in (bundle, lora_run / "bundle", tmp_path / "both"))
    for name, weight in both.items():
        expected = (0.75 * first[name].double() + 0.25 * second[name].double()).float()
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)
    assert load_bundle(tmp_path / "both").metadata.interpolated_bundles == shares
    interpolate_bundles([bundle, lora_run / "bundle"], tmp_path / "equal")
    name = "encoder.layers.0.attention.query.weight"
    expected = ((first[name].double() + second[name].double()) / 2).float()
    assert torch.equal(bundle_weights(tmp_path / "equal")[name], expected)


def test_interpolation_needs_equal_structures(bundle: Path, more_tokens: Path, bundle_copy: Path, tmp_path: Path) -> None:
    with raises_code("structure-mismatch", "another tokenizer", str(more_tokens)):
        interpolate_bundles([bundle, more_tokens], tmp_path / "out")
    edit_config(bundle_copy, lambda config: config["recipe"]["model"].update(norm_epsilon=1e-3))
    with raises_code("structure-mismatch", "model.norm_epsilon = 0.001", "has 1e-06"):
        interpolate_bundles([bundle, bundle_copy], tmp_path / "out")
    with raises_code("invalid-option", "given twice"):
        interpolate_bundles([bundle, bundle], tmp_path / "out")
    for shares, problem in (([1.0], "1 are given for 2"), ([0.7, 0.7], "sum 1"), ([1.5, -0.5], "from 0 to 1")):
        with raises_code("invalid-option", problem):
            interpolate_bundles([bundle, bundle_copy], tmp_path / "out", shares=shares)
    assert not (tmp_path / "out").exists()


# Report


def test_report_compares_with_the_initial_model(trained: Path, fine_tune: FineTune, tmp_path: Path) -> None:
    recipe = fine_tune(tmp_path / "run", "training.max_steps=2", "training.peak_lr=0.1")
    test = recipe.data.test
    data = {"valid": None, "test": None, "test_corpora": {"old": test, "new": recipe.data.valid}}
    report = train(recipe.model_copy(update={"data": recipe.data.model_copy(update=data)}))
    assert list(report["test_sets"]) == ["old", "new"]
    base_report = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    old = report["test_sets"]["old"]
    assert {metric: change["before"] for metric, change in old["changes"].items()} == {
        metric: base_report[metric] for metric in ("bleu", "chrf")
    }
    assert {metric: change["after"] for metric, change in old["changes"].items()} == {
        metric: old["scores"][metric] for metric in ("bleu", "chrf")
    }
    assert report["bleu"] == old["scores"]["bleu"]  # the scores at the top level are those of the first set
    assert (old["sentences"], old["is_small"]) == (8, True)
    new, initial = (
        (tmp_path / "run" / name).read_text(encoding="utf-8").splitlines()
        for name in ("translations.new.txt", "translations.new.initial.txt")
    )
    references = (Path(recipe.data.root) / "valid.de").read_text(encoding="utf-8").splitlines()
    expected = paired_bootstrap(new, initial, [references], metric="chrf")
    change = report["test_sets"]["new"]["changes"]["chrf"]
    assert change["difference"] == pytest.approx(expected.difference, abs=0.01)
    assert (change["low"], change["high"]) == pytest.approx(expected.interval, abs=0.01)
    assert change["p_value"] == pytest.approx(expected.p_value, abs=1e-4)
    assert new != initial
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "before and after fine-tuning" in page
    assert f"{change['low']:+.2f} to {change['high']:+.2f}" in page
