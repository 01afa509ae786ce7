"""Clients against a server that listens: our own, DeepL's package and libretranslatepy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import deepl
import pytest
from libretranslatepy import LibreTranslateAPI

import dragoman
from capital_letters import CapitalTranslator, listen, make_service
from dragoman import client as client_module
from dragoman.client import ClientTranslation, StreamedSentence
from dragoman.errors import ServerError
from dragoman.serving.settings import ApiKeys, ServerSettings, hash_key


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Address of a server in a thread, which asks for the key `key`."""
    settings = ServerSettings(api_keys=ApiKeys([bytes.fromhex(hash_key("key"))]))
    with listen(make_service(CapitalTranslator()), settings) as address:
        yield address


def test_client_translates(url: str) -> None:
    with dragoman.Client(url, api_key="key") as client:
        assert client.languages() == {"de": [], "en": ["de"]}
        first, second = client.translate(["One. Two.", ""], "de", "en", alternatives=1)
        assert (first.text, first.alternatives, second.text) == ("ONE. TWO.", ("ONE. 1 TWO. 1",), "")
        assert [(segment.source, segment.score) for segment in first.segments] == [("One.", -1.5), ("Two.", -1.5)]
        (detailed,) = client.translate(["One day."], "de", "en", alignment=True, attention=True, constraints=[{"prefix": "O"}])
        (segment,) = detailed.segments
        assert (segment.source_tokens, segment.tokens) == (("▁One", "▁day."), ("▁ONE", "▁DAY."))
        assert (segment.attention, segment.alignment) == (((1.0, 0.0), (0.0, 1.0)), ((0, 0), (1, 1)))
        *sentences, whole = client.stream("One. Two.", "de", "en")
        assert {item.text for item in sentences if isinstance(item, StreamedSentence)} == {"ONE.", "TWO."}
        assert isinstance(whole, ClientTranslation)
        assert whole.text == "ONE. TWO."


def test_async_client_translates(url: str) -> None:
    async def translate() -> tuple[str, list[object], dict[str, list[str]]]:
        async with dragoman.AsyncClient(url, api_key="key") as client:
            (result,) = await client.translate(["<b>One</b>"], "de", "en", markup="html")
            return result.text, [item async for item in client.stream("One.", "de", "en")], await client.languages()

    text, events, languages = asyncio.run(translate())
    assert (text, len(events), languages["en"]) == ("<b>ONE</b>", 2, ["de"])


def test_clients_keep_glossaries_and_translate_files(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "POLL_SECONDS", 0.01)
    path = tmp_path / "one.txt"
    path.write_text("A dog.\n", encoding="utf-8")
    with dragoman.Client(url, api_key="key") as client:
        glossary = client.add_glossary("pets", {"dog": "Hund"}, "de", "en")
        assert (client.glossaries(), glossary.num_entries) == ([glossary], 1)
        for terms in (glossary.id, [{"source": "dog", "target": "Hund"}]):
            (result,) = client.translate(["A dog."], "de", "en", glossary=terms, strict_terms=True)
            assert (result.text, result.segments[0].terms) == ("A DOG. Hund", (("dog", "Hund"),))
        client.remove_glossary(glossary.id)
        with pytest.raises(ServerError, match="Glossary not found"):
            client.remove_glossary(glossary.id)
        with pytest.raises(ValueError, match="has a tab"):
            client.add_glossary("pets", {"a\tb": "c"}, "de", "en")
        file = client.translate_file(path, "de", "en")
        assert (file.content, file.num_texts, file.num_flagged) == (b"A DOG.\n", 1, 0)
        with pytest.raises(ServerError, match="zz is not supported"):
            client.translate_file(path, "zz", "en")

    async def use() -> tuple[object, bytes, list[object]]:
        async with dragoman.AsyncClient(url, api_key="key") as client:
            glossary = await client.add_glossary("pets", {"dog": "Hund"}, "de", "en")
            (result,) = await client.translate(["A dog."], "de", "en", glossary=glossary.id, strict_terms=True)
            file = await client.translate_file(path, "de", "en")
            await client.remove_glossary(glossary.id)
            return result.text, file.content, list(await client.glossaries())

    assert asyncio.run(use()) == ("A DOG. Hund", b"A DOG.\n", [])


def test_client_reports_what_the_server_says(url: str) -> None:
    with dragoman.Client(url, api_key="key") as client:
        with pytest.raises(ServerError, match="zz is not supported") as refused:
            client.translate(["x"], "zz", "en")
        assert (refused.value.status, refused.value.server_code) == (400, "unsupported-language")
        with pytest.raises(ServerError, match="zz is not supported"):
            list(client.stream("x", "zz", "en"))
    with dragoman.Client(url, api_key="wrong") as client, pytest.raises(ServerError, match="API key") as denied:
        client.languages()
    assert denied.value.status == 403


def test_server_that_cannot_be_reached_is_one_line() -> None:
    with dragoman.Client("http://127.0.0.1:9") as client, pytest.raises(ServerError, match="cannot be reached") as unreached:
        client.translate(["x"], "de")
    assert (unreached.value.status, unreached.value.code) == (0, "server-error")


def test_package_of_deepl_translates(url: str) -> None:
    client = deepl.DeepLClient("key", server_url=url)
    results = client.translate_text(["One day.", 'Go <x id="1"/> on'], source_lang="EN", target_lang="DE", tag_handling="xml")
    assert isinstance(results, list)
    first, second = results
    assert (first.text, second.text, first.detected_source_lang) == ("ONE DAY.", 'GO <x id="1"/> ON', "EN")
    assert [language.code for language in client.get_target_languages()] == ["DE"]
    assert client.get_usage().character.valid
    with pytest.raises(deepl.DeepLException):
        client.translate_text("x", source_lang="EN", target_lang="ZZ")
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("wrong", server_url=url).translate_text("x", source_lang="EN", target_lang="DE")


def test_libretranslatepy_translates(url: str) -> None:
    client = LibreTranslateAPI(url + "/", api_key="key")
    assert client.translate("One day.", "en", "de") == "ONE DAY."
    assert client.detect("This is an English sentence.")[0]["language"] == "en"
    assert {language["code"] for language in client.languages()} == {"de", "en"}
