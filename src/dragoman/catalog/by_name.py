"""Published models by name, for the commands that take a bundle: a model of the list is fetched once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.console.options import print_note, treat_termination_as_interrupt

if TYPE_CHECKING:
    from dragoman.catalog.entries import CatalogModel


def fetch_if_listed(bundle: Path) -> Path:
    """Return a bundle that exists, else the folder of the listed model with this name, which is fetched, else the path.

    Raises what `fetch_model` raises.
    """
    if bundle.exists() or len(bundle.parts) != 1:
        return bundle
    from dragoman.catalog.listing import find_model

    model = find_model(bundle.name)
    return bundle if model is None else fetch_with_progress(model)


def fetch_with_progress(model: CatalogModel) -> Path:
    """Fetch a model after one line with its size and license, and show the progress. Return the folder of its bundle."""
    from dragoman.catalog.fetch import fetch_model
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.model_packages import find_model as find_local_model

    if (local := find_local_model(model.name)) is not None:
        return local
    treat_termination_as_interrupt()
    size = "size not known" if model.weight_bytes is None else f"{model.weight_bytes / 1e6:.0f} MB in int8"
    print_note(
        f"{model.name}: is fetched this once ({size}, license {model.license or 'stated by its page'}), then converted and "
        "kept in the cache"
    )
    with progress_bar(stderr_console(), f"fetching {model.name}", None, unit="bytes") as bar:
        return fetch_model(model, on_bytes=bar.advance, notify=print_note)
