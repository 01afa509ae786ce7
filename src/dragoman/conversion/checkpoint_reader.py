"""Reader of PyTorch checkpoints (`pytorch_model.bin`, `model.pt`) that executes nothing.

A checkpoint is a zip file: `data.pkl` describes the objects, and one entry holds the bytes of each tensor storage. Before
version 1.6 it is a sequence of descriptions, with the storages behind them. A description is a program for Python's pickle
machine, which can call any function. This module does not use that machine. Its own interpreter knows the few instructions that
build numbers, texts, containers and tensors, so no file can call or import anything. Every name of a class or function that is
not in `READABLE_GLOBALS` is an error, which names it.

Its memory is bounded, because no instruction copies a container or allocates more than the bytes that it has read. Tensors are
views of the mapped file, whose values an old file may not align. Entries of a zip file must be stored without compression.
So a small file never becomes a large one.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dragoman.conversion.mapped_arrays import Array, damaged, unreadable
from dragoman.conversion.zip_archive import ENTRY_MAGIC, ZipArchive
from dragoman.errors import DataError
from dragoman.io.bfloat16 import BFLOAT16
from dragoman.io.mapped_file import release_mapping

BYTES = np.dtype(np.uint8)
MAX_PICKLE_BYTES = 2**28
"""Size of the longest description that is read."""
MAX_DIMENSIONS = 16
"""Dimensions of a tensor."""
PICKLE_START = b"\x80"
TAR_MAGIC = b"ustar"
"""Bytes 257 to 261 of a tar file, which was PyTorch's format in version 0.1."""
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
"""First two values of a file before version 1.6."""
LARGEST_STORAGE = 2**40
"""Values of the largest storage that an old file may describe."""

