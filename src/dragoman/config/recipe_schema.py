"""JSON schema of recipes, by which editors complete and check the keys of a TOML file (its line `#:schema FILE`)."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from dragoman.config.extension import ExtensibleSection, iter_extension_types
from dragoman.config.recipe import Recipe
from dragoman.config.section import Limits, RecipeSection, list_fields

_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_LIMIT_NAMES = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_LENGTH_NAMES = {"min_length": "min", "max_length": "max"}


def make_recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe, with the sentence of each key and the keys of all extensions."""
    definitions: dict[str, Any] = {}
    schema = _describe_section(Recipe, definitions)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$defs": definitions, **schema}


def _describe_section(section: type[RecipeSection], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section, and add those of the sections in it to the definitions."""
    extensions = iter_extension_types(section.hook) if issubclass(section, ExtensibleSection) else ()
    properties: dict[str, Any] = {}
    for source in (section, *extensions):
        sentences = read_sentences(source)
        for name, field in list_fields(source).items():
            properties[name] = _describe_type(field.annotation, definitions)
            if name in sentences:
                properties[name]["description"] = sentences[name]
            if field.default is not None and not isinstance(field.default, RecipeSection):
                properties[name]["default"] = field.default
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _describe_type(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the values of an annotated type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        schema = _describe_type(arguments[0], definitions)
        for limits in (item for item in arguments[1:] if isinstance(item, Limits)):
            values = {name: value for name, value in limits._asdict().items() if value is not None}
            noun = "Length" if schema["type"] == "string" else "Items"
            schema |= {_LIMIT_NAMES.get(name) or _LENGTH_NAMES[name] + noun: value for name, value in values.items()}
        return schema
    if origin in (Union, UnionType):
        schemas = [_describe_type(item, definitions) for item in arguments if item is not NoneType]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _describe_type(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe_type(arguments[1], definitions)}
    if annotation in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[annotation]}
    definitions[annotation.__name__] = _describe_section(annotation, definitions)
    return {"allOf": [{"$ref": f"#/$defs/{annotation.__name__}"}]}


@cache
def read_sentences(section: type[RecipeSection]) -> dict[str, str]:
    """Return the sentence under each key of a section in its source."""
    sentences: dict[str, str] = {}
    for base in reversed(section.__mro__[: section.__mro__.index(RecipeSection)]):
        class_definition = ast.parse(dedent(inspect.getsource(base))).body[0]
        assert isinstance(class_definition, ast.ClassDef)
        for statement, following in pairwise(class_definition.body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    sentences[name] = " ".join(inspect.cleandoc(text).split())
    return sentences
