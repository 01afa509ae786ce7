"""Proposer of a bundle on disk: one file in its folder.

    heads.safetensors    prediction heads and the tokens that they propose; or
    draft.safetensors    a draft decoder and the tokens that it proposes

The header holds the digest of the bundle's weights and tokenizers, so the proposer of another bundle is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from dragoman.errors import BundleError
from dragoman.io.mapped_file import MappedFile
from dragoman.io.safetensors import MappedTensors, save_tensors
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.transformer import Transformer

HEADS_FILE, DRAFT_FILE = "heads.safetensors", "draft.safetensors"
PROPOSER_FILES = (HEADS_FILE, DRAFT_FILE)
MAX_PROPOSALS = 15
"""Most tokens that a proposer of a bundle proposes for one step."""
BASE_DIGEST_KEY, NUM_PROPOSALS_KEY = "base_digest", "num_proposals"
TOKEN_IDS = "token_ids"


def write_proposer(folder: Path, proposer: Proposer, *, base_digest: str) -> tuple[str, str]:
    """Write the proposer of a bundle, and return the name of its file and the SHA-256.

    base_digest: `compute_bundle_digest` of the bundle
    """
    name = HEADS_FILE if isinstance(proposer, PredictionHeads) else DRAFT_FILE
    tensors = {name: parameter.detach() for name, parameter in proposer.named_parameters()}
    header = {BASE_DIGEST_KEY: base_digest, NUM_PROPOSALS_KEY: str(proposer.num_proposals)}
    return name, save_tensors(folder / name, tensors | {TOKEN_IDS: proposer.token_ids_W}, metadata=header)


def read_proposer(folder: Path, files: Mapping[str, MappedFile], model: Transformer, *, base_digest: str) -> Proposer | None:
    """Return the proposer of a bundle in evaluation mode, or None if it has none.

    files: the tensor files of the bundle, by name
    model: the model of the bundle
    base_digest: `compute_bundle_digest` of the bundle

    Raises BundleError for the proposer of another bundle, for two of them, and for a file that does not hold one.
    """
    names = [name for name in PROPOSER_FILES if name in files]
    if not names:
        return None
    path = folder / names[0]
    if len(names) > 1:
        raise BundleError(f"{folder}: holds both {HEADS_FILE} and {DRAFT_FILE}; delete one of them", code="proposer-mismatch")
    kind = "heads" if path.name == HEADS_FILE else "draft"
    try:
        stored = MappedTensors(files[path.name])
        header, tensors = stored.metadata, dict(stored)
        if header.get(BASE_DIGEST_KEY) != base_digest:
            raise BundleError(
                f"{path}: was trained for other weights or another vocabulary than this bundle; delete the file and run "
                "dragoman accelerate",
                code="proposer-mismatch",
            )
        if kind == "heads":
            return _build_heads(tensors, model)
        return _build_draft(tensors, model, int(header[NUM_PROPOSALS_KEY]))
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise BundleError(
            f"{path}: does not hold the {kind} of this model ({type(error).__name__}); run dragoman accelerate again",
            code="bundle-damaged",
        ) from None


def _build_heads(tensors: dict[str, Tensor], model: Transformer) -> PredictionHeads:
    """Return the heads of these tensors. Raises KeyError, ValueError or RuntimeError if they do not fit the model."""
    num_heads = sum(name.endswith(".outer.bias") for name in tensors)
    token_ids_W = _take_token_ids(tensors, model, num_heads)
    heads = PredictionHeads(
        num_heads=num_heads,
        d_model=model.output.shape[1],
        d_inner=len(tensors["heads.0.inner.bias"]),
        token_ids_W=token_ids_W,
    )
    heads.load_state_dict(tensors | {"token_ids_W": token_ids_W})
    return heads.eval()


def _build_draft(tensors: dict[str, Tensor], model: Transformer, num_proposals: int) -> DraftDecoder:
    """Return the draft of these tensors. Raises KeyError, ValueError or RuntimeError if they do not fit the model."""
    token_ids_W = _take_token_ids(tensors, model, num_proposals)
    if not (d_ff := len(tensors["layer.feed_forward.inner.weight"])):
        raise ValueError("feed-forward network without units")
    draft = DraftDecoder.from_model(model, token_ids_W=token_ids_W, num_proposals=num_proposals, d_ff=d_ff)
    expected = {name: parameter.shape for name, parameter in draft.named_parameters()}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise ValueError("weights of another layer")
    draft.load_state_dict(tensors | {"token_ids_W": token_ids_W}, strict=False)
    return draft.requires_grad_(False)


def _take_token_ids(tensors: dict[str, Tensor], model: Transformer, num_proposals: int) -> Tensor:
    """Remove the proposed tokens from the tensors, and return them. Raises KeyError or ValueError for impossible values."""
    token_ids_W = tensors.pop(TOKEN_IDS)
    if not 1 <= num_proposals <= MAX_PROPOSALS or token_ids_W.dtype != torch.int64 or token_ids_W.dim() != 1:
        raise ValueError("number of proposals or list of tokens")
    if not len(token_ids_W) or int(token_ids_W.min()) < 0 or int(token_ids_W.max()) >= len(model.output):
        raise ValueError("tokens of another vocabulary")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError("values that are not finite")
    return token_ids_W
