"""Typed decoding options: their keys and types are those of the recipe's [decoding] section."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from dragoman.config import DecodingConfig
from dragoman.config.decoding_options import DecodingOptions


def strip_annotations(hint: Any) -> Any:
    """Return a type without the limits of `Annotated`, at all depths."""
    if get_origin(hint) is Annotated:
        return strip_annotations(get_args(hint)[0])
    if get_origin(hint) is list:
        return list[strip_annotations(get_args(hint)[0])]  # type: ignore[misc]
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(strip_annotations(argument) for argument in get_args(hint))]  # noqa: UP007
    return hint


def test_decoding_options_equal_the_schema() -> None:
    hints = get_type_hints(DecodingConfig, include_extras=True)
    schema = {name: strip_annotations(hints[name]) for name in DecodingConfig.model_fields}
    assert get_type_hints(DecodingOptions) == schema


def test_all_decoding_options_are_optional() -> None:
    assert DecodingOptions.__required_keys__ == frozenset()
