"""Claims of the paper: the published list, and the measurements that it names."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.model.transformer import Decoder
from dragoman.paper.claim_measures import MEASURES
from dragoman.paper.claims import Claim, draw_claims, load_claims
from dragoman.paper.commands.group import paper

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = load_claims()
WITHOUT_CLOCK = ["masking", "heads", "convolutions", "sequential", "paths", "separable", "schedule", "parameters"]


def test_each_measure_belongs_to_one_claim() -> None:
    assert sorted(claim.measure for claim in CLAIMS if claim.measure) == sorted(MEASURES)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:40])
def test_claim_names_what_its_verdict_needs(claim: Claim) -> None:
    assert claim.section[0] in "34567"
    was_run = claim.verdict != "not run"
    assert [bool(text) for text in (claim.effect, claim.scale, claim.command)] == [was_run] * 3
    assert claim.why or claim.verdict in ("holds", "not run")
    if was_run:
        options = {option for parameter in find_command(claim).params for option in parameter.opts}
        assert {word for word in claim.command.split() if word.startswith("--")} <= options


def find_command(claim: Claim) -> click.Command:
    """Return the command that a claim names, as in `dragoman paper table1 --budget 45`."""
    program, group, name, *rest = claim.command.split()
    assert (program, group) == ("dragoman", "paper")
    command = paper.commands[name]
    return command.commands[rest[0]] if isinstance(command, click.Group) else command


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "separable")) for name in WITHOUT_CLOCK]
)
def test_claims_without_a_clock_hold(name: str) -> None:
    torch.manual_seed(2)
    assert MEASURES[name]().holds


def test_absent_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "_build_mask", lambda self, length, past_length, device: torch.ones(length, length).bool())
    assert not MEASURES["masking"]().holds


def test_command_lists_all_claims() -> None:
    result = CliRunner().invoke(cli, ["paper", "claims"])
    assert result.exit_code == 0
    assert f"{len(CLAIMS)} claims" in result.stdout
    document = json.loads(CliRunner().invoke(cli, ["paper", "claims", "--json"]).stdout)
    assert [claim["text"] for claim in document["claims"]] == [claim.text for claim in CLAIMS]


def test_picture_of_the_page_is_that_of_the_list() -> None:
    """`dragoman paper claims -o docs/assets/claims.svg --overwrite` draws it anew."""
    assert (ROOT / "docs" / "assets" / "claims.svg").read_text(encoding="utf-8").rstrip() == draw_claims(CLAIMS).rstrip()
