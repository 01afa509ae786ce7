"""Language codes: the language of a code with any region or script, its direction, and whether it writes spaces."""

from __future__ import annotations

import re
from functools import lru_cache

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of the scripts that are written without spaces, for a set of a pattern: Thai, Lao, Burmese, Khmer, kana, Han."""
UNSPACED_LANGUAGES = {"gan", "hsn", "ja", "km", "lo", "lzh", "my", "th", "wuu", "yue", "zh"}
"""Languages that write no spaces between words or sentences."""

RIGHT_TO_LEFT_LANGUAGES = {
    "acm", "acq", "acw", "acx", "aeb", "afb", "aii", "ajp", "apc", "apd", "ar", "arc", "arq", "ars", "ary", "arz", "ayl", "ayn",
    "ayp", "azb", "bal", "bcc", "bgn", "bqi", "brh", "ckb", "dv", "fa", "glk", "gwc", "haz", "hbo", "he", "hnd", "hno", "khw",
    "ks", "lad", "lah", "lki", "lrc", "luz", "mzn", "nqo", "ota", "pbt", "pnb", "ps", "rhg", "sam", "sd", "sdh", "shu", "skr",
    "syc", "syr", "ug", "ur", "uzs", "yi",
}  # fmt: skip
"""Languages whose usual script is written from right to left."""
RIGHT_TO_LEFT_SCRIPTS = {
    "adlm", "arab", "aran", "hebr", "mand", "mend", "nkoo", "rohg", "samr", "syrc", "syre", "syrj", "syrn", "thaa",
}  # fmt: skip
"""Scripts of living languages (ISO 15924) that are written from right to left."""
_RIGHT_TO_LEFT_REGIONS = {"az-iq", "az-ir", "kk-cn", "ku-iq", "ku-ir", "ku-lb", "ky-cn", "pa-pk", "uz-af"}
_NO_LANGUAGE = {"", "c", "mis", "mul", "none", "posix", "und", "x"}

# Codes of three letters (ISO 639-2 and 639-3) and old codes of two letters, as CLDR maps them to codes of two letters.
_ALIAS_TABLE = """
    aar:aa abk:ab adp:dz afr:af aka:ak alb:sq als:sq amh:am ara:ar arb:ar arg:an arm:hy asm:as ava:av ave:ae aym:ay
    ayr:ay aze:az azj:az bak:ba bam:bm baq:eu bel:be ben:bn bis:bi bod:bo bos:bs bre:br bul:bg bur:my cat:ca ces:cs
    cha:ch che:ce chi:zh chu:cu chv:cv cls:sa cmn:zh cnr:sr cor:kw cos:co cre:cr cwd:cr cym:cy cze:cs dan:da deu:de
    div:dv drh:mn drw:fa dut:nl dzo:dz ekk:et ell:el eng:en epo:eo esk:ik est:et eus:eu ewe:ee fao:fo fas:fa fat:ak
    fij:fj fin:fi fra:fr fre:fr fry:fy fuc:ff ful:ff gaz:om geo:ka ger:de gla:gd gle:ga glg:gl glv:gv gre:el grn:gn
    gug:gn guj:gu hat:ht hau:ha hbs:sr heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy ibo:ig ice:is ido:io iii:ii
    ike:iu iku:iu ile:ie in:id ina:ia ind:id ipk:ik isl:is ita:it iw:he jav:jv ji:yi jpn:ja jw:jv kal:kl kan:kn kas:ks
    kat:ka kau:kr kaz:kk khk:mn khm:km kik:ki kin:rw kir:ky kmr:ku knc:kr kng:kg kom:kv kon:kg kor:ko kpv:kv kua:kj
    kur:ku lao:lo lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg lvs:lv mac:mk mah:mh mal:ml mao:mi mar:mr
    may:ms mkd:mk mlg:mg mlt:mt mo:ro mol:ro mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne
    nld:nl nno:nn nob:nb nor:no npi:ne nya:ny oci:oc ojg:oj oji:oj ori:or orm:om ory:or oss:os pan:pa pbu:ps per:fa
    pes:fa pli:pi plt:mg pol:pl por:pt prp:gu prs:fa pus:ps que:qu quz:qu roh:rm ron:ro rum:ro run:rn rus:ru sag:sg
    san:sa scc:sr scr:hr sh:sr sin:si slk:sk slo:sk slv:sl sme:se smo:sm sna:sn snd:sd som:so sot:st spa:es sqi:sq
    src:sc srd:sc srp:sr ssw:ss sun:su swa:sw swc:sw swe:sv swh:sw tah:ty tam:ta tat:tt tel:te tgk:tg tha:th tib:bo
    tir:ti tnf:fa ton:to tsn:tn tso:ts tuk:tk tur:tr twi:ak uig:ug ukr:uk urd:ur uzb:uz uzn:uz ven:ve vie:vi vol:vo
    wel:cy wln:wa wol:wo xho:xh ydd:yi yid:yi yor:yo zha:za zho:zh zsm:ms zul:zu zyb:za
