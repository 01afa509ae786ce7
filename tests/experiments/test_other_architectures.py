"""Training, searches, alignments and exports with layers other than the Transformer's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.bundle import load_bundle
from dragoman.config import ModelConfig
from dragoman.data.collate import collate
from dragoman.errors import BundleError, DeviceError, RecipeError
from dragoman.experiments.experts.layer import record_balance_losses
from dragoman.experiments.experts.loss import add_load_balancing
from dragoman.export.argos import export_argos
from dragoman.export.ctranslate2 import export_ctranslate2
from dragoman.export.huggingface import export_huggingface
from dragoman.export.onnx import export_onnx
from dragoman.inference.explain.explain_translation import explain
from dragoman.inference.translator import Translator
from dragoman.model.factory import build_model
from dragoman.training.distributed.parallelize import ModelLoss, load_full_weights
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.viz.attention_page import render_attention_page

GNMT = ["encoder_mixer=recurrent", "decoder_mixer=recurrent", "cross_attention=first", "feed_forward=moe", "num_experts=4",
        "attention_score=additive", "normalization=batch", "decoder_layers=2"]  # fmt: skip
BYTENET = ["encoder_mixer=dilated", "decoder_mixer=dilated", "cross_attention=unfold", "norm=pre", "position_encoding=none"]


def make_config(**keys: Any) -> ModelConfig:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2}
    return ModelConfig.model_validate(sizes | keys)


def train_tiny(tiny: Any, folder: Path, keys: list[str]) -> Path:
    settings = [f"model.{key}" for key in keys]
    dragoman.train(tiny(folder, *settings, "training.max_steps=4", "training.checkpoint_every_steps=2"))
    return folder / "bundle"


def load_translator(bundle_path: Path) -> Translator:
    translator = dragoman.load(bundle_path)
    assert isinstance(translator, Translator)
    return translator


@pytest.mark.slow
def test_recurrent_model_trains_translates_and_aligns(tiny: Any, tmp_path: Path) -> None:
    bundle_path = train_tiny(tiny, tmp_path / "run", GNMT)
    bundle = load_bundle(bundle_path)
    assert bundle.recipe.model.find_unusual_layers()
    statistics = dict(bundle.model.named_buffers())["encoder.layers.0.mixer_residual.norm.running_mean"]
    assert statistics.abs().sum() > 0  # running statistics are in the bundle
    translator = load_translator(bundle_path)
    for decoding in ({"method": "greedy"}, {"method": "beam", "beam_size": 3}, {"method": "sample", "seed": 1}):
        assert len(translator.translate(["one red two", "big"], **decoding)) == 2
    assert translator.align(["one red"], ["eins rot"])
    explanation = explain(translator, "one red two")
    assert explanation.kinds == ("cross",)
    assert explanation.cross.shape[0] == 1
    assert "attention_score = 'additive'" in " ".join(explanation.notes)
    assert 'data-kind="cross"' in render_attention_page(explanation)
    with pytest.raises(DeviceError, match=r"leave precision out|choose float32 or int8"):
        dragoman.load(bundle_path, precision="bfloat16")
    exports = ((export_onnx, "onnx"), (export_ctranslate2, "ct2"), (export_huggingface, "hf"), (export_argos, "x.argosmodel"))
    for export, name in exports:
        with pytest.raises(BundleError, match="has the layers of the Transformer only"):
            export(bundle, tmp_path / name)


@pytest.mark.slow
def test_model_without_attention_has_no_alignments(tiny: Any, tmp_path: Path) -> None:
    bundle_path = train_tiny(tiny, tmp_path / "run", BYTENET)
    translator = load_translator(bundle_path)
    assert len(translator.translate(["one red two"])) == 1
    with pytest.raises(BundleError, match="no attention to the source") as error:
        translator.align(["one red"], ["eins rot"])
    assert error.value.code == "no-cross-attention"
    with pytest.raises(BundleError, match="nothing to show"):
        explain(translator, "one red two")


def test_tasks_without_their_layers_give_one_line(
    subtests: pytest.Subtests, tiny: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for settings, problem in [
        (["training.guided_alignment_weight=0.1", *(f"model.{key}" for key in BYTENET)], "guided_alignment_weight needs"),
        (
            ["decoding.coverage_penalty=0.1", *(f"model.{key}" for key in BYTENET)],
            "coverage_penalty = 0.1 needs cross-attention",
        ),
        (
            ["decoding.replace_unknowns=true", *(f"model.{key}" for key in BYTENET)],
            "replace_unknowns = true needs cross-attention",
        ),
        (
            ["training.alignment_layer=2", "training.guided_alignment_weight=0.1", *(f"model.{key}" for key in GNMT)],
            "the decoder has 1; give 1$",
        ),
        (["training.parallel=fsdp", "model.normalization=batch"], "set parallel = 'ddp'"),
    ]:
        with subtests.test(settings=settings, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(RecipeError, match=problem) as error:
                tiny(tmp_path, *settings)
            assert "\n" not in str(error.value)


def test_load_balancing_enters_the_loss() -> None:
    """The loss of the gates is added once for each target token (Shazeer et al. 2017, equations 7 and 11)."""
    torch.manual_seed(0)
    config = make_config(feed_forward="moe", num_experts=4)
    model = build_model(config, source_vocab_size=12, target_vocab_size=12)
    batch = collate([[5, 6, 7], [8, 9]], [[4, 5], [6]], start_id=2)
    sums = []
    for weight in (0.0, 0.5):
        torch.manual_seed(1)
        smoothed_loss = partial(batch_loss, epsilon=0.1, smoothing_mode="uniform")
        loss = ModelLoss(model, add_load_balancing(smoothed_loss, weight))
        sums.append(loss(batch))
    torch.manual_seed(1)
    with record_balance_losses(model) as losses:
        model(batch.source_BS, batch.inputs_BT)
    num_tokens = int((batch.targets_BT != 0).sum())
    added = 0.5 * num_tokens * float(sum(losses).detach())  # type: ignore[union-attr]
    assert len(losses) == 2
    assert float((sums[1][0] - sums[0][0]).detach()) == pytest.approx(added, rel=1e-4)
    assert torch.equal(sums[0][1], sums[1][1])


def test_rollback_restores_running_statistics() -> None:
    torch.manual_seed(0)
    config = make_config(normalization="batch")
    model = build_model(config, source_vocab_size=12, target_vocab_size=12)
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(torch.tensor([[5, 6]]), torch.tensor([[2, 5]]))
    name = "encoder.layers.0.attention_residual.norm.running_mean"
    assert not torch.equal(dict(model.named_buffers())[name], saved[name])
    load_full_weights(model, saved | {"output": model.output, **dict(model.named_parameters())})
    assert torch.equal(dict(model.named_buffers())[name], saved[name])
