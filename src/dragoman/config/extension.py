"""Sections of a recipe that take further keys from the entries of a hook, such as those of an experiment.

A key that a section does not declare is looked up in the entries of its hook. An entry whose keys all have their default values
changes nothing, so it is dropped: a recipe without experiments loads none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast

from dragoman.config.section import RecipeSection, list_fields
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
    _extensions: ClassVar[tuple[Extension, ...]] = ()

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Return the extensions with a key that differs from its default."""
        return self._extensions

    def get_extension(self, extension_type: type[ExtensionT]) -> ExtensionT:
        """Return the extension of this type, with the default of each key if no key of it is set."""
        return next((item for item in self._extensions if isinstance(item, extension_type)), None) or extension_type()

    @classmethod
    def list_extension_keys(cls) -> list[str]:
        """Return the keys that the entries of the hook add."""
        return list(get_extension_defaults(cls.hook))

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Return the values, with those of the active extensions."""
        values = super().model_dump(exclude=exclude)
        for extension in self._extensions:
            changes = extension.get_changes()
            values |= {name: value for name, value in extension.model_dump().items() if name in changes}
        return values

    def _read(self, document: object) -> None:
        if not isinstance(document, Mapping):
            return super()._read(document)
        own_fields = list_fields(type(self))
        values = {key: value for key, value in document.items() if key not in own_fields}
        own_values = {key: value for key, value in document.items() if key in own_fields}
        extensions = []
        for extension_type in iter_extension_types(self.hook) if values else ():
            names = [name for name in values if name in list_fields(extension_type)]
            if names:
                extension = extension_type.model_validate({name: values.pop(name) for name in names})
                extensions += [extension] if extension.get_changes() else []
            if not values:
                break
        if values and (problems := find_broken_entries(self.hook)):
            raise ValueError(f"{next(iter(values))} is not a known key; {problems[0]}")
        super()._read({**own_values, **values})
        vars(self)["_extensions"] = tuple(extensions)
        for extension in extensions:
            extension.check_section(self)
        return None


def get_extension_defaults(hook: str) -> dict[str, Any]:
    """Return the default of each key that the entries of a hook add to their section."""
    extension_types = iter_extension_types(hook)
    return {name: field.default for extension_type in extension_types for name, field in list_fields(extension_type).items()}


def iter_extension_types(hook: str) -> Iterator[type[Extension]]:
    """Yield the class of each entry of a hook that can be imported."""
    for _, extension_type in iter_entries(hook):
        yield cast(type[Extension], extension_type)