"""
_ALIASES = dict(alias.split(":") for alias in _ALIAS_TABLE.split())

_NAME_TABLE = """
    ar:Arabic az:Azerbaijani bg:Bulgarian bn:Bengali ca:Catalan cs:Czech da:Danish de:German el:Greek en:English eo:Esperanto
    es:Spanish et:Estonian eu:Basque fa:Persian fi:Finnish fr:French ga:Irish gl:Galician he:Hebrew hi:Hindi hr:Croatian
    hu:Hungarian id:Indonesian is:Icelandic it:Italian ja:Japanese ka:Georgian ko:Korean ky:Kyrgyz lt:Lithuanian lv:Latvian
    ms:Malay nb:Norwegian nl:Dutch pl:Polish pt:Portuguese ro:Romanian ru:Russian sk:Slovak sl:Slovenian sq:Albanian
    sr:Serbian sv:Swedish sw:Swahili ta:Tamil th:Thai tl:Tagalog tr:Turkish uk:Ukrainian ur:Urdu vi:Vietnamese zh:Chinese
"""
LANGUAGE_NAMES = dict(entry.split(":") for entry in _NAME_TABLE.split())
"""English names of frequent languages by their codes, those that Argos Translate shows."""
_CODES_BY_NAME = {name.casefold(): code for code, name in LANGUAGE_NAMES.items()}


def to_language_code(name: str) -> str:
    """Return the code of a language that a user gives by its English name, such as German. Other text stays as it is."""
    return _CODES_BY_NAME.get(name.strip().casefold(), name)


@lru_cache(maxsize=256)
def get_language(code: str) -> str:
    """Return the language of a code in lower case, without region and script, with two letters if it has such a code.

    So `zh_CN`, `zh-Hans`, `ZH`, `zho_Hans` and `cmn` are `zh`. The empty code stays empty, and an unknown code stays as it is.
    """
    subtag = re.split(r"[-_.@]", code.strip().lower(), maxsplit=1)[0]
    return _ALIASES.get(subtag, subtag)


def is_known_language(code: str) -> bool:
    """Return whether a code is that of a language with two letters."""
    return get_language(code) in _ALIASES.values() or get_language(code) in LANGUAGE_NAMES


def is_same_language(first_code: str, second_code: str) -> bool:
    """Return whether two codes are of one language, as en-GB and EN_us are."""
    return get_language(first_code) == get_language(second_code)


def have_common_texts(first_code: str, second_code: str) -> bool:
    """Return whether one code is the other with or without a region or script, as de and de-AT, but not pt-BR and pt-PT."""
    first, second = ([get_language(code), *re.split(r"[-_.@]", code.strip().lower())[1:]] for code in (first_code, second_code))
    return all(subtag == other for subtag, other in zip(first, second, strict=False))


def is_spaced_language(code: str) -> bool:
    """Return whether this language writes spaces between sentences; an unknown language does."""
    return get_language(code) not in UNSPACED_LANGUAGES


@lru_cache(maxsize=256)
def is_right_to_left(code: str) -> bool:
    """Return whether a language is written from right to left, by the script of its code or else by its usual one."""
    language, *subtags = re.split(r"[-_.@]", code.strip().lower())
    for subtag in subtags:
        if len(subtag) == 4 and subtag.isalpha():
            return subtag in RIGHT_TO_LEFT_SCRIPTS
    language = get_language(language)
    return language in RIGHT_TO_LEFT_LANGUAGES or any(f"{language}-{subtag}" in _RIGHT_TO_LEFT_REGIONS for subtag in subtags)


def get_direction(code: str) -> str:
    """Return the direction of a language as HTML names it: "rtl" or "ltr"; empty for the empty code."""
    return "" if not code else "rtl" if is_right_to_left(code) else "ltr"


def is_foreign(stated_code: str, language: str) -> bool:
    """Return whether a part that states a language is in another one. A code for no certain language, such as und, states none.

    Text without a language, `zxx`, is foreign to all languages.
    """
    stated = get_language(stated_code)
    return bool(language) and stated not in _NO_LANGUAGE and stated != get_language(language)
