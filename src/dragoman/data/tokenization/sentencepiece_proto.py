"""What stands in the file of a SentencePiece model: its pieces by id, and how to move the special ones to 0 to 3.

The file is a protobuf message: each field 1 is a piece (its id is its place), field 2 holds the settings that it was trained
with. This much of the wire format is read here, so that the protobuf library need not be installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_PIECES_FIELD, _TRAINER_SPEC_FIELD = 1, 2
_TEXT_FIELD, _SCORE_FIELD, _TYPE_FIELD = 1, 2, 3
_MODEL_TYPE_FIELD = 3
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# Padding, unknown, begin and end, in dragoman's order: the settings' fields for id and name, the usual name, and the kind.
_SPECIAL_PIECES = ((43, 48, "<pad>", CONTROL), (40, 45, "<unk>", UNKNOWN), (41, 46, "<s>", CONTROL), (42, 47, "</s>", CONTROL))


@dataclass(frozen=True)
class Piece:
    """A piece as the model holds it; ▁ stands for a space, and `kind` is one of this file's constants."""

    text: str
    score: float
    piece_type: int


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces by id. Raises ValueError where the bytes are no such message."""
    return [_parse_piece(value) for number, value, _ in _iter_fields(model) if number == _PIECES_FIELD]


def read_model_type(model: bytes) -> str:
    """What the model was trained as: unigram, bpe, word or char. Raises ValueError as `read_pieces` does."""
    model_types = [value for number, value, _ in _iter_fields(_read_trainer_spec(model)) if number == _MODEL_TYPE_FIELD]
    return _MODEL_TYPES.get(_as_int(model_types[-1]), "unknown") if model_types else "unigram"


def renumber_special_pieces(model: bytes) -> bytes:
    """The same model with padding, unknown, begin and end at 0 to 3, each added where it has none; it splits text as before.

    Raises ValueError where a piece of such a name is an ordinary one, and where the bytes are no such message.
    """
    records = [(_parse_piece(value), record) for number, value, record in _iter_fields(model) if number == _PIECES_FIELD]
    spec_values = {number: value for number, value, _ in _iter_fields(_read_trainer_spec(model))}
    ids = {id_field: index for index, (id_field, _, _, _) in enumerate(_SPECIAL_PIECES)}
    special_records: list[bytes] = []
    for _, name_field, default_name, piece_type in _SPECIAL_PIECES:
        name = _as_text(spec_values.get(name_field, default_name.encode()))
        texts = [
            name if piece.piece_type == UNKNOWN == piece_type else piece.text for piece, _ in records
        ]  # whatever <unk> is called
        place = texts.index(name) if name in texts else None
        if place is None:
            special_records.append(
                _encode_field(_PIECES_FIELD, _encode_field(_TEXT_FIELD, name.encode()) + _encode_field(_TYPE_FIELD, piece_type))
            )
        elif records[place][0].piece_type == piece_type:
            special_records.append(records.pop(place)[1])
        else:
            raise ValueError(f"its piece {name} is part of the text, not a mark")
    spec_records = [record for number, _, record in _iter_fields(_read_trainer_spec(model)) if number not in ids]
    spec_records += [_encode_field(number, place) for number, place in ids.items()]
    remaining_records = [
        record for number, _, record in _iter_fields(model) if number not in (_PIECES_FIELD, _TRAINER_SPEC_FIELD)
    ]
    return b"".join(
        [
            *special_records,
            *(record for _, record in records),
            _encode_field(_TRAINER_SPEC_FIELD, b"".join(spec_records)),
            *remaining_records,
        ]
    )


def _read_trainer_spec(model: bytes) -> bytes:
    """Parts of a message that comes several times are laid together, as every reader of protobuf does."""
    return b"".join(_as_bytes(value) for number, value, _ in _iter_fields(model) if number == _TRAINER_SPEC_FIELD)


def _parse_piece(message: int | bytes) -> Piece:
    text, score, piece_type = "", 0.0, NORMAL
    for number, value, _ in _iter_fields(_as_bytes(message)):
        if number == _TEXT_FIELD:
            text = _as_text(value)
        elif number == _SCORE_FIELD:
            if len(_as_bytes(value)) != 4:
                raise ValueError("a score of another length")
            (score,) = struct.unpack("<f", _as_bytes(value))
        elif number == _TYPE_FIELD:
            piece_type = _as_int(value)
    return Piece(text, score, piece_type)


def _iter_fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Each field's number, its value, and its own bytes with the tag."""
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = _read_varint(message, offset)
        value: int | bytes
        if tag & 7 == 0:
            value, offset = _read_varint(message, offset)
        else:
            if tag & 7 == 2:
                length, offset = _read_varint(message, offset)
            else:
                length = {1: 8, 5: 4}.get(tag & 7, len(message))
            value = message[offset : offset + length]
            offset += length
            if offset > len(message):
                raise ValueError("a field goes on beyond the end")
        yield tag >> 3, value, message[start:offset]


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, lowest first, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if offset >= len(message):
            break
        byte = message[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
    raise ValueError("a number without an end")


def _encode_field(number: int, value: int | bytes) -> bytes:
    """A field as it is written."""
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a message where a number was expected")
    return value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value


def _as_text(value: int | bytes) -> str:
    return _as_bytes(value).decode("utf-8")