STORAGE_DTYPES: dict[str, np.dtype[Any]] = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": BFLOAT16,
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
NUMPY_CLASSES = ("numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "_codecs.encode")
"""Classes of NumPy's numbers, which several toolkits store beside the tensors."""
READABLE_GLOBALS = frozenset(
    [
        "collections.OrderedDict",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
        "torch.Size",
        *(f"torch.{name}" for name in STORAGE_DTYPES),
    ]
)
"""Classes and functions that a checkpoint may name. The interpreter builds their results itself and never calls them."""


@dataclass
class InertObject:
    """Object of a class that the caller allows, as plain data: its class is never imported.

    Attributes:
        class_name: module and name of the class, such as argparse.Namespace
        args: arguments of its constructor
        state: its attributes as a dictionary, or another value that describes it
        items: values, or pairs of a key and a value, of a container
    """

    class_name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class CheckpointContent:
    """Content of a checkpoint.

    Attributes:
        value: numbers, texts, lists, tuples, dictionaries, tensors as arrays, and inert objects
        release: releases the memory of the mapped tensors; a later use reads them from disk again
    """

    value: Any
    release: Callable[[], None]


@dataclass(frozen=True)
class _Global:
    """Name of a class or function."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """Values of one storage. (length,)"""

    values: Array


class _Mark:
    """Start of a group of values on the stack."""


class UnsafeCheckpointError(Exception):
    """Description that names something else than tensors and plain containers."""


def read_checkpoint(path: Path, *, inert_classes: Collection[str] = ()) -> CheckpointContent:
    """Return the content of a checkpoint that `torch.save` wrote.

    Args:
        path: the file
        inert_classes: further classes, as `module.name`, whose objects are returned as `InertObject`

    Raises:
        DataError: the file cannot be read, is damaged, has PyTorch's format of version 0.1, or names another class.
    """
    mapping = _map_file(path)
    read = _read_zip if mapping[:4] == ENTRY_MAGIC else _read_legacy
    try:
        value = read(path, mapping, frozenset(inert_classes))
    except UnsafeCheckpointError as error:
        raise DataError(
            f"{path}: names {error}, which is neither a tensor nor a plain container, so nothing of it is read; "
            "save the model's state_dict() alone",
            code="checkpoint-unsafe",
        ) from None
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, struct.error, RuntimeError) as error:
        raise damaged(path, f"the description of its objects is damaged ({type(error).__name__})") from None
    return CheckpointContent(value, lambda: release_mapping(mapping))


def _map_file(path: Path) -> mmap.mmap:
    """Return the bytes of a file, which a change of a tensor never reaches. Raise DataError if it is of another format."""
    try:
        with path.open("rb") as file:
            head = file.read(262)
            if head[257:] == TAR_MAGIC:
                raise DataError(
                    f"{path}: is a tar file, the format of PyTorch 0.1; load it with PyTorch and save it again with torch.save",
                    code="unknown-format",
                )
            if head[:4] != ENTRY_MAGIC and head[:1] != PICKLE_START:
                raise damaged(path, "is not a PyTorch checkpoint")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise unreadable(path, error) from None


def _read_zip(path: Path, mapping: mmap.mmap, inert_classes: frozenset[str]) -> Any:
    """Return the value that `data.pkl` describes."""
    archive = ZipArchive(path, mapping)

    def view(name: str, dtype: np.dtype[Any]) -> Array:
        if name not in archive.entries:
            raise damaged(path, f"its entry {name[:80]!r} is missing")
        start, size = archive.find_stored(name)
        return _view(mapping, dtype, start, size // dtype.itemsize)

    pickle_names = [name for name in archive.entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickle_names) != 1:
        raise damaged(path, "has no data.pkl, so it is not a PyTorch checkpoint")
    prefix = pickle_names[0].removesuffix("data.pkl")
    if f"{prefix}byteorder" in archive.entries and view(f"{prefix}byteorder", BYTES).tobytes().strip() != b"little":
        raise _written_big_endian(path)
    program = view(pickle_names[0], BYTES)
    if len(program) > MAX_PICKLE_BYTES:
        raise damaged(path, f"its entry {pickle_names[0][:80]!r} has {len(program):,} bytes, more than {MAX_PICKLE_BYTES:,}")
    return _Interpreter(program.tobytes(), lambda key, dtype: view(f"{prefix}data/{key}", dtype), inert_classes).run()


def _read_legacy(path: Path, mapping: mmap.mmap, inert_classes: frozenset[str]) -> Any:
    """Return the value of a file before version 1.6: five programs, one behind the other, and the storages.

    The programs build a magic number, a version, facts about the machine, the objects, and the list of the storages' keys. A
    storage is its number of values in eight bytes, and the values. The objects come before the storages, so their program runs
    twice: first to find its end and the type of each storage.
    """
    dtypes: dict[str, np.dtype[Any]] = {}

    def describe_storage(key: str, dtype: np.dtype[Any]) -> Array:
        if dtypes.setdefault(key, dtype) != dtype:
            raise ValueError("a storage has two types")
        return np.broadcast_to(np.empty((), dtype), LARGEST_STORAGE)

    def refuse_storage(key: str, dtype: np.dtype[Any]) -> Array:
        raise ValueError("a storage is outside of the objects")

    def run(start: int, load_storage: Callable[[str, np.dtype[Any]], Array] = refuse_storage) -> tuple[Any, int]:
        interpreter = _Interpreter(mapping, load_storage, inert_classes, start)
        return interpreter.run(), interpreter.position

    magic, position = run(0)
    version, position = run(position) if magic == LEGACY_MAGIC else (None, 0)
    if version != LEGACY_VERSION:
        raise damaged(path, "is a pickle, but not a PyTorch checkpoint")
    machine, start = run(position)
    if machine["little_endian"] is not True:
        raise _written_big_endian(path)
    _, position = run(start, describe_storage)
    keys, position = run(position)
    storages: dict[str, tuple[int, int]] = {}
    for key in keys:
        (count,) = struct.unpack_from("<q", mapping, position)
        storages[key] = position + 8, _check_count(count)
        position += 8 + count * dtypes[key].itemsize
    if storages.keys() != dtypes.keys():
        raise ValueError("the storages are not those of the objects")
    if position > len(mapping):
        raise damaged(path, "its storages are cut short")
    value, _ = run(start, lambda key, dtype: _view(mapping, dtype, *storages[key]))
    return value


def _view(mapping: mmap.mmap, dtype: np.dtype[Any], start: int, count: int) -> Array:
    """Return values of the file without a copy. (count,)"""
    return np.frombuffer(mapping, dtype, count, start) if count else np.empty(0, dtype)


def _written_big_endian(path: Path) -> DataError:
    return damaged(path, "was written on a big-endian machine; save it on a little-endian one")


class _Interpreter:
    """Interpreter of the instructions with which `torch.save` describes containers and tensors.

    A damaged program raises an ordinary exception, such as IndexError for an empty stack.

    Args:
        program: bytes that hold the program
        load_storage: returns the values of a storage by its key
        inert_classes: classes whose objects become `InertObject`
        position: first byte of the program; afterwards the byte behind it
    """

    def __init__(
        self,
        program: bytes | mmap.mmap,
        load_storage: Callable[[str, np.dtype[Any]], Array],
        inert_classes: frozenset[str],
        position: int = 0,
    ) -> None:
        self.program = program
        self.position = position
        self.end = min(len(program), position + MAX_PICKLE_BYTES)
        self.load_storage = load_storage
        self.inert_classes = inert_classes
        self.storages: dict[tuple[str, np.dtype[Any]], Array] = {}
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value that the program builds."""
        while (opcode := self._take(1)) != b".":
            instruction = _INSTRUCTIONS.get(opcode)
            if instruction is None:
                raise UnsafeCheckpointError(f"the pickle instruction 0x{opcode.hex()}")
            instruction(self)
        return self.stack.pop()

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.end:
            raise ValueError("the program ends early")
        data = self.program[self.position : end]
        self.position = end
        return data

    def _unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take_line(self) -> str:
        end = self.program.find(b"\n", self.position, self.end)
        if end < 0:
            raise ValueError("the program ends early")
        line = self._take(end - self.position).decode()
        self.position += 1
        return line

    def _pop_group(self) -> list[Any]:
        """Return the values after the last mark, and remove them and the mark."""
        index = len(self.stack) - 1
        while not isinstance(self.stack[index], _Mark):
            index -= 1
            if index < 0:
                raise ValueError("there is no mark")
        group = self.stack[index + 1 :]
        del self.stack[index:]
        return group

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_number(self, layout: str) -> None:
        self.push(self._unpack(layout))

    def push_long(self, layout: str) -> None:
        self.push(int.from_bytes(self._take(self._unpack(layout)), "little", signed=True))

    def push_text(self, layout: str) -> None:
        self.push(self._take(self._unpack(layout)).decode("utf-8", "surrogatepass"))

    def push_bytes(self, layout: str) -> None:
        self.push(self._take(self._unpack(layout)))

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise ValueError("the stack is too short")
        values = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.push(values)

    def push_group_as_tuple(self) -> None:
        self.push(tuple(self._pop_group()))

    def store(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def append(self, values: Sequence[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, InertObject):
            target.items.extend(values)
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise ValueError("values are appended to something else than a list")

    def append_last(self) -> None:
        value = self.stack.pop()
        self.append([value])

    def set_items(self, values: Sequence[Any]) -> None:
        target = self.stack[-1]
        pairs = list(zip(values[::2], values[1::2], strict=True))
        if isinstance(target, InertObject):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            target.update((_check_key(key), value) for key, value in pairs)
        else:
            raise ValueError("items are set in something else than a dictionary")

    def set_last_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def push_global(self, module: str, name: str) -> None:
        global_name = f"{module}.{name}"
        if global_name not in READABLE_GLOBALS and global_name not in self.inert_classes:
            raise UnsafeCheckpointError(global_name[:100])
        self.push(_Global(global_name))

    def push_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a global has no name")
        self.push_global(module, name)

    def build(self) -> None:
        """Set the attributes of an inert object; those of a dictionary are dropped."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, InertObject):
            target.state = state
        elif not isinstance(target, dict):
            raise ValueError("attributes are set in something else than an object")

    def reduce(self) -> None:
        """Replace a name and its arguments by their result."""
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(args, tuple):
            raise ValueError("a value is called")
        self.push(self._build_object(function.name, args))

    def _build_object(self, name: str, args: tuple[Any, ...]) -> Any:
        match name:
            case "collections.OrderedDict" if not args:  # its items follow, and a copy of other items could be repeated
                return {}
            case "torch.Size" if isinstance(args[0], tuple):
                return args[0]
            case "torch._utils._rebuild_tensor_v2":
                return _build_tensor(args[0], *args[1:4])
            case "torch._utils._rebuild_parameter":
                return args[0]
            case _ if name in self.inert_classes:
                return InertObject(name, args)
        raise UnsafeCheckpointError(f"a call of {name}")

    def load_persistent(self) -> None:
        """Replace the description of a storage, or of a part of it in old files, by its values."""
        kind, storage_type, key, _, count, *part = self.stack.pop()
        dtype = STORAGE_DTYPES[storage_type.name.removeprefix("torch.")]
        if kind != "storage" or not isinstance(key, str):
            raise ValueError("a persistent value is not a storage")
        if (key, dtype) not in self.storages:
            self.storages[key, dtype] = self.load_storage(key, dtype)
        values = self.storages[key, dtype]
        start = 0
        if _check_count(count) <= len(values) and part not in ([], [None]):
            ((_, start, size),) = part
            values, count = values[:count], _check_count(start) + _check_count(size)
        if count > len(values):
            raise ValueError("a storage is cut short")
        self.push(_Storage(values[start:count]))


def _check_count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a size is not a number")
    return value


def _check_key(key: Any) -> Any:
    if not isinstance(key, str | int | float | bytes | None):
        raise ValueError("a key is not a plain value")
    return key


def _build_tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> Array:
    """Return a view of a storage. A tensor never has more values than its storage."""
    if not isinstance(storage, _Storage) or len(shape) > MAX_DIMENSIONS or len(shape) != len(strides):
        raise ValueError("a tensor has no storage")
    sizes, steps = [_check_count(size) for size in shape], [_check_count(step) for step in strides]
    count = math.prod(sizes)
    last = _check_count(offset) + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True) if size)
    if count > len(storage.values) or (count and last >= len(storage.values)):
        raise ValueError("a tensor is larger than its storage")
    if not count:
        return np.empty(sizes, storage.values.dtype)
    return as_strided(storage.values[offset:], sizes, [step * storage.values.strides[0] for step in steps])


def _skip_frame(interpreter: _Interpreter) -> None:
    interpreter._unpack("<Q")


def _check_protocol(interpreter: _Interpreter) -> None:
    if interpreter._unpack("<B") > 5:
        raise ValueError("the protocol is not known")


def _push_global_line(interpreter: _Interpreter) -> None:
    module = interpreter._take_line()
    interpreter.push_global(module, interpreter._take_line())


_INSTRUCTIONS: dict[bytes, Callable[[_Interpreter], None]] = {
    b"\x80": _check_protocol,
    b"\x95": _skip_frame,
    b"(": lambda machine: machine.push(_Mark()),
    b"N": lambda machine: machine.push(None),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"K": lambda machine: machine.push_number("<B"),
    b"M": lambda machine: machine.push_number("<H"),
    b"J": lambda machine: machine.push_number("<i"),
    b"G": lambda machine: machine.push_number(">d"),
    b"\x8a": lambda machine: machine.push_long("<B"),
    b"\x8c": lambda machine: machine.push_text("<B"),
    b"X": lambda machine: machine.push_text("<I"),
    b"U": lambda machine: machine.push_text("<B"),
    b"C": lambda machine: machine.push_bytes("<B"),
    b"B": lambda machine: machine.push_bytes("<I"),
    b"]": lambda machine: machine.push([]),
    b"}": lambda machine: machine.push({}),
    b")": lambda machine: machine.push(()),
    b"\x85": lambda machine: machine.push_tuple(1),
    b"\x86": lambda machine: machine.push_tuple(2),
    b"\x87": lambda machine: machine.push_tuple(3),
    b"t": _Interpreter.push_group_as_tuple,
    b"a": _Interpreter.append_last,
    b"e": lambda machine: machine.append(machine._pop_group()),
    b"s": _Interpreter.set_last_item,
    b"u": lambda machine: machine.set_items(machine._pop_group()),
    b"q": lambda machine: machine.store(machine._unpack("<B")),
    b"r": lambda machine: machine.store(machine._unpack("<I")),
    b"\x94": lambda machine: machine.store(len(machine.memo)),
    b"h": lambda machine: machine.push(machine.memo[machine._unpack("<B")]),
    b"j": lambda machine: machine.push(machine.memo[machine._unpack("<I")]),
    b"c": _push_global_line,
    b"\x93": _Interpreter.push_stack_global,
    b"R": _Interpreter.reduce,
    b"\x81": _Interpreter.reduce,
    b"b": _Interpreter.build,
    b"Q": _Interpreter.load_persistent,
}
"""Instructions by their code. Python's pickle has more, none of which `torch.save` needs for a checkpoint."""
