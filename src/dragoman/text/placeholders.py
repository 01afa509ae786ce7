"""Placeholders of program texts, addresses and other signs: parts of a text that a translation keeps as they are.

The table has a row for each style, under the characters that it begins with. Each pattern stops at a character that begins it
anew, so a search takes time in proportion to the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from dragoman.text.inline_rules import BRACKET, COMMON_RULES, InlineRules
from dragoman.text.program_codes import OPTION, PROGRAM_CODES, PROGRAM_FIRST
from dragoman.text.references import ICONS, INVISIBLE, WITHOUT_WIDTH

Span = tuple[int, int]

CodeKind = Literal["code", "break", "space"]
"""Kind of a code: one that a model may read, one that ends a sentence, or one that stands for white space."""


@dataclass(frozen=True)
class FoundCode:
    """Code in a text.

    start, end: its place
    kind: what it is
    """

    start: int
    end: int
    kind: CodeKind = "code"


@dataclass(frozen=True)
class _Style:
    """Style of a code.

    expression: its regular expression; there are many, and most files need few of them
    family: name under which rules disable it
    option: name under which rules enable it, or empty
    """

    expression: str
    family: str = "variable"
    option: str = ""
    kind: CodeKind = "code"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Pattern of the code."""
        return re.compile(self.expression)


Styles = Mapping[str, tuple[_Style, ...]]
"""Styles by first character."""


_WIDTH = r"(?:\d++|\*(?:\d++\$)?+)?+(?:\.(?:\d++|\*)?+)?+"
_FLAGS = rf"%(?:\d++\$)?+[-+#0'^,(]*+{_WIDTH}(?:hh?|ll?|I64|I32|[Lzjtqw])?"
_NESTED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}"
_ICU_TYPES = "number|date|time|spellout|ordinal|duration|list|relativeTime|currency|percent|integer|-?[0-9]+"
_BRANCH_TYPES = "plural|select|selectordinal|choice"
_VARIABLES = (
    "address|amount|author|city|company|count|country|currency|date|day|days|email|file|filename|firstname|id|item|items|key|"
    "language|lastname|link|max|min|minutes|month|name|number|num|order|page|path|percent|phone|price|product|seconds|size|"
    "time|title|total|type|url|user|username|value|version|x|year"
)
_NAMES = (
    f"{_VARIABLES}|action|attribute|body|brand|category|client|code|content|description|digits|domain|error|event|field|folder|"
    "format|group|host|hours|index|input|ip|label|length|level|limit|line|locale|location|message|method|mode|model|module|"
    "months|nickname|node|object|option|other|param|parameter|password|permission|places|plugin|points|position|project|"
    "provider|quantity|query|role|score|server|site|sitename|source|start|end|state|status|subject|tag|target|task|text|"
    "tool|unit|uid|uri|values|weeks|width|height|years"
)
# Names of variables: those that no word of a language looks like, and common ones.
_IDENTIFIER = r"(?:(?=[A-Za-z_])[A-Z]?[a-z]*+(?:_(?=[A-Za-z0-9])|(?<=[a-z])[A-Z]|[0-9])\w*+|[A-Z]++_\w++)"
_NAME = rf"(?:(?i:{_NAMES})(?!\w)|{_IDENTIFIER})"

_REMARKS = "(?i:applause|inaudible|laughs|laughter|redacted|sic|sigh|tbd)"  # of editors, in braces

