"""Constraints and parses by our own API, and the examples of its description."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import dragoman
from capital_letters import CapitalTranslator, listen, make_client, make_models, make_service
from dragoman.errors import ServerError
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.serving.model_set import ModelSet
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits, ServerSettings
from expected_errors import raises_code
from random_parsers import parser_bundle

PAIR = {"source": "en", "target": "de"}
HOUSE = {"prefix": "Das", "include": ["Haus"], "exclude": ["Bau"], "include_any": [["ist", "war"]]}


def test_constraints_reach_the_translator() -> None:
    translator = CapitalTranslator()
    client = make_client(make_service(translator))
    fields = {"texts": ["A b. C", "Go on. Now", "f"], "constraints": [HOUSE, None, {}], **PAIR}
    answer = client.post("/v1/translate", json=fields)
    assert [item["text"] for item in answer.json()["translations"]] == ["A B. C ist", "GO ON. NOW", "F"]
    constraints = TranslationConstraints("Das", ("Haus",), ("Bau",), (("ist", "war"),))
    assert translator.calls == [
        (["A b. C"], {"method": "beam", "constraints": [constraints]}),
        (["f", "Now", "Go on."], {}),
    ]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"texts": ["a\nb"], "constraints": [HOUSE]}, "invalid-constraints"),
        ({"texts": ["a", "b"], "constraints": [HOUSE]}, "invalid-request"),
        ({"texts": ["a"], "constraints": [{"include": [""]}]}, "invalid-request"),
        ({"texts": ["a"], "constraints": [{"exclude": ["x"] * 33}]}, "invalid-request"),
    ],
)
def test_wrong_constraints_are_refused(fields: dict[str, Any], code: str) -> None:
    answer = make_client(make_service()).post("/v1/translate", json=fields | PAIR)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beamsize": 8}, "beamsize: there is no such field"),
        ({"constraints": [{"prefix": 1}]}, "constraints[0].prefix: it should be a valid string, but it is 1"),
        ({"constraints": [None]}, "constraints: has 1 items for 2 texts; give a value or null for each one"),
        ({"glossary": [{"source": "a"}, {"target": "b"}]}, "glossary[1].source is missing"),
        ({"glossary": True}, "glossary: it should be a valid string or a valid list, but it is true"),
        ({"beam_size": 0}, "beam_size: it should be greater than or equal to 1, but it is 0"),
        ({"texts": ["a", None]}, "texts[1]: it should be a valid string, but it is null"),
        (
            {"texts": ["a" * 5000, "b" * 5001], "attention": True, "alternatives": 1},
            "attention: the texts have 10,001 characters; with 2 hypotheses each, weights are given for 10,000 at most; send "
            "fewer texts at a time",
        ),
    ],
)
def test_problem_names_the_place_in_the_request(fields: dict[str, Any], message: str) -> None:
    answer = make_client(make_service()).post("/v1/translate", json={"texts": ["a", "b"], **PAIR, **fields})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            r'{"texts": ["a", "\ud800"], "target": "de"}',
            "texts: the text has half of a surrogate pair, which UTF-8 cannot encode",
        ),
        (r'{"\udc00": 1, "target": "de"}', "?: the text has half of a surrogate pair, which UTF-8 cannot encode"),
        (r'{"texts": "\u00e9"}'.replace('"\\', "[" * 100_000 + '"\\'), "the body is no JSON in UTF-8"),
    ],
)
def test_fields_that_utf8_cannot_encode_are_refused(body: str, message: str) -> None:
    answer = make_client(make_service()).post("/v1/translate", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


def test_answers_with_weights_have_the_form_of_the_others() -> None:
    client = make_client(make_service())
    fields = {"texts": ["\u00e9 b. C", "f"], **PAIR}
    for path in ("/v1/translate", "/v1/translate/stream"):
        plain, detailed = (client.post(path, json=fields | {"attention": value}) for value in (False, True))
        assert plain.headers["content-type"] == detailed.headers["content-type"]
        assert '"attention"' not in plain.text
        assert '"attention"' in detailed.text
        assert read_answer(plain.text) == read_answer(detailed.text)


def read_answer(text: str) -> list[Any]:
    """Return the objects of an answer of JSON or of a stream of events without weights, sorted by their texts."""
    lines = text.splitlines() if text.startswith("event:") else ["data: " + text]
    objects = [json.loads(line[6:], object_hook=drop_weights) for line in lines if line.startswith("data: ")]
    return sorted(objects, key=str)


def drop_weights(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without those that the weights add."""
    return {name: value for name, value in fields.items() if name not in {"source_tokens", "tokens", "attention"}}


@pytest.fixture(scope="module")
def parsing_service(tmp_path_factory: pytest.TempPathFactory) -> TranslationService:
    """Service with the bundle of an untrained parser alone."""
    path = parser_bundle(tmp_path_factory.mktemp("parser") / "bundle")
    return TranslationService(ModelSet.load([path], device="cpu", precision="float32"), ServerLimits())


@pytest.fixture(scope="module")
def parsing_url(parsing_service: TranslationService) -> Iterator[str]:
    with listen(parsing_service) as url:
        yield url


