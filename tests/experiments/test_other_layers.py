"""Scores of attention, normalizations, residual connections and mixtures of experts against plain formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.experiments.attention_scores.scores import (
    AdditiveScore,
    AttentionScore,
    DotScore,
    MultiplicativeScore,
    ScoredAttention,
)
from dragoman.experiments.experts.layer import (
    NOISE_EPSILON,
    Experts,
    compute_gates,
    compute_load,
    record_balance_losses,
    squared_variation,
)
from dragoman.experiments.normalization.layers import BatchNorm, ScaledPostNorm, ScaledPreNorm, WeightNormLinear
from dragoman.model.attention import Attention
from dragoman.model.factory import build_model
from dragoman.model.layers import FeedForward
from dragoman.model.lora import add_adapters, find_linears
from dragoman.model.masks import causal_mask
from dragoman.model.transformer import Transformer
from random_tensors import noise
from table2_models import make_system_config

pytestmark = pytest.mark.usefixtures("one_core")

CPU = torch.device("cpu")


def make_model(**changes: Any) -> Transformer:
    keys = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "residual_dropout": 0.0}
    torch.manual_seed(0)
    return build_model(ModelConfig(**{**keys, "embedding_dropout": 0.0, **changes}), source_vocab_size=11, target_vocab_size=11)


# Scores


def make_score(name: str) -> AttentionScore:
    torch.manual_seed(3)
    match name:
        case "dot":
            return DotScore()
        case "additive":
            return AdditiveScore(num_heads=2, d_k=4)
        case _:
            return MultiplicativeScore(num_heads=2, d_k=4)


def plain_score(name: str, score: Any, query_K: Tensor, key_K: Tensor, head: int) -> float:
    match name:
        case "dot":
            return sum(float(q * k) for q, k in zip(query_K, key_K, strict=True))
        case "additive":
            return sum(float(v * torch.tanh(q + k)) for v, q, k in zip(score.weight[head], query_K, key_K, strict=True))
        case _:
            return float(query_K @ score.weight[head] @ key_K)


@pytest.mark.parametrize("name", ["dot", "additive", "multiplicative"])
@torch.no_grad()
def test_scores_equal_their_formulas(name: str) -> None:
    score, query, key = make_score(name), noise(2, 2, 3, 4), noise(2, 2, 5, 4, seed=3)
    result = score(query, key)
    assert result.shape == (2, 2, 3, 5)
    for b, h, t, s in ((0, 0, 0, 0), (1, 0, 2, 4), (0, 1, 1, 3), (1, 1, 2, 0)):
        assert float(result[b, h, t, s]) == pytest.approx(plain_score(name, score, query[b, h, t], key[b, h, s], h), abs=1e-5)


@pytest.mark.parametrize("name", ["dot", "additive", "multiplicative"])
@torch.no_grad()
def test_attention_uses_its_score(name: str) -> None:
    torch.manual_seed(0)
    score = make_score(name)
    attention = ScoredAttention(d_model=8, num_heads=2, d_k=4, d_v=3, bias=False, dropout=0.0, score=score)
    x_BTD, mask = noise(2, 4, 8), causal_mask(4, 4, device=CPU)
    query, key_value = attention.project_qkv(x_BTD)
    weights = score(query, key_value.key).masked_fill(~mask, float("-inf")).softmax(-1)
    expected = attention.output((weights @ key_value.value).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(attention.attend(query, key_value, mask), expected, rtol=0, atol=1e-6)


def test_scaled_dot_score_is_dot_score_over_sqrt_d_k() -> None:
    """Section 3.2.1: an attention without the factor is that of queries that are √d_k times as long."""
    torch.manual_seed(0)
    keys: dict[str, Any] = {"d_model": 8, "num_heads": 2, "d_k": 4, "d_v": 4, "bias": False, "dropout": 0.0}
    attentions = [Attention(**keys), ScoredAttention(**keys, score=DotScore())]
    attentions[1].load_state_dict(attentions[0].state_dict())
    query, key_value = attentions[0].project_qkv(noise(2, 5, 8))
    scaled, plain = (
        attention.attend(factor * query, key_value, None)
        for attention, factor in zip(attentions, (math.sqrt(4), 1.0), strict=True)
    )
    torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-6)


# Normalization and residual connections


def test_batch_norm_equals_torch_on_real_tokens() -> None:
    module, reference = BatchNorm(4, eps=1e-5), nn.BatchNorm1d(4, eps=1e-5)
    x_BTD, token_mask_BT = noise(3, 5, 4), torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    for _ in range(2):
        module.token_mask_BT = token_mask_BT
        result, expected = module(x_BTD), reference(x_BTD[token_mask_BT])
        torch.testing.assert_close(result[token_mask_BT], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(module.running_mean, reference.running_mean)
    torch.testing.assert_close(module.running_var, reference.running_var)
    evaluated = module.eval()(x_BTD)
    torch.testing.assert_close(evaluated.flatten(0, 1), reference.eval()(x_BTD.flatten(0, 1)), rtol=0, atol=1e-5)


def test_batch_statistics_leave_padding_out() -> None:
    model = make_model(normalization="batch").train()
    source_BS, inputs_BT = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.tensor([[0, 6], [0, 4]])
    short = model(source_BS, inputs_BT)
    model = make_model(normalization="batch").train()
    padded = model(F.pad(source_BS, (0, 4)), F.pad(inputs_BT, (0, 3)))
    torch.testing.assert_close(padded[:, :2], short, rtol=0, atol=1e-5)


def test_weight_norm_equals_torch() -> None:
    torch.manual_seed(0)
    module, x_BI = WeightNormLinear(5, 3, bias=True), noise(4, 5)
    plain = F.linear(x_BI, module.weight, module.bias)
    torch.testing.assert_close(module(x_BI), plain, rtol=0, atol=1e-6)  # the gain begins with the norm
    with torch.no_grad():
        module.weight.mul_(7.0)
    torch.testing.assert_close(module(x_BI), plain, rtol=0, atol=1e-6)  # the length of V has no effect


def test_weight_normalization_reaches_every_linear_layer() -> None:
    model = make_model(normalization="weight")
    linears = [module for layer in (*model.encoder.layers, *model.decoder.layers) for module in layer.modules()]
    assert {type(module) for module in linears if isinstance(module, nn.Linear)} == {WeightNormLinear}
    assert not any(isinstance(module, nn.LayerNorm) for module in linears)


@pytest.mark.parametrize("residual_class", [ScaledPostNorm, ScaledPreNorm])
def test_residual_switches_match_their_equations(residual_class: type[ScaledPostNorm]) -> None:
    x, y = noise(2, 3, 4), noise(2, 3, 4, seed=5)
    keys: dict[str, Any] = {"norm": nn.Identity(), "dropout": 0.0}
    assert torch.equal(residual_class(**keys, residual=True, scale=1.0)(x, y), x + y)
    assert torch.equal(residual_class(**keys, residual=False, scale=1.0)(x, y), y)
    assert torch.equal(residual_class(**keys, residual=True, scale=0.5)(x, y), (x + y) * 0.5)
    assert torch.equal(residual_class(**keys, residual=True, scale=1.0).sublayer_input(x), x)


def test_model_without_residuals_and_norms_computes_sublayers_alone() -> None:
    model = make_model(residual=False, normalization="none", feed_forward="none", encoder_layers=1).eval()
    source_BS = torch.tensor([[3, 4, 5]])
    attention = model.encoder.get_submodule("layers.0.attention")
    assert isinstance(attention, Attention)
    query, key_value = attention.project_qkv(model.encoder.embedding(source_BS))
    torch.testing.assert_close(model.encoder(source_BS), attention.attend(query, key_value, None), rtol=0, atol=1e-6)
    assert sum(parameter.numel() for parameter in model.encoder.layers.parameters()) == 4 * 16 * 16


# Initial weights


@pytest.mark.parametrize(("d_model", "limit"), [(16, 0.32), (64, 0.16), (1024, 0.04)])
def test_gnmt_weights_are_within_its_limit(d_model: int, limit: float) -> None:
    """Wu et al. 2016, section 8.3: ±0.04 at a width of 1024. A product has the same variance at another width."""
    keys: dict[str, Any] = {"encoder_mixer": "recurrent", "normalization": "none", "encoder_layers": 1, "decoder_layers": 1}
    model = make_model(initialization="gnmt", d_model=d_model, **keys)
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 2 or parameter.shape == (64,)]
    assert all(0.75 * limit < float(weight.detach().abs().max()) <= limit for weight in weights)


@pytest.mark.parametrize("system", ["gnmt", "moe"])
def test_attention_gets_a_gradient_of_the_same_size_at_each_width(system: str) -> None:
    """Compare widths of 64 and 256. A limit of 0.04 at both makes the first gradient a thirtieth of the second one."""
    generator = torch.Generator().manual_seed(1)
    source_BS, inputs_BT, targets_BT = (torch.randint(3, 200, (8, 9), generator=generator) for _ in range(3))
    sizes = []
    for d_model in (64, 256):
        torch.manual_seed(0)
        model = build_model(make_system_config(system, d_model=d_model), source_vocab_size=200, target_vocab_size=200)
        F.cross_entropy(model(source_BS, inputs_BT).mT, targets_BT).backward()  # type: ignore[no-untyped-call]
        gradient = model.decoder.get_parameter("layers.0.cross_attention.key.weight").grad
        assert gradient is not None
        sizes.append(float(gradient.norm()))
    assert sizes[0] > 0.5 * sizes[1]


def test_convs2s_weights_have_its_standard_deviation() -> None:
    """Gehring et al. 2017, section 3.5: √(4p/n) before a gated unit, with p = 1 − dropout, and √(1/n) elsewhere."""
    model = make_model(
        initialization="convs2s", encoder_mixer="convolution", d_model=64, activation_dropout=0.2, feed_forward="none"
    )
    model.requires_grad_(False)
    convolution = model.encoder.get_parameter("layers.0.mixer.convolution.linear.weight")
    assert float(convolution.std()) == pytest.approx(math.sqrt(4 * 0.8 / (3 * 64)), rel=0.03)
    assert float(model.decoder.get_parameter("layers.0.attention.query.weight").std()) == pytest.approx(64**-0.5, rel=0.05)
    assert float(model.output.std()) == pytest.approx(0.1, rel=0.1)
    learned = make_model(initialization="convs2s", encoder_mixer="convolution", d_model=64, position_encoding="learned")
    with torch.no_grad():
        assert float(learned.encoder.embedding.positions(0, 200).std()) == pytest.approx(0.1, rel=0.1)


# Mixtures of experts


def make_experts(num_experts: int = 5, num_active: int = 2) -> Experts:
    torch.manual_seed(0)
    networks = [FeedForward(d_model=6, d_ff=8, dropout=0.0) for _ in range(num_experts)]
    return Experts(d_model=6, experts=networks, num_active=num_active)


@torch.no_grad()
def test_experts_equal_a_plain_loop() -> None:
    module, x_BTD = make_experts().eval(), noise(2, 4, 6)
    result = module(x_BTD)
    for sentence in range(2):
        for position in range(4):
            x_D = x_BTD[sentence, position]
            logits = module.gate(x_D)
            chosen = sorted(range(5), key=lambda expert: -float(logits[expert]))[:2]
            gates = logits[chosen].softmax(0)
            expected = sum(gate * module.experts[expert](x_D[None])[0] for gate, expert in zip(gates, chosen, strict=True))
            torch.testing.assert_close(result[sentence, position], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_load_is_the_chance_of_being_chosen() -> None:
    """Compare with 20,000 new draws of one gate's noise while the other gates keep theirs (equation 8)."""
    clean, std = noise(1, 4), noise(1, 4, seed=7).abs() + 0.3
    noisy = clean + noise(1, 4, seed=8) * std
    load = compute_load(clean, noisy, std, 2)
    for expert in range(4):
        draws = noisy.repeat(20_000, 1)
        draws[:, expert] = clean[0, expert] + noise(20_000, seed=9 + expert) * std[0, expert]
        share = (compute_gates(draws, 2)[:, expert] > 0).double().mean()
        assert float(load[0, expert]) == pytest.approx(float(share), abs=0.015)
    assert torch.equal(compute_load(clean, noisy, std, 4), torch.ones(1, 4))