_LATEX_COMMANDS = "(?:eq|page|c|C|auto|name)?ref|cite[a-z]*+|label|url|input|include(?:graphics)?|begin|end|usepackage"
"""Commands of LaTeX whose argument is a name, and no text."""
_STYLES: dict[str, tuple[_Style, ...]] = {
    "%": (
        _Style(r"(?:%[0-9A-F]{2}){2,}+", "address"),
        _Style(r"%[A-Z_]{2,40}%(?:\\[\w.$-]*\w)++", "address"),
        _Style(r"%%[A-Za-z_][A-Za-z0-9_]++%%", "printf"),
        _Style(r"%%", "printf"),
        _Style(r"%\([\w. -]++\)(?:[-+#0]*+\d*+(?:\.\d++)?+[diouxXeEfFgGcrsa]|[ ][diouxXeEfFgGcrsa](?![A-Za-z]))?+", "printf"),
        _Style(r"%#@\w+@", "printf"),
        _Style(r"%~[a-z]*+\d(?!\d)", "printf"),
        _Style(r"%[-+#0]*+\d*+(?:\.\d++)?+<PRI\w++>", "printf"),
        _Style(r"%<\w++>(?:[-+#0]*+\d*+(?:\.\d++)?+[A-Za-z](?![A-Za-z]))?+", "printf"),
        _Style(r"%[-+^#0]*+\{[^{}\s]++\}"),
        _Style(r"%\[[A-Za-z]\w*+\][sdf](?![A-Za-z])", "printf"),
        _Style(r"%[-+#0]*+\[\d++\](?:\*|\d++)?+(?:\.(?:\[\d++\]\*|\d*+))?+[A-Za-z]", "printf"),
        _Style(r"%\d++![^!\s]{1,10}!|%\d++:[-.\d*]*+[dusxfegnmp](?![A-Za-z])|%\|[^|%\s]++\|%?", "printf"),
        _Style(r"%[<>]|%q[A-Z+#]?(?![a-z])", "printf", option="gcc"),
        _Style(r"%[A-Za-z_][\w.-]{1,60}%(?![%\d]|[A-Za-z](?![A-Za-z]))"),
        _Style(r"%\d++%(?![%\d])", "printf"),
        _Style(r"%[-_0^#]?[A-Za-z](?:[:/.-]%[-_0^#]?[A-Za-z](?![A-Za-z0-9]))++", "printf"),
        _Style(rf"{_FLAGS}(?:[@diouxXeEfFgGcspnaA]|[tT][A-Za-z])(?![A-Za-z0-9])", "printf"),
        _Style(r"%L?\d{1,2}(?!\d)", "printf"),
        _Style(r"(?<!\d)%[-_0^#+]?[A-Za-z](?![A-Za-z0-9])", "printf"),
        _Style(r"% [-+#0]*+\d*+(?:\.\d++)?+l{0,2}[diouxXeEfFgG](?![A-Za-z])", "printf", option="spaces"),
        _Style(r"(?<!\d)%[A-Za-z][A-Za-z0-9_]*+", "printf"),
    ),
    "{": (
        _Style(r"\{\{\{[^{}]*+\}\}\}"),
        _Style(r"\{\{(?:[^{}]|\{[^{}]*+\}|\{\{[^{}]*+\}\})*+\}\}"),
        _Style(r"\{%[^{}]*+(?<=%)\}|\{![^{}]*+(?<=!)\}|\{#[^{}]*+(?<=#)\}"),
        _Style(r"\{\w++\}\|(?:plural|ordinal|gender)\([^()]*+\)"),
        _Style(rf"\{{(?!{_REMARKS}\}})[^{{}}\s]*+\}}"),
        _Style(r"\{[^{}\s]*+(?:\{[^{}\s]*+\}[^{}\s]*+)++\}"),
        _Style(rf"\{{\s*+[\w.$-]+\s*+,\s*+(?:{_ICU_TYPES})(?!\w)[^{{}}]*+\}}"),
        _Style(rf"(?=\{{\s*+[\w.$-]+\s*+,\s*+(?:{_BRANCH_TYPES})\s*+,){_NESTED}"),
        _Style(rf"\{{(?!{_REMARKS}\}})\s*+[$-]?[\w.\[\]$]+(?:-[\w.]+)*+\s*+\}}"),
        _Style(r"""\{\s*+(?:"[^"{}]*+"|'[^'{}]*+')\s*+\}"""),
        _Style(r"""\{\s*+(?:[A-Z][A-Z0-9_-]++|-[A-Za-z][\w-]*+)\((?:[^(){}"]|"[^"{}]*+")*+\)\s*+\}"""),
        _Style(r"\{\s*+[\w.\[\]$]+\s*+(?:![rsa])?:(?!\s)[^{}]*+\}"),
        _Style(r"\{\s*+[\w.$]+\s*+\|[^{}]*+\}"),
        _Style(r"\{@\w++[^{}]*+\}|\{(?=[^{}$]*+\$[A-Za-z_])[a-z][^{}]*+\}"),
        _Style(rf"(?=\{{\s*+\$[\w-]++\s*+->){_NESTED}"),
    ),
    "$": (
        _Style(
            r"\$(?:\{[A-Z_]++\}|(?:[A-Z]++_)*+(?:HOME|[A-Z]*(?:DIR|PATH|ROOT)|PWD|TE?MP))(?:/(?:[\w@%+~-]|\.(?=\w))++)++/?",
            "address",
        ),
        _Style(r"\$\{\{[^{}]*+\}\}"),
        _Style(r"\$\{(?:[^{}]|\{[^{}]*+\})*+\}"),
        _Style(r"\$t\((?:[^()]|\([^()]*+\))*+\)"),
        _Style(r"\$\([^()\s]++\)"),
        _Style(r"\$\[\w++\]"),
        _Style(r"\$\\[rnt]", kind="break"),
        _Style(r"\$\$\w++\$\$"),
        _Style(r"(?<![A-Za-z])\$[A-Za-z_]\w*+(?:(?:\.|->)\w+|\['\w+'\]|\[\"?\w+\"?\])*+\$?"),
        _Style(r"(?<![A-Za-z])\$[1-9](?!\d|[.,]\d)(?! (?:million|billion|thousand|off|per|each|a|an)\b)", option="$1"),
    ),
    "@": (
        _Style(r"@(?:\.\w+)?:(?:\([\w.]+\)|\{'[^'{}]*+'\}|\w+(?:\.\w+)*+)"),
        _Style(r"@\{[^{}]*+\}|(?<![\w@])@[a-z]++\{[^{}]*+\}"),
        _Style(r"""@[a-z]\w*+\(\s*+(?:'[^'()]*+'|"[^"()]*+")\s*+\)"""),
        _Style(r"(?<![\w@])@@?[A-Za-z_]\w*+@@?(?!\w)|(?<!\w)@\([\w.]++\)", "name"),
        _Style(rf"(?<![\w@./])@@?{_NAME}(?:[./-]\w++)*+(?!\w)", "name"),
        _Style(r"(?:\A|(?<=\n))@[A-Za-z_][\w-]*+(?:[./][\w-]+)*+", "name"),
        _Style(r"(?<![\w@./])@[A-Za-z_][\w-]*+(?:[./][\w-]+)*+", "name", option="@name"),
    ),
    "[": (
        _Style(r"\[X\d+X\]"),
        _Style(r"\[%[^\[\]]*+(?<=%)\]"),
        _Style(r"\[\[[^\[\]\n]++\]\]"),
        _Style(r"""\[[A-Za-z][\w-]*+(?:\s++[\w-]++=(?:"[^"\[\]]*+"|'[^'\[\]]*+'|[^\s"'\[\]]++))++\s*+/?\](?!\()""", "bracket"),
        _Style(r"\[\^?[^\[\]\s]++\]_{1,2}(?!\w)|\[\^[^\[\]\s]++\]"),
        _Style(r"\[(?:_\d+|[\w*#]+,_?\d+[^\[\]]*+)\]"),
        _Style(rf"\[(?:{_VARIABLES})\](?!\()", "bracket"),
        _Style(r"\[(?=[A-Za-z][\w-]*+[.:]\w)[\w.:-]++(?<=\w)\](?!\()|\[/?[#@][A-Za-z][^\[\]\n]*+\](?!_)", "bracket"),
        _Style(r"\[(?!and/or\]|he/she\]|his/her\])[A-Za-z]\w*+(?:/\w++)++\](?!\()", "bracket"),
        _Style(r"\[[A-Za-z]*_\w*+\](?!\()|\[[a-z]+[A-Z]\w*+\](?!\()", "bracket"),
        _Style(BRACKET, "bracket", option="brackets"),
    ),
    "⟦": (_Style(r"⟦\d+⟧"),),
    "#": (
        _Style(r"#\ufe0f?+\u20e3"),
        _Style(r"#\{[^{}]*+\}"),
        _Style(r"#{2,3}[A-Za-z_]\w*+#{2,3}"),
        _Style(rf"(?<![\w&#])#(?:{_IDENTIFIER}#?(?!\w)|[A-Za-z]\w*+#(?!\w))", "name"),
        _Style(r"(?<![\w&#])#[A-Za-z_]\w*+", "name", option="#name"),
    ),
    "*": (
        _Style(r"\*\ufe0f?+\u20e3"),
        _Style(r"(?<![\w*])\*(?:\.(?:[A-Za-z0-9]{1,8}+|\*))++(?![\w*])", "address"),
        _Style(r"\*\|[^|\n]*+\|\*"),
        _Style(r"\*#\d+#|\*\d+(?:\*\d+)*+#", "address"),
    ),
    ":": (
        _Style(r"(?<![\w:])(?:::?[a-z0-9][a-z0-9_+-]++:|::\w++::)(?![\w`:])", "name"),
        _Style(rf"(?<![\w:/\\.)\]}}%])::?{_NAME}(?:-\w++)*+(?![\w:])", "name"),
        _Style(r"(?<![\w:/\\.)\]}%])::?[A-Za-z_]\w++(?![\w:])", "name", option=":name"),
    ),
    "!": (
        _Style(rf"(?<![\w!])!{_NAME}!?(?!\w)", "name"),
        _Style(r"(?<![\w!])!(?!important)[A-Za-z_][\w-]++", "name", option="!name"),
    ),
    "_": (
        _Style(rf"(?<!\w)__(?:(?:{_NAMES})|[A-Za-z][A-Za-z0-9]*+(?:_[A-Za-z0-9]++)++)__(?!\w)", "name"),
        _Style(r"(?<!\w)__[A-Za-z][A-Za-z0-9]*+(?:_[A-Za-z0-9]++)*+__(?!\w)", "name", option="_name"),
    ),
    "`": (
        _Style(r"```[^`]++```|``(?=[^\s`])(?:[^`]|`(?!`)|`(?=``(?!`)))++``(?!`)", "literal"),
        _Style(r"(?<![\w`])`(?=[^\s`])[^`\n]*+(?<!\s)`(?:__?(?!\w)|(?![\w`]))", "literal"),
    ),
    "|": (
        _Style(r"(?<![\w|])\|[A-Za-z][\w.-]*+\|(?:__?(?!\w)|(?![\w|]))", "literal"),
        _Style(r"(?<![\w|])\|(?=[^\s|])[^|\n]*+(?<!\s)\|(?:__?(?!\w)|(?![\w|]))", "literal", option="rst"),
    ),
    "&": (_Style(r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});", "reference"),),
    "<": (
        _Style(r"<%[^<>]*+(?<=%)>|<\?[^<>]*+(?<=\?)>|<!--(?:[^<-]++|<(?!!--)|-(?!->))*+-->"),
        _Style(r"<(?:https?://|mailto:)[^<>\s]++>|<[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}>", "address"),
        _Style(r"<<[\w.-]+>>|</?[#@][A-Za-z][^<>]*+>"),
        _Style(
            r"""<[A-Za-z]++=(?:"[^"<>]*+"|'[^'<>]*+'|[^\s<>"']++)>|<(?:[@#][!&]?\w++|a?:\w++:\d++|!(?:here|channel|everyone)|t:\d++(?::[A-Za-z])?+)>"""
        ),
    ),
    "\\": (
        _Style(r"\\\\[\w.-]++(?:\\[\w.$-]+)++", "address"),
        _Style(r"\\\([A-Za-z_][\w.]*+\)"),
        _Style(
            rf"\\(?![nrt]\[)[A-Za-z]{{1,3}}\[\d++\]|\\(?:(?:{_LATEX_COMMANDS})\{{[^{{}}\s\\]*+\}}|[A-Za-z]++\{{\}})", "escape"
        ),
        _Style(r"\\\((?:[^\\]|\\(?![()]))*+\\\)|\\\[(?:[^\\]|\\(?![\[\]]))*+\\\]", "literal"),
        _Style(r"\\[nr](?:\\[nr])*+", "escape", kind="break"),
        _Style(r"""\\(?:[tvfab0"'\\](?!\w)|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})""", "escape"),
    ),
    "/": (
        _Style(r"(?<![\w/:])//[\w-]++(?:\.[\w-]++)++(?:/(?:[\w@%+~-]|\.(?=\w))++)*+/?", "address"),
        _Style(r"(?<![\w/.<:~)])(?:/(?:[\w@%+~-]|\.(?=\w))++){2,}+/?", "address"),
    ),
    "~": (
        _Style(r"~(?:[-+]?\d++|'.)?+(?:,(?:[-+]?\d++|'.)?+)*+[:@]*+[A-Za-z%&~^\[\]{}();<>]", "printf", option="~"),
        _Style(r"(?<!\w)~(?:/(?:[\w@%+~-]|\.(?=\w))++)++/?", "address"),
    ),
}
_STYLES |= dict.fromkeys("\u00a9\u00ae\u2122\u2120\u2022", (_Style("[\u00a9\u00ae\u2122\u2120\u2022]"),))
_SPACES = "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f"
# French has such spaces beside marks, and numbers have them inside; those are written as the target language has them.
_STYLES |= dict.fromkeys(_SPACES, (_Style(rf"(?<!\u00ab)[{_SPACES}](?![!?:;\u00bb%])(?<!\d[{_SPACES}](?=\d))", kind="space"),))
_PLACES = (*range(0x100), 0x61C, 0x180E, *range(0x2000, 0x2070), 0xFEFF)
_STYLES |= dict.fromkeys(re.findall(f"[{INVISIBLE}]", "".join(map(chr, _PLACES))), (_Style(WITHOUT_WIDTH),))
_SYMBOL = (
    "[\u00b6\u00bc-\u00be\u2020\u2021\u2030\u2031\u203b\u203d\u2042\u2116\u2117\u2150-\u2188\u2190-\u2211\u2213-\u27e5\u27e8-\u2bff\u3030\u303d\u3297\u3299\ue000-\uf8ff\ufffc\ufffd"
    "\U0001d100-\U0001d1ff\U0001d400-\U0001d7ff\U0001f000-\U0001fbff\U000f0000-\U0010fffd]"
)
"""Signs of notes, fractions, Roman numerals, arrows, signs and letters of mathematics but the minus and our marks, boxes,
dingbats, icons of fonts, №, music, emoji."""
_SYMBOL_STYLE = _Style(
    rf"[\U0001f1e6-\U0001f1ff]{{2}}|[{ICONS}]++|[\U0001d400-\U0001d7ff]++"
    rf"|{_SYMBOL}(?:[\ufe0e\ufe0f\u200d\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]++{_SYMBOL}?)*+"
)
_ADDRESS_END = r"[^\s<>\"'”»]*[^\s<>\"'”».,;:!?)\]}]"
_WWW_STYLE = _Style(rf"(?<!\w)www\.{_ADDRESS_END}", "address")
_OTHER_STYLES: dict[str, tuple[_Style, ...]] = {
    **dict.fromkeys(".(\u20e3", ()),
    "w": (_WWW_STYLE,),
    "-": (_Style(OPTION, "option"),),
}
_URL_REST = re.compile(rf"://{_ADDRESS_END}")
_DRIVE_REST = re.compile(r":\\(?:[\w.$ -]+(?=\\)\\)*+(?:[\w$-]|\.(?=\w))*+")
_EMAIL_REST = re.compile(r"@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}(?::[\w~-]++(?:/(?:[\w~-]|\.(?=\w))++)++)?")
_OTHER_SCHEME_REST = re.compile(rf":(?=[+\d]|[\w-]+[:/@]){_ADDRESS_END}")
_PORT_REST = re.compile(r":\d{2,5}(?:/(?:[\w@%+~-]|\.(?=\w))++)*+(?!\w)")
_RELATIVE_REST = re.compile(r"(?:/(?:[\w@%+~*-]|\.(?=\w))++)++/?")
_DOMAIN_REST = re.compile(r"\.(?:com|org|net|edu|gov)(?:/(?:[\w@%+~?=-]|[.&](?=\w))*+)*+(?![\w-])")
_SCHEME = re.compile(r"(?<![\w.+-])(?:https?|ftps?|sftp|ssh|git|file|wss?|ldap)$|(?<![A-Za-z0-9])[a-z][a-z0-9+.-]{1,15}$")
_OTHER_SCHEME = re.compile(r"(?<![\w.+-])(?:mailto|tel|sms|urn|data|magnet|geo|xmpp|doi)$")
_HOST = re.compile(r"(?<![\w.-])(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|(?:[\w-]{1,40}\.){1,5}[a-z]{2,8})$")
_DOTS = re.compile(r"(?<![\w./])\.{1,2}$")
_DOMAIN = re.compile(r"(?<![\w@.-])[A-Za-z0-9][\w-]*(?:\.[\w-]+)*$")
_POD_LETTER = re.compile(r"(?<!\w)[BCEFLXZ]$")
_POD_REST = re.compile(r"<[^<>\s]++>")
_DRIVE = re.compile(r"(?<!\w)[A-Za-z]$")
_EMAIL_NAME = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}$")
_LOOK_BACK = 65
_LOOK_AHEAD = 500
_KEYCAP = re.compile("[0-9]\ufe0f?$")
_ADDRESSES = {
    **PROGRAM_CODES,
    "\u20e3": ((_KEYCAP, re.compile("\u20e3")),),
    ":": (
        (_SCHEME, _URL_REST),
        (_DRIVE, _DRIVE_REST),
        (_OTHER_SCHEME, _OTHER_SCHEME_REST),
        (_HOST, _PORT_REST),
        *PROGRAM_CODES[":"],
    ),
    "@": ((_EMAIL_NAME, _EMAIL_REST),),
    "/": ((_DOTS, _RELATIVE_REST),),
    ".": ((_DOMAIN, _DOMAIN_REST),),
    "<": ((_POD_LETTER, _POD_REST), *PROGRAM_CODES["<"]),
}
"""Patterns of what stands before a character of an address, a program or a keycap, and of the character with what follows."""
_FIRST_CHARACTER = rf"[{''.join(map(re.escape, _STYLES))}\u20e3{_SYMBOL[1:]}"
_FIRST_CHARACTERS = rf"{_FIRST_CHARACTER}|www\.|\.(?=com|org|net|edu|gov)|{PROGRAM_FIRST}"
_HAS_FIRST = re.compile(_FIRST_CHARACTER)  # one set of characters is looked for faster
_HAS_ASCII_FIRST = re.compile(f"[{re.escape(''.join(filter(_HAS_FIRST.match, map(chr, range(128)))))}]")  # and a small set too
_DOMAIN_MARK = re.compile(r"\.(?:com|org|net|edu|gov)")
_HAS_PROGRAM_FIRST = re.compile(PROGRAM_FIRST)
_DOLLAR_ONE = re.compile(r"\$1(?!\d|[.,]\d)")


