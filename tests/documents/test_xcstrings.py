"""String catalogs of Xcode: variations, plural forms of the target language, states, and entries that stay."""

from __future__ import annotations

import json
from typing import Any

from document_checks import check_laws, translate_content

from dragoman.documents.document import add_plural_forms, write_document
from dragoman.documents.translate_document import DocumentOptions
from dragoman.documents.xcstrings import parse_xcstrings


def make_unit(value: str, state: str = "translated") -> dict[str, Any]:
    return {"stringUnit": {"state": state, "value": value}}


CATALOG: dict[str, Any] = {
    "sourceLanguage": "en",
    "strings": {
        "": {},
        "Hello %@": {"comment": "A greeting"},
        "Done": {"localizations": {"pl": make_unit("Gotowe")}},
        "Checked": {"localizations": {"fr": make_unit("Vu", "needs_review"), "pl": make_unit("Old", "needs_review")}},
        "files": {
            "extractionState": "manual",
            "localizations": {
                "en": {"variations": {"plural": {"one": make_unit("%lld file"), "other": make_unit("%lld files")}}}
            },
        },
        "tap": {
            "localizations": {
                "en": {"variations": {"device": {"mac": make_unit("Click here"), "other": make_unit("Tap here")}}},
                "fr": {"variations": {"device": {"mac": make_unit("Cliquez")}}},
            }
        },
        "rows": {"localizations": {"pl": {"variations": {"plural": {"other": make_unit("%lld wiersza")}}}}},
        "shared": {
            "localizations": {
                "en": {
                    **make_unit("in %#@days@"),
                    "substitutions": {
                        "days": {
                            "argNum": 1,
                            "formatSpecifier": "lld",
                            "variations": {"plural": {"one": make_unit("%arg day"), "other": make_unit("%arg days")}},
                        }
                    },
                }
            }
        },
        "ACME": {"shouldTranslate": False},
        "Show": {"localizations": {"en": {"stringSet": {"state": "translated", "values": ["Show it", "Open it"]}}}},
    },
    "version": "1.0",
}
FILE = json.dumps(CATALOG, indent=2, separators=(",", " : "), ensure_ascii=False).replace("{}", "{\n\n    }").encode()


def translate(content: bytes, language: str, *, accept: bool = False) -> dict[str, Any]:
    result = translate_content("a.xcstrings", content, options=DocumentOptions("en", language, accept=accept))
    values: dict[str, Any] = json.loads(result.content)
    assert (
        result.content
        == json.dumps(values, indent=2, separators=(",", " : "), ensure_ascii=False).replace("{}", "{\n\n    }").encode()
    )  # as Xcode writes it
    return values


def test_target_language_is_added_with_its_forms() -> None:
    strings = translate(FILE, "pl")["strings"]
    assert strings["Hello %@"] == {"comment": "A greeting", "localizations": {"pl": make_unit("HELLO %@", "needs_review")}}
    assert strings["Done"] == CATALOG["strings"]["Done"]
    assert strings["Checked"] == CATALOG["strings"]["Checked"]
    assert (strings["ACME"], strings[""]) == ({"shouldTranslate": False}, {})
    assert strings["Show"] == CATALOG["strings"]["Show"]
    plural = strings["files"]["localizations"]["pl"]["variations"]["plural"]
    assert plural == {
        name: make_unit(text, "needs_review")
        for name, text in {"one": "%lld FILE", "few": "%lld FILES", "many": "%lld FILES", "other": "%lld FILES"}.items()
    }
    assert strings["tap"]["localizations"]["pl"]["variations"]["device"] == {
        "mac": make_unit("CLICK HERE", "needs_review"), "other": make_unit("TAP HERE", "needs_review"),
    }  # fmt: skip
    rows = strings["rows"]["localizations"]["pl"]["variations"]["plural"]
    assert (rows["other"], list(rows)) == (make_unit("%lld wiersza"), ["other", "one", "few", "many"])
    shared = strings["shared"]["localizations"]["pl"]
    assert shared["stringUnit"]["value"] == "IN %#@days@"
    assert shared["substitutions"]["days"]["formatSpecifier"] == "lld"
    forms = shared["substitutions"]["days"]["variations"]["plural"]
    assert (list(forms), forms["few"]["stringUnit"]["value"]) == (["one", "few", "many", "other"], "%arg DAYS")


def test_other_languages_stay_and_one_form_is_enough_for_japanese() -> None:
    strings = translate(FILE, "ja", accept=True)["strings"]
    assert strings["Checked"]["localizations"] == CATALOG["strings"]["Checked"]["localizations"] | {
        "ja": strings["Checked"]["localizations"]["ja"]
    }
    assert list(strings["files"]["localizations"]["ja"]["variations"]["plural"]) == ["other"]


def test_second_run_changes_nothing() -> None:
    first = json.dumps(translate(FILE, "pl"), indent=2, separators=(",", " : "), ensure_ascii=False).replace("{}", "{\n\n    }")
    assert translate(first.encode(), "pl") == json.loads(first)


def test_laws_hold_with_the_new_texts() -> None:
    document = add_plural_forms(parse_xcstrings(FILE), parse_xcstrings, "pl")
    check_laws(parse_xcstrings, document.content)
    assert write_document(parse_xcstrings(FILE), {}) == FILE
    compact = json.dumps(CATALOG).encode()
    added = add_plural_forms(parse_xcstrings(compact), parse_xcstrings, "pl").content
    assert json.loads(added) == json.loads(document.content)


def test_nested_variations_give_few_texts() -> None:
    nested = '{"variations": {"plural": {"other": ' * 60 + "1" + "}}}" * 60
    content = f'{{"sourceLanguage": "en", "strings": {{"a": {{"localizations": {{"en": {nested}}}}}}}}}'.encode()
    assert len(add_plural_forms(parse_xcstrings(content), parse_xcstrings, "pl").content) < 10 * len(content)


def test_entry_that_is_no_object_stays() -> None:
    strings: dict[str, Any] = {"a": None, "b": [1], "c": {"localizations": "x"}, "Done": {"comment": "Ready"}}
    content = json.dumps({"sourceLanguage": "en", "strings": strings}, indent=2, separators=(",", " : "))
    translated = translate(content.encode(), "de")["strings"]
    assert {key: value for key, value in translated.items() if strings[key] == value}.keys() == {"a", "b", "c"}
