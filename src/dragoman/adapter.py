"""Low-rank adapter on disk: the trained matrices of `training.lora`, in a folder outside of their base bundle.

    adapter.json         digest of the base bundle, rank, alpha and targets
    adapter.safetensors  A and B of each adapted layer
    manifest.json        size and SHA-256 of each file

Loading parses JSON and tensors; it never executes anything from an adapter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from dragoman.bundle import Bundle, compute_bundle_digest, load_bundle, save_bundle
from dragoman.bundle_parts import inherit_parts, inherit_shortlist, without_parts
from dragoman.config import LoraConfig
from dragoman.errors import BundleError
from dragoman.io.safetensors import StoredArrays, save_tensors
from dragoman.io.storage import atomic_dir
from dragoman.model_weights import merge_weights
from dragoman.runtime.tensor_files import TensorFiles

ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE = "adapter.json", "adapter.safetensors"


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapter of a bundle.

    Attributes:
        name: name of the run that trained it
        base_digest: `compute_bundle_digest` of the base bundle
        config: rank, alpha and targets
        weights: A and B of each adapted layer, by name
    """

    name: str
    base_digest: str
    config: LoraConfig
    weights: Mapping[str, NDArray[np.float32]]

    @property
    def scale(self) -> float:
        """Return α/r."""
        return self.config.alpha / self.config.rank


def save_adapter(path: Path, adapter: Adapter, *, overwrite: bool = False) -> None:
    """Write an adapter completely or not at all. Raise OutputError if the path exists or cannot be written."""
    document = {"name": adapter.name, "base_digest": adapter.base_digest, "lora": adapter.config.model_dump()}
    digests: dict[str, str] = {}
    size = sum(weight.nbytes for weight in adapter.weights.values())
    with atomic_dir(path, overwrite=overwrite, size=size, digests=digests) as folder:
        (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
        digests[ADAPTER_WEIGHTS_FILE] = save_tensors(folder / ADAPTER_WEIGHTS_FILE, adapter.weights)


def load_adapter(path: Path) -> Adapter:
    """Return an adapter after checking every checksum. Raise BundleError if a file is missing, cut or changed."""
    if not (path / ADAPTER_CONFIG_FILE).exists():
        hint = f"give {path / 'adapter'}" if (path / "adapter").is_dir() else "give the folder of an adapter"
        raise BundleError(f"{path}: holds no adapter; {hint}", code="bundle-not-found")
    try:
        with TensorFiles(path, BundleError) as files:
            document: dict[str, Any] = json.loads((path / ADAPTER_CONFIG_FILE).read_bytes())
            config = LoraConfig.model_validate(document["lora"])
            weights = StoredArrays(files[ADAPTER_WEIGHTS_FILE])
            return Adapter(str(document["name"]), str(document["base_digest"]), config, dict(weights))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise BundleError(
            f"{path}: is not an adapter, or is damaged ({type(error).__name__}); copy it again", code="bundle-damaged"
        ) from None


def apply_adapter(bundle: Bundle, adapter: Adapter, *, bundle_path: Path, adapter_path: Path) -> Bundle:
    """Return the bundle with the adapter merged into its weights; all other tensors are shared with the given bundle.

    Raises BundleError if the adapter belongs to another bundle.
    """
    if compute_bundle_digest(bundle_path) != adapter.base_digest:
        raise BundleError(
            f"{adapter_path}: is an adapter of another bundle than {bundle_path}; give the bundle that it was trained on",
            code="adapter-mismatch",
        )
    try:
        arrays = merge_weights(bundle.arrays, adapter.weights, scale=adapter.scale)
    except (KeyError, ValueError):
        raise BundleError(
            f"{adapter_path}: its layers do not fit {bundle_path}; copy the adapter again", code="adapter-mismatch"
        ) from None
    return replace(bundle, arrays=arrays)


def merge_adapter(
    bundle_path: Path,
    adapter_path: Path,
    output: Path,
    *,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> None:
    """Write a bundle with the adapter merged into its weights. Raise BundleError if the adapter is of another bundle.

    notify: takes one sentence if parts of the bundle are not measured again
    """
    bundle = load_bundle(bundle_path)
    if not bundle.recipe.task.has_text_target:
        raise BundleError(f"{bundle_path}: is a parser, and adapters are for translators; give a translator", code="wrong-task")
    merged = apply_adapter(bundle, load_adapter(adapter_path), bundle_path=bundle_path, adapter_path=adapter_path)
    metadata = replace(without_parts(bundle.metadata), adapter=str(adapter_path))
    metadata, sentences = inherit_parts(metadata, {str(bundle_path): bundle.metadata})
    shortlist, _ = inherit_shortlist([bundle_path], bundle.tokenizer)
    save_bundle(
        output,
        recipe=bundle.recipe,
        tokenizer=bundle.tokenizer,
        weights=merged.arrays,
        metadata=metadata,
        overwrite=overwrite,
        shortlist=shortlist,
    )
    for sentence in sentences:
        notify(sentence)
