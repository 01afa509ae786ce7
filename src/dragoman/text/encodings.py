"""Names of text encodings, as files state them, and Python's codec of each.

The names are the labels of https://encoding.spec.whatwg.org/#names-and-labels without case and punctuation. Python has codecs
that are no encodings of text, such as rot13, zlib and punycode, so a name from a file is never looked up among its codecs. The
labels of US-ASCII, ISO-8859-1 and ISO-8859-9 mean these encodings here, as in XML and gettext, and not those of Windows.
"""

from __future__ import annotations

import re

_LABELS = {
    "utf-8": "utf8 unicode11utf8 unicode20utf8 xunicode20utf8",
    "utf-16-le": "utf16 utf16le csunicode iso10646ucs2 ucs2 unicode unicodefeff",
    "utf-16-be": "utf16be unicodefffe",
    "ascii": "ascii usascii ansix341968",
    "iso8859-1": "iso88591 iso885911987 latin1 l1 cp819 ibm819 isoir100 csisolatin1",
    "iso8859-2": "iso88592 iso885921987 latin2 l2 isoir101 csisolatin2",
    "iso8859-3": "iso88593 iso885931988 latin3 l3 isoir109 csisolatin3",
    "iso8859-4": "iso88594 iso885941988 latin4 l4 isoir110 csisolatin4",
    "iso8859-5": "iso88595 iso885951988 cyrillic isoir144 csisolatincyrillic",
    "iso8859-6": "iso88596 iso885961987 iso88596e iso88596i csiso88596e csiso88596i arabic asmo708 ecma114 isoir127 "
    "csisolatinarabic",
    "iso8859-7": "iso88597 iso885971987 greek greek8 ecma118 elot928 isoir126 csisolatingreek suneugreek",
    "iso8859-8": "iso88598 iso885981988 iso88598e iso88598i csiso88598e csiso88598i hebrew visual logical isoir138 "
    "csisolatinhebrew",
    "iso8859-9": "iso88599 iso885991989 latin5 l5 isoir148 csisolatin5",
    "iso8859-10": "iso885910 latin6 l6 isoir157 csisolatin6",
    "iso8859-13": "iso885913",
    "iso8859-14": "iso885914",
    "iso8859-15": "iso885915 l9 csisolatin9",
    "iso8859-16": "iso885916",
    "koi8-r": "koi8r koi8 koi cskoi8r",
    "koi8-u": "koi8u koi8ru",
    "mac-roman": "macintosh mac xmacroman csmacintosh",
    "mac-cyrillic": "xmaccyrillic xmacukrainian",
    "cp866": "cp866 ibm866 866 csibm866",
    "cp874": "windows874 dos874 iso885911 tis620",
    "cp1250": "windows1250 cp1250 xcp1250",
    "cp1251": "windows1251 cp1251 xcp1251",
    "cp1252": "windows1252 cp1252 xcp1252",
    "cp1253": "windows1253 cp1253 xcp1253",
    "cp1254": "windows1254 cp1254 xcp1254",
    "cp1255": "windows1255 cp1255 xcp1255",
    "cp1256": "windows1256 cp1256 xcp1256",
    "cp1257": "windows1257 cp1257 xcp1257",
    "cp1258": "windows1258 cp1258 xcp1258",
    "gbk": "gbk xgbk gb2312 gb231280 chinese isoir58 csgb2312 csiso58gb231280",
    "gb18030": "gb18030",
    "big5hkscs": "big5 big5hkscs cnbig5 xxbig5 csbig5",
    "euc_jp": "eucjp xeucjp cseucpkdfmtjapanese",
    "iso2022_jp": "iso2022jp csiso2022jp",
    "cp932": "shiftjis sjis xsjis mskanji windows31j ms932 csshiftjis",
    "cp949": "euckr windows949 korean ksc5601 ksc56011987 ksc56011989 isoir149 cseuckr csksc56011987",
}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}


def find_codec(name: str) -> str | None:
    """Return Python's codec of a text encoding, such as `cp932` for `Shift_JIS`; None for a name of no text encoding."""
    return _CODECS.get(re.sub("[^a-z0-9]", "", name.lower())) if name.isascii() else None
