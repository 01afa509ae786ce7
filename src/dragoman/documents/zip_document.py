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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dragoman.documents.document import Edit, UnitTranslation, apply_edits
from dragoman.documents.xml_spans import XmlSource
from dragoman.errors import DataError

MAX_UNPACKED_BYTES = 2**27
"""Bytes that the members with texts may have together, unpacked."""
MAX_RATIO = 100
"""Most bytes that a member of more than `MIN_RATIO_BYTES` unpacks to for each packed byte. Texts have 3 to 20, tables to 50."""
MIN_RATIO_BYTES = 2**20
MAX_MEMBERS = 20_000
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


class ZipMembers:
    """Members of an archive. Those that were unpacked follow one another in the text that edits are spans of.

    Args:
        content: bytes of the archive
        format_name: name of the format for messages

    Raises:
        DataError: the archive is damaged, encrypted or too large, or a member has a path outside of it.
    """

    def __init__(self, content: bytes, format_name: str) -> None:
        self.content = content
        self.format_name = format_name
        self._unpacked: dict[str, tuple[int, bytes]] = {}
        self._unpacked_bytes = 0
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

    def read(self, name: str) -> bytes:
        """Return the bytes of a member. Raises DataError if it is missing, damaged, or too large with those read before."""
        if name in self._unpacked:
            return self._unpacked[name][1]
        if name not in self.members:
            raise self.error(f"has no member {name[:80]!r}; save it again with the program that made it")
        member = self.members[name]
        remaining = MAX_UNPACKED_BYTES - self._unpacked_bytes
        largest = max(MIN_RATIO_BYTES, MAX_RATIO * (member.data_end - member.data_start))
        data = self.content[member.data_start : member.data_end]
        is_complete = True
        try:
            if member.method == zipfile.ZIP_DEFLATED:
                inflater = zlib.decompressobj(-zlib.MAX_WBITS)
                data = inflater.decompress(data, min(remaining, largest) + 1)
                is_complete = inflater.eof
            elif member.method != zipfile.ZIP_STORED:
                raise self.error(f"has a member with compression {member.method}; save it again with an office program")
        except zlib.error:
            is_complete = False
        if len(data) > remaining:
            raise self.error(f"unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB of text; divide it", "input-too-long")
        if len(data) > largest:
            raise self.error(
                f"has a member that unpacks to more than {MAX_RATIO} times its size: {name[:80]!r}; save it again with the "
                "program that made it",
                "input-too-long",
            )
        if not is_complete or len(data) != member.size or zlib.crc32(data) != member.crc:
            raise self.error(f"has a damaged member: {name[:80]!r}; make a new copy of it")
        self._unpacked[name] = (self._unpacked_bytes, data)
        self._unpacked_bytes += len(data)
        return data

    def read_xml(self, name: str) -> XmlSource:
        """Return a member that is XML."""
        return XmlSource(self.read(name))

    def shift_edits(self, name: str, edits: Sequence[Edit]) -> list[Edit]:
        """Return edits of a member that was read as edits of the archive's text."""
        offset = self._unpacked[name][0]
        return [Edit(edit.start + offset, edit.end + offset, edit.content) for edit in edits]

    def shift(self, name: str, write: Callable[[UnitTranslation], Sequence[Edit]]) -> Callable[[UnitTranslation], list[Edit]]:
        """Return the writer of a unit of the archive, from a writer whose edits are those of a member."""
        return lambda translation: self.shift_edits(name, write(translation))

    def assemble(self, content: bytes, edits: Iterable[Edit]) -> bytes:
        """Return the archive with edited members. Without edits, it is the same."""
        changed: dict[str, bytes] = {}
        ordered = sorted(edits, key=lambda edit: edit.start)
        for name, (offset, data) in self._unpacked.items():
            first, last = (bisect_left(ordered, place, key=lambda edit: edit.start) for place in (offset, offset + len(data)))
            own = [Edit(edit.start - offset, edit.end - offset, edit.content) for edit in ordered[first:last]]
            if own and (new := apply_edits(data, own)) != data:
                changed[name] = new
        if not changed:
            return content
        output = bytearray()
        offsets: dict[str, int] = {}
        records: dict[str, bytes] = {}
        for member in sorted(self.members.values(), key=lambda member: member.start):
            offsets[member.name] = len(output)
            records[member.name] = member.record
            if member.name in changed:
                local, records[member.name] = _pack(member, content, changed[member.name])
                output += local
            else:
                output += content[member.start : member.end]
        directory_start = len(output)
        for name in self.members:
            record = bytearray(records[name])
            struct.pack_into("<L", record, _DIRECTORY.size - 4, offsets[name])
            output += record
        count = len(self.members)
        size = len(output) - directory_start
        output += _END.pack(_END_MAGIC, 0, 0, count, count, size, directory_start, len(self._comment)) + self._comment
        return bytes(output)


def _pack(member: ZipMember, content: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the local header with its compressed data, and the record in the directory, of a member with new data."""
    packed = data
    if member.method == zipfile.ZIP_DEFLATED:
        deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        packed = deflater.compress(data) + deflater.flush()
    local = list(_LOCAL.unpack_from(content, member.start))
    name_end = member.start + _LOCAL.size + local[9]
    extra = _remove_zip64(content[name_end : member.data_start])
    local[2] &= ~_HAS_DESCRIPTOR
    local[6:9] = [zlib.crc32(data), len(packed), len(data)]
    local[10] = len(extra)
    record = list(_DIRECTORY.unpack_from(member.record))
    record[3] &= ~_HAS_DESCRIPTOR
    record[7:10] = [zlib.crc32(data), len(packed), len(data)]
    name = content[member.start + _LOCAL.size : name_end]
    return _LOCAL.pack(*local) + name + extra + packed, _DIRECTORY.pack(*record) + member.record[_DIRECTORY.size :]


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
