"""Models of the Hugging Face hub: download of the files that a conversion reads."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.errors import DataError, MissingDependencyError

FILE_PATTERNS = ("*.json", "*.spm", "*.model", "*.txt", "*.safetensors", "pytorch_model*.bin", "model.bin", "README.md")
"""Files that are downloaded. A repository may hold the same weights for other frameworks, which are left out."""


def is_hub_name(source: str) -> bool:
    """Return whether a text has the form of a name on the hub: owner/model."""
    return re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", source) is not None and not source.startswith(".")


def download_model(name: str, revision: str | None) -> tuple[Path, str]:
    """Return the local folder of a model, and its name with its revision. A complete copy in the cache is not fetched again.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
        DataError: the hub cannot be reached or has no such model.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        raise MissingDependencyError("huggingface_hub", "hub", f"{name}: a model of the hub") from None
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(FILE_PATTERNS)))
    except RepositoryNotFoundError:
        raise DataError(
            f"{name}: neither a folder nor a public model of the hub; check the name", code="hub-unavailable"
        ) from None
    except RevisionNotFoundError:
        raise DataError(f"{name}: the hub has no revision {revision!r}; check it", code="hub-unavailable") from None
    except LocalEntryNotFoundError:
        raise DataError(
            f"{name}: is not a folder, and the hub cannot be reached; download the files where there is a network and give "
            "their folder",
            code="hub-unavailable",
        ) from None
    except (OSError, ValueError) as error:  # the errors of the network and of the hub's answers
        problem = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise DataError(
            f"{name}: cannot be fetched from the hub: {problem}; give a folder with the files", code="hub-unavailable"
        ) from None
    return folder, f"{name}@{folder.name}"
