"""Models of the Hugging Face hub: download of the files that a conversion reads."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.errors import DataError, MissingDependencyError
from dragoman.io.proxy import TIMEOUT_SECONDS, suggest_proxy

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
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.constants import ENDPOINT
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        raise MissingDependencyError("huggingface_hub", "hub", f"{name}: a model of the hub") from None
    problem = ""
    try:
        try:  # snapshot_download would wait for this answer without end
            HfApi().model_info(name, revision=revision, timeout=TIMEOUT_SECONDS)
        except (RepositoryNotFoundError, RevisionNotFoundError):
            raise
        except Exception as error:  # of requests, httpx or httpx2, by the version of huggingface_hub
            problem = _describe(error)
        patterns = list(FILE_PATTERNS)
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=bool(problem)))
    except RepositoryNotFoundError:
        raise DataError(
            f"{name}: neither a folder nor a public model of the hub; check the name", code="hub-unavailable"
        ) from None
    except RevisionNotFoundError:
        raise DataError(f"{name}: the hub has no revision {revision!r}; check it", code="hub-unavailable") from None
    except LocalEntryNotFoundError as error:
        raise DataError(
            f"{name}: not a folder, and the hub cannot be reached: {problem or _describe(error)}; {suggest_proxy(ENDPOINT)}; "
            "or download the files where there is a network and give their folder",
            code="hub-unavailable",
        ) from None
    except Exception as error:
        raise DataError(
            f"{name}: cannot be fetched from the hub: {_describe(error)}; {suggest_proxy(ENDPOINT)}; or give a folder with the "
            "files",
            code="hub-unavailable",
        ) from None
    return folder, f"{name}@{folder.name}"


def _describe(error: Exception) -> str:
    """Return the first line of an error, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
