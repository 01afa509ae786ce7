"""Values that are no language: addresses, paths, colors, dates of ISO 8601, codes, identifiers, date formats and plain numbers.

A program reads such a value, so a translation would break it. In files with keys, a value of one word is judged by its form. A
word with a capital letter, such as `Locale`, is a label.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dragoman.text.inline_codes import CodedText

_NUMBER_WITH_MARKS = re.compile(r"\d(?:[.,:/]\d|\s?[%\u20a0-\u20bf$£¥])|[%\u20a0-\u20bf$£¥]\s?\d")
_VERSION = re.compile(r"v?\d+(?:\.\d+){2,}(?:[-+][\w.-]+)?")
_PLAIN_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?%?")
_ISO_8601 = re.compile(
    r"\d{4}-\d\d(?:-\d\d)?(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?|\d{4}-?W\d\d(?:-?\d)?"
    r"|P(?=[\dT])(?:\d+[YMWD])*(?:T(?:\d+(?:\.\d+)?[HMS])+)?|\d{8}T\d{6}Z?|\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)"
)
_EXTENSIONS = (
    "avif|bmp|bin|bz2|c|cfg|conf|cpp|cs|css|csv|dart|db|deb|dll|dmg|docx?|eot|epub|exe|gif|go|gz|h|html?|ico|ini|iso|jar|java|"
    "jpe?g|jsx?|json5?|kt|less|lock|log|lua|m4a|map|mdx?|mjs|mkv|mo|mov|mp[34]|ods|odt|ogg|otf|pdf|php|plist|png|pot?|pptx?|"
    "properties|ps1|py|rb|resx|rpm|rs|rst|rtf|s?css|scss|sh|so|sql|srt|strings|svg|swift|tar|tgz|tiff?|toml|tsx?|ttf|txt|vtt|"
    "vue|war|wasm|wav|webm|webp|whl|woff2?|xlf|xliff|xlsx?|xml|ya?ml|zip"
)
# Each is a value without white space.
_TOKENS = re.compile(
    rf"""
      [a-z][a-z0-9+.-]*+://\S*                                   # addresses
    | (?:data|mailto|tel|urn|blob|about|javascript):\S+
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+
    | (?:\.{{0,2}}|~|\#|@[\w.-]+)/\S+ | /                          # paths
    | [A-Za-z]:[\\/]\S*
    | [\w.@*-]+(?:/[\w.@*{{}}:-]+)+\.(?:{_EXTENSIONS}) | [\w.@~-]+(?:/[\w.@~-]+){{2,}}
    | [\w.@*()-]*\.(?i:{_EXTENSIONS}) | \.[a-z][\w-]*(?:\.[\w-]+)*
    | (?:application|audio|font|image|message|model|multipart|text|video)/[\w.+*-]+
    | \#(?:[0-9a-fA-F]{{3,4}}|[0-9a-fA-F]{{6}}|[0-9a-fA-F]{{8}}) | (?:rgba?|hsla?|var|url|calc)\(\S*\)
    | 0x[0-9a-fA-F]+ | \d+[xX]\d+ | [A-Za-z0-9+/]{{12,}}={{1,2}}
    | -?(?:\d++(?:\.\d++)?+|\.\d++)(?:px|r?em|v[hw]|pt|fr|deg|ms|dpi)
    | [0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}
    | (?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[A-Za-z0-9+/_-]{{24,}}=*
    | [A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+ | _*[A-Za-z][A-Za-z0-9]*(?:_+[A-Za-z0-9]+)+_* | _[A-Za-z]\w*
    | [a-z]+[0-9]*(?:[A-Z][a-z0-9]*)+ | (?:[A-Z][a-z0-9]+){{2,}} | [A-Z]{{2,}}[a-z]+[A-Z]\w*
    | (?:[A-Za-z_$][\w$]+\.)+[A-Za-z_$][\w$]+(?:\(\))? | [\w$]+\(\) | [A-Za-z_]\w*(?:::\w+)+ | [a-z]\w*(?:\[\w*\])+
    | [a-z]{{2,3}}(?:[-_][A-Z][a-z]{{3}})?[-_](?:[A-Z]{{2}}|\d{{3}}) | [a-z]{{2,3}}[-_][A-Z][a-z]{{3}}
    | (?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/[A-Z][\w/+-]+   # time zones
    | (?:ctrl|alt|shift|cmd|meta|mod)(?:\+\w+)+ | sha(?:256|384|512)-[\w+/=]+ | \?[\w.-]+=\S*
    | true | false | null | undefined | none | NaN
    | :[a-z_]\w* | \^\S*\$ | [A-Z][A-Z0-9_]+=\S*
    """,
    re.VERBOSE,
)
_SELECTOR = r"[.#][A-Za-z][\w-]*+"
_LENGTH = r"(?:\d++(?:\.\d++)?+(?:px|r?em|%)?|solid|dashed|dotted|auto|none|#\w++)"
_OPERAND = r"""[\w.$()\[\]"'!]++"""
_SIZE = r"-?[\d.]++(?:px|r?em|%|deg|m?s|v[hw]|fr)?+"
_SEVERAL_TOKENS = re.compile(
    rf"(?=\S++ (?:[!=]==?|&&|\|\|) ){_OPERAND}(?: (?:[!=]==?|&&|\|\||[<>]=?+) {_OPERAND})++"  # expressions
    r"|[\w.-]++=\S++(?: [\w.-]++=\S++)++"
    rf"|(?:[a-z][a-z-]*+(?:3d|[XYZ])?\({_SIZE}(?:(?:, ?| ){_SIZE})*+\) ?)++"  # functions and families of CSS
    r"|(?=.*,\s?(?:sans-serif|serif|monospace|system-ui)$)[\w \"',-]++"
    r"|(?:(?:all|and|not|only|print|screen) )*+\((?:m(?:in|ax)-|prefers-|orientation)[\w-]*+: ?[\w.-]++\)"
    r"(?: and \([a-z-]++: ?[\w.-]++\))*+"
    r"|rgba?\([\d\s.,/%]+\)|hsla?\([\d\s.,/%a-z]+\)|data:\S+ \S+|\^.*\$"
    rf"|{_LENGTH}(?:\s{_LENGTH})++|{_SELECTOR}(?:\s*+[>+~,]?+\s*+{_SELECTOR})++",
    re.DOTALL,
)
_KEBAB = re.compile(r"[a-z][a-z0-9]*(?:--?[a-z0-9]+)+")
_CSS_WORDS = frozenset(
    (
        "bg", "bi", "border", "btn", "card", "col", "container", "css", "danger", "div", "fa", "fab", "far", "fas",
        "flex", "fluid", "font", "footer", "form", "glyphicon", "grid", "header", "hover", "icon", "icons", "img",
        "info", "input", "item", "js", "layout", "lg", "link", "list", "margin", "mb", "mdi", "menu", "ml", "modal",
        "mr", "mt", "muted", "nav", "navbar", "padding", "panel", "pb", "primary", "pt", "pull", "px", "py", "rounded",
        "row", "secondary", "sidebar", "sm", "success", "svg", "table", "tab", "text", "ui", "warning", "widget",
        "wrapper", "xl", "xs",
    )
)  # fmt: skip
_FIRST_WORD = re.compile(r"[^\W\d_]{2,}[\s,;]")
_FORMULA = re.compile(r"(?=.*[=+÷×≠≤≥])(?:[A-Za-z](?![A-Za-z])|\d++(?![.,]\d)|[-+÷×·*/=≠≤≥()^\s])++")
MAX_CLASS_LIST = 200
"""Most characters of a list of classes."""
_DATE_FORMAT = re.compile(
    r"(?:(?:yyyy|YYYY|yy|YY|y|MM?M?M?|LL?L?L?|Do|dd?d?d?|DD?|EE?E?E?|ee?|HH?|hh?|kk?|mm?|ss?|S{1,3}|aa?|A|ZZ?|zz?|XXX?|Q|w{1,2}|LTS?|T|Z)"
    r"(?![A-Za-z])|(?<=[yMdDHhms])(?:MM|dd|DD|HH|mm|ss)|yyyyMM|yyMM|YYYYMM|HHmm|'[^']*+'|[\s.,/:'\-_年月日時分秒\[\]])++"
)
_DATE_CORE = re.compile(r"yy|YY|MM|dd|DD|HH|hh|mm|ss|EEE|LT")
_TECHNICAL_KEYS = frozenset(
    (
        "align", "charset", "class", "classname", "code", "color", "component", "content_type", "country", "currency",
        "dir", "direction", "encoding", "extension", "font", "format", "hash", "href", "icon", "id", "ids", "image",
        "img", "in", "key", "kind", "lang", "language", "layout", "locale", "locales", "method", "mime", "mimetype",
        "mode", "name_key", "operationid", "order", "path", "position", "ref", "rel", "scope", "slug", "src", "style",
        "target", "theme", "token", "type", "unit", "url", "uuid", "variant", "version",
    )
)  # fmt: skip
_WORD_VALUE = re.compile(r"[a-z][a-z0-9]*")


def is_data(text: str, key: str = "") -> bool:
    """Return whether a value of a file with keys is read by a program, and no language.

    key: keys of the value, joined by dots
    """
    value = text.strip()
    if " " in value or "\n" in value:
        return (
            _SEVERAL_TOKENS.fullmatch(value) is not None
            or _is_date_format(value)
            or _is_class_list(value)
            or ("," in value and all(map(_TOKENS.fullmatch, re.split(", ?", value))))
        )
    if _TOKENS.fullmatch(value) or _VERSION.fullmatch(value) or _ISO_8601.fullmatch(value) or _PLAIN_NUMBER.fullmatch(value):
        return True
    if _KEBAB.fullmatch(value):
        parts = re.split("-+", value)
        return any(part in _CSS_WORDS or any(map(str.isdigit, part)) for part in parts)
    name = key.rpartition(".")[2].lower().lstrip("$@")
    return _is_date_format(value) or (name in _TECHNICAL_KEYS and name != value and _WORD_VALUE.fullmatch(value) is not None)


def _is_class_list(value: str) -> bool:
    """Return whether a value has classes of CSS alone, and one with a hyphen among them, as `btn btn-primary` has."""
    words = [word.split("-") for word in value.split(" ")] if len(value) < MAX_CLASS_LIST else []
    return any(len(parts) > 1 for parts in words) and all(parts[0] in _CSS_WORDS for parts in words)


def _is_date_format(value: str) -> bool:
    return len(value) < 80 and _DATE_CORE.search(value) is not None and _DATE_FORMAT.fullmatch(value) is not None


def begins_with_word(text: str, kept: Collection[str] = ()) -> bool:
    """Return whether a text begins with a word that is no part of a tag, a placeholder or an address, as most texts do.

    kept: words that are codes
    """
    return not kept and _FIRST_WORD.match(text) is not None


def has_language(text: CodedText) -> bool:
    """Return whether a text has words, or a number that languages write in different ways, such as an amount or a time.

    The variables of a formula, such as `a + b = c`, are no words.
    """
    clean = text.clean.text
    if _FORMULA.fullmatch(clean):
        return False
    if any(map(str.isalpha, clean)):
        return True
    return _NUMBER_WITH_MARKS.search(clean) is not None and not (
        _VERSION.fullmatch(clean.strip()) or _ISO_8601.fullmatch(clean.strip())
    )
