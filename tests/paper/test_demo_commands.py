"""Commands `paper demo`: costs, matrices and drawings against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.paper.commands.demo import DEMO_COMMANDS, demo
from dragoman.paper.demonstrations.architecture_figures import show_figure_1, show_figure_2
from dragoman.paper.demonstrations.encoding_heatmap import show_encoding
from dragoman.paper.demonstrations.layer_costs import compare_additive, compare_recurrent, compare_separable
from dragoman.paper.demonstrations.words_to_z import compute_steps

pytestmark = pytest.mark.usefixtures("one_core")

QUICK = ["figure-1", "figure-2", "words", "encoding"]


@pytest.mark.parametrize("name", QUICK)
def test_command_prints_draws_and_answers_in_json(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.svg"
    result = CliRunner().invoke(cli, ["paper", "demo", name, "-o", str(picture)])
    assert result.exit_code == 0, result.output
    document = json.loads(CliRunner().invoke(cli, ["paper", "demo", name, "--json"]).stdout)
    assert document["lesson"] in result.output
    svg = ElementTree.parse(picture).getroot()
    texts = " ".join("".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text"))
    assert document["lesson"] in texts
    assert CliRunner().invoke(cli, ["paper", "demo", name, "-o", str(picture)]).exit_code != 0  # the file exists


def test_each_demonstration_is_a_command() -> None:
    assert set(DEMO_COMMANDS) <= set(demo.commands)


def test_operations_of_layers_match_closed_forms() -> None:
    # Forward and backward pass take three times the forward one; a product of (a, b) and (b, c) takes 2·a·b·c.
    n, d = 48, 16
    [recurrent] = compare_recurrent((n,), d)
    assert recurrent.operations[0] == 3 * 2 * 2 * n * n * d
    assert recurrent.operations[1] == pytest.approx(3 * 2 * 8 * n * d * d, rel=0.1)
    [separable] = compare_separable((32,))
    assert separable.operation_ratio == pytest.approx(0.5, abs=0.05)  # n²·d + n·d² over 2·n²·d + 2·n·d²


def test_additive_attention_needs_width_times_the_memory() -> None:
    short, long = compare_additive((64, 128))
    assert long.peak_bytes[0] > 2 * 128 * 128 * 64 * 4  # the sum and its tanh, in float32
    assert long.peak_bytes[0] == pytest.approx(4 * short.peak_bytes[0], rel=0.05)
    assert long.memory_ratio > 20
    assert long.seconds[0] > 0


def test_steps_from_words_to_z_match_hand_computation() -> None:
    steps = compute_steps()
    x = [[2.0, 1.0, 2.0, 1.0], [math.sin(1), 2 + math.cos(1), math.sin(0.01), 2 + math.cos(0.01)]]
    torch.testing.assert_close(steps[0].result, torch.tensor(x))
    assert steps[1].result[0].tolist() == [4.0, 2.0, 2.0, 1.0]
    assert steps[2].result[0].tolist() == [3.0, 3.0, 4.0, 1.0]
    assert steps[4].result[0, 0].item() == pytest.approx((4 * 3 + 2 * 3 + 2 * 4 + 1) / math.sqrt(4))
    torch.testing.assert_close(steps[5].result.sum(dim=-1), torch.ones(2))
    torch.testing.assert_close(steps[6].result, steps[5].result @ steps[3].result)
    assert steps[7].result.shape == (2, 8)


def test_figure_1_counts_all_parameters() -> None:
    rows = show_figure_1().rows
    # d_model 512, d_ff 2,048, without biases in attention: four matrices of 512², and two of 512 · 2,048 with biases
    assert ("encoder self-attention", 6, 4 * 512**2, 6 * 4 * 512**2) in rows
    assert ("decoder feed-forward", 6, 2 * 512 * 2048 + 2048 + 512, 6 * (2 * 512 * 2048 + 2048 + 512)) in rows
    assert sum(int(row[3]) for row in rows[:-1]) == rows[-1][3] == 63_045_632


def test_figure_2_has_the_shapes_of_base() -> None:
    assert [row[2] for row in show_figure_2().rows] == [
        "10 × 512", "8 × 10 × 64", "8 × 10 × 10", "8 × 10 × 10", "8 × 10 × 64", "10 × 512", "10 × 512",
    ]  # fmt: skip


def test_wavelengths_match_closed_form() -> None:
    wavelengths = [float(row[1]) for row in show_encoding().rows]
    assert wavelengths[0] == pytest.approx(2 * math.pi)
    assert wavelengths[-1] == pytest.approx(2 * math.pi * 10000 ** (62 / 64))
