"""Glossaries of the server: DeepL's package, our own API, the folder, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import deepl
import pytest
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Dictionary
from deepl.api_data import MultilingualGlossaryInfo

from capital_letters import CapitalTranslator, listen, make_client, make_models, make_service
from dragoman.serving import glossary_store
from dragoman.serving.glossary_store import GlossaryStore, check_folder
from dragoman.serving.http_errors import HttpError
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits, ServerSettings
from dragoman.text.glossary import GlossaryEntry


def test_package_of_deepl_keeps_glossaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossary_store, "MAX_GLOSSARIES", 4)
    with listen(make_service(), ServerSettings(glossary_dir=tmp_path)) as url:
        client = deepl.DeepLClient("key", server_url=url, send_platform_info=False)
        assert [(pair.source_lang, pair.target_lang) for pair in client.get_glossary_languages()] == [("en", "de")]
        glossary = client.create_glossary("pets", "EN", "DE", {"dog": "Hund", "cat": "Katze"})
        assert (glossary.name, glossary.ready, glossary.source_lang, glossary.entry_count) == ("pets", True, "EN", 2)
        result = client.translate_text("A dog, a horse.", source_lang="EN", target_lang="DE", glossary=glossary)
        assert isinstance(result, deepl.TextResult)
        assert result.text == "A DOG, A HORSE. Hund"
        other = client.create_glossary_from_csv("plants", "EN", "DE", "tree,Baum,en,de\n")
        assert {item.glossary_id for item in client.list_glossaries()} == {glossary.glossary_id, other.glossary_id}
        assert client.get_glossary_entries(glossary) == {"dog": "Hund", "cat": "Katze"}
        assert client.get_glossary(other.glossary_id).name == "plants"
        with pytest.raises(deepl.QuotaExceededException, match="room for 4 glossaries"):
            client.create_glossary("third", "EN", "DE", {"a": "b"})
        client.delete_glossary(other)
        for call in (client.get_glossary, client.delete_glossary, client.get_glossary_entries):
            with pytest.raises(deepl.GlossaryNotFoundException):
                call(other.glossary_id)
        with pytest.raises(deepl.DeepLException, match="Glossary not found"):
            client.translate_text("x", source_lang="EN", target_lang="DE", glossary=other.glossary_id)
    assert [stored.id for stored in GlossaryStore(tmp_path).list_all()] == [glossary.glossary_id]


def test_package_of_deepl_keeps_glossaries_of_several_pairs(tmp_path: Path) -> None:
    """A dictionary may be renamed, extended, replaced and deleted, and a glossary of one pair is in the list, too."""
    models = make_models((CapitalTranslator(), ("en", "de")), (CapitalTranslator(), ("en", "fr")))
    german, french = ("EN", "DE"), ("EN", "FR")
    with listen(TranslationService(models, ServerLimits()), ServerSettings(glossary_dir=tmp_path)) as url:
        client = deepl.DeepLClient("key", server_url=url, send_platform_info=False)

        def count(glossary: MultilingualGlossaryInfo) -> dict[tuple[str, str], int]:
            return {(item.source_lang, item.target_lang): item.entry_count for item in glossary.dictionaries}

        pets = client.create_multilingual_glossary(
            "pets", [Dictionary(*german, {"dog": "Hund"}), Dictionary(*french, {"dog": "chien", "cat": "chat"})]
        )
        plants = client.create_glossary("plants", *german, {"tree": "Baum"})
        assert count(pets) == {german: 1, french: 2}
        assert {item.glossary_id: item.name for item in client.list_multilingual_glossaries()} == {
            pets.glossary_id: "pets", plants.glossary_id: "plants",
        }  # fmt: skip
        assert [item.glossary_id for item in client.list_glossaries()] == [plants.glossary_id]
        for (_, target), word in ((german, "Hund"), (french, "chien")):
            result = client.translate_text("A dog.", source_lang="EN", target_lang=target, glossary=pets)
            assert isinstance(result, deepl.TextResult)
            assert result.text == f"A DOG. {word}"
        assert client.update_multilingual_glossary_name(pets, "animals").name == "animals"
        changed = client.update_multilingual_glossary_dictionary(pets, Dictionary(*german, {"dog": "Köter", "cow": "Kuh"}))
        assert (changed.name, count(changed)) == ("animals", {german: 2, french: 2})
        (entries,) = client.get_multilingual_glossary_entries(pets, *german).dictionaries
        assert str(entries.entries) == "dog\tKöter\ncow\tKuh"
        assert client.replace_multilingual_glossary_dictionary(pets, Dictionary(*german, {"pig": "Schwein"})).entry_count == 1
        client.delete_multilingual_glossary_dictionary(pets, source_lang="EN", target_lang="FR")
        assert count(client.get_multilingual_glossary(pets.glossary_id)) == {german: 1}
        client.update_multilingual_glossary_dictionary(plants.glossary_id, Dictionary(*french, {"tree": "arbre"}))
        assert count(client.get_multilingual_glossary(plants.glossary_id)) == {german: 1, french: 1}
        client.delete_multilingual_glossary(pets)
        client.delete_multilingual_glossary(plants.glossary_id)
        for call in (client.get_multilingual_glossary, client.delete_multilingual_glossary):
            with pytest.raises(deepl.GlossaryNotFoundException):
                call(pets.glossary_id)
    assert GlossaryStore(tmp_path).list_all() == []


WRONG_GLOSSARIES: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name: "),
    ({"target_lang": "ZZ"}, "zz is not supported"),
    ({"source_lang": "DE", "target_lang": "EN"}, "de to en is not supported"),
    ({"entries": ""}, "entries: the glossary has no terms"),
    ({"entries": "dog"}, "entries, line 1: has 1 columns"),
    ({"entries": "dog\t"}, "entries, line 1: 'dog' has no target term"),
    ({"entries": "dog\tHund\nDog\tKöter"}, "entries, line 2: 'Dog' has the target 'Köter'"),
    ({"entries": "dog,Hund,en,fr", "entries_format": "csv"}, "entries, line 1: the term is of the language 'fr'"),
    ({"entries_format": "xls"}, "entries_format: "),
]


def test_wrong_glossary_is_one_line_in_the_shape_of_deepl() -> None:
    client = make_client(make_service())
    for wrong, message in WRONG_GLOSSARIES:
        fields = {"name": "x", "source_lang": "EN", "target_lang": "DE", "entries": "dog\tHund"} | wrong
        answer = client.post("/v2/glossaries", json=fields)
        assert (answer.status_code, list(answer.json())) == (400, ["message"])
        assert answer.json()["message"].startswith(message)
        answer = client.post("/v3/glossaries", json={"name": fields.pop("name"), "dictionaries": [fields]})
        assert (answer.status_code, list(answer.json())) == (400, ["message"])
        assert answer.json()["message"].removeprefix("dictionaries[0].").startswith(message)
    incomplete: list[dict[str, Any]] = [{"name": "x"}, {"dictionaries": []}]
    for missing in incomplete:
        assert client.post("/v3/glossaries", json=missing).json()["message"].endswith("not specified.")
    wrong_requests: list[tuple[dict[str, Any], int, str]] = [
        ({"glossary_id": "../x", "source_lang": "EN"}, 404, "Glossary not found"),
        ({"glossary_id": "x"}, 400, "source_lang: a request with a glossary"),
        ({"glossary_ids": ["x", "y"], "source_lang": "EN"}, 400, "glossary_ids: the server uses one"),
    ]
    for fields, status, message in wrong_requests:
        answer = client.post("/v2/translate", json={"text": ["dog"], "target_lang": "DE", **fields})
        assert (answer.status_code, answer.json()["message"][: len(message)]) == (status, message)


def test_own_api_uses_terms_and_reports_them() -> None:
    pairs = [("en", "de"), ("de", "en"), ("de", "fr")]
    models = make_models(*((CapitalTranslator(), pair) for pair in pairs), pivot="de")  # English to French takes two steps
    client = make_client(TranslationService(models, ServerLimits()))
    terms: list[dict[str, Any]] = [
        {"source": "dog", "target": ["Hund", "Hunde"]},
        {"source": "one", "target": "ONE"},
        {"source": "Linux", "do_not_translate": True},
    ]
    fields: dict[str, Any] = {"texts": ["One dog. A <b>cat</b> on Linux."], "source": "en", "target": "de", "markup": "html"}
    fields |= {"glossary": terms, "strict_terms": True}
    (answer,) = client.post("/v1/translate", json=fields).json()["translations"]
    assert answer["text"] == "ONE DOG. Hund A <b>CAT</b> ON Linux."
    assert [segment.get("terms") for segment in answer["segments"]] == [
        [
            {"source": "One", "targets": ["ONE"], "form": "ONE"},
            {"source": "dog", "targets": ["Hund", "Hunde"], "form": "Hund"},
        ],
        [{"source": "Linux", "targets": [], "form": "Linux"}],
    ]
    stored = {"name": "x", "source_lang": "EN", "target_lang": "DE", "entries": "cat\tKatze"}
    glossary_id = client.post("/v2/glossaries", json=stored).json()["glossary_id"]
    (answer,) = client.post("/v1/translate", json=fields | {"glossary": glossary_id}).json()["translations"]
    assert "Katze" in answer["text"]
    wrong_fields: list[tuple[dict[str, Any], int, str]] = [
        ({"glossary": "unknown"}, 404, "unknown-glossary"),
        ({"glossary": []}, 400, "empty-glossary"),
        ({"glossary": [{"source": "a"}]}, 400, "invalid-glossary"),
        ({"glossary": [terms[0]] * 10_001}, 413, "glossary-too-large"),
        ({"glossary": [{"source": "dog", "target": "a"}, {"source": "Dog", "target": "b"}]}, 400, "invalid-glossary"),
        ({"glossary": glossary_id, "source": "de", "target": "en"}, 400, "unsupported-language"),
        ({"glossary": terms, "target": "fr"}, 400, "unsupported-language"),
    ]
    for wrong, status, code in wrong_fields:
        error = client.post("/v1/translate", json=fields | wrong)
        assert (error.status_code, error.json()["error"]["code"]) == (status, code)


def test_store_needs_a_folder_for_several_processes_and_limits_all_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [GlossaryEntry("a", ("b",)), GlossaryEntry("c", ("d",))]
    with pytest.raises(HttpError) as refused:
        GlossaryStore(is_shared=True).add("x", "en", "de", entries)
    assert refused.value.code == "no-glossary-folder"
    monkeypatch.setattr(glossary_store, "MAX_ALL_ENTRIES", 3)
    store = GlossaryStore()
    store.add("x", "en", "de", entries)
    with pytest.raises(HttpError) as full:
        store.add("y", "en", "de", entries)
    assert full.value.status == 456


def test_glossary_that_cannot_be_written_is_no_mistake_of_the_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = make_client(make_service(), ServerSettings(glossary_dir=tmp_path / "glossaries"))
    check_folder(tmp_path / "glossaries")
    shutil.rmtree(tmp_path / "glossaries")
    (tmp_path / "glossaries").touch()  # as a folder that cannot be written
    fields = {"name": "x", "source_lang": "en", "target_lang": "de", "entries": "a\tb"}
    answer = client.post("/v2/glossaries", json=fields)
    assert answer.status_code == 507
    assert str(tmp_path) not in answer.text
    assert str(tmp_path) in caplog.text