def test_parses_are_those_of_the_parser(parsing_service: TranslationService, parsing_url: str) -> None:
    assert parsing_service.models.parser is not None
    sentences = ["the cat sat .", ["dogs", "and", "cats"], ""]
    tags = [None, ["NNS", "CC", "NNS"], None]
    expected = parsing_service.models.parser.parse(sentences, tags=tags, method="beam", beam_size=4, nbest=2)
    with dragoman.Client(parsing_url) as client:
        parses = client.parse(sentences, tags=tags, alternatives=1)
        assert [parse.tree for parse in parses] == [parse.brackets for parse in expected]
        assert [parse.tags for parse in parses] == [parse.tags for parse in expected]
        assert [parse.status for parse in parses] == [parse.status for parse in expected]
        assert parses[1].tags == ("NNS", "CC", "NNS")
        assert [parse.score for parse in parses] == pytest.approx([parse.score for parse in expected], abs=1e-5)
        assert parses[0].alternatives[0].tree == expected[0].alternatives[0].brackets
        assert [(span.label, span.start, span.end) for span in expected[0].spans] == list(parses[0].brackets)
        with pytest.raises(ServerError, match="sentence 2: 1 tag for 2 words") as wrong:
            client.parse(["a", "b c"], tags=[["DT"], ["DT"]])
        assert (wrong.value.status, wrong.value.server_code) == (400, "invalid-data")
        with pytest.raises(ServerError, match="no bundle of this server translates"):
            client.translate(["a"], "de")

    async def parse() -> list[str]:
        async with dragoman.AsyncClient(parsing_url) as client:
            return [item.tree for item in await client.parse(["It isn't."], tokenize="ptb")]

    assert asyncio.run(parse())[0].count("n't") == 1


@pytest.mark.parametrize("body", [b"<html>Log in</html>", b"{}", b'{"translations": [{"text": 1}]}'])
def test_answer_of_another_server_is_one_line(body: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with dragoman.Client(f"http://127.0.0.1:{server.server_port}") as client:
            for call in (lambda: client.translate(["a"], "de"), lambda: list(client.stream("a", "de"))):
                with pytest.raises(ServerError, match=r"answered 200, but not as a dragoman server does; check the address$"):
                    call()
        server.shutdown()


@pytest.mark.parametrize("options", [{"url": "http://[::1"}, {"api_key": "Schlüssel"}])
def test_client_refuses_an_address_and_a_key_that_no_request_has(options: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match="the address or the key cannot be used: "):
        dragoman.Client(**options)


def test_client_refuses_a_text_in_the_place_of_a_list() -> None:
    with dragoman.Client() as client, pytest.raises(TypeError, match=r"a list of texts is needed, not a text"):
        client.translate("Two dogs run.", "de")


def test_both_clients_return_the_same(tmp_path: Path) -> None:
    (file := tmp_path / "lines.txt").write_text("ab cd.\n")
    terms = [{"source": "ab", "target": "AB"}]

    async def call(url: str) -> list[Any]:
        async with dragoman.AsyncClient(url) as client:
            translations = await client.translate(["ab <b>cd</b>."], "de", "en", markup="html", glossary=terms)
            events = [event async for event in client.stream("ab. cd", "de", "en")]
            glossary = await client.add_glossary("name", {"ab": "AB"}, "de", "en")
            glossaries = await client.glossaries()
            await client.remove_glossary(glossary.id)
            with pytest.raises(ServerError):
                await client.remove_glossary(glossary.id)
            translated_file = await client.translate_file(file, "de", "en")
            return [translations, events, glossaries == [glossary], await client.languages(), translated_file]

    with listen(make_service()) as url:
        expected = asyncio.run(call(url))
        with dragoman.Client(url) as client:
            translations = client.translate(["ab <b>cd</b>."], "de", "en", markup="html", glossary=terms)
            events = list(client.stream("ab. cd", "de", "en"))
            glossary = client.add_glossary("name", {"ab": "AB"}, "de", "en")
            glossaries = client.glossaries()
            client.remove_glossary(glossary.id)
            translated_file = client.translate_file(file, "de", "en")
            results = [translations, events, glossaries == [glossary], client.languages(), translated_file]
    assert results == expected
    assert (translations[0].text, translated_file.content.decode()) == ("AB <b>CD</b>.", "AB CD.\n")
    assert [term.form for term in translations[0].segments[0].terms] == ["AB"]
    assert (glossaries, [event.text for event in events[-1:]]) == ([glossary], ["AB. CD"])


def test_server_without_translators_lists_no_language(parsing_service: TranslationService) -> None:
    client = make_client(parsing_service)
    assert client.get("/languages").json() == client.get("/v2/languages").json() == []
    assert client.get("/frontend/settings").status_code == client.get("/").status_code == 200
    assert client.post("/detect", json={"q": "a text"}).json() == []


def test_server_has_one_parser_at_most(tmp_path: Path) -> None:
    paths = [parser_bundle(tmp_path / name) for name in "ab"]
    with raises_code("wrong-task", str(paths[1]), "second parser"):
        ModelSet.load(paths, device="cpu", precision="float32")


def test_server_without_a_parser_refuses_sentences() -> None:
    answer = make_client(make_service()).post("/v1/parse", json={"sentences": ["a"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no-parser")


def test_examples_of_the_description_are_answered(parsing_service: TranslationService) -> None:
    models = ModelSet(make_models((CapitalTranslator(), ("en", "de"))).models, parser=parsing_service.models.parser)
    client = make_client(TranslationService(models, ServerLimits()), ServerSettings())
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/v1/translate", "/v1/parse"):
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        assert "$ref" not in str(content["schema"])
        assert len(content["examples"]) >= 2
        for name, example in content["examples"].items():
            assert client.post(path, json=example["value"]).status_code == 200, name
