"""Writer of ONNX files whose weights are streams.

The onnx library holds all weights of a graph in memory, and copies them to write a file. This writer writes the same message
of protocol buffers in parts: the small fields as the library serializes them, and the bytes of each weight behind its header.

    field 7 of ModelProto      the graph
    field 5 of GraphProto      a weight
    field 9 of TensorProto     the bytes of a weight
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.data.tokenization.sentencepiece_proto import encode_varint
from dragoman.io.safetensors import TensorStream

GRAPH_FIELD, WEIGHT_FIELD, BYTES_FIELD = 7, 5, 9
MAX_EMBEDDED_BYTES = 2**31 - 2**24
"""Weights of one file; larger ones have a second file, because a protobuf message holds at most 2 GiB."""


def count_bytes(weights: Mapping[str, TensorStream]) -> int:
    """Return the size of weights in bytes."""
    return sum(stream.nbytes for stream in weights.values())


def write_onnx(path: Path, model: Any, weights: Mapping[str, TensorStream]) -> None:
    """Write a model, and the file `NAME.data` if the weights need one. Raise OSError.

    Args:
        path: the new file
        model: ModelProto whose graph has no weights yet; its graph is removed
        weights: weights of the graph by name, float32, int64 or int8
    """
    is_embedded = count_bytes(weights) <= MAX_EMBEDDED_BYTES
    data_path = path.with_name(f"{path.name}.data")
    headers, offset = {}, 0
    for name, stream in weights.items():
        num_bytes = stream.nbytes
        headers[name] = _describe_weight(name, stream, None if is_embedded else (data_path.name, offset, num_bytes))
        offset += num_bytes
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    entry_sizes = {
        name: len(header) + (_count_field_bytes(BYTES_FIELD, weights[name].nbytes) if is_embedded else 0)
        for name, header in headers.items()
    }
    graph_size = len(graph) + sum(_count_field_bytes(WEIGHT_FIELD, size) for size in entry_sizes.values())
    with path.open("xb") as file:
        file.write(model.SerializeToString() + _start_field(GRAPH_FIELD, graph_size) + graph)
        for name, header in headers.items():
            file.write(_start_field(WEIGHT_FIELD, entry_sizes[name]) + header)
            if is_embedded:
                file.write(_start_field(BYTES_FIELD, weights[name].nbytes))
                file.writelines(_iter_bytes(weights[name]))
    if not is_embedded:
        with data_path.open("xb") as file:
            for stream in weights.values():
                file.writelines(_iter_bytes(stream))


def _describe_weight(name: str, stream: TensorStream, place: tuple[str, int, int] | None) -> bytes:
    """Return the TensorProto of a weight without its bytes. place: name, offset and length in another file"""
    from onnx import TensorProto

    weight = TensorProto(
        name=name,
        dims=list(stream.shape),
        data_type={"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int8": TensorProto.INT8}[stream.dtype.name],
    )
    if place is not None:
        weight.data_location = TensorProto.EXTERNAL
        for key, value in zip(("location", "offset", "length"), place, strict=True):
            weight.external_data.add(key=key, value=str(value))
    return bytes(weight.SerializeToString())


def _iter_bytes(stream: TensorStream) -> Iterator[memoryview]:
    for chunk in stream.iter_chunks():
        yield np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
        stream.release()


def _start_field(number: int, size: int) -> bytes:
    """Return the tag and the length before the content of a field of bytes."""
    return encode_varint(number << 3 | 2) + encode_varint(size)


def _count_field_bytes(number: int, size: int) -> int:
    return len(_start_field(number, size)) + size
