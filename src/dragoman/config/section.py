"""Sections of a recipe: classes whose annotations state the type, the limits and the default of each key.

The reader takes the values of TOML and JSON. It turns no text into a number, and 1e5 into a whole number where one is due. It
reads dataclasses, too. The methods have the names that pydantic gives them, whose import takes longer than a translation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from dragoman.config.section_validation import FieldError, format_value, suggest_name, suggest_or_list_names
from dragoman.errors import RecipeError

T = TypeVar("T")
Reader = Callable[[Any], Any]
FunctionT = TypeVar("FunctionT", bound=Callable[[Any], None])


class Limits(NamedTuple):
    """Limits of a number, or of the length of a text or list. An outer annotation replaces those of an inner one."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    def merge(self, other: Limits) -> Limits:
        """Return these limits with those that the other ones set."""
        return self._replace(**{name: limit for name, limit in other._asdict().items() if limit is not None})

    def find_problem(self, value: Any) -> str | None:
        """Return the limit that a value breaks, as a message, or None."""
        for limit, fits, words in (
            (self.gt, operator.gt, "greater than"),
            (self.ge, operator.ge, "greater than or equal to"),
            (self.lt, operator.lt, "less than"),
            (self.le, operator.le, "less than or equal to"),
        ):
            if limit is not None and not fits(value, limit):
                return f"Input should be {words} {int(limit) if limit == int(limit) else limit}"
        noun, unit = ("String", "character") if isinstance(value, str) else ("List", "item")
        for limit, fits, words in ((self.min_length, operator.ge, "at least"), (self.max_length, operator.le, "at most")):
            if limit is not None and not fits(len(value), limit):
                count = "" if isinstance(value, str) else f", not {len(value)}"
                return f"{noun} should have {words} {limit} {unit}{'' if limit == 1 else 's'}{count}"
        return None


class BeforeValidator(NamedTuple):
    """Function that sees a value before its type is checked."""

    function: Callable[[Any], None]


class SectionField(NamedTuple):
    """Key of a section: its type, its default or `MISSING`, and the function that reads it."""

    annotation: Any
    default: Any
    read: Reader


def model_validator(function: FunctionT) -> FunctionT:
    """Mark a method that raises ValueError if the values of a section do not fit together."""
    function.__dict__["is_validator"] = True
    return function


