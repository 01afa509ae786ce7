"""JSON of result classes, from the fields of their dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

OutputT = TypeVar("OutputT")


class _Hidden:
    """Annotation that pydantic, which writes the published schema, understands too."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core.core_schema import any_schema

        return any_schema()

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> Any:
        from pydantic_core import PydanticOmit

        raise PydanticOmit


HIDDEN = _Hidden()
"""Annotation of a field that the JSON leaves out."""
OPTIONAL = object()
"""Annotation of a field that the JSON leaves out if it is None."""


def to_json_line(output: Any) -> str:
    """Return a dataclass, or a dictionary or list of such, as JSON on one line."""
    return json.dumps(to_json_fields(output), ensure_ascii=False)


def to_json_fields(output: Any) -> Any:
    """Return what JSON has of a dataclass, or of a dictionary or list of such."""
    if is_dataclass(output):
        values = {name: (getattr(output, name), mark) for name, mark in _list_fields(cast(Any, type(output))).items()}
        return {
            name: to_json_fields(value)
            for name, (value, mark) in values.items()
            if mark is not HIDDEN and not (mark is OPTIONAL and value is None)
        }
    if isinstance(output, Mapping):
        return {key: to_json_fields(value) for key, value in output.items()}
    return [to_json_fields(value) for value in output] if isinstance(output, list | tuple | Set) else output


@cache
def _list_fields(kind: type) -> dict[str, object]:
    """Return the fields of a dataclass, those that it derives last, each with its mark or None."""
    hints = get_type_hints(kind, include_extras=True)
    names = [item.name for item in sorted(fields(cast(Any, kind)), key=lambda item: not item.init)]
    annotations = {name: get_args(hints[name]) if get_origin(hints[name]) is Annotated else () for name in names}
    return {name: next((mark for mark in (HIDDEN, OPTIONAL) if mark in annotations[name]), None) for name in names}


def copy_fields(kind: type[OutputT], source: object, /, **values: Any) -> OutputT:
    """Return an output of this class. The attributes of `source` give the fields that are not among the values."""
    names = [item.name for item in fields(cast(Any, kind)) if item.name not in values]
    return kind(**{name: getattr(source, name) for name in names}, **values)
