"""Parquet, which data sets are kept in: columns of text, or one column that holds both sides as a struct."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dragoman.errors import DataError
from dragoman.formats.jsonl import Keys, find_keys, unknown_keys
from dragoman.formats.pair import Pair, one_line
from dragoman.formats.text import LONGEST, UNREADABLE, shown, unreadable

_MEMORY = 2**28  # bytes; rows of few bytes may all stand for one long text
_LEAST_ROWS, _MOST_ROWS = 4, 1024
_ROW_GROUP = 2**25  # characters


def read_parquet(
    path: Path, fields: Sequence[str] | None = None, *, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """The texts of two columns row by row, found as those of JSON lines are; a null is an empty text.

    Memory is of a few pages of the two columns. Raises DataError for a file without them, and for one that is damaged.
    """
    number = 0
    try:
        with path.open("rb") as stream:
            file = pq.ParquetFile(stream, buffer_size=2**20, page_checksum_verification=True)
            found = _find_columns(file.schema_arrow, fields, path, source_language, target_language)
            names = [".".join(column) for column in found]
            for batch in file.iter_batches(_rows(file.metadata), columns=names, use_threads=False):
                done = number
                sources, targets = (_texts(batch, column, path, done) for column in found)
                for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=done + 1):
                    yield Pair(source, target, f"{path}:#{number}")
    except (*UNREADABLE, MemoryError, ValueError) as error:
        raise unreadable(path, error, after=f"row {number}" if number else "") from None


def _find_columns(
    schema: Any, fields: Sequence[str] | None, path: Path, source_language: str, target_language: str
) -> list[list[str]]:
    """Where the two texts stand: the name of a column, and those of the fields that lead on from there."""
    columns = {field.name: field.type for field in schema}
    keys: Keys | None = (fields[0], fields[1]) if fields is not None else None
    if keys is None:
        keys = find_keys(lambda key: bool(_way(columns, key)), source_language, target_language)
    if keys is None:
        raise DataError(f"{path}: {unknown_keys(_names(columns), source_language, target_language)}")
    found = [_way(columns, key) for key in keys]
    for key, way in zip(keys, found, strict=True):
        if not way:
            raise DataError(f"{path}: has no column {key!r}; it has {shown(_names(columns))}")
        if sum(field.name == way[0] for field in schema) > 1:
            raise DataError(f"{path}: has more than one column {way[0]!r}")
        kind = columns[way[0]]
        for name in way[1:]:
            kind = kind.field(name).type
        if not _is_text(kind):
            raise DataError(f"{path}: the column {key!r} holds {str(kind)[:40]}, not text")
    return found


def _way(columns: dict[str, Any], key: str) -> list[str]:
    """The names that lead to what "a.b" means: a column of that name, or else b within a. None where there is no such thing."""
    if key in columns:
        return [key]
    head, dot, rest = key.partition(".")
    if not dot or head not in columns or not pa.types.is_struct(columns[head]):
        return []
    way = _way({field.name: field.type for field in columns[head]}, rest)
    return [head, *way] if way else []


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null))


def _names(columns: dict[str, Any]) -> list[str]:
    """The columns and, one step down, the fields of structs."""
    names = []
    for name, kind in columns.items():
        names += [f"{name}.{field.name}" for field in kind] if pa.types.is_struct(kind) else [name]
    return names


def _rows(metadata: Any) -> int:
    """How many rows to take at once, so that they find room even if each of them stands for all the text of a row group.

    What is told of single columns would be nearer, but Arrow ends the process where that is damaged.
    """
    largest = max((metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)), default=1)
    return int(min(_MOST_ROWS, max(_LEAST_ROWS, _MEMORY // max(1, largest))))


def _texts(batch: Any, way: list[str], path: Path, before: int) -> list[str]:
    """A column of a batch, `before` rows into the file."""
    column = batch.column(way[0])
    if way[1:]:
        column = pc.struct_field(column, way[1:])
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError:
        raise DataError(f"{path}, rows {before + 1} to {before + len(column)}: {'.'.join(way)!r} is not UTF-8") from None
    for row, text in enumerate(texts, start=before + 1):
        if text is not None and len(text) > LONGEST:
            raise DataError(f"{path}, row {row}: longer than {LONGEST >> 20} MiB, which no sentence is")
    return ["" if text is None else one_line(text) for text in texts]


def write_parquet(stream: IO[bytes], pairs: Iterable[Pair], keys: Keys) -> None:
    """Write a file of two columns into a stream, which stays open."""
    schema = pa.schema([(key, pa.string()) for key in keys])
    with pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as writer:
        sides: tuple[list[str], list[str]] = ([], [])
        size = 0
        for pair in pairs:
            sides[0].append(pair.source)
            sides[1].append(pair.target)
            size += len(pair.source) + len(pair.target)
            if size > _ROW_GROUP:
                writer.write_table(pa.table([pa.array(side, pa.string()) for side in sides], schema))
                sides, size = ([], []), 0
        writer.write_table(pa.table([pa.array(side, pa.string()) for side in sides], schema))
