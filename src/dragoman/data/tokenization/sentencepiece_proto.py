"""Parser of SentencePiece model files: reads the pieces by id, and moves the special pieces to the ids 0 to 3.

The file is a protobuf message. Each field 1 is a piece, whose id is its index, and field 2 holds the settings of the training.
This parser reads only that part of the wire format, so the protobuf library is not required.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_PIECES_FIELD, _TRAINER_SPEC_FIELD, _NORMALIZER_SPEC_FIELD = 1, 2, 3
_RULE_NAME_FIELD, _COMPILED_RULE_FIELD, _DUMMY_PREFIX_FIELD, _RULE_FILE_FIELD = 1, 2, 3, 6
_TEXT_FIELD, _SCORE_FIELD, _TYPE_FIELD = 1, 2, 3
_MODEL_TYPE_FIELD, _BYTE_FALLBACK_FIELD, _UNKNOWN_NAME_FIELD = 3, 35, 45
_SPACE_FIELDS = (_DUMMY_PREFIX_FIELD, 4, 5)  # the others remove extra spaces, and write a space as ▁
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# Padding, unknown, begin and end in dragoman's order: fields of the settings for id and name, the usual name, and the type.
_SPECIAL_PIECES = ((43, 48, "<pad>", CONTROL), (40, 45, "<unk>", UNKNOWN), (41, 46, "<s>", CONTROL), (42, 47, "</s>", CONTROL))


@dataclass(frozen=True)
class Piece:
    """Piece of a model. In its text, ▁ marks a space; its type is a constant of this module."""

    text: str
    score: float
    piece_type: int


def read_pieces(model: bytes) -> list[Piece]:
    """Return the pieces by id. Raise ValueError if the bytes are not such a message."""
    return [_parse_piece(value) for number, value, _ in _iter_fields(model) if number == _PIECES_FIELD]


def read_model_type(model: bytes) -> str:
    """Return the type of the model: unigram, bpe, word or char. Raise ValueError if the bytes are not such a message."""
    model_types = [value for number, value, _ in _iter_fields(_read_trainer_spec(model)) if number == _MODEL_TYPE_FIELD]
    return _MODEL_TYPES.get(_as_int(model_types[-1]), "unknown") if model_types else "unigram"


def renumber_special_pieces(model: bytes) -> bytes:
    """Return the model with padding, unknown, begin and end at the ids 0 to 3; missing ones are added.

    The segmentation of text stays the same.

    Raises ValueError: an ordinary piece has such a name, or the bytes are not such a message.
    """
    records = [(_parse_piece(value), record) for number, value, record in _iter_fields(model) if number == _PIECES_FIELD]
    spec_values = {number: value for number, value, _ in _iter_fields(_read_trainer_spec(model))}
    ids = {id_field: index for index, (id_field, _, _, _) in enumerate(_SPECIAL_PIECES)}
    special_records: list[bytes] = []
    for _, name_field, default_name, piece_type in _SPECIAL_PIECES:
        name = _as_text(spec_values.get(name_field, default_name.encode()))
        # The unknown piece is found by its type, because it may have any name.
        texts = [name if piece.piece_type == UNKNOWN == piece_type else piece.text for piece, _ in records]
        index = texts.index(name) if name in texts else None
        if index is None:
            special_records.append(_encode_piece(name, piece_type))
        elif records[index][0].piece_type == piece_type:
            special_records.append(records.pop(index)[1])
        else:
            raise ValueError(f"its piece {name} is an ordinary piece, not a special one")
    spec_records = [record for number, _, record in _iter_fields(_read_trainer_spec(model)) if number not in ids]
    spec_records += [_encode_field(number, piece_id) for number, piece_id in ids.items()]
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


def insert_control_pieces(model: bytes, texts: Sequence[str]) -> bytes:
    """Return the model with new pieces after its first four, which no text is encoded to and which decode to no text.

    The segmentation of text stays the same.

    Raises ValueError: a piece has such a name already, or the bytes are not such a message.
    """
    names = {piece.text for piece in read_pieces(model)}
    if known := next((text for text in texts if text in names), None):
        raise ValueError(f"it has a piece {known} already")
    records = [(number, record) for number, _, record in _iter_fields(model)]
    pieces = [record for number, record in records if number == _PIECES_FIELD]
    new_pieces = [_encode_piece(text, CONTROL) for text in texts]
    first, others = pieces[: len(_SPECIAL_PIECES)], pieces[len(_SPECIAL_PIECES) :]
    return b"".join([*first, *new_pieces, *others, *(record for number, record in records if number != _PIECES_FIELD)])


def append_user_defined_pieces(model: bytes, texts: Sequence[str]) -> bytes:
    """Return the model with new pieces after all others, which text holds and which are never split.

    Repeated fields of a message may follow other fields, as in any protobuf reader.
    """
    return model + b"".join(_encode_piece(text, USER_DEFINED) for text in texts)


def build_model(
    scores: Mapping[str, float], *, model_type: str, unknown: str, charsmap: bytes = b"", has_bytes: bool = False
) -> bytes:
    """Return a model.

    scores: score of each ordinary piece: its log-probability, or its rank in BPE, where the highest is merged first
    model_type: `unigram`, `bpe` or `char`
    unknown: text of the unknown piece, which has the id 0
    charsmap: compiled table of the normalization; empty for none
    has_bytes: unknown characters become the pieces `<0x00>` to `<0xFF>`
    """
    pieces = [_encode_piece(unknown, UNKNOWN)]
    for text, score in scores.items():
        fields = _encode_field(_TEXT_FIELD, text.encode()) + _encode_float(_SCORE_FIELD, score)
        fields += _encode_field(_TYPE_FIELD, BYTE) if has_bytes and text in BYTE_TOKENS else b""
        pieces.append(_encode_field(_PIECES_FIELD, fields))
    trainer = _encode_field(
        _MODEL_TYPE_FIELD, next(number for number, name in _MODEL_TYPES.items() if name == model_type)
    ) + _encode_field(_UNKNOWN_NAME_FIELD, unknown.encode())
    trainer += _encode_field(_BYTE_FALLBACK_FIELD, 1) if has_bytes else b""
    normalizer = _encode_field(_COMPILED_RULE_FIELD, charsmap) if charsmap else b""
    return b"".join([*pieces, _encode_field(_TRAINER_SPEC_FIELD, trainer), _encode_field(_NORMALIZER_SPEC_FIELD, normalizer)])


def build_byte_model() -> bytes:
    """Return a model without characters, so that each byte of a text is a piece. Spaces are bytes as all others."""
    keeps_spaces = b"".join(_encode_field(field, 0) for field in _SPACE_FIELDS)
    model = build_model(dict.fromkeys(BYTE_TOKENS, 0.0), model_type="char", unknown="<unk>", has_bytes=True)
    return model + _encode_field(_NORMALIZER_SPEC_FIELD, keeps_spaces)


def define_control_pieces(model: bytes, texts: Mapping[str, str]) -> bytes:
    """Return the model in which control pieces are user-defined pieces with other texts; ids stay the same.

    texts: new text of each of these pieces by its name
    """
    records: list[bytes] = []
    for number, value, record in _iter_fields(model):
        if number == _PIECES_FIELD and (piece := _parse_piece(value)).piece_type == CONTROL and piece.text in texts:
            record = _encode_piece(texts[piece.text], USER_DEFINED)
        records.append(record)
    return b"".join(records)


def remove_dummy_prefix(model: bytes) -> bytes:
    """Return the model that adds no space before a text. Parts of a message that follow others change these alone."""
    return model + _encode_field(_NORMALIZER_SPEC_FIELD, _encode_field(_DUMMY_PREFIX_FIELD, 0))


def read_charsmap(model: bytes) -> bytes:
    """Return the compiled table of the normalization; empty for none. Raise ValueError if the bytes are not such a message."""
    settings = b"".join(_as_bytes(value) for number, value, _ in _iter_fields(model) if number == _NORMALIZER_SPEC_FIELD)
    return b"".join(_as_bytes(value) for number, value, _ in _iter_fields(settings) if number == _COMPILED_RULE_FIELD)


def replace_normalization(model: bytes, name: str, rule: bytes) -> bytes:
    """Return the model with another rule of Unicode normalization. Its other settings for text stay, such as those of spaces.

    name: name of the rule
    rule: NormalizerSpec message with the compiled rule; empty for the identity
    """
    records = [(number, value, record) for number, value, record in _iter_fields(model)]
    settings = b"".join(_as_bytes(value) for number, value, _ in records if number == _NORMALIZER_SPEC_FIELD)
    rule_fields = (_RULE_NAME_FIELD, _COMPILED_RULE_FIELD, _RULE_FILE_FIELD)
    kept_settings = [record for number, _, record in _iter_fields(settings) if number not in rule_fields]
    compiled_rule = [record for number, _, record in _iter_fields(rule) if number == _COMPILED_RULE_FIELD]
    normalizer = b"".join([_encode_field(_RULE_NAME_FIELD, name.encode()), *compiled_rule, *kept_settings])
    others = [record for number, _, record in records if number != _NORMALIZER_SPEC_FIELD]
    return b"".join([*others, _encode_field(_NORMALIZER_SPEC_FIELD, normalizer)])


def _encode_piece(text: str, piece_type: int) -> bytes:
    return _encode_field(_PIECES_FIELD, _encode_field(_TEXT_FIELD, text.encode()) + _encode_field(_TYPE_FIELD, piece_type))


def _read_trainer_spec(model: bytes) -> bytes:
    """Return the settings of the training. Repeated parts of a message are concatenated, as in any protobuf reader."""
    return b"".join(_as_bytes(value) for number, value, _ in _iter_fields(model) if number == _TRAINER_SPEC_FIELD)


def _parse_piece(message: int | bytes) -> Piece:
    text, score, piece_type = "", 0.0, NORMAL
    for number, value, _ in _iter_fields(_as_bytes(message)):
        if number == _TEXT_FIELD:
            text = _as_text(value)
        elif number == _SCORE_FIELD:
            if len(_as_bytes(value)) != 4:
                raise ValueError("a score does not have 4 bytes")
            (score,) = struct.unpack("<f", _as_bytes(value))
        elif number == _TYPE_FIELD:
            piece_type = _as_int(value)
    return Piece(text, score, piece_type)


def _iter_fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield the number of each field, its value, and its bytes with the tag."""
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
                raise ValueError("a field continues beyond the end")
        yield tag >> 3, value, message[start:offset]


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return an integer of seven bits per byte, lowest first, and the offset after it."""
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
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def _encode_float(number: int, value: float) -> bytes:
    return encode_varint(number << 3 | 5) + struct.pack("<f", value)


def encode_varint(number: int) -> bytes:
    """Return a whole number in groups of seven bits, the lowest first; all but the last have the highest bit set."""
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
