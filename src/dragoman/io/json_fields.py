"""JSON of result classes. `pydantic.TypeAdapter` makes it and its schema from the fields of a dataclass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import Field, TypeAdapter

OutputT = TypeVar("OutputT")

OPTIONAL = Field(exclude_if=lambda value: value is None)
"""Annotation of a field that the JSON leaves out if it is None."""
HIDDEN = Field(exclude=True)
"""Annotation of a field that the JSON leaves out."""


def to_json_line(output: Any) -> str:
    """Return a dataclass, or a dictionary or list of such, as JSON on one line."""
    return json.dumps(to_json_fields(output), ensure_ascii=False)


def to_json_fields(output: Any) -> Any:
    """Return what JSON has of a dataclass, or of a dictionary or list of such."""
    if is_dataclass(output):
        derived = {item.name: to_json_fields(getattr(output, item.name)) for item in fields(output) if not item.init}
        return _get_adapter(cast(Any, type(output))).dump_python(output, mode="json", warnings=False) | derived
    if isinstance(output, Mapping):
        return {key: to_json_fields(value) for key, value in output.items()}
    return [to_json_fields(value) for value in output] if isinstance(output, list | tuple) else output


@cache
def _get_adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def copy_fields(kind: type[OutputT], source: object, /, **values: Any) -> OutputT:
    """Return an output of this class. The attributes of `source` give the fields that are not among the values."""
    names = [item.name for item in fields(cast(Any, kind)) if item.name not in values]
    return kind(**{name: getattr(source, name) for name in names}, **values)
