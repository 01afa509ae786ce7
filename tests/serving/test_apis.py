"""The APIs by the requests that their clients send, and wrong requests in the shape of each API."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, cast, get_args
from xml.etree import ElementTree

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from capital_letters import CapitalTranslator, make_client, make_models, make_service
from dragoman.errors import RecipeError
from dragoman.inference.translation_result import STATUSES_WORST_FIRST
from dragoman.inference.translator import Translator
from dragoman.serving.http_errors import HttpError
from dragoman.serving.model_set import ModelSet, ServedModel, list_pairs
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key
from dragoman.text.guards import Check


@pytest.fixture
def translator() -> CapitalTranslator:
    return CapitalTranslator()


@pytest.fixture
def client(translator: CapitalTranslator) -> TestClient:
    return make_client(make_service(translator))


def test_omegat_sends_the_query(client: TestClient) -> None:
    answer = client.get("/translate", params={"q": "one day", "source": "en-US", "target": "de-DE"}).json()
    assert answer == {"translatedText": "ONE DAY", "translation": "ONE DAY"}


def test_form_is_read_like_json(client: TestClient) -> None:
    fields = {"q": "one", "source": "en", "target": "de", "alternatives": "2"}
    expected = {"translatedText": "ONE", "alternatives": ["ONE 1", "ONE 2"]}
    assert client.post("/translate", data=fields).json() == expected
    assert client.post("/translate", data=fields, files={"file": b""}).json() == expected


def test_weblate_sends_placeholders_to_deepl_as_elements(client: TestClient) -> None:
    fields = {
        "text": ['see <x id="7"></x> now'], "source_lang": "EN", "target_lang": "DE", "formality": "default",
        "tag_handling": "xml", "ignore_tags": ["x"],
    }  # fmt: skip
    answer = client.post("/v2/translate", json=fields, headers={"Authorization": "DeepL-Auth-Key none"}).json()
    (translation,) = answer["translations"]
    assert (translation["detected_source_language"], translation["text"]) == ("EN", 'SEE <x id="7"></x> NOW')
    assert client.get("/v2/languages", params={"type": "target"}).json() == [
        {"language": "DE", "name": "German", "supports_formality": False}
    ]
    assert client.get("/v2/usage").json()["character_count"] == len('see <x id="7"></x> now')


def list_lines(translator: CapitalTranslator) -> list[str]:
    return [line for lines, _ in translator.calls for line in lines]


def translate_deepl(client: TestClient, text: str, **fields: Any) -> str:
    body = {"text": [text], "source_lang": "EN", "target_lang": "DE", **fields}
    answer = client.post("/v2/translate", json=body).json()
    return str(answer["translations"][0]["text"] if "translations" in answer else answer["message"])


def test_white_space_of_markup_is_one_space(client: TestClient, translator: CapitalTranslator) -> None:
    text, expected = "<p>\n  one\t day,\n  two <b>or\nthree</b>\n</p>", "<p>\n  ONE DAY, TWO <b>OR THREE</b>\n</p>"
    fields = {"q": text, "source": "en", "target": "de", "format": "html"}
    assert client.post("/translate", json=fields).json()["translatedText"] == expected
    assert translate_deepl(client, text, tag_handling="html") == expected
    assert translate_deepl(client, text, tag_handling="xml") == expected
    for markup in ("html", "xml"):
        body = {"texts": [text], "source": "en", "target": "de", "markup": markup}
        assert client.post("/v1/translate", json=body).json()["translations"][0]["text"] == expected
    assert set(list_lines(translator)) == {"one day, two or three"}
    assert translate_deepl(client, "one\nday,\u2028two", split_sentences="nonewlines") == "ONE DAY, TWO"


def test_elements_of_xml_are_texts_of_their_own(client: TestClient, translator: CapitalTranslator) -> None:
    head = '<?xml version="1.0"?>\n<!DOCTYPE a [\n<!ENTITY b "c">\n]>\n<?d e?><!-- f -->'
    text = f"{head}<a><title>one day</title>\n<par>two <b>or</b> <i>three</i> &b; &lt;x&gt;</par></a>"
    assert translate_deepl(client, text, tag_handling="xml") == (
        f"{head}<a><title>ONE DAY</title>\n<par>TWO <b>OR</b> <i>THREE</i> &b; &lt;X&gt;</par></a>"
    )
    assert "one day" in list_lines(translator)
    body = {"texts": ["<a><t>one day</t><u>two <b>days</b></u></a>"], "source": "en", "target": "de", "markup": "xml"}
    (answer,) = client.post("/v1/translate", json=body).json()["translations"]
    assert answer["text"] == "<a><t>ONE DAY</t><u>TWO <b>DAYS</b></u></a>"
    assert "two days" in list_lines(translator)


def test_texts_of_a_request_have_rules_in_common(client: TestClient) -> None:
    for texts, expected in (
        (["hi :who", ":where is it"], ["HI :who", ":where IS IT"]),
        (["hi :who", "a day"], ["HI :WHO", "A DAY"]),
    ):
        answer = client.post("/v1/translate", json={"texts": texts, "source": "en", "target": "de"}).json()
        assert [item["text"] for item in answer["translations"]] == expected


def test_deepl_options_for_xml_divide_texts(client: TestClient, translator: CapitalTranslator) -> None:
    text = "<a><t>one day</t><u>two <v>nights</v> more</u></a>"
    for fields, lines in (
        ({}, ["one day", "two nights more"]),
        ({"splitting_tags": ["v"]}, ["one day", "two", "nights", "more"]),
        ({"splitting_tags": "t,v", "outline_detection": False}, ["one day", "two", "nights", "more"]),
        ({"outline_detection": "0"}, ["one daytwo nights more"]),
        ({"non_splitting_tags": ["t", "u"]}, ["one daytwo nights more"]),
    ):
        translator.calls.clear()
        translation = translate_deepl(client, text, tag_handling="xml", **fields)
        assert re.sub("<[^<>]*>| ", "", translation) == "ONEDAYTWONIGHTSMORE", fields
        assert set(list_lines(translator)) == set(lines), fields
    section = "<t><![CDATA[one day]]> two</t><u><![CDATA[<p>One & <w>two</w>.</p><p>Three&nbsp;%s<!-- x --></p>]]></u>"
    expected = "<t>ONE DAY TWO</t><u><p>ONE & <w>TWO</w>.</p><p>THREE&nbsp;%s<!-- x --></p></u>"
    translation = translate_deepl(client, section, tag_handling="xml")
    assert html.unescape(translation) == expected
    assert "".join(ElementTree.fromstring(f"<r>{translation}</r>").itertext()) == re.sub("</?[tu]>", "", expected)
    laid_out = "<a>\n  <b>one day</b>\n  <i>two <b>nights</b></i>\n</a>"
    translator.calls.clear()
    assert translate_deepl(client, laid_out, tag_handling="xml") == laid_out.replace("one day", "ONE DAY").replace(
        "two <b>nights", "TWO <b>NIGHTS"
    )
    assert set(list_lines(translator)) == {"one day", "two nights"}
    for name in ("splitting_tags", "non_splitting_tags"):
        assert translate_deepl(client, text, **{name: ["v"]}).startswith(f"{name}: works with tag_handling 'xml' only")
    assert translate_deepl(client, text, tag_handling="html", outline_detection=False).startswith("outline_detection: works")


def test_own_api_describes_segments(client: TestClient) -> None:
    fields = {"texts": ["It costs {x}. Go on."], "source": "en", "target": "de", "alternatives": 1}
    (answer,) = client.post("/v1/translate", json=fields).json()["translations"]
    assert (answer["text"], answer["status"], len(answer["alternatives"])) == ("IT COSTS {x}. GO ON.", "ok", 1)
    assert answer["segments"][0]["score"] == -1.5


def test_own_api_reports_what_a_translation_lacks() -> None:
    client = make_client(make_service(CapitalTranslator(dropped="250")))
    fields = {"texts": ["It costs 250"], "source": "en", "target": "de"}
    (answer,) = client.post("/v1/translate", json=fields).json()["translations"]
    assert (answer["text"], answer["segments"][0]["checks"]) == ("IT COSTS", ["numbers"])


def test_stream_sends_each_sentence(client: TestClient) -> None:
    fields = {"texts": ["One. Two."], "source": "en", "target": "de"}
    with client.stream("POST", "/v1/translate/stream", json=fields) as answer:
        events = [block.split("\ndata: ") for block in answer.read().decode().strip().split("\n\n")]
    assert [name for name, _ in events] == ["event: sentence", "event: sentence", "event: text", "event: end"]
    assert {json.loads(data)["text"] for _, data in events[:2]} == {"ONE.", "TWO."}
    assert json.loads(events[2][1])["text"] == "ONE. TWO."


def test_stream_logs_the_cause_of_an_internal_error(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"texts": ["One.", "This will fail."], "source": "en", "target": "de"}
    answer = client.post("/v1/translate/stream", json=fields)
    name, _, data = answer.text.strip().split("\n\n")[-1].partition("\ndata: ")
    assert (answer.status_code, name, json.loads(data)["code"]) == (200, "event: error", "internal-error")
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["the translator fails"]


def test_deepl_names_a_language_of_three_letters_whole() -> None:
    client = make_client(TranslationService(make_models((CapitalTranslator(), ("nds", "de"))), ServerLimits()))
    answer = client.post("/v2/translate", json={"text": ["Moin."], "source_lang": "NDS-DE", "target_lang": "DE"})
    assert answer.json()["translations"][0]["detected_source_language"] == "NDS"


def test_pivot_joins_two_models() -> None:
    first, second = CapitalTranslator("!"), CapitalTranslator("?")
    models = make_models((first, ("de", "en")), (second, ("en", "fr")), pivot="en")
    client = make_client(TranslationService(models, ServerLimits()))
    assert {row["code"]: row["targets"] for row in client.get("/languages").json()}["de"] == ["en", "fr"]
    assert client.get("/translate", params={"q": "ja", "source": "de", "target": "fr"}).json()["translatedText"] == "JA!?"
    assert (
        "de to fr is not supported"
        in make_client(TranslationService(make_models((first, ("de", "en")), (second, ("en", "fr"))), ServerLimits()))
        .get("/translate", params={"q": "ja", "source": "de", "target": "fr"})
        .json()["error"]
    )


def test_bundle_of_many_languages_gets_the_languages_of_a_request() -> None:
    translator = CapitalTranslator()
    translator.bundle.tokenizer.languages = object()
    models = ModelSet([ServedModel("many", cast(Translator, translator), (("en", "de"), ("de", "en"), ("en", "zh_Hans")))])
    client = make_client(TranslationService(models, ServerLimits()))
    assert {row["code"]: row["targets"] for row in client.get("/languages").json()} == {
        "de": ["en"],
        "en": ["de", "zh"],
        "zh": [],
    }
    assert client.get("/translate", params={"q": "one", "source": "en", "target": "zh"}).status_code == 200
    assert translator.calls == [(["one"], {"source_language": "en", "target_language": "zh_Hans"})]


@pytest.mark.parametrize(
    ("pairs", "origin", "task", "expected"),
    [
        ([("en", "de"), ("de", "en")], None, ("en", "de"), (("en", "de"), ("de", "en"))),
        (None, (None, ["deu", "fra"]), ("en", ""), (("en", "deu"), ("en", "fra"))),
        (None, (["a", "b"], ["a", "b"]), ("", ""), (("a", "b"), ("b", "a"))),
        (None, None, ("en", "de"), (("en", "de"),)),
        (None, None, ("", ""), ()),
    ],
)
def test_pairs_of_a_bundle(pairs: Any, origin: Any, task: tuple[str, str], expected: tuple[tuple[str, str], ...]) -> None:
    translator = SimpleNamespace(
        recipe=SimpleNamespace(task=SimpleNamespace(source_language=task[0], target_language=task[1])),
        metadata=SimpleNamespace(
            language_pairs=pairs, origin=origin and SimpleNamespace(source_languages=origin[0], target_languages=origin[1])
        ),
        bundle=SimpleNamespace(tokenizer=SimpleNamespace(languages=None if origin is None else object())),
    )
    assert list_pairs(cast(Translator, translator)) == expected


def test_new_models_serve_new_requests(translator: CapitalTranslator) -> None:
    service = make_service(translator)
    client = make_client(service)
    service.models = make_models((CapitalTranslator(" (new)"), ("en", "de")))
    assert client.get("/translate", params={"q": "one", "source": "en", "target": "de"}).json()["translatedText"] == "ONE (new)"


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "Invalid request: missing q parameter"),
    ({"q": "x"}, "Invalid request: missing source parameter"),
    ({"q": "x", "source": "en"}, "Invalid request: missing target parameter"),
    ({"q": "x", "source": "zz", "target": "de"}, "zz is not supported"),
    ({"q": "x", "source": "de", "target": "en"}, "de to en is not supported; the targets of de are: none"),
    ({"q": "x", "source": "en", "target": "de", "alternatives": 999}, "alternatives: "),
    ({"q": "x", "source": "en", "target": "de", "format": "pdf"}, "format: "),
    ({"q": ["x"] * 1001, "source": "en", "target": "de"}, "the request has 1001 texts; send at most 1000"),
]


def test_wrong_field_is_one_line_in_the_shape_of_libretranslate(subtests: pytest.Subtests, client: TestClient) -> None:
    for fields, message in WRONG_FIELDS:
        with subtests.test(fields=fields, message=message):
            answer = client.post("/translate", content=json.dumps(fields), headers={"Content-Type": "application/json"})
            assert answer.status_code == 400
            assert list(answer.json()) == ["error"]
            assert answer.json()["error"].startswith(message)
            assert "\n" not in answer.json()["error"]


def test_form_and_query_that_are_not_utf8_are_refused(client: TestClient, translator: CapitalTranslator) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    parts = b"".join(part % pair for pair in ((b"q", b"\xff"), (b"source", b"en"), (b"target", b"de"))) + b"--b--\r\n"
    answers = [
        client.get("/translate?q=%ff&source=en&target=de"),
        client.post("/translate?q=%ff", json={"source": "en", "target": "de"}),
        client.post(
            "/translate",
            content=b"q=%ff&source=en&target=de",
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        ),
        client.post("/translate", content=parts, headers={"Content-Type": "multipart/form-data; boundary=b"}),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert "no form in UTF-8" in answer.json()["error"]
    assert translator.calls == []
    valid = client.post(
        "/translate", content=parts.replace(b"\xff", "é".encode()), headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert valid.json()["translatedText"] == "É"


def test_text_of_another_language_than_the_served_ones_is_returned(client: TestClient) -> None:
    fields = {"q": "Das ist ein ganz gewöhnlicher deutscher Satz.", "source": "auto", "target": "de"}
    assert client.post("/translate", json=fields).json()["translatedText"] == fields["q"]


def test_body_is_counted_as_it_arrives(translator: CapitalTranslator) -> None:
    client = make_client(make_service(translator), ServerSettings(limits=ServerLimits(max_body_bytes=1000)))

    def chunks() -> Any:
        yield b'{"q": "'
        for _ in range(1000):
            yield b"x" * 100

    for content in (b"x" * 2000, chunks()):
        answer = client.post("/translate", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, list(answer.json())) == (413, ["error"])
    assert translator.calls == []


def test_compressed_body_is_refused(client: TestClient) -> None:
    for path, shape in (
        ("/translate", "error"),
        ("/v2/translate", "message"),
        ("/v1/translate", "error"),
        ("/translate_file", "error"),
    ):
        answer = client.post(path, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
        assert (answer.status_code, list(answer.json())) == (415, [shape])
        assert "'gzip' is not read; send the body without compression" in answer.text
    fields = {"q": "one", "source": "en", "target": "de"}
    assert client.post("/translate", json=fields, headers={"Content-Encoding": "identity"}).status_code == 200


def test_every_route_but_health_needs_a_key(translator: CapitalTranslator) -> None:
    client = make_client(make_service(translator), ServerSettings(api_keys=ApiKeys([bytes.fromhex(hash_key("secret"))])))
    assert client.get("/health").status_code == 200
    basic = base64.b64encode(b"user:secret").decode()
    application = client.app
    assert isinstance(application, FastAPI)
    paths = {path: next(iter(methods)).upper() for path, methods in application.openapi()["paths"].items()}
    for path, method in {**paths, "/": "GET", "/static/translate.js": "GET", "/openapi.json": "GET"}.items():
        if path in ("/health", "/livez", "/readyz", "/download_file/{job_id}"):
            continue
        fields = {"q": "x", "source": "en", "target": "de"}
        assert client.request(method, path, json=fields).status_code in (401, 403), path
        assert client.request(method, path, json=fields, headers={"Authorization": "Bearer wrong"}).status_code == 403, path
        headers = {"Authorization": "Bearer secret"}
        assert client.request(method, path, json=fields, headers=headers).status_code not in (401, 403), path
    for value in ("DeepL-Auth-Key secret", f"Basic {basic}"):
        assert client.post("/translate", json=fields, headers={"Authorization": value}).is_success


def test_full_queue_is_reported_after_the_wait(translator: CapitalTranslator) -> None:
    service = make_service(translator, max_queue_tokens=1, queue_seconds=0.6)
    client = make_client(service, ServerSettings(limits=service.limits))
    fields = {"q": "x", "source": "en", "target": "de"}
    translator.gate.clear()
    with ThreadPoolExecutor() as pool:
        answers = []
        for _ in range(2):  # one is translated, and one waits
            answers.append(pool.submit(client.post, "/translate", json=fields))
            while service.queue.num_jobs < len(answers) or (len(answers) == 1 and service.queue.num_tokens):
                time.sleep(0.001)
        for path, name in (("/translate", "error"), ("/v2/translate", "message")):
            answer = client.post(path, json=fields | {"text": ["x"], "source_lang": "EN", "target_lang": "DE"})
            assert (answer.status_code, list(answer.json())) == (503, [name])
            assert answer.headers["retry-after"] == "5"
        assert client.get("/readyz").status_code == 503
        translator.gate.set()
        # The one that waits is refused too: its client has given up by the time that its translation could start.
        assert [answer.result().status_code for answer in answers] == [200, 503]
    assert client.get("/readyz").status_code == 200


def test_unexpected_error_shows_no_text(translator: CapitalTranslator) -> None:
    client = make_client(make_service(translator))
    answer = client.post("/translate", json={"q": "fail secretly", "source": "en", "target": "de"})
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert "secretly" not in answer.text
    assert client.post("/translate", json={"q": "ok", "source": "en", "target": "de"}).status_code == 200


def test_links_of_the_page_lead_somewhere(client: TestClient) -> None:
    links = re.findall(r'(?:href|src)="(?!data:)([^"]+)"', client.get("/").text)
    assert {"docs", "static/translate.css", "static/translate.js"} <= set(links)
    links += re.findall(r'(?:href|src)="(?!data:)([^"]+)"', client.get("/docs").text)
    assert {client.get(f"/{link}").status_code for link in links} == {200}


@pytest.mark.parametrize(
    ("method", "url", "status", "text"),
    [
        ("GET", "http://testserver//languages", 200, "targets"),  # the address that a client has may end in a slash
        ("POST", "/languages/", 200, "targets"),
        ("PUT", "/translate", 405, "the route takes POST, GET, not PUT"),
        ("POST", "/v1/chat/completions", 404, "this server translates, parses and transcribes, and /docs lists its routes"),
    ],
)
def test_request_for_another_route_says_what_there_is(
    client: TestClient, method: str, url: str, status: int, text: str
) -> None:
    answer = client.request(method, url)
    assert answer.status_code == status
    assert text in answer.text
    assert answer.headers.get("Allow") == ("POST, GET" if status == 405 else None)


def test_metrics_name_each_route_by_its_whole_path() -> None:
    service = make_service()
    client = make_client(service)
    paths = client.get("/openapi.json").json()["paths"]
    for path in paths:
        client.post(re.sub("{.*?}", "x", path))
    metrics = service.metrics.render().decode()
    assert [path for path in paths if f'dragoman_request_seconds_count{{route="{path}"}}' not in metrics] == []


def test_metrics_hold_no_text_and_no_key(translator: CapitalTranslator) -> None:
    service = make_service(translator)
    client = make_client(service)
    client.get("/translate", params={"q": "private", "source": "en", "target": "de", "api_key": "secret"})
    client.get("/private")
    metrics = service.metrics.render().decode()
    assert 'dragoman_requests_total{route="/translate",status="200"} 1.0' in metrics
    assert "private" not in metrics
    assert "secret" not in metrics


@pytest.mark.parametrize("content", ["", "# comment only", "abc", "g" * 64])
def test_file_of_keys_is_checked(content: str, tmp_path: Any) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(RecipeError):
        ApiKeys.read(path)
    path.write_text(f"{hash_key('a')}  # Anna\n{hash_key('b')}\n")
    keys = ApiKeys.read(path)
    assert keys.identify("a") not in (None, keys.identify("b"))
    assert keys.identify("c") is None
    path.write_text(content)
    with pytest.raises(RecipeError):
        keys.reload()
    assert keys.identify("a") is not None  # the present keys stay
    path.write_text(hash_key("c"))
    keys.reload()
    assert (keys.identify("a"), keys.identify("c") is None) == (None, False)


def test_page_has_a_sentence_for_every_status_and_check() -> None:
    script = files("dragoman.serving").joinpath("static", "translate.js").read_text(encoding="utf-8")
    warnings = script.partition("const WARNINGS = {")[2].partition("};")[0]
    names = set(re.findall(r"(\w+): \"", warnings))
    assert {*get_args(Check), *STATUSES_WORST_FIRST} - names == {"ok"}


def test_page_has_its_words_in_each_language() -> None:
    """Each text of the page and of its scripts is in the table, and each translation keeps the values in braces."""
    static = files("dragoman.serving").joinpath("static")
    page, script, table = (
        static.joinpath(name).read_text(encoding="utf-8") for name in ("translate.html", "translate.js", "words.js")
    )
    translations = json.loads("{" + table.partition("const WORDS = {")[2].partition("\n};")[0] + "}")
    used = {text.strip() for text in re.findall(r">([^<>]*[A-Za-z][^<>]*)<", page)}
    used |= set(re.findall(r'(?:placeholder|title|aria-label)="([^"]+)"', page))
    used |= set(re.findall(r'words\("([^"]+)"', script + static.joinpath("files.js").read_text(encoding="utf-8")))
    used |= set(re.findall(r'\w: "([^"]+)"', script.partition("const WARNINGS = {")[2].partition("};")[0]))
    assert used - {"API"} == set(translations)
    for english, others in translations.items():
        assert len(others) == 3
        for other in others:
            assert sorted(re.findall(r"\{\w+\}", other)) == sorted(re.findall(r"\{\w+\}", english)), other


@pytest.mark.parametrize("path", ["/translate", "/v1/translate", "/v2/translate"])
def test_error_about_half_of_a_surrogate_is_json(path: str) -> None:
    body = json.loads(HttpError(400, "it is '\ud800'").write_body(path))
    error = body["message"] if path.startswith("/v2") else body["error"]
    assert (error["message"] if path.startswith("/v1") else error) == "it is '\ud800'"