@lru_cache(maxsize=64)
def _select_styles(rules: InlineRules, options: frozenset[str]) -> Styles:
    """Return the styles of rules, by first character."""
    return {
        first: tuple(
            style
            for style in styles
            if style.family not in rules.disabled and (not style.option or style.option in rules.enabled | options)
        )
        for first, styles in _STYLES.items()
    }


def find_codes(text: str, rules: InlineRules = COMMON_RULES) -> list[FoundCode]:
    """Return the codes of a text, in order.

    They are placeholders of programs, addresses, character references, paths, and signs such as emoji.
    """
    return list(_find(text, rules)) if rules.kept or may_have_codes(text) else []


def may_have_codes(text: str) -> bool:
    """Return whether a text has a character that codes begin with; most texts have none, and this is fast."""
    return (
        (_HAS_ASCII_FIRST if text.isascii() else _HAS_FIRST).search(text) is not None
        or "www." in text
        or (("-" in text or "(" in text) and _HAS_PROGRAM_FIRST.search(text) is not None)
        or ("." in text[:-1] and _DOMAIN_MARK.search(text) is not None)  # most texts have no full stop but at their end
    )


def find_placeholders(text: str) -> list[Span]:
    """Return the spans of the codes of a text by the common rules."""
    return [(code.start, code.end) for code in find_codes(text)]


