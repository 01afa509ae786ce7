"""Layouts of JSON and YAML files in which only some values are language: OpenAPI, react-intl and Lottie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Path = tuple[str, ...]

_OPENAPI_KEYS = frozenset(("title", "summary", "description", "x-displayName", "x-summary"))


def find_layout(paths: Sequence[Path]) -> Callable[[Path], bool] | None:
    """Return the function that tells whether a path holds language in a file of a known layout; None for all others.

    paths: keys of the texts of a file
    """
    roots = {path[0] for path in paths if path}
    if roots & {"openapi", "swagger", "asyncapi"} and "info" in roots:
        return lambda path: path[-1] in _OPENAPI_KEYS
    if "layers" in roots and any(path[-1] in ("nm", "mn") for path in paths if path):
        return lambda path: path[-2:] == ("s", "t")
    if any(path[-1:] == ("defaultMessage",) for path in paths):
        return lambda path: path[-1] == "defaultMessage"
    return None
