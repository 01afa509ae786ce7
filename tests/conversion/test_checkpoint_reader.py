"""The reader of PyTorch checkpoints: equal tensors, and no execution of hostile or damaged files."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.conversion.checkpoint_reader import InertObject, read_checkpoint
from dragoman.errors import DataError
from dragoman.io.bfloat16 import widen
from dragoman.io.safetensors import get_dtype_name
from expected_errors import raises_code

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
]  # fmt: skip


def save(path: Path, value: object, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def are_equal(array: NDArray[Any], tensor: torch.Tensor) -> bool:
    expected = tensor.detach()
    return np.array_equal(widen(array), (expected.float() if expected.dtype == torch.bfloat16 else expected).numpy())


def write_program(path: Path, program: bytes, storages: dict[str, bytes] | None = None, **options: Any) -> Path:
    """Write a checkpoint whose data.pkl is this program."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("archive/data.pkl", program)
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return path


# Tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_each_type_are_equal(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    value = read_checkpoint(save(tmp_path / "model.bin", {"x": tensor})).value
    assert get_dtype_name(value["x"]) == get_dtype_name(tensor)
    assert are_equal(value["x"], tensor)


def test_views_and_shared_storages_are_equal(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state = OrderedDict(a=base, b=base.t(), c=base[1:, ::2], d=base[2, 3], e=torch.empty(0, 3), f=torch.nn.Parameter(base))
    value = read_checkpoint(save(tmp_path / "model.bin", state)).value
    assert list(value) == list(state)
    for name, tensor in state.items():
        assert are_equal(value[name], tensor)
        assert value[name].strides == tuple(4 * step for step in tensor.stride()) or not tensor.numel()
    assert np.shares_memory(value["a"], value["b"])


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_values_are_equal(protocol: int, tmp_path: Path) -> None:
    plain: dict[Any, Any] = {
        "text": "ä" * 300, "none": None, "yes": True, "no": False, "number": -(2**70), "small": 7, "word": 300, "int": 70_000,
        "float": 0.1, "list": [1, [2, (3,), (4, 5), (6, 7, 8), (9, 10, 11, 12)]], "empty": [(), [], {}], 5: "key",
    }  # fmt: skip
    path = save(tmp_path / "model.bin", {**plain, "x": torch.ones(2)}, pickle_protocol=protocol)
    value = read_checkpoint(path).value
    assert are_equal(value.pop("x"), torch.ones(2))
    assert value == plain


def test_allowed_class_is_inert(tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt", {"args": argparse.Namespace(arch="transformer", layers=6), "x": torch.ones(2)})
    value = read_checkpoint(path, inert_classes={"argparse.Namespace"}).value
    assert value["args"] == InertObject("argparse.Namespace", (), {"arch": "transformer", "layers": 6}, [])
    with raises_code("checkpoint-unsafe", "argparse.Namespace", str(path)):
        read_checkpoint(path)


def test_tensors_are_not_copied(tmp_path: Path) -> None:
    path = save(tmp_path / "model.bin", {"x": torch.ones(1 << 22)})
    tracemalloc.start()
    value = read_checkpoint(path).value
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20  # the tensor has 16 MiB
    assert float(value["x"].sum()) == 1 << 22


# Hostile programs


class Call:
    """Object whose pickle calls a function."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class WithState(Call):
    """Object whose pickle calls a function and then sets its state, items and values."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (*self.call, {"a": 1}, iter([1]), iter([("b", 2)]))


def make_hostile_objects(marker: Path) -> list[object]:
    """Return objects whose pickles would make the file `marker` or reach a function that could."""
    command = f"touch {marker}"
    return [
        Call(os.system, command),
        WithState(os.system, command),
        Call(eval, f"open({str(marker)!r}, 'w')"),
        Call(exec, f"open({str(marker)!r}, 'w')"),
        Call(getattr, Call(__import__, "os"), "system"),
        Call(open, str(marker), "w"),
        Call(Path.touch, marker),
        Call(torch.load, str(marker)),
        Call(torch.save, {}, str(marker)),
        Call(pickle.loads, pickle.dumps(Call(os.system, command))),
        Call(__import__, "os"),
        Call(bytearray, 1 << 40),
        Call(list, range(10)),
        os.system,
        torch.nn.Linear(2, 2),
        io.StringIO("x"),
    ]


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")  # torch stores the source of a module in an old file
@pytest.mark.parametrize("index", range(16))
@pytest.mark.parametrize("options", [{"pickle_protocol": 2}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}])
def test_hostile_object_is_refused(index: int, options: dict[str, Any], tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    hostile = make_hostile_objects(marker)
    assert len(hostile) == 16
    path = save(tmp_path / "model.bin", {"x": torch.ones(2), "payload": hostile[index]}, **options)
    with raises_code("checkpoint-unsafe", str(path)):
        read_checkpoint(path)
    assert not marker.exists()


def test_hostile_object_executes_in_pickle(tmp_path: Path) -> None:
    """Prove that the objects of the test above are hostile."""
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(make_hostile_objects(marker)[0]))
    assert marker.exists()


GLOBAL = b"c%s\n%s\n"
HOSTILE_PROGRAMS = {
    "dotted name": (b"\x80\x04\x8c\x08builtins\x8c\x0cstr.__class__\x93.", "checkpoint-unsafe"),
    "attribute of an allowed module": (b"\x80\x04\x8c\x0ctorch._utils\x8c\x07os.path\x93.", "checkpoint-unsafe"),
    "attribute of a function": (GLOBAL % (b"torch._utils", b"_rebuild_tensor_v2.__globals__") + b".", "checkpoint-unsafe"),
    "instance opcode": (b"(S'touch executed'\nios\nsystem\n.", "checkpoint-unsafe"),
    "object opcode": (b"(cos\nsystem\nS'x'\no.", "checkpoint-unsafe"),
    "extension opcode": (b"\x80\x02\x82\x01.", "checkpoint-unsafe"),
    "text persistent id": (b"Pstorage\n.", "checkpoint-unsafe"),
    "keyword construction": (b"\x80\x04ccollections\nOrderedDict\n)}\x92.", "checkpoint-unsafe"),
    "next buffer": (b"\x80\x05\x97.", "checkpoint-unsafe"),
    "call of a text": (b"\x80\x02X\x02\x00\x00\x00os)R.", "source-damaged"),
    "call of a storage class": (GLOBAL % (b"torch", b"FloatStorage") + b")R.", "checkpoint-unsafe"),
    "copies of a container": (GLOBAL % (b"collections", b"OrderedDict") + b"]\x85R.", "checkpoint-unsafe"),
    "state of a text": (b"\x80\x02X\x01\x00\x00\x00a}b.", "source-damaged"),
    "list as a key": (b"\x80\x02}]K\x01s.", "source-damaged"),
    "tuple as a key": (b"\x80\x02})K\x01s.", "source-damaged"),
    "empty program": (b"", "source-damaged"),
    "stop without a value": (b"\x80\x02.", "source-damaged"),
    "tuple of an empty stack": (b"\x80\x02\x87.", "source-damaged"),
    "group without a mark": (b"\x80\x02t.", "source-damaged"),
    "unknown memo": (b"\x80\x02h\x05.", "source-damaged"),
    "huge memo index": (b"\x80\x02Nr\xff\xff\xff\xff.", None),
    "huge text": (b"\x80\x02X\xff\xff\xff\xffa.", "source-damaged"),
    "huge bytes": (b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa.", "checkpoint-unsafe"),
    "huge byte array": (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7fa.", "checkpoint-unsafe"),
    "huge long": (b"\x80\x02\x8b\xff\xff\xff\x7fa.", "checkpoint-unsafe"),
    "unknown protocol": (b"\x80\x09N.", "source-damaged"),
    "not UTF-8": (b"\x80\x02X\x02\x00\x00\x00\xff\xfe.", "source-damaged"),
    "deep tuples": (b"\x80\x02)" + b"\x85" * 1_000_000 + b".", None),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "deep tuples" else name for name in HOSTILE_PROGRAMS],
)
def test_hostile_program_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, code = HOSTILE_PROGRAMS[name]
    path = write_program(tmp_path / "model.bin", program)
    tracemalloc.start()
    if code is None:
        read_checkpoint(path)
    else:
        with raises_code(code, str(path)):
            read_checkpoint(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (1 << 20) + 200 * len(program)
    assert list(tmp_path.iterdir()) == [path]


def tensor_program(offset: bytes, shape: bytes, stride: bytes, count: bytes = b"K\x08") -> bytes:
    """Return a program that builds one tensor over a storage of eight float32 values."""
    text = b"X\x07\x00\x00\x00storage", b"X\x01\x00\x00\x000", b"X\x03\x00\x00\x00cpu"
    storage = b"(" + text[0] + GLOBAL % (b"torch", b"FloatStorage") + text[1] + text[2] + count + b"tQ"
    arguments = storage + offset + b"(" + shape + b"t(" + stride + b"t\x89N"
    return b"\x80\x02" + GLOBAL % (b"torch._utils", b"_rebuild_tensor_v2") + b"(" + arguments + b"tR."


HUGE = b"\x8a\x09" + (2**64).to_bytes(9, "little")
FALSE_TENSORS = {
    "offset beyond the storage": (b"K\x08", b"K\x01", b"K\x01"),
    "stride beyond the storage": (b"K\x00", b"K\x02", b"K\x09"),
    "repeated values": (b"K\x00", b"M\xff\xff", b"K\x00"),
    "negative stride": (b"K\x07", b"K\x02", b"J\xff\xff\xff\xff"),
    "negative offset": (b"J\xff\xff\xff\xff", b"K\x01", b"K\x01"),
    "negative size": (b"K\x00", b"J\xfe\xff\xff\xff", b"K\x01"),
    "size of 64 bits": (b"K\x00", HUGE, b"K\x01"),
    "zero times a huge size": (b"K\x00", b"K\x00" + HUGE, b"K\x01K\x01"),
    "text as a size": (b"K\x00", b"X\x01\x00\x00\x00a", b"K\x01"),
    "true as a size": (b"K\x00", b"\x88", b"K\x01"),
    "more strides than sizes": (b"K\x00", b"K\x01", b"K\x01K\x01"),
    "17 dimensions": (b"K\x00", b"K\x01" * 17, b"K\x01" * 17),
    "more values than the file": (b"K\x00", b"K\x01", b"K\x01", b"K\x09"),
}


@pytest.mark.parametrize("name", FALSE_TENSORS)
def test_false_tensor_is_refused(name: str, tmp_path: Path) -> None:
    data = {"0": struct.pack("<8f", *range(8))}
    path = write_program(tmp_path / "good.bin", tensor_program(b"K\x02", b"K\x02K\x02", b"K\x03K\x01"), data)
    assert read_checkpoint(path).value.tolist() == [[2.0, 3.0], [5.0, 6.0]]
    with raises_code("source-damaged"):
        read_checkpoint(write_program(tmp_path / "model.bin", tensor_program(*FALSE_TENSORS[name]), data))
    offset, shape, stride, *count = FALSE_TENSORS[name]
    old_program = tensor_program(offset, shape, stride, (count[0] if count else b"K\x08") + b"N")
    with raises_code("source-damaged"):
        read_checkpoint(write_legacy(tmp_path / "old.bin", old_program, {"0": bytes(32)}))


# Archives


@pytest.mark.parametrize("key", ["1", "../../etc/passwd", "/etc/passwd", "..\\0"])
def test_storage_outside_the_archive_is_refused(key: str, tmp_path: Path) -> None:
    encoded = b"X" + struct.pack("<I", len(key)) + key.encode()
    program = tensor_program(b"K\x00", b"K\x01", b"K\x01").replace(b"X\x01\x00\x00\x000", encoded)
    with raises_code("source-damaged"):
        read_checkpoint(write_program(tmp_path / "model.bin", program, {"0": bytes(32)}))


def test_compressed_archive_is_refused(tmp_path: Path) -> None:
    program = tensor_program(b"K\x00", b"K\x01", b"K\x01")
    path = write_program(tmp_path / "bomb.bin", program, {"0": bytes(1 << 24)}, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 16
    with raises_code("source-damaged", "compressed"):
        read_checkpoint(path)


# Format before version 1.6


def save_legacy(path: Path, value: object, **options: Any) -> Path:
    return save(path, value, _use_new_zipfile_serialization=False, **options)


def write_legacy(path: Path, program: bytes, storages: dict[str, bytes], item_size: int = 4) -> Path:
    """Write an old file whose objects are this program, by the documentation of its five parts."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2}}]
    head = b"".join(pickle.dumps(part, protocol=2) for part in parts)
    values = b"".join(struct.pack("<q", len(data) // item_size) + data for data in storages.values())
    path.write_bytes(head + program + pickle.dumps(list(storages), protocol=2) + values)
    return path


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("text_length", range(4))
def test_old_tensors_are_equal(protocol: int, text_length: int, tmp_path: Path) -> None:
    """The text moves the values of the storages to each remainder of four, so that some are not aligned."""
    base = torch.arange(24.0).reshape(4, 6)
    state: dict[str, Any] = {str(dtype): torch.arange(-6, 6).to(dtype) for dtype in DTYPES}
    state |= {"a": base, "b": base.t(), "c": base[1:, ::2], "e": torch.empty(0, 3), "f": torch.nn.Parameter(base)}
    path = save_legacy(tmp_path / "model.bin", {"text": "x" * text_length, **state}, pickle_protocol=protocol)
    value = read_checkpoint(path).value
    assert value.pop("text") == "x" * text_length
    assert list(value) == list(state)
    for name, tensor in state.items():
        assert get_dtype_name(value[name]) == get_dtype_name(tensor)
        assert are_equal(value[name], tensor)
    assert np.shares_memory(value["a"], value["b"])


def test_old_file_of_this_test_is_read_by_torch(tmp_path: Path) -> None:
    """Prove that `write_legacy` follows the format; the program shows four of its eight values, from the third on."""
    program = tensor_program(b"K\x02", b"K\x02K\x02", b"K\x03K\x01", b"K\x08N")
    path = write_legacy(tmp_path / "model.bin", program, {"0": struct.pack("<8f", *range(8))})
    assert torch.load(path, weights_only=True).tolist() == [[2.0, 3.0], [5.0, 6.0]]
    assert read_checkpoint(path).value.tolist() == [[2.0, 3.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    ("part", "shape", "expected"),
    [
        (b"(X\x01\x00\x00\x00vK\x02K\x03t", b"K\x03", [2.0, 3.0, 4.0]),
        (b"(X\x01\x00\x00\x00vK\x02K\x03t", b"K\x04", None),
        (b"(X\x01\x00\x00\x00vK\x02K\x07t", b"K\x01", None),
        (b"(X\x01\x00\x00\x00vJ\xff\xff\xff\xffK\x03t", b"K\x01", None),
        (b"(K\x02K\x03t", b"K\x01", None),
        (b"K\x02", b"K\x01", None),
    ],
)
def test_old_part_of_a_storage_is_read(part: bytes, shape: bytes, expected: list[float] | None, tmp_path: Path) -> None:
    """PyTorch 0.3 describes a part of a storage by a name, its first value and its number of values."""
    program = tensor_program(b"K\x00", shape, b"K\x01", b"K\x08" + part)
    path = write_legacy(tmp_path / "model.bin", program, {"0": struct.pack("<8f", *range(8))})
    if expected is None:
        with raises_code("source-damaged", str(path)):
            read_checkpoint(path)
    else:
        assert read_checkpoint(path).value.tolist() == expected


@pytest.mark.parametrize(
    "storages",
    [
        {},
        {"1": bytes(32)},
        {"0": bytes(28)},
        {"0": bytes(32), "1": bytes(32)},
        {"0": b"", "../0": bytes(32)},
    ],
)
def test_old_false_storages_are_refused(storages: dict[str, bytes], tmp_path: Path) -> None:
    program = tensor_program(b"K\x00", b"K\x08", b"K\x01", b"K\x08N")
    with raises_code("source-damaged"):
        read_checkpoint(write_legacy(tmp_path / "model.bin", program, storages))


@pytest.mark.parametrize("count", [-1, 9, 2**62, 2**63 - 1])
def test_old_storage_of_false_length_is_refused(count: int, tmp_path: Path) -> None:
    program = tensor_program(b"K\x00", b"K\x08", b"K\x01", b"K\x08N")
    path = write_legacy(tmp_path / "model.bin", program, {"0": bytes(32)})
    path.write_bytes(path.read_bytes()[:-40] + struct.pack("<q", count) + bytes(32))
    with raises_code("source-damaged"):
        read_checkpoint(path)


def test_old_storage_of_two_types_is_refused(tmp_path: Path) -> None:
    floats = tensor_program(b"K\x00", b"K\x08", b"K\x01", b"K\x08N")[2:-1]
    integers = floats.replace(b"FloatStorage", b"IntStorage")
    path = write_legacy(tmp_path / "model.bin", b"\x80\x02" + floats + integers + b"\x86.", {"0": bytes(32)})
    with raises_code("source-damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("head", "code", "name"),
    [
        ([5], "source-damaged", "not a PyTorch checkpoint"),
        ([{"x": [1.0]}], "source-damaged", "not a PyTorch checkpoint"),
        ([0x1950A86A20F9469CFC6C, 1000], "source-damaged", "not a PyTorch checkpoint"),
        ([0x1950A86A20F9469CFC6C, 1001, {"little_endian": False}, {}, []], "source-damaged", "big-endian"),
        ([0x1950A86A20F9469CFC6C, 1001, {}, {}, []], "source-damaged", "KeyError"),
        ([0x1950A86A20F9469CFC6C, 1001, 5, {}, []], "source-damaged", "TypeError"),
        ([0x1950A86A20F9469CFC6C, 1001], "source-damaged", "ValueError"),
    ],
)
def test_old_false_head_is_refused(head: list[Any], code: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in head))
    with raises_code(code, name):
        read_checkpoint(path)


def test_old_huge_text_is_refused_without_memory(tmp_path: Path) -> None:
    """A text that claims the whole of a large, sparse file is longer than a description may be."""
    path = write_legacy(tmp_path / "model.bin", b"\x80\x02X\xff\xff\xff\xffa.", {})
    with path.open("r+b") as file:
        file.truncate(5 << 30)
    tracemalloc.start()
    with raises_code("source-damaged"):
        read_checkpoint(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_tar_file_is_refused_by_name(tmp_path: Path) -> None:
    """PyTorch 0.1 wrote a tar file with the entries sys_info, pickle, tensors and storages."""
    path = tmp_path / "model.bin"
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            archive.addfile(tarfile.TarInfo(name))
    with raises_code("unknown-format", "tar", "0.1", str(path)):
        read_checkpoint(path)


def test_old_hostile_file_is_not_executed(tmp_path: Path) -> None:
    marker, path = tmp_path / "executed", tmp_path / "model.bin"
    path.write_bytes(pickle.dumps(Call(os.system, f"touch {marker}")))
    with raises_code("checkpoint-unsafe"):
        read_checkpoint(path)
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_torchscript_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))  # type: ignore[no-untyped-call]
    with pytest.raises(DataError):
        read_checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" * 40, bytes(1000), b"{}"])
def test_other_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with raises_code("source-damaged", str(path)):
        read_checkpoint(path)


@pytest.mark.parametrize("field", ["size", "offset"])
def test_huge_directory_is_refused(field: str, tmp_path: Path) -> None:
    path = write_program(tmp_path / "model.bin", pickle.dumps({"x": 1}, protocol=2))
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    struct.pack_into("<L", data, end + (12 if field == "size" else 16), 0x7FFFFFFF)
    path.write_bytes(data)
    with raises_code("source-damaged"):
        read_checkpoint(path)


@pytest.mark.slow
@pytest.mark.parametrize("save_file", [save, save_legacy])
def test_damaged_files_give_one_line(save_file: Callable[[Path, object], Path], tmp_path: Path) -> None:
    """Damage a file in 1,000 ways: each result is equal plain data, or one error of one line."""
    source = save_file(tmp_path / "source.bin", {"x": torch.arange(64.0), "y": [1, "text", torch.ones(3)]}).read_bytes()
    chance, path = random.Random(1), tmp_path / "model.bin"
    errors: list[DataError] = []
    for _ in range(1000):
        data = bytearray(source)
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[start] ^= 1 << chance.randrange(8)
                case 1:
                    del data[start : start + chance.randint(1, 64)]
                case 2:
                    data[start:start] = chance.randbytes(chance.randint(1, 16))
        path.write_bytes(data)
        try:
            read_checkpoint(path)
        except DataError as error:
            errors.append(error)
    assert len(errors) > 300
    assert {error.code for error in errors} == {"source-damaged", "checkpoint-unsafe"}
    assert not any("\n" in str(error) for error in errors)


@pytest.mark.parametrize("part", range(5))
def test_old_tensor_in_place_of_a_fact_is_refused(part: int, tmp_path: Path) -> None:
    """No value of a storage is read before its place in the file is known."""
    program = tensor_program(b"K\x00", b"J\x00\x00\x00\x10", b"K\x01", b"J\x00\x00\x00\x10N")
    path = write_legacy(tmp_path / "model.bin", program, {})
    facts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {}, []]
    programs = [pickle.dumps(fact, protocol=2) for fact in facts]
    programs[part] = program
    path.write_bytes(b"".join(programs))
    with raises_code("source-damaged"):
        read_checkpoint(path)
