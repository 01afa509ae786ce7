"""Footnote 4's variance, the linear function of positions, and the worked example, against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

import dragoman.paper.scaling
from dragoman.cli.main import cli
from dragoman.paper.relative_positions import measure_offsets
from dragoman.paper.scaling import compute_standard_error, measure_scaling
from dragoman.paper.worked_example import DIFFERENCES, compute_example
from dragoman.positions import SINUSOIDS

pytestmark = pytest.mark.usefixtures("one_core")


def test_variance_of_dot_products_is_d_k() -> None:
    for row in measure_scaling((1, 4, 64), num_products=2**14):
        assert abs(row.variance - row.d_k) < 4 * row.standard_error
        assert abs(row.mean) < 4 * math.sqrt(row.d_k / 2**14)
        assert row.scaled_variance == pytest.approx(row.variance / row.d_k)
        assert row.expected_variance == row.d_k


def test_standard_error_of_a_variance_matches_closed_form() -> None:
    # One product x·y of N(0, 1): the fourth moment is 3 · 3 = 9, so the variance of (xy)² is 9 − 1 = 8.
    assert compute_standard_error(1, 100) == pytest.approx(math.sqrt(8 / 100))
    # Many products: nearly normal, whose squares have a variance of 2σ⁴.
    assert compute_standard_error(10**6, 100) == pytest.approx(10**6 * math.sqrt(2 / 100), rel=1e-5)


@pytest.mark.parametrize("layout", SINUSOIDS)
def test_shifted_positions_are_a_rotation(layout: str) -> None:
    for row in measure_offsets((1, 7, 40), layout=layout, d_model=16, num_positions=64):
        assert row.rotation_error < 1e-6  # the table is in float32
        assert row.fitted_error < 1e-6
        assert row.random_error > 0.5
        assert row.dot_product == pytest.approx(row.expected_dot_product, abs=1e-5)
        assert row.dot_product_range < 1e-5


def test_example_goes_from_products_to_concatenated_heads() -> None:
    example = compute_example()
    first = example.heads[0]
    assert list(first.products) == [112.0, 96.0]
    assert list(first.scaled) == [14.0, 12.0]
    assert [round(weight, 2) for weight in first.weights] == [0.88, 0.12]
    for head, difference in zip(example.heads, DIFFERENCES, strict=True):
        weight = 1.0 / (1.0 + math.exp(-difference / 8.0))  # the softmax of two numbers is the sigmoid of their difference
        expected = [
            weight * first_value + (1.0 - weight) * second_value
            for first_value, second_value in zip(*example.values, strict=True)
        ]
        assert list(head.output) == pytest.approx(expected, abs=1e-6)
    assert list(example.concatenated) == [number for head in example.heads for number in head.output]
    # The differences are symmetric, so the mean weight of both values is a half.
    assert list(example.output) == pytest.approx([0.5, 0.5, 1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["positions", "--d-model", "8"], ["Section 3.5", "Σ cos(ωk)"]),
        (["example"], ["112, 96", "0.88·v₁ + 0.12·v₂ = (0.88, 0.12, 1.76, 0.24)", "32 numbers"]),
    ],
)
def test_commands_print_draw_and_answer_in_json(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.svg"
    result = CliRunner().invoke(cli, ["paper", *arguments, "-o", str(picture)])
    assert result.exit_code == 0, result.output
    assert all(word in result.output for word in words), result.output
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    as_json = CliRunner().invoke(cli, ["paper", *arguments, "--json"])
    assert json.loads(as_json.stdout)
    assert CliRunner().invoke(cli, ["paper", *arguments, "-o", str(picture)]).exit_code != 0  # the file exists


def test_scaling_command_prints_its_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = measure_scaling((1, 2, 4), num_products=256)
    monkeypatch.setattr(dragoman.paper.scaling, "measure_scaling", lambda: rows)
    result = CliRunner().invoke(cli, ["paper", "scaling", "-o", str(tmp_path / "scaling.svg")])
    assert result.exit_code == 0, result.output
    assert "Footnote 4" in result.output
    assert "√d_k" in (tmp_path / "scaling.svg").read_text(encoding="utf-8")
    assert len(json.loads(CliRunner().invoke(cli, ["paper", "scaling", "--json"]).stdout)["rows"]) == 3


def test_odd_width_is_refused() -> None:
    result = CliRunner().invoke(cli, ["paper", "positions", "--d-model", "7"])
    assert result.exit_code == 2
    assert "is odd" in result.output
