"""JSON schema of recipes, by which editors complete and check the keys of a TOML file (its line `#:schema FILE`)."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel

from dragoman.config.extension import ExtensibleSection, iter_extension_types
from dragoman.config.fields import RecipeSection
from dragoman.config.recipe import Recipe


def make_recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe, with the sentence of each key and the keys of all extensions."""
    schema = Recipe.model_json_schema()
    definitions = schema["$defs"]
    sections: dict[str, type[BaseModel]] = {"": Recipe}
    sections |= {section.__name__: section for section in _list_section_types(RecipeSection)}
    for name, document in {"": schema, **definitions}.items():
        section = sections[name]
        _add_sentences(document, section)
        for extension_type in iter_extension_types(section.hook) if issubclass(section, ExtensibleSection) else ():
            extension = extension_type.model_json_schema()
            definitions |= extension.get("$defs", {})
            document["properties"] |= _add_sentences(extension, extension_type)["properties"]
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def _list_section_types(section: type[RecipeSection]) -> list[type[RecipeSection]]:
    """Return a section class and all classes that are derived from it."""
    return [section, *(descendant for derived in section.__subclasses__() for descendant in _list_section_types(derived))]


def _add_sentences(document: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """Add the sentence of each key to the schema of a section, and return it."""
    for name, sentence in read_sentences(section).items():
        document["properties"][name]["description"] = sentence
    return document


@cache
def read_sentences(section: type[BaseModel]) -> dict[str, str]:
    """Return the sentence under each key of a section in its source."""
    sentences: dict[str, str] = {}
    for base in reversed(section.__mro__[: section.__mro__.index(BaseModel)]):
        class_definition = ast.parse(dedent(inspect.getsource(base))).body[0]
        assert isinstance(class_definition, ast.ClassDef)
        for statement, following in pairwise(class_definition.body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    sentences[name] = " ".join(inspect.cleandoc(text).split())
    return sentences