class _ModelFields:
    def __get__(self, instance: object, section: type) -> Mapping[str, SectionField]:
        return list_fields(section)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class RecipeSection:
    """Frozen section of a recipe. It refuses unknown keys, and true, "5" or infinity in place of a number."""

    model_fields: ClassVar[_ModelFields] = _ModelFields()
    model_fields_set: ClassVar[frozenset[str]] = frozenset()
    __hash__: ClassVar[Any] = None
    _validators: ClassVar[tuple[Callable[[Any], None], ...]] = ()

    def __init_subclass__(cls) -> None:
        """Collect the validators of the class."""
        super().__init_subclass__()
        cls._validators += tuple(value for value in vars(cls).values() if getattr(value, "is_validator", False))

    def __init__(self, **values: Any) -> None:
        _read_at((), self._read, values)

    @classmethod
    def model_validate(cls, document: object) -> Self:
        """Return the section that a document holds. Raise FieldError for the first mistake in it."""
        if isinstance(document, cls):
            return document
        section = cls.__new__(cls)
        _read_at((), section._read, document)
        return section

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Return a section of values that are not checked. The default of a key is used where it has no value."""
        section = cls.__new__(cls)
        section._fill(values)
        return section

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """Return the section with other values, which are not checked."""
        section = self.__class__.__new__(self.__class__)
        vars(section).update({**vars(self), **update, "model_fields_set": self.model_fields_set | update.keys()})
        return section

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Return the values as JSON and TOML hold them."""
        return {name: _to_plain(value) for name, value in self if name not in exclude}

    def _read(self, document: object) -> None:
        """Take the values of a document."""
        self._fill(read_fields(type(self), document))
        self._validate()

    def _fill(self, values: Mapping[str, Any]) -> None:
        defaults = {name: field.default for name, field in list_fields(type(self)).items() if name not in values}
        copies = {name: value.copy() if isinstance(value, list | dict) else value for name, value in defaults.items()}
        vars(self).update({**copies, **values, "model_fields_set": frozenset(values)})

    def _validate(self) -> None:
        for validator in self._validators:
            validator(self)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in list_fields(type(self)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: a section does not change; make another with model_copy")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self)})"


SectionT = TypeVar("SectionT", bound=RecipeSection)


def validate_section(section: type[SectionT], document: object, where: str) -> SectionT:
    """Return the section that a document holds. Raises RecipeError for the first mistake in it.

    where: name of the document at the start of the message
    """
    try:
        return read_value(section, document)
    except FieldError as error:
        raise RecipeError(f"{where}: {error}", code=error.code) from None


def read_value(kind: type[T], value: object) -> T:
    """Return a value of this type. Raise FieldError for the first mistake in it."""
    return cast(T, _read_at((), _build_reader(cast(Any, kind)), value))


def read_fields(kind: type, document: object) -> dict[str, Any]:
    """Return the values that a document has for the fields of a section or of a dataclass."""
    if not isinstance(document, Mapping):
        raise FieldError("needs a section of key = value lines, below its name in brackets", value=document)
    known_fields = list_fields(kind)
    values = {name: _read_at((name,), field.read, document[name]) for name, field in known_fields.items() if name in document}
    for name in document:
        if name not in known_fields:
            raise FieldError(
                f"is not a key{suggest_or_list_names(name, list_keys(kind))}", location=(name,), code="unknown-key"
            )
    for name, field in known_fields.items():
        if field.default is MISSING and name not in document:
            raise FieldError("is missing; give it a value", location=(name,))
    return values


@cache
def list_fields(kind: type) -> dict[str, SectionField]:
    """Return the fields of a section or of a dataclass by name, in the order of the source."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        defaults = {item.name: None if item.default_factory is not MISSING else item.default for item in fields(kind)}
    else:
        names = (name for name, hint in hints.items() if get_origin(hint) is not ClassVar)
        defaults = {name: getattr(kind, name, MISSING) for name in names}
    return {name: SectionField(hints[name], default, _build_reader(hints[name])) for name, default in defaults.items()}


def list_keys(kind: Any) -> list[str]:
    """Return the keys of a section, with those of its extensions."""
    return [*list_fields(kind), *(kind.list_extension_keys() if hasattr(kind, "list_extension_keys") else ())]


def _to_plain(value: Any) -> Any:
    if isinstance(value, RecipeSection):
        return value.model_dump()
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, list) else value


def _read_at(location: tuple[int | str, ...], read: Reader, value: Any) -> Any:
    """Read a value at a location of its section, which an error then names."""
    try:
        return read(value)
    except FieldError as error:
        error.location = location + error.location
        raise
    except ValueError as error:  # of a validator
        raise FieldError(str(error), location=location) from None


@cache
def _build_reader(annotation: Any) -> Reader:
    """Return the function that checks a value of an annotated type and returns it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _build_annotated_reader(arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        return _build_union_reader(arguments)
    if origin is Literal:
        return _build_literal_reader(arguments)
    if origin is list:
        return _build_list_reader(_build_reader(arguments[0]))
    if origin is tuple:
        return _build_tuple_reader([_build_reader(item) for item in arguments if item is not ...], any_length=... in arguments)
    if origin is dict:
        return _build_dict_reader(*map(_build_reader, arguments))
    if annotation in _READERS:
        return _READERS[annotation]
    if issubclass(annotation, RecipeSection):
        return cast(Reader, annotation.model_validate)
    return lambda value: value if isinstance(value, annotation) else annotation(**read_fields(annotation, value))


def _build_annotated_reader(plain: Any, annotations: tuple[Any, ...]) -> Reader:
    read, limits = _build_reader(plain), Limits()
    before = [item.function for item in annotations if isinstance(item, BeforeValidator)]
    after = [item for item in annotations if not isinstance(item, BeforeValidator | Limits)]
    for item in annotations:
        limits = limits.merge(item) if isinstance(item, Limits) else limits

    def read_annotated(document: Any) -> Any:
        for check in before:
            check(document)
        value = read(document)
        if (problem := limits.find_problem(value)) is not None:
            raise FieldError(problem, value=document)
        for check in after:
            check(value)
        return value

    return read_annotated


def _build_union_reader(members: tuple[Any, ...]) -> Reader:
    """Return the reader of a type or None, or of a text or a list of texts."""
    readers = {_find_plain_type(member): _build_reader(member) for member in members if member is not NoneType}
    only_reader = next(iter(readers.values())) if len(readers) == 1 else None

    def read_union(value: Any) -> Any:
        if value is None and NoneType in members:
            return None
        if (read := only_reader or readers.get(type(value))) is None:
            raise FieldError("needs a text, in quotes, or a list of them, such as 'train.en'", value=value)
        return read(value)

    return read_union


def _find_plain_type(annotation: Any) -> Any:
    """Return the class of the values of an annotated type."""
    origin = get_origin(annotation)
    return _find_plain_type(get_args(annotation)[0]) if origin is Annotated else origin or annotation


def _build_literal_reader(choices: tuple[Any, ...]) -> Reader:
    *first_names, last_name = map(repr, choices)
    names = [choice for choice in choices if isinstance(choice, str)]
    listed = f"{', '.join(first_names)} or {last_name}" if first_names else last_name

    def read_literal(value: Any) -> Any:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise FieldError(f"Input should be {listed}{suggest_name(value, names)}", value=value)
        return value

    return read_literal


def _build_list_reader(read: Reader) -> Reader:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise FieldError("needs a list, such as ['a', 'b']", value=value)
        return [_read_at((index,), read, item) for index, item in enumerate(value)]

    return read_list


def _build_tuple_reader(readers: list[Reader], *, any_length: bool) -> Reader:
    def read_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not (any_length or len(value) == len(readers)):
            raise FieldError(f"needs a list of {len(readers)} values", value=value)
        item_readers = readers * len(value) if any_length else readers
        return tuple(_read_at((index,), read, item) for index, (read, item) in enumerate(zip(item_readers, value, strict=True)))

    return read_tuple


def _build_dict_reader(read_key: Reader, read: Reader) -> Reader:
    def read_dict(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise FieldError("needs a section of key = value lines, below its name in brackets", value=value)
        items = {}
        for key, item in value.items():
            try:
                read_key(key)
            except ValueError as error:
                raise FieldError(f"{format_value(key)} is not a name: {error}") from None
            items[key] = _read_at((key,), read, item)
        return items

    return read_dict


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError("needs true or false, without quotes", value=value)
    return value


def _read_int(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():  # TOML makes every number with an exponent a float
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FieldError("needs a whole number, such as 100", value=value)
    return value


def _read_float(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise FieldError("needs a number, such as 0.1", value=value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FieldError("Input should be a finite number", value=value)
    return number


def _read_str(value: Any) -> str:
    if not isinstance(value, str):
        raise FieldError("needs a text, in quotes, such as 'text'", value=value)
    if any("\ud800" <= character <= "\udfff" for character in value):  # invalid bytes of a command line, or JSON's escapes
        raise FieldError("is not UTF-8; give another text", value=value)
    return value


_READERS: Mapping[Any, Reader] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
    Any: lambda value: value,
}