def _find(text: str, rules: InlineRules) -> Iterator[FoundCode]:
    styles = select_styles(text, rules)
    position = 0
    for match in compile_first_characters(rules.kept).finditer(text):
        if match.start() >= position and (code := find_code_at(text, match, position, styles)):
            yield code
            position = code.end


def select_styles(text: str, rules: InlineRules) -> Styles:
    """Return the styles for a text, by first character."""
    has_numbers = "$1" in text and _DOLLAR_ONE.search(text)
    return _select_styles(rules, frozenset(("$1",)) if has_numbers else frozenset())


@lru_cache(maxsize=64)
def compile_first_characters(kept: tuple[str, ...], others: str = "") -> re.Pattern[str]:
    """Return the pattern of what codes begin with, or have inside as addresses do, and of words that are kept.

    others: pattern of what else is looked for
    """
    words = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in sorted(kept, key=len, reverse=True))
    return re.compile("|".join(filter(None, (f"(?P<kept>{words})" if words else "", _FIRST_CHARACTERS, others))))


def find_code_at(text: str, match: re.Match[str], position: int, styles: Styles) -> FoundCode | None:
    """Return the code that a match finds, or one that began before it, behind `position`, such as an address."""
    if match.lastgroup == "kept":
        return FoundCode(*match.span())
    start = match.start()
    first = text[start]
    if first in _ADDRESSES and (code := _match_address(text, start, position)):
        return code
    for style in styles.get(first) or _OTHER_STYLES.get(first, (_SYMBOL_STYLE,)):
        if code_match := style.pattern.match(text, start):
            return _make_code(code_match, style)
    return None


