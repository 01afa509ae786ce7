"""Prediction heads on disk: one file in the folder of their bundle.

    heads.safetensors    the heads' weights and the tokens that they propose; its header names the bundle

The header holds the digest of the bundle's weights and tokenizers, so heads of another bundle are refused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from dragoman.errors import BundleError
from dragoman.io.safetensors import save_tensors
from dragoman.model.prediction_heads import PredictionHeads

HEADS_FILE = "heads.safetensors"
MAX_HEADS = 15
"""Most prediction heads of a bundle."""
BASE_DIGEST_KEY = "base_digest"
TOKEN_IDS = "token_ids"


def write_heads(folder: Path, heads: PredictionHeads, *, base_digest: str) -> str:
    """Write the heads of a bundle, and return the SHA-256 of the file. base_digest: `compute_bundle_digest` of the bundle"""
    tensors = {name: parameter.detach() for name, parameter in heads.named_parameters()} | {TOKEN_IDS: heads.token_ids_W}
    return save_tensors(folder / HEADS_FILE, tensors, metadata={BASE_DIGEST_KEY: base_digest})


def read_heads(folder: Path, *, base_digest: str, d_model: int, target_vocab_size: int) -> PredictionHeads | None:
    """Return the heads of a bundle in evaluation mode, or None if it has none.

    base_digest: `compute_bundle_digest` of the bundle
    d_model, target_vocab_size: width and target vocabulary of its model

    Raises BundleError for heads of another bundle, and for a file that does not hold heads.
    """
    path = folder / HEADS_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            file_digest = (file.metadata() or {}).get(BASE_DIGEST_KEY)
        tensors = load_file(path)
        if file_digest != base_digest:
            raise BundleError(
                f"{path}: holds heads of other weights or another vocabulary than this bundle; delete the file and run "
                "dragoman accelerate",
                code="heads-mismatch",
            )
        return _build_heads(tensors, d_model=d_model, target_vocab_size=target_vocab_size)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise BundleError(
            f"{path}: does not hold the heads of this model ({type(error).__name__}); run dragoman accelerate again",
            code="bundle-damaged",
        ) from None


def _build_heads(tensors: dict[str, Tensor], *, d_model: int, target_vocab_size: int) -> PredictionHeads:
    """Return the heads of these tensors. Raises KeyError, ValueError or RuntimeError if they do not fit the model."""
    token_ids_W = tensors.pop(TOKEN_IDS)
    num_heads = sum(name.endswith(".outer.bias") for name in tensors)
    if not 1 <= num_heads <= MAX_HEADS or token_ids_W.dtype != torch.int64 or token_ids_W.dim() != 1 or not len(token_ids_W):
        raise ValueError("number of heads or list of tokens")
    if int(token_ids_W.min()) < 0 or int(token_ids_W.max()) >= target_vocab_size:
        raise ValueError("tokens of another vocabulary")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError("values that are not finite")
    heads = PredictionHeads(
        num_heads=num_heads, d_model=d_model, d_inner=len(tensors["heads.0.inner.bias"]), token_ids_W=token_ids_W
    )
    heads.load_state_dict(tensors | {"token_ids_W": token_ids_W})
    return heads.eval()
