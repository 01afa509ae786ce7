"""Names of text encodings."""

from __future__ import annotations

import codecs

import pytest

from dragoman.text.encodings import _LABELS, find_codec

# Every codec of Python's standard library that is no encoding of a whole text in bytes.
OTHER_CODECS = (
    "rot13", "rot-13", "rot_13", "zlib", "zlib_codec", "zip", "bz2", "bz2_codec", "hex", "hex_codec", "base64", "base64_codec",
    "base-64", "uu", "uu_codec", "quopri", "quoted-printable", "idna", "punycode", "unicode_escape", "raw_unicode_escape",
    "undefined", "mbcs", "oem", "utf-7", "utf_8_sig", "hz", "palmos", "charmap", "string_escape", "cp037", "",
)  # fmt: skip


def test_other_codec_is_no_text_encoding(subtests: pytest.Subtests) -> None:
    for name in OTHER_CODECS:
        with subtests.test(name=name):
            assert find_codec(name) is None


# Names and encodings of https://encoding.spec.whatwg.org/#names-and-labels
def test_label_of_the_standard_names_its_encoding(subtests: pytest.Subtests) -> None:
    for label, codec in [
        ("UTF-8", "utf-8"),
        ("unicode-1-1-utf-8", "utf-8"),
        ("ISO_8859-15", "iso8859-15"),
        ("iso_8859-2:1987", "iso8859-2"),
        ("windows-1251", "cp1251"),
        ("x-cp1250", "cp1250"),
        ("Shift_JIS", "cp932"),
        ("EUC-KR", "cp949"),
        ("gb2312", "gbk"),
        ("Big5-HKSCS", "big5hkscs"),
        ("KOI8-R", "koi8-r"),
        ("macintosh", "mac-roman"),
        ("TIS-620", "cp874"),
    ]:
        with subtests.test(label=label, codec=codec):
            assert find_codec(label) == codec


def test_each_codec_of_the_table_decodes_text() -> None:
    for codec in _LABELS:
        assert isinstance(codecs.lookup(codec).decode(b"")[0], str)
        assert codecs.lookup(codec).name == codec


def test_labels_name_one_encoding_each() -> None:
    labels = [label for labels in _LABELS.values() for label in labels.split()]
    assert len(labels) == len(set(labels))
