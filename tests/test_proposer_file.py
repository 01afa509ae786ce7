"""Prediction heads in the folder of a bundle: written, read, refused for another bundle, and kept by other commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import edit_config, reseal
from dragoman.bundle import Bundle, ProposalTraining, add_proposer, compute_bundle_digest, load_bundle, replace_metadata
from dragoman.errors import BundleError
from dragoman.model.draft_decoder import DraftDecoder
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.proposer_file import BASE_DIGEST_KEY, DRAFT_FILE, HEADS_FILE, NUM_PROPOSALS_KEY
from expected_errors import raises_code

TRAINING = ProposalTraining(lines=3, target_tokens=20, steps=2, seconds=0.5, tokens_per_step={2: 1.5, 3: 1.75})


@pytest.fixture
def accelerated(bundle: Path, tmp_path: Path) -> Path:
    """Copy of the bundle with two random heads."""
    torch.manual_seed(1)
    heads = PredictionHeads(num_heads=2, d_model=16, d_inner=8, token_ids_W=torch.tensor([2, 5, 9]))
    metadata = replace(load_bundle(bundle).metadata, heads=TRAINING)
    add_proposer(bundle, tmp_path / "fast", heads, metadata)
    return tmp_path / "fast"


def load_resealed(folder: Path) -> Bundle:
    """Return an edited bundle whose manifest was written again."""
    reseal(folder)
    return load_bundle(folder)


def test_heads_are_read_back(bundle: Path, accelerated: Path) -> None:
    opened = load_bundle(accelerated)
    torch.manual_seed(1)
    expected = PredictionHeads(num_heads=2, d_model=16, d_inner=8, token_ids_W=torch.tensor([2, 5, 9]))
    assert opened.proposer is not None
    weights = opened.proposer.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.state_dict().items())
    assert opened.metadata.heads == TRAINING
    assert load_bundle(bundle).proposer is None
    # Heads change no output, so adapters of the base stay valid.
    assert compute_bundle_digest(accelerated) == compute_bundle_digest(bundle)


def test_other_metadata_keeps_the_heads(accelerated: Path) -> None:
    files = {
        path.name: path.read_bytes() for path in accelerated.iterdir() if path.name not in ("config.json", "manifest.json")
    }
    replace_metadata(accelerated, replace(load_bundle(accelerated).metadata, seconds=12.0))
    opened = load_bundle(accelerated)
    assert opened.proposer is not None
    assert opened.metadata.seconds == 12.0
    assert {name: (accelerated / name).read_bytes() for name in files} == files


@pytest.fixture
def drafted(bundle: Path, tmp_path: Path) -> Path:
    """Copy of the bundle with an untrained draft."""
    opened = load_bundle(bundle)
    draft = DraftDecoder.from_model(opened.model, token_ids_W=torch.tensor([2, 5, 9]), num_proposals=3)
    add_proposer(bundle, tmp_path / "draft", draft, opened.metadata.with_proposal_training(TRAINING, is_draft=True))
    return tmp_path / "draft"


def test_draft_replaces_heads(bundle: Path, accelerated: Path, drafted: Path, tmp_path: Path) -> None:
    opened = load_bundle(drafted)
    assert isinstance(opened.proposer, DraftDecoder)
    assert (opened.proposer.num_proposals, opened.metadata.proposal_training) == (3, TRAINING)
    assert compute_bundle_digest(drafted) == compute_bundle_digest(bundle)
    add_proposer(accelerated, tmp_path / "both", opened.proposer, opened.metadata)
    assert isinstance(load_bundle(tmp_path / "both").proposer, DraftDecoder)
    (drafted / HEADS_FILE).write_bytes((accelerated / HEADS_FILE).read_bytes())
    with raises_code("proposer-mismatch", "both"):
        load_resealed(drafted)


def test_draft_of_another_bundle_is_refused(drafted: Path) -> None:
    path = drafted / DRAFT_FILE
    header = {BASE_DIGEST_KEY: "0" * 64, NUM_PROPOSALS_KEY: "3"}
    save_file(load_file(path), path, header)
    with raises_code("proposer-mismatch", "another vocabulary"):
        load_resealed(drafted)


@pytest.mark.parametrize(
    ("tensors", "num_proposals"),
    [
        ({}, "0"),
        ({}, "many"),
        ({"token_ids": torch.tensor([2, 5, 10_000])}, "3"),
        ({"layer.feed_forward.inner.bias": torch.zeros(3)}, "3"),
        ({"layer.feed_forward.inner.bias": torch.full((16,), float("inf"))}, "3"),
        ({"layer.feed_forward.inner.weight": torch.zeros(0, 16)}, "3"),
        ({"layer.feed_forward.inner.weight": torch.tensor(1.0)}, "3"),
        ({"more": torch.zeros(1)}, "3"),
    ],
)
def test_impossible_drafts_are_refused(drafted: Path, tensors: dict[str, torch.Tensor], num_proposals: str) -> None:
    path = drafted / DRAFT_FILE
    header = {BASE_DIGEST_KEY: compute_bundle_digest(drafted), NUM_PROPOSALS_KEY: num_proposals}
    save_file(load_file(path) | tensors, path, header)
    with raises_code("bundle-damaged", "dragoman accelerate"):
        load_resealed(drafted)


def rewrite(folder: Path, **tensors: torch.Tensor) -> None:
    """Change tensors of the heads. A bundle that is read without its checksums then has these heads."""
    path = folder / HEADS_FILE
    metadata = {BASE_DIGEST_KEY: compute_bundle_digest(folder)}
    save_file(load_file(path) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}, path, metadata)


def test_heads_of_other_weights_are_refused(accelerated: Path, bundle_copy: Path) -> None:
    weights = bundle_copy / "weights.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor + 0.5 for name, tensor in tensors.items()}, weights)
    reseal(bundle_copy)
    (bundle_copy / HEADS_FILE).write_bytes((accelerated / HEADS_FILE).read_bytes())
    with raises_code("proposer-mismatch", "another vocabulary"):
        load_resealed(bundle_copy)


def test_heads_of_another_vocabulary_are_refused(accelerated: Path) -> None:
    """The weights are the same, but a token has another text."""
    path = accelerated / "source.model"
    pieces, changed = path.read_bytes(), load_bundle(accelerated).tokenizer.source.ids_to_pieces([12])[0].encode()
    path.write_bytes(pieces.replace(changed, changed[:-1] + b"#", 1))
    assert path.read_bytes() != pieces
    reseal(accelerated)
    with raises_code("proposer-mismatch", "another vocabulary"):
        load_resealed(accelerated)


@pytest.mark.parametrize(
    "tensors",
    [
        {"token_ids": torch.tensor([2, 5, 10_000])},
        {"token_ids": torch.tensor([-1])},
        {"token_ids": torch.zeros(0, dtype=torch.long)},
        {"token_ids": torch.tensor([1.0])},
        {"heads__0__outer__weight": torch.full((16, 8), float("nan"))},
        {"heads__1__inner__weight": torch.zeros(8, 30)},
        {"more": torch.zeros(1)},
    ],
)
def test_impossible_heads_are_refused(accelerated: Path, tensors: dict[str, torch.Tensor]) -> None:
    rewrite(accelerated, **tensors)
    with raises_code("bundle-damaged", "dragoman accelerate"):
        load_resealed(accelerated)


def test_heads_that_are_no_tensors_are_refused(accelerated: Path) -> None:
    (accelerated / HEADS_FILE).write_bytes(b"cos\nsystem\n(S'touch harmed'\ntR.")
    with raises_code("bundle-damaged"):
        load_resealed(accelerated)
    with pytest.raises(BundleError):  # the checksum differs
        load_bundle(accelerated)


def test_unknown_facts_about_heads_are_refused(accelerated: Path) -> None:
    edit_config(accelerated, lambda config: config["metadata"]["heads"].update(speed=3))
    with raises_code("bundle-damaged", "metadata.heads"):
        load_bundle(accelerated)
