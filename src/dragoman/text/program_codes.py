"""Code of programs in sentences without quotation: options, calls, indices, types, members and scopes.

`--help`, `foo()`, `a[i]`, `List<T>`, `x->y` and `std::vector` are codes. `word(s)`, `see[1]`, `a < b` and `either--or` are
texts. A name before an index or arguments has one letter, or a sign or a capital inside, which no word of a language has.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"(?<![\w.:>-])(?:\w+(?:\.|::|->))*[^\W\d]\w*$")
_SPECIAL_NAME = re.compile(r"(?<![\w.:>-])(?:[A-Za-z]|\w+(?:::|->|(?<![A-Z])\.|_)[\w.:>-]*\w|[A-Z]?[a-z]+[A-Z]\w*)$")
_VARIABLE = re.compile(r"(?<![\w>-])[a-z_]\w*$")
_TYPE_NAME = re.compile(r"(?<![\w:.])(?:(?:\w+(?:\.|::))*[A-Z]\w*|\w+(?:::\w+)+|vector|array|list|map|set|dict)$")
_TYPE = r"(?:const |\? (?:extends|super) )?+[A-Za-z]\w*+(?:(?:::|\.)\w++)*+"
_TYPE_END = r"(?:\[\]|[*&?])*+"
_TYPES = r"<{0}(?:, ?{0})*+>"
_INNER_TYPES = _TYPES.format(_TYPE + _TYPE_END)
_GENERIC_REST = re.compile(_TYPES.format(rf"{_TYPE}(?:{_INNER_TYPES})?+{_TYPE_END}") + r"(?![\w<])(?:\(\))?")
_SCOPE_REST = re.compile(rf"::[^\W\d]\w*+(?:::\w++)*+(?:{_GENERIC_REST.pattern})?+(?:\(\))?")
_ARROW_REST = re.compile(r"->[a-z_]\w*+(?:(?:->|\.)\w++)*+(?:\(\))?")
_EMPTY_CALL_REST = re.compile(r"\(\)")
_PLAIN_CALL_REST = re.compile(r"""\((?:[a-z]|\d++)(?:, ?(?:[a-z]|\d++))++\)|\((?=["']|\w++ ?=)[^()\n]*+\)""")
_CALL_REST = re.compile(r"\((?:[^()\n]|\([^()\n]*+\))++\)")
_INDEX_REST = re.compile(r"""(?:\[(?:0|[ijk]|"[^"\[\]\n]*+"|'[^'\[\]\n]*+')\])++(?:\[\w++\])*+""")
_ANY_INDEX_REST = re.compile(r"(?:\[[\w+*., -]++\])++")

OPTION = r"(?:-[A-Za-z?],? (?=--))?+--?[a-z]\w*+(?:-\w++)*+(?:=(?:[\w/~+@%:*-]|[.,](?=\w))++)?"
PROGRAM_CODES = {
    ":": ((_NAME, _SCOPE_REST),),
    "<": ((_TYPE_NAME, _GENERIC_REST),),
    "-": ((_VARIABLE, _ARROW_REST),),
    "(": ((_NAME, _EMPTY_CALL_REST), (_NAME, _PLAIN_CALL_REST), (_SPECIAL_NAME, _CALL_REST)),
    "[": ((_NAME, _INDEX_REST), (_SPECIAL_NAME, _ANY_INDEX_REST)),
}
"""Patterns of what stands before a character, and of the character with what follows."""
_WORDS_AFTER_DASH = "and|as|but|for|he|i[fnst]|not|or|she|so|that|the|they|this|we|which|who|with|you"
PROGRAM_FIRST = (
    r"""(?<=\w)(?:->|\()(?=[\w\"')])|(?<=[^\s.?!\u2026\u2013-] )-(?=[a-z](?![\w'\u2019-]))|(?<=\()-(?=[a-z]\b)"""
    r"|(?<![\w-])-(?=[A-Za-z?],? --[a-z])"
    rf"|(?<![\w-])--(?=[a-z])(?!(?:{_WORDS_AFTER_DASH})\b)"
)
"""What these codes begin with, or have inside, beside the other first characters."""
