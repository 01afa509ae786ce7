"""Sections of a recipe that take further keys from the entries of a hook, such as those of an experiment.

A key that a section does not declare is looked up in the entries of its hook. An entry whose keys all have their default values
changes nothing, so it is dropped: a recipe without experiments loads none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, cast

from pydantic import PrivateAttr, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from dragoman.config.fields import RecipeSection
from dragoman.hooks import find_broken_entries, iter_entries


class Extension(RecipeSection):
    """Keys that an entry of a hook adds to a section of the recipe, with what they ask of the rest of it."""

    def check_section(self, section: Any) -> None:
        """Raise ValueError if a key of the section does not fit to this extension."""

    def check_recipe(self, recipe: Any) -> None:
        """Raise ValueError if another section does not fit to this extension."""

    def get_changes(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, by key."""
        default = type(self)()
        return {name: value for name, value in self if value != getattr(default, name)}


ExtensionT = TypeVar("ExtensionT", bound=Extension)


class ExtensibleSection(RecipeSection):
    """Section of a recipe with the keys of active extensions beside its own."""

    hook: ClassVar[str]
    _extensions: tuple[Extension, ...] = PrivateAttr(default=())

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Return the extensions with a key that differs from its default."""
        return self._extensions

    def get_extension(self, extension_type: type[ExtensionT]) -> ExtensionT:
        """Return the extension of this type, with the default of each key if no key of it is set."""
        return next((item for item in self._extensions if isinstance(item, extension_type)), None) or extension_type()

    @model_validator(mode="wrap")
    @classmethod
    def _read_extensions(cls, document: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(document, Mapping):
            return handler(document)
        values = {key: value for key, value in document.items() if key not in cls.model_fields}
        own_values = {key: value for key, value in document.items() if key in cls.model_fields}
        extensions = []
        for extension_type in iter_extension_types(cls.hook) if values else ():
            names = [name for name in values if name in extension_type.model_fields]
            if names:
                extension = extension_type.model_validate({name: values.pop(name) for name in names})
                extensions += [extension] if extension.get_changes() else []
            if not values:
                break
        if values and (problems := find_broken_entries(cls.hook)):
            raise ValueError(f"{next(iter(values))} is not a known key; {problems[0]}")
        section = handler({**own_values, **values})
        section._extensions = tuple(extensions)
        for extension in extensions:
            extension.check_section(section)
        return section

    @model_serializer(mode="wrap")
    def _write_extensions(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        for extension in self._extensions:
            values |= extension.get_changes()
        return values


def get_extension_defaults(hook: str) -> dict[str, Any]:
    """Return the default of each key that the entries of a hook add to their section."""
    return {name: value for extension_type in iter_extension_types(hook) for name, value in extension_type()}


def iter_extension_types(hook: str) -> Iterator[type[Extension]]:
    """Yield the class of each entry of a hook that can be imported."""
    for _, extension_type in iter_entries(hook):
        yield cast(type[Extension], extension_type)