def test_balance_loss_is_zero_for_equal_loads() -> None:
    assert float(squared_variation(torch.tensor([3.0, 3.0, 3.0]))) == 0.0
    assert float(squared_variation(torch.tensor([0.0, 0.0, 6.0]))) == pytest.approx(2.0)  # variance 8, mean 2


def test_balance_loss_is_recorded_in_training_only() -> None:
    module, x_BTD = make_experts(), noise(2, 4, 6)
    with record_balance_losses(module) as losses:
        module(x_BTD)
        module.eval()(x_BTD)
    assert len(losses) == 1
    assert module.balance_losses is None


def test_balance_loss_leaves_padding_out() -> None:
    x_BTD, token_mask_BT = noise(1, 6, 6), torch.tensor([[True] * 4 + [False] * 2])
    recorded = []
    for last in (x_BTD, torch.cat([x_BTD[:, :4], 5 * x_BTD[:, 4:]], dim=1)):
        module = make_experts().train()
        torch.manual_seed(1)
        with record_balance_losses(module) as losses:
            module.token_mask_BT = token_mask_BT
            module(last)
        recorded.append(losses[0])
    torch.testing.assert_close(recorded[0], recorded[1])


def test_gates_begin_with_equal_chances() -> None:
    model = make_model(feed_forward="moe", num_experts=4)
    experts = model.encoder.get_submodule("layers.0.feed_forward")
    assert isinstance(experts, Experts)
    assert not experts.gate.weight.any()
    assert not experts.noise.weight.any()
    std = math.log(2) + NOISE_EPSILON  # softplus(0) = ln 2
    load = compute_load(torch.zeros(1, 4), torch.tensor([[1.0, 0.5, 0.0, -1.0]]), torch.full((1, 4), std), 2)
    assert load[0].tolist() == pytest.approx(
        [0.5 * (1 + math.erf(-threshold / std / math.sqrt(2))) for threshold in (0.0, 0.0, 0.5, 0.5)], abs=1e-6
    )


def test_adapters_change_nothing_in_other_layers() -> None:
    model = make_model(encoder_mixer="recurrent", decoder_mixer="convolution", feed_forward="moe").eval()
    source_BS, inputs_BT = torch.tensor([[3, 4, 5]]), torch.tensor([[2, 6]])
    before = model(source_BS, inputs_BT)
    names = find_linears(model, ["*.mixer.*"])
    assert "encoder.layers.1.mixer.lstm.recurrent" in names
    add_adapters(model, names, rank=2, alpha=4.0, seed=1)
    torch.testing.assert_close(model(source_BS, inputs_BT), before, rtol=0, atol=1e-6)
