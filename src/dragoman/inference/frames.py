"""Translation of a column of a table: frames of pandas and Polars, and datasets of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.inference.translator import Translator

FrameT = TypeVar("FrameT")


def translate_frame(
    translator: Translator, frame: FrameT, column: str, *, into: str = "translation", status: str | None = None, **options: Any
) -> FrameT:
    """Return a table with the translations of a column in a new column. The table that is given stays as it is.

    Each text is translated sentence by sentence, and keeps its line breaks, placeholders and signs.

    Args:
        translator: the translator, as `dragoman.load` returns it
        frame: a DataFrame of pandas or Polars, or a Dataset of Hugging Face
        column: name of the column of texts; a missing text stays missing
        into: name of the column of translations, which replaces a column of this name
        status: name of a column for the status of each translation, such as `ok` or `truncated`; None for no such column
        options: arguments of `Translator.translate_texts`, such as `beam_size=5`

    Raises:
        DataError: the table is of another kind, or has no such column, or several.
        TypeError: a value of the column is no text.
    """
    add = _get_column_setter(frame)
    names: list[Any] = list(getattr(frame, "column_names", None) or cast(Any, frame).columns)
    if (count := names.count(column)) != 1:
        raise DataError(
            f"{column}: is the name of {count} columns of the table; its columns are {', '.join(map(str, names))}",
            code="invalid-argument",
        )
    values: list[Any] = list(cast(Any, frame)[column])
    rows = [row for row, value in enumerate(values) if not _is_missing(value)]
    translations = dict(zip(rows, translator.translate_texts([values[row] for row in rows], **options), strict=True))
    results = [translations.get(row) for row in range(len(values))]
    result: FrameT = add(frame, into, [translation and translation.text for translation in results])
    if status is not None:
        result = add(result, status, [translation and translation.status for translation in results])
    return result


def _is_missing(value: object) -> bool:
    """Return whether a table holds no value here: None, or the NaN and NA of pandas."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _get_column_setter(frame: Any) -> Any:
    """Return a function that adds a column to a copy of the table. Raises DataError for another kind of object."""
    kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
    if kind in _COLUMN_SETTERS:
        return _COLUMN_SETTERS[kind]
    raise DataError(
        f"a table of type {type(frame).__name__} is not known: give a DataFrame of pandas or Polars, or Hugging Face's Dataset",
        code="invalid-argument",
    )


def _add_to_pandas(frame: Any, name: str, values: Sequence[str | None]) -> Any:
    return frame.assign(**{name: values})


def _add_to_polars(frame: Any, name: str, values: Sequence[str | None]) -> Any:
    return frame.with_columns(type(frame[:, 0])(name, values, dtype=str))


def _add_to_dataset(frame: Any, name: str, values: Sequence[str | None]) -> Any:
    others = frame.remove_columns(name) if name in frame.column_names else frame
    return others.add_column(name, values)


_COLUMN_SETTERS = {
    "pandas.DataFrame": _add_to_pandas, "polars.DataFrame": _add_to_polars, "datasets.Dataset": _add_to_dataset
}  # fmt: skip