_OWN_ENTITY = re.compile(r"(?<!\w)&[a-z][A-Za-z0-9]+;")


def _make_code(code_match: re.Match[str], style: _Style) -> FoundCode | None:
    """Return a code. A character reference that does not exist is text, and one of white space has its kind."""
    kind = style.kind
    if style.family == "reference":
        character = html.unescape(code_match[0])
        is_unknown = character == code_match[0]  # an entity that the file's own DTD declares, such as `&debian;`
        if is_unknown and not _OWN_ENTITY.match(code_match.string, code_match.start()):
            return None
        kind = "space" if character.isspace() else "code"
    return FoundCode(code_match.start(), code_match.end(), kind)


def _match_address(text: str, start: int, position: int) -> FoundCode | None:
    """Return the address whose `:`, `@`, `/` or last dot is at this place, or a literal of Perl's manuals, such as `B<ls>`.

    The rest is read in full only behind a name. Otherwise a text of such characters would be read to its end from each of them.
    """
    before, limit = max(position, start - _LOOK_BACK), start + _LOOK_AHEAD
    for name, rest in _ADDRESSES[text[start]]:
        if (
            rest.match(text, start, limit)
            and (code_match := name.search(text[before:start]))
            and (end := rest.match(text, start))
        ):
            return FoundCode(before + code_match.start(), end.end())
    return None
