"""ZIP archives of office documents and books: some members are unpacked and edited, and all others are copied as they are.

The layout of the archive is that of APPNOTE.TXT by PKWARE. The order of the members, their dates and the compressed bytes of
members without an edit stay.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dragoman.documents.document import Edit, iter_edited
from dragoman.documents.reading import check_goes_on
from dragoman.documents.xml_spans import MAX_ELEMENT_BYTES, XmlSource
from dragoman.errors import DataError

MAX_UNPACKED_BYTES = 2**27
"""Bytes that the members with texts may have together, unpacked."""
MAX_RATIO = 100
"""Most bytes that a member of more than `MIN_RATIO_BYTES` unpacks to for each packed byte. Texts have 3 to 20, tables to 50."""
MIN_RATIO_BYTES = 2**20
MAX_MEMBERS = 20_000
MAX_CHECKED_BYTES = 2**30
"""Bytes, unpacked, of which damage is looked for before the translation."""
_METHODS = (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
_PART_BYTES = 2**16
_WINDOW_BYTES = 2 * MAX_ELEMENT_BYTES
_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_LOCAL_MAGIC, _DIRECTORY_MAGIC, _END_MAGIC, _END64_LOCATOR_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x07"
_ENCRYPTED, _HAS_DESCRIPTOR = 0x1, 0x8
_LOCAL = struct.Struct("<4s5H3L2H")
_DIRECTORY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_OUTSIDE = re.compile(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)|\0")
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, LookupError, NotImplementedError, EOFError)


@dataclass(frozen=True)
class ZipMember:
    """Member of an archive.

    Attributes:
        name: its path in the archive
        start: place of its local header
        data_start, data_end: place of its compressed data
        end: place of the next member, or of the directory; a data descriptor stands before it
        record: its record in the directory
    """

    name: str
    start: int
    data_start: int
    data_end: int
    end: int
    record: bytes
    method: int
    crc: int
    size: int


def _unpack(packed: memoryview, method: int) -> Iterator[bytes]:
    """Yield the bytes of a member, part by part. Raises zlib.error for damaged ones."""
    starts = range(0, len(packed), _PART_BYTES)
    if method == zipfile.ZIP_STORED:
        yield from (bytes(packed[start : start + _PART_BYTES]) for start in starts)
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for start in starts:
        rest = bytes(packed[start : start + _PART_BYTES])
        while data := inflater.decompress(rest, _PART_BYTES):
            yield data
            rest = inflater.unconsumed_tail
    if not inflater.eof:
        raise zlib.error


class _Window:
    """Bytes of a member that were unpacked last. All members of an archive share one."""

    def __init__(self) -> None:
        self._owner: UnpackedMember | None = None
        self._parts: Iterator[bytes] = iter(())
        self._start = 0
        self._data = bytearray()

    def read(self, member: UnpackedMember, start: int, end: int) -> bytes:
        """Return a part of a member. It is unpacked from its start if the part is before the window."""
        if member is not self._owner or start < self._start:
            self._owner, self._parts, self._start, self._data = member, member.unpack(), 0, bytearray()
        while self._start + len(self._data) < end:
            self._data += next(self._parts)
            excess = min(len(self._data) - _WINDOW_BYTES, start - self._start)
            if excess >= _PART_BYTES:
                del self._data[:excess]
                self._start += excess
        return bytes(memoryview(self._data)[start - self._start : end - self._start])


class UnpackedMember:
    """Bytes of a member. Slices in its order take time in proportion to its size; it is never in memory as a whole."""

    def __init__(self, packed: memoryview, member: ZipMember, window: _Window) -> None:
        self._packed = packed
        self._member = member
        self._window = window

    def __len__(self) -> int:
        return self._member.size

    def __getitem__(self, place: slice) -> bytes:
        start, end, _ = place.indices(len(self))
        return self._window.read(self, start, end) if start < end else b""

    def unpack(self) -> Iterator[bytes]:
        """Yield the bytes, part by part."""
        return _unpack(self._packed, self._member.method)


class ZipMembers:
    """Members of an archive. Those that were opened follow one another in the text that edits are spans of.

    Args:
        content: bytes of the archive
        format_name: name of the format for messages

    Raises:
        DataError: the archive is damaged, encrypted or too large, or a member has a path outside of it.
    """

    def __init__(self, content: bytes, format_name: str) -> None:
        self.content = content
        self.format_name = format_name
        self._sources: dict[str, XmlSource] = {}
        self._offsets: dict[str, int] = {}
        self._unpacked_bytes = 0
        self._window = _Window()
        if content.startswith(_OLE_MAGIC):
            raise self.error(
                "is protected by a password or in the format of Office 97; save it without a password as a new file"
            )
        if not content.startswith(_LOCAL_MAGIC):
            raise self.error("is not a ZIP archive, which this format is")
        if (count := content.count(_DIRECTORY_MAGIC)) > MAX_MEMBERS:
            raise self.error(f"has {count:,} members, more than {MAX_MEMBERS:,}", "input-too-long")
        try:
            members = self._read_directory()
        except _ZIP_ERRORS:
            raise self.error("is damaged or cut short; make a new copy of it") from None
        self.members = {member.name: member for member in members}
        if len(self.members) != len(members):
            raise self.error("has two members of one name; save it again with the program that made it")
        self._sound: set[str] = set()  # names of members that are not damaged
        self._check_all()

    def error(self, problem: str, code: str = "invalid-format") -> DataError:
        """Return an error about this file."""
        return DataError(f"the {self.format_name} file {problem}", code=code)

    def _read_directory(self) -> list[ZipMember]:
        """Return the members in the order of the directory. Raises an error of _ZIP_ERRORS for a damaged one."""
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            entries, position, comment = archive.infolist(), archive.start_dir, archive.comment
        self._directory_start, self._comment = position, comment
        end_start = len(self.content) - _END.size - len(comment)
        if self.content[end_start - 20 : end_start - 16] == _END64_LOCATOR_MAGIC:
            raise self.error("is a ZIP64 archive, as only files above 4 GB need; save it again with an office program")
        if self.content[end_start : end_start + 4] != _END_MAGIC:
            raise zipfile.BadZipFile
        starts = sorted(entry.header_offset for entry in entries)
        ends = dict(zip(starts, [*starts[1:], self._directory_start], strict=True))
        if len(ends) != len(starts):
            raise zipfile.BadZipFile
        members = []
        for entry in entries:
            if _OUTSIDE.search(entry.orig_filename):
                raise self.error(f"has a member with a path outside of it: {entry.orig_filename[:80]!r}")
            if entry.flag_bits & _ENCRYPTED:
                raise self.error("is protected by a password; save it without one")
            fields = _DIRECTORY.unpack_from(self.content, position)
            record_end = position + _DIRECTORY.size + sum(fields[10:13])
            local = _LOCAL.unpack_from(self.content, entry.header_offset)
            data_start = entry.header_offset + _LOCAL.size + local[9] + local[10]
            end = ends[entry.header_offset]
            is_sound = fields[0] == _DIRECTORY_MAGIC and local[0] == _LOCAL_MAGIC and fields[16] == entry.header_offset
            if not is_sound or data_start + entry.compress_size > end:
                raise zipfile.BadZipFile
            members.append(
                ZipMember(
                    entry.filename,
                    entry.header_offset,
                    data_start,
                    data_start + entry.compress_size,
                    end,
                    self.content[position:record_end],
                    entry.compress_type,
                    entry.CRC,
                    entry.file_size,
                )
            )
            position = record_end
        return members

    def open(self, name: str) -> UnpackedMember:
        """Return a member. Raises DataError if it is missing, damaged, or too large with those opened before."""
        if name not in self.members:
            raise self.error(f"has no member {name[:80]!r}; save it again with the program that made it")
        member = self.members[name]
        if member.method not in _METHODS:
            raise self.error(f"has a member with compression {member.method}; save it again with an office program")
        packed = memoryview(self.content)[member.data_start : member.data_end]
        if name not in self._offsets:
            self._check(member, packed)
            self._offsets[name] = self._unpacked_bytes
            self._unpacked_bytes += member.size
        return UnpackedMember(packed, member, self._window)

    def _check_all(self) -> None:
        """Raise DataError if a member is damaged, also one that no translation changes, such as a picture."""
        num_bytes = 0
        for member in self.members.values():
            packed = memoryview(self.content)[member.data_start : member.data_end]
            num_bytes += member.size
            if num_bytes > MAX_CHECKED_BYTES:
                break
            if member.method in _METHODS and member.size <= max(MIN_RATIO_BYTES, MAX_RATIO * len(packed)):
                size, checksum = self._measure(packed, member, member.size)
                if checksum != member.crc and size <= member.size:
                    raise self._damage(member)
                if size == member.size:
                    self._sound.add(member.name)

    def _measure(self, packed: memoryview, member: ZipMember, limit: int) -> tuple[int, int]:
        """Return the size of a member, or one beyond the limit, and its checksum, which is -1 for a damaged one."""
        size = checksum = 0
        try:
            for part in _unpack(packed, member.method):
                check_goes_on()
                size += len(part)
                checksum = zlib.crc32(part, checksum)
                if size > limit:
                    break
        except zlib.error:
            checksum = -1
        return size, checksum

    def _damage(self, member: ZipMember) -> DataError:
        return self.error(f"has a damaged member: {member.name[:80]!r}; make a new copy of it")

    def _check(self, member: ZipMember, packed: memoryview) -> None:
        """Raise DataError if a member is damaged or too large."""
        remaining = MAX_UNPACKED_BYTES - self._unpacked_bytes
        largest = max(MIN_RATIO_BYTES, MAX_RATIO * len(packed))
        size, checksum = member.size, member.crc
        if member.name not in self._sound:
            size, checksum = self._measure(packed, member, min(remaining, largest))
        if size > remaining:
            raise self.error(f"unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB of text; divide it", "input-too-long")
        if size > largest:
            raise self.error(
                f"has a member that unpacks to more than {MAX_RATIO} times its size: {member.name[:80]!r}; save it again with "
                "the program that made it",
                "input-too-long",
            )
        if (size, checksum) != (member.size, member.crc):
            raise self._damage(member)

    def read_xml(self, name: str) -> XmlSource:
        """Return a member that is XML."""
        if name not in self._sources:
            member = self.open(name)
            self._sources[name] = XmlSource(member, offset=self._offsets[name])
        return self._sources[name]

    def assemble(self, content: bytes, edits: Iterable[Edit]) -> bytes:
        """Return the archive with edited members. Without edits, it is the same."""
        ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
        output = io.BytesIO()
        offsets: dict[str, int] = {}
        records: dict[str, bytes] = {}
        source = memoryview(content)
        for member in sorted(self.members.values(), key=lambda member: member.start):
            offsets[member.name] = output.tell()
            if (new := self._edit(member, ordered)) is None:
                records[member.name] = member.record
                output.write(source[member.start : member.end])
            else:
                local, records[member.name] = _pack(member, content, new)
                output.write(local)
                output.write(new.packed)
        if all(records[name] is member.record for name, member in self.members.items()):
            return content
        directory_start = output.tell()
        for name in self.members:
            record = bytearray(records[name])
            struct.pack_into("<L", record, _DIRECTORY.size - 4, offsets[name])
            output.write(record)
        count = len(self.members)
        size = output.tell() - directory_start
        output.write(_END.pack(_END_MAGIC, 0, 0, count, count, size, directory_start, len(self._comment)) + self._comment)
        return output.getvalue()

    def _edit(self, member: ZipMember, ordered: Sequence[Edit]) -> _NewData | None:
        """Return the new data of a member; None if no edit changes it."""
        if (offset := self._offsets.get(member.name)) is None:
            return None
        first, last = (bisect_left(ordered, place, key=lambda edit: edit.start) for place in (offset, offset + member.size))
        own = [Edit(edit.start - offset, edit.end - offset, edit.content) for edit in ordered[first:last]]
        data = self.open(member.name)
        if all(data[edit.start : edit.end] == edit.content for edit in own):
            return None
        return _NewData.pack(iter_edited(data, own), is_deflated=member.method == zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class _NewData:
    """Compressed data of a changed member. crc, size: those of the unpacked data"""

    packed: bytes
    crc: int
    size: int

    @classmethod
    def pack(cls, parts: Iterable[bytes], *, is_deflated: bool) -> _NewData:
        """Return the data of parts."""
        packed = io.BytesIO()
        deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        crc = size = 0
        for part in parts:
            crc, size = zlib.crc32(part, crc), size + len(part)
            packed.write(deflater.compress(part) if is_deflated else part)
        packed.write(deflater.flush() if is_deflated else b"")
        return cls(packed.getvalue(), crc, size)


def _pack(member: ZipMember, content: bytes, new: _NewData) -> tuple[bytes, bytes]:
    """Return the local header and the record in the directory of a member with new data."""
    local = list(_LOCAL.unpack_from(content, member.start))
    name_end = member.start + _LOCAL.size + local[9]
    extra = _remove_zip64(content[name_end : member.data_start])
    local[2] &= ~_HAS_DESCRIPTOR
    local[6:9] = [new.crc, len(new.packed), new.size]
    local[10] = len(extra)
    record = list(_DIRECTORY.unpack_from(member.record))
    record[3] &= ~_HAS_DESCRIPTOR
    record[7:10] = [new.crc, len(new.packed), new.size]
    name = content[member.start + _LOCAL.size : name_end]
    return _LOCAL.pack(*local) + name + extra, _DIRECTORY.pack(*record) + member.record[_DIRECTORY.size :]


def _remove_zip64(extra: bytes) -> bytes:
    """Return the extra fields of a local header without the sizes of ZIP64."""
    output = b""
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        if kind != 1:
            output += extra[position : position + 4 + size]
        position += 4 + size
    return output + extra[position:]
