"""What stands in the file of a SentencePiece model: its pieces by id, and how to move the special ones to 0 to 3.

The file is a protobuf message: each field 1 is a piece (its id is its place), field 2 holds the settings that it was trained
with. This much of the wire format is read here, so that the protobuf library need not be installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_PIECES, _SETTINGS = 1, 2
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_KIND = 3
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# Padding, unknown, begin and end, in dragoman's order: the settings' fields for id and name, the usual name, and the kind.
_SPECIAL = ((43, 48, "<pad>", CONTROL), (40, 45, "<unk>", UNKNOWN), (41, 46, "<s>", CONTROL), (42, 47, "</s>", CONTROL))


@dataclass(frozen=True)
class Piece:
    """A piece as the model holds it; ▁ stands for a space, and `kind` is one of this file's constants."""

    text: str
    score: float
    kind: int


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces by id. Raises ValueError where the bytes are no such message."""
    return [_piece(value) for number, value, _ in _fields(model) if number == _PIECES]


def model_kind(model: bytes) -> str:
    """What the model was trained as: unigram, bpe, word or char. Raises ValueError as `read_pieces` does."""
    kinds = [value for number, value, _ in _fields(_settings(model)) if number == _MODEL_KIND]
    return _KINDS.get(_whole(kinds[-1]), "unknown") if kinds else "unigram"


def renumbered(model: bytes) -> bytes:
    """The same model with padding, unknown, begin and end at 0 to 3, each added where it has none; it splits text as before.

    Raises ValueError where a piece of such a name is an ordinary one, and where the bytes are no such message.
    """
    records = [(_piece(value), record) for number, value, record in _fields(model) if number == _PIECES]
    named = {number: value for number, value, _ in _fields(_settings(model))}
    ids = {id_field: place for place, (id_field, _, _, _) in enumerate(_SPECIAL)}
    first: list[bytes] = []
    for _, name_field, usual, kind in _SPECIAL:
        name = _text(named.get(name_field, usual.encode()))
        texts = [name if piece.kind == UNKNOWN == kind else piece.text for piece, _ in records]  # whatever <unk> is called
        place = texts.index(name) if name in texts else None
        if place is None:
            first.append(_record(_PIECES, _record(_TEXT, name.encode()) + _record(_KIND, kind)))
        elif records[place][0].kind == kind:
            first.append(records.pop(place)[1])
        else:
            raise ValueError(f"its piece {name} is part of the text, not a mark")
    settings = [record for number, _, record in _fields(_settings(model)) if number not in ids]
    settings += [_record(number, place) for number, place in ids.items()]
    rest = [record for number, _, record in _fields(model) if number not in (_PIECES, _SETTINGS)]
    return b"".join([*first, *(record for _, record in records), _record(_SETTINGS, b"".join(settings)), *rest])


def _settings(model: bytes) -> bytes:
    """Parts of a message that comes several times are laid together, as every reader of protobuf does."""
    return b"".join(_bytes(value) for number, value, _ in _fields(model) if number == _SETTINGS)


def _piece(message: int | bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, value, _ in _fields(_bytes(message)):
        if number == _TEXT:
            text = _text(value)
        elif number == _SCORE:
            if len(_bytes(value)) != 4:
                raise ValueError("a score of another length")
            (score,) = struct.unpack("<f", _bytes(value))
        elif number == _KIND:
            kind = _whole(value)
    return Piece(text, score, kind)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Each field's number, its value, and its own bytes with the tag."""
    place = 0
    while place < len(message):
        start = place
        tag, place = _varint(message, place)
        value: int | bytes
        if tag & 7 == 0:
            value, place = _varint(message, place)
        else:
            if tag & 7 == 2:
                length, place = _varint(message, place)
            else:
                length = {1: 8, 5: 4}.get(tag & 7, len(message))
            value = message[place : place + length]
            place += length
            if place > len(message):
                raise ValueError("a field goes on beyond the end")
        yield tag >> 3, value, message[start:place]


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, lowest first, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number without an end")


def _record(number: int, value: int | bytes) -> bytes:
    """A field as it is written."""
    if isinstance(value, int):
        return _written(number << 3) + _written(value)
    return _written(number << 3 | 2) + _written(len(value)) + value


def _written(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _whole(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a message where a number was expected")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode("utf-8")
