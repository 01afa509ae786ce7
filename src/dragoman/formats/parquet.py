"""Parquet files with two columns of text, or with one struct column that holds both sides, and whole files of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dragoman.errors import DataError
from dragoman.formats.jsonl import KeyPair, describe_unknown_keys, find_keys
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import MAX_LINE_BYTES, READ_ERRORS, quote_names, to_data_error
from dragoman.io.storage import commit_file

_BATCH_BYTES = 2**28  # bytes; with dictionary encoding, many short rows may stand for one long text
_MIN_BATCH_ROWS, _MAX_BATCH_ROWS = 4, 1024
_ROW_GROUP_CHARACTERS = 2**25  # characters


def read_parquet(
    path: Path, column_names: Sequence[str] | None = None, *, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """Yield the texts of two columns row by row, with the column names of `read_jsonl`. A null is an empty text.

    Memory holds a few pages of the two columns. Raises DataError if the file lacks the columns or is damaged.
    """
    number = 0
    try:
        with path.open("rb") as stream:
            file = pq.ParquetFile(stream, buffer_size=2**20, page_checksum_verification=True)
            column_paths = _find_column_paths(file.schema_arrow, column_names, path, source_language, target_language)
            names = [".".join(column_path) for column_path in column_paths]
            for batch in file.iter_batches(_choose_batch_rows(file.metadata), columns=names, use_threads=False):
                row_offset = number
                sources, targets = (_read_texts(batch, column, path, row_offset) for column in column_paths)
                for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=row_offset + 1):
                    yield Pair(source, target, f"{path}:#{number}")
    except (*READ_ERRORS, MemoryError, ValueError, pa.ArrowException) as error:
        raise to_data_error(path, error, last_position=f"row {number}" if number else "") from None


def read_first_parquet_row(path: Path) -> dict[str, Any]:
    """Return the first row of a file, with None for each column of an empty one. Raises DataError."""
    try:
        with path.open("rb") as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            rows = next(file.iter_batches(1, use_threads=False), pa.table({})).to_pylist()
            row: dict[str, Any] = rows[0] if rows else dict.fromkeys(file.schema_arrow.names)
            return row
    except (*READ_ERRORS, MemoryError, ValueError, pa.ArrowException) as error:
        raise to_data_error(path, error) from None


def _find_column_paths(
    schema: Any, column_names: Sequence[str] | None, path: Path, source_language: str, target_language: str
) -> list[list[str]]:
    """Return the path of each side: the name of a column, and of the struct fields in it."""
    column_types = {field.name: field.type for field in schema}
    keys: KeyPair | None = (column_names[0], column_names[1]) if column_names is not None else None
    if keys is None:
        keys = find_keys(lambda key: bool(_resolve_key(column_types, key)), source_language, target_language)
    if keys is None:
        raise DataError(
            f"{path}: {describe_unknown_keys(_list_columns(column_types), source_language, target_language)}",
            code="unknown-column",
        )
    column_paths = [_resolve_key(column_types, key) for key in keys]
    for key, column_path in zip(keys, column_paths, strict=True):
        if not column_path:
            raise DataError(
                f"{path}: has no column {key!r}; it has {quote_names(_list_columns(column_types))}", code="unknown-column"
            )
        if sum(field.name == column_path[0] for field in schema) > 1:
            raise DataError(f"{path}: has more than one column {column_path[0]!r}", code="invalid-format")
        data_type = column_types[column_path[0]]
        for name in column_path[1:]:
            data_type = data_type.field(name).type
        if not _is_text(data_type):
            raise DataError(f"{path}: the column {key!r} holds {str(data_type)[:40]}, not text", code="invalid-format")
    return column_paths


def _resolve_key(column_types: dict[str, Any], key: str) -> list[str]:
    """Return the path of a key: the column of that name, or for "a.b" the field b in a; empty if neither exists."""
    if key in column_types:
        return [key]
    head, dot, tail = key.partition(".")
    if not dot or head not in column_types or not pa.types.is_struct(column_types[head]):
        return []
    inner_path = _resolve_key({field.name: field.type for field in column_types[head]}, tail)
    return [head, *inner_path] if inner_path else []


def _is_text(data_type: Any) -> bool:
    data_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    return any(
        predicate(data_type)
        for predicate in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    )


def _list_columns(column_types: dict[str, Any]) -> list[str]:
    """Return the names of the columns, and of the fields of structs as "a.b"."""
    names = []
    for name, data_type in column_types.items():
        names += [f"{name}.{field.name}" for field in data_type] if pa.types.is_struct(data_type) else [name]
    return names


def _choose_batch_rows(metadata: Any) -> int:
    """Return the number of rows to read at once. They fit into memory even if each holds all the text of a row group.

    The metadata of single columns would be more exact, but Arrow crashes if it is damaged.
    """
    largest_row_group = max(
        (metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)), default=1
    )
    return int(min(_MAX_BATCH_ROWS, max(_MIN_BATCH_ROWS, _BATCH_BYTES // max(1, largest_row_group))))


def _read_texts(batch: Any, column_path: list[str], path: Path, row_offset: int) -> list[str]:
    """Return the texts of a column of a batch that begins `row_offset` rows into the file."""
    column = batch.column(column_path[0])
    if column_path[1:]:
        column = pc.struct_field(column, column_path[1:])
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError:
        raise DataError(
            f"{path}, rows {row_offset + 1} to {row_offset + len(column)}: {'.'.join(column_path)!r} is not UTF-8",
            code="invalid-encoding",
        ) from None
    for row, text in enumerate(texts, start=row_offset + 1):
        if text is not None and len(text) > MAX_LINE_BYTES:
            raise DataError(f"{path}, row {row}: longer than {MAX_LINE_BYTES >> 20} MiB; split the text", code="input-too-long")
    return ["" if text is None else to_single_line(text) for text in texts]


def write_parquet(stream: IO[bytes], pairs: Iterable[Pair], keys: KeyPair) -> None:
    """Write a file with two columns into a stream, which stays open."""
    schema = pa.schema([(key, pa.string()) for key in keys])
    with pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as writer:
        sides: tuple[list[str], list[str]] = ([], [])
        size = 0
        for pair in pairs:
            sides[0].append(pair.source)
            sides[1].append(pair.target)
            size += len(pair.source) + len(pair.target)
            if size > _ROW_GROUP_CHARACTERS:
                writer.write_table(pa.table([pa.array(side, pa.string()) for side in sides], schema))
                sides, size = ([], []), 0
        writer.write_table(pa.table([pa.array(side, pa.string()) for side in sides], schema))


@contextmanager
def atomic_arrow_file(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Give the writer of an Arrow file, which appears at `path` when the context ends without an error. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer
    commit_file(partial, path)
