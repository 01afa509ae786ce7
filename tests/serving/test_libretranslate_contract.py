"""Behavior that LibreTranslate's own tests of its API expect, so that its clients find the same here.

Deliberate differences are for security and privacy. There is no CORS header unless an origin is allowed. A missing key is
answered with 403. Metrics have a port of their own, and there are no suggestions. Wordings are LibreTranslate's for an
unsupported language, a missing parameter and a key, because clients show these messages.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from capital_letters import CapitalTranslator, make_client, make_models, make_service
from dragoman.serving.language_detection import LanguageDetector
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key

MISSING = "Invalid request: missing {} parameter"
PAIR = {"source": "en", "target": "es"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    models = make_models((CapitalTranslator(), ("en", "es")), (CapitalTranslator("!"), ("es", "en")))
    return make_client(TranslationService(models, ServerLimits()))


def as_form(fields: dict[str, Any]) -> dict[str, Any]:
    return {"data": fields}


def as_json(fields: Any) -> dict[str, Any]:
    return {"json": fields}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (as_form({"q": "Hello", "format": "text", **PAIR}), "HELLO"),
        (as_json({"q": ["Hello", "World"], "format": "text", **PAIR}), ["HELLO", "WORLD"]),
        (as_form({"q": "<p>Hello</p>", "format": "html", **PAIR}), "<p>HELLO</p>"),
        (as_json({"q": ["<p>Hello</p>", "<p>World</p>"], "format": "html", **PAIR}), ["<p>HELLO</p>", "<p>WORLD</p>"]),
        (as_form({"q": "😀", **PAIR}), "😀"),
        (as_json({"q": ["😀", "😁"], **PAIR}), ["😀", "😁"]),
        (as_form({"q": "Hola mundo", "source": "es", "target": "en"}), "HOLA MUNDO!"),
        (as_json({"q": "", **PAIR}), ""),
        (as_json({"q": "Hello", "format": None, "alternatives": None, "api_key": None, **PAIR}), "HELLO"),
        (as_form({"q": "Hello", "format": "", "alternatives": "", "api_key": "", **PAIR}), "HELLO"),
    ],
)
def test_translations_have_the_shape_of_the_request(client: TestClient, body: dict[str, Any], expected: Any) -> None:
    answer = client.post("/translate", **body)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": expected})


def test_detection_is_among_the_languages_of_the_server() -> None:
    detected = LanguageDetector(["de", "en"]).detect("Le ministère des affaires étrangères a publié un rapport.")
    assert sorted(item.language for item in detected) == ["de", "en"]
    assert sum(item.confidence for item in detected) == pytest.approx(100, abs=0.1)


def test_alternatives_and_detected_languages_follow_the_request(client: TestClient) -> None:
    answer = client.post("/translate", json={"q": "Hello world", "alternatives": 3, **PAIR}).json()
    assert answer["alternatives"] == ["HELLO WORLD 1", "HELLO WORLD 2", "HELLO WORLD 3"]
    assert client.post("/translate", json={"q": "Hello world", "alternatives": "3", **PAIR}).json() == answer
    answer = client.post("/translate", json={"q": ["Hello", "World"], "alternatives": 2, **PAIR}).json()
    assert answer["alternatives"] == [["HELLO 1", "HELLO 2"], ["WORLD 1", "WORLD 2"]]
    text = "This is a sentence written in English for testing purposes"
    answer = client.post("/translate", data={"q": text, "source": "auto", "target": "es"}).json()
    assert answer["detectedLanguage"]["language"] == "en"
    assert answer["detectedLanguage"]["confidence"] > 0
    answer = client.post("/translate", json={"q": [text, "Good morning to you"], "source": "auto", "target": "es"}).json()
    assert [item["language"] for item in answer["detectedLanguage"]] == ["en", "en"]


def test_detection_takes_texts_by_post_alone(client: TestClient) -> None:
    assert set(client.post("/detect", data={"q": "Hello"}).json()[0]) == {"confidence", "language"}
    assert client.post("/detect", json={"q": "This is an English sentence for detection"}).json()[0]["language"] == "en"
    assert client.post("/detect", json={"q": ["This is an English sentence", "Esta es una oración"]}).status_code == 200
    refused = client.post("/detect")
    assert (refused.status_code, refused.json()) == (400, {"error": MISSING.format("q")})
    assert client.get("/detect").status_code == 405


def test_health_settings_and_languages(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.post("/health").status_code == 405
    assert client.get("/metrics").status_code == 404
    assert "Access-Control-Allow-Origin" not in client.get("/health").headers
    settings = client.get("/frontend/settings").json()
    assert (settings["apiKeys"], settings["keyRequired"], settings["suggestions"]) == (False, False, False)
    assert (settings["filesTranslation"], settings["language"]["source"]["code"]) == (True, "auto")
    assert ".txt" in settings["supportedFilesFormat"]
    languages = client.get("/languages").json()
    assert client.post("/languages", data={"api_key": ""}).json() == languages
    assert languages[0] == {"code": "en", "name": "English", "targets": ["es"]}
    assert client.post("/suggest", data={"q": "Hello", "s": "Hola", **PAIR}).status_code == 404


def test_key_is_read_from_the_body() -> None:
    client = make_client(make_service(), ServerSettings(api_keys=ApiKeys([bytes.fromhex(hash_key("valid-key"))])))
    fields = {"q": "Hello", "source": "en", "target": "de"}
    for key, status, message in (
        ({}, 403, "Please contact the server operator to get an API key"),
        ({"api_key": "bogus-key"}, 403, "Invalid API key"),
        ({"api_key": "valid-key"}, 200, None),
    ):
        answer = client.post("/translate", data={**fields, **key})
        assert (answer.status_code, answer.json().get("error")) == (status, message)
    assert client.get("/frontend/settings", headers={"X-API-Key": "valid-key"}).json()["keyRequired"] is True
