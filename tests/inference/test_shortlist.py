"""Shortlists: learnt from attention, and never more than a choice of words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import dragoman
from conftest import WORDS
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import BundleError, DataError, OutputError
from dragoman.inference.constraints import TranslationConstraints
from dragoman.inference.shortlist import NUM_SPECIAL_TOKENS, Shortlist, build_shortlist, read_shortlist

pytestmark = pytest.mark.usefixtures("one_core")

SOURCES = [f"{one} {other}" for one in list(WORDS)[:8] for other in list(WORDS)[8:14]]
TARGETS = [" ".join(WORDS[word] for word in source.split()) for source in SOURCES]


@pytest.fixture(scope="module")
def learnt(bundle: Path, one_core: None) -> Shortlist:
    found, left_out = build_shortlist(load_bundle(bundle), SOURCES, TARGETS, per_token=6, num_frequent=5)
    assert left_out == 0
    return found


def test_what_is_learnt(learnt: Shortlist, bundle: Path) -> None:
    found = load_bundle(bundle)
    source, target = found.tokenizer.source, found.tokenizer.target
    assert learnt.candidates_VK.shape == (len(source), 6)
    assert int(learnt.candidates_VK.max()) < len(target)
    # The most frequent tokens of the targets, counted here once more; which of equals is of no matter.
    counts = torch.zeros(len(target))
    for text in TARGETS:
        for token in target.encode(text):
            counts[token] += 1
    assert counts[learnt.frequent_F].tolist() == counts.sort(descending=True).values[:5].tolist()
    assert END_ID not in learnt.candidates_VK


def test_the_words_of_a_batch(learnt: Shortlist) -> None:
    words = learnt.select_tokens(torch.tensor([[7, 9, 0], [7, 3, 0]]))
    assert words[:NUM_SPECIAL_TOKENS].tolist() == [0, 1, 2, 3]
    assert words.tolist() == sorted(set(words.tolist()))
    wanted = {0, 1, 2, 3, *learnt.frequent_F.tolist(), *learnt.candidates_VK[[0, 3, 7, 9]].flatten().tolist()}
    assert set(words.tolist()) == (wanted | {7, 9} if learnt.is_joint else wanted)


def test_with_every_word_nothing_changes(bundle: Path, learnt: Shortlist, tmp_path: Path) -> None:
    size = len(load_bundle(bundle).tokenizer.target)
    replace(learnt, usual_F=torch.arange(size)).save(tmp_path / "all")
    plain = dragoman.load(bundle, device="cpu", precision="float32")
    short = dragoman.load(bundle, device="cpu", precision="float32", shortlist=tmp_path / "all")
    for knobs in ({}, {"method": "greedy"}, {"nbest": 3}):
        mine, theirs = short.translate(SOURCES[:12], **knobs), plain.translate(SOURCES[:12], **knobs)
        assert [one.tokens for one in mine] == [one.tokens for one in theirs]
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-5)


def test_only_listed_words_are_said(bundle: Path, learnt: Shortlist, tmp_path: Path) -> None:
    learnt.save(tmp_path / "short")
    translator = dragoman.load(bundle, device="cpu", precision="float32", shortlist=tmp_path / "short")
    tokeniser = translator.bundle.tokeniser
    for line, one in zip(SOURCES[:10], translator.translate(SOURCES[:10], batch_tokens=1), strict=True):
        allowed = set(learnt.select_tokens(torch.tensor([tokeniser.encode_source(line)])).tolist())
        assert {tokeniser.target.id_of(token) for token in one.tokens} <= allowed
    twice = dragoman.load(bundle, bundle, device="cpu", precision="float32", shortlist=tmp_path / "short")
    assert [one.text for one in twice.translate(SOURCES[:5])] == [one.text for one in translator.translate(SOURCES[:5])]


def test_what_is_asked_for_is_always_listed(bundle: Path, learnt: Shortlist, tmp_path: Path) -> None:
    found = load_bundle(bundle)
    rows = len(found.tokenizer.source)
    nothing = replace(learnt, near_VK=torch.zeros(rows, 1, dtype=torch.long), usual_F=torch.tensor([4]))
    nothing.save(tmp_path / "none")
    translator = dragoman.load(bundle, device="cpu", precision="float32", shortlist=tmp_path / "none")
    (one,) = translator.translate(["one"], wordings=[TranslationConstraints(prefix="grün", include=("zwei",))])
    assert one.text.startswith("grün")
    assert "zwei" in one.text or one.missing == ("zwei",)
    assert len(translator.alternatives("one", count=20)) == 20  # which may be any words


def test_pairs_longer_than_the_model_learnt_from_are_left_out_and_counted(bundle: Path) -> None:
    found = load_bundle(bundle)
    long = " ".join(["one"] * found.recipe.data.max_length)
    _, left_out = build_shortlist(found, [*SOURCES, long], [*TARGETS, "eins"], per_token=6, num_frequent=5)
    assert left_out == 1


def test_another_vocabulary_is_refused(bundle: Path, learnt: Shortlist, tmp_path: Path) -> None:
    found = load_bundle(bundle)
    replace(learnt, vocabulary=bytes(32)).save(tmp_path / "other")
    with pytest.raises(BundleError, match="other: was learnt with other subword models"):
        read_shortlist(tmp_path / "other", found)
    learnt.save(tmp_path / "cut")
    with pytest.raises(OutputError, match="exists"):
        learnt.save(tmp_path / "cut")
    with (tmp_path / "cut" / "shortlist.safetensors").open("r+b") as file:
        file.truncate(50)
    with pytest.raises(BundleError, match="cut"):
        read_shortlist(tmp_path / "cut", found)
    with pytest.raises(BundleError):
        read_shortlist(tmp_path / "nowhere", found)
    with pytest.raises(DataError, match="there are none"):
        build_shortlist(found, [], [], per_token=1, num_frequent=1)


def test_the_command(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "en").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    (tmp_path / "de").write_text("".join(f"{line}\n" for line in TARGETS), encoding="utf-8")
    words = ["shortlist", str(bundle), str(tmp_path / "en"), str(tmp_path / "de"), "-o", str(tmp_path / "short")]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 0
    assert f"by {len(SOURCES)} pairs" in told.output
    used = CliRunner().invoke(cli, ["translate", str(bundle), str(tmp_path / "en"), "--shortlist", str(tmp_path / "short")])
    assert len(used.stdout.splitlines()) == len(SOURCES)
    assert CliRunner().invoke(cli, [*words, "--each", "0"]).exit_code == 2
