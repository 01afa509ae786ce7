"""Language codes: their language, against CLDR's table of aliases."""

from __future__ import annotations

from pathlib import Path

import pytest
from babel.core import get_global

from dragoman.config import make_recipe
from dragoman.config.paper_settings import find_deviations
from dragoman.evaluation.metrics import moses_bleu
from dragoman.formats.jsonl import find_keys
from dragoman.formats.tmx import read_tmx
from dragoman.languages import (
    RIGHT_TO_LEFT_LANGUAGES,
    get_language,
    is_foreign,
    is_right_to_left,
    is_same_language,
    is_spaced_language,
    to_language_code,
)


def test_code_has_one_language(subtests: pytest.Subtests) -> None:
    for code, language in [
        ("zh", "zh"),
        ("zh_CN", "zh"),
        ("ZH-hant-TW", "zh"),
        ("zho_Hans", "zh"),
        ("cmn", "zh"),
        ("de_DE.UTF-8", "de"),
        ("ger", "de"),
        ("yue", "yue"),
        ("xx", "xx"),
        (" EN ", "en"),
        ("", ""),
    ]:
        with subtests.test(code=code, language=language):
            assert get_language(code) == language


def test_aliases_are_those_of_cldr() -> None:
    """Every alias of CLDR with two letters is known, except for Twi, whose code is still in use."""
    aliases = {str(code): str(alias) for code, alias in get_global("language_aliases").items()}
    expected = {code: alias.split("_")[0] for code, alias in aliases.items() if len(alias.split("_")[0]) == 2 and code != "tw"}
    assert len(expected) > 240
    assert {code: get_language(code) for code in expected} == expected
    assert get_language("tw") == "tw"


def test_same_language_ignores_region_and_script() -> None:
    assert is_same_language("en-GB", "EN_us")
    assert is_same_language("zh_TW", "zho_Hans")
    assert not is_same_language("zh", "yue")


@pytest.mark.parametrize(
    ("code", "is_spaced"), [("zh_CN", False), ("ja_JP", False), ("zh-Hans", False), ("tha", False), ("ko_KR", True), ("", True)]
)
def test_spaces_follow_the_language(code: str, is_spaced: bool) -> None:
    assert is_spaced_language(code) == is_spaced


def test_json_keys_are_those_of_the_code_or_its_language() -> None:
    keys = {"translation.en", "translation.zh", "translation.zh_TW"}
    assert find_keys(keys.__contains__, "en_US", "zh_CN") == ("translation.en", "translation.zh")
    assert find_keys((keys | {"translation.en_US"}).__contains__, "en_US", "zh_TW") == (
        "translation.en_US",
        "translation.zh_TW",
    )
    assert find_keys(keys.__contains__, "en", "zh_TW") == ("translation.en", "translation.zh_TW")
    assert find_keys({"source", "target"}.__contains__, "en_US", "en_GB") == ("source", "target")


def test_tmx_variant_of_the_region_comes_first(tmp_path: Path) -> None:
    variants = "".join(f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in ("en-GB", "zh-CN", "zh-TW", "zho-Hant-HK"))
    path = tmp_path / "memory.tmx"
    path.write_text(f'<tmx version="1.4"><header/><body><tu>{variants}</tu></body></tmx>', encoding="utf-8")
    for target, expected in (("zh_TW", "zh-TW"), ("zh_CN", "zh-CN"), ("zho_Hans", "zh-CN"), ("zho_Hant_HK", "zho-Hant-HK")):
        [pair] = read_tmx(path, source_language="eng_Latn", target_language=target)
        assert (pair.source, pair.target) == ("en-GB", expected)


def test_dropout_of_english_french_does_not_depend_on_regions() -> None:
    """Section 6.1 gives the big English-French model another dropout rate than Table 3."""
    deviations = {}
    for source, target in (("en", "fr"), ("en_US", "fra"), ("en", "de")):
        task = {"source_language": source, "target_language": target}
        recipe = make_recipe({"size": "big", "task": task}).model_dump()
        deviations[source, target] = {deviation.key for deviation in find_deviations(recipe)}
    assert deviations["en", "fr"] == deviations["en_US", "fra"] != deviations["en", "de"]


def test_moses_bleu_takes_the_language_of_a_code() -> None:
    plain, regional = (moses_bleu(["Ein Satz, z. B. so."], [["Ein Satz, z. B. so!"]], code) for code in ("de", "de_AT"))
    assert plain == regional
    assert "tok:moses-de|" in plain.signature


def test_direction_is_that_of_cldr() -> None:
    """Languages with a right-to-left script in CLDR, but for Levantine (ajp), Aramaic, Southern Balochi and Western Punjabi."""
    scripts = {
        str(code): str(subtags).split("_")[1] for code, subtags in get_global("likely_subtags").items() if code.islower()
    }
    turned = {"Adlm", "Arab", "Aran", "Hebr", "Mand", "Mend", "Nkoo", "Rohg", "Samr", "Syrc", "Thaa"}
    for code in RIGHT_TO_LEFT_LANGUAGES - {"ajp", "arc", "bcc", "pnb"}:
        assert scripts[code] in turned, code
    left_to_right = ["en", "de", "tr", "ku", "pa", "az", "ur-Latn", "ks_Deva", "sd-Deva-IN", "zh_Hant", "yi-Latn", ""]
    right_to_left = ["ar", "ar-EG", "arb_Arab", "iw", "ji", "fas_Arab", "pa-Arab", "pa-PK", "ku_IQ", "uz-AF", "ms-Arab"]
    assert [code for code in left_to_right if is_right_to_left(code)] == []
    assert [code for code in right_to_left if not is_right_to_left(code)] == []


def test_part_is_foreign_only_with_a_language() -> None:
    assert [code for code in ("en-GB", "", "und", "x-none", "C", "POSIX", "zxx", "fr") if is_foreign(code, "en")] == [
        "zxx",
        "fr",
    ]
    assert not is_foreign("fr", "")


def test_names_of_languages_become_their_codes() -> None:
    assert [to_language_code(text) for text in ("German", " french ", "de", "Klingon")] == ["de", "fr", "de", "Klingon"]
