"""Recordings by OpenAI's own package, with a stand-in for the model."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import httpx2
import openai
import pytest

from capital_letters import listen, make_client
from dragoman.errors import DataError
from dragoman.serving.model_set import ModelSet
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key
from dragoman.transcription.transcriber import Transcriber
from dragoman.transcription.transcript import Segment, Transcript

PATH = "/v1/audio/transcriptions"
FIELDS = {"model": "whisper-1"}


class StubTranscriber:
    """Stand-in for a transcriber: it hears a word for each byte of a file.

    gate: windows wait until it is set
    heard: words in the order in which they were heard
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[dict[str, Any]] = []
        self.heard: list[str] = []

    def iter_transcripts(self, source: io.BytesIO, **options: Any) -> Iterator[Transcript]:
        self.calls.append(options)
        segments: list[Segment] = []
        for number, byte in enumerate(content := source.read()):
            self.gate.wait(60)
            segments.append(Segment(float(number), number + 0.5, f" {chr(byte)}", (byte,), -0.25, 0.125))
            self.heard.append(chr(byte))
            yield Transcript(options["language"] or "de", number + 1.0, segments)
        if not content:
            raise DataError(f"{options['name']}: there is no sound in it; record it again", code="empty-data")


def make_speech_service(*names: str, stub: StubTranscriber | None = None, **limits: Any) -> TranslationService:
    transcriber = cast(Transcriber, stub or StubTranscriber())
    served = dict.fromkeys(names or ("tiny",), transcriber)
    return TranslationService(ModelSet([], transcribers=served), ServerLimits(**limits))


def post(service: TranslationService, content: bytes = b"abc", path: str = PATH, **fields: str) -> Any:
    return make_client(service).post(path, data=FIELDS | fields, files={"file": ("a.wav", content)})


def test_package_of_openai_transcribes() -> None:
    stub = StubTranscriber()
    settings = ServerSettings(api_keys=ApiKeys([bytes.fromhex(hash_key("key"))]))
    with (
        listen(make_speech_service(stub=stub), settings) as url,
        openai.OpenAI(api_key="key", base_url=f"{url}/v1") as client,
        openai.OpenAI(api_key="other", base_url=f"{url}/v1", max_retries=0) as stranger,
    ):
        assert [model.id for model in client.models.list()] == ["tiny"]
        audio = client.audio
        recording = ("talk.mp3", b"ab")
        assert audio.transcriptions.create(model="whisper-1", file=recording, language="fr", prompt="Ada").text == "a b"
        verbose = audio.transcriptions.create(
            model="whisper-1", file=recording, response_format="verbose_json", timestamp_granularities=["segment"]
        )
        assert (verbose.text, verbose.duration, verbose.language) == ("a b", 2.0, "german")
        assert verbose.segments is not None
        assert [(item.id, item.start, item.end, item.text, item.tokens) for item in verbose.segments] == [
            (0, 0.0, 0.5, " a", [97]),
            (1, 1.0, 1.5, " b", [98]),
        ]
        assert [(item.seek, item.avg_logprob, item.no_speech_prob) for item in verbose.segments] == [
            (0, -0.25, 0.125),
            (100, -0.25, 0.125),
        ]
        assert audio.transcriptions.create(model="whisper-1", file=recording, response_format="text") == "a\nb\n"
        assert "00:00:01,000 --> 00:00:01,500\nb" in audio.transcriptions.create(
            model="whisper-1", file=recording, response_format="srt"
        )
        with pytest.raises(openai.PermissionDeniedError, match="a valid API key is needed"):
            stranger.audio.transcriptions.create(model="whisper-1", file=recording)
    assert stub.calls[:2] == [
        {"name": "talk.mp3", "language": "fr", "task": "transcribe", "prompt": "Ada"},
        {"name": "talk.mp3", "language": None, "task": "transcribe", "prompt": ""},
    ]


def test_translations_write_english() -> None:
    stub = StubTranscriber()
    answer = post(make_speech_service(stub=stub), path="/v1/audio/translations", response_format="verbose_json").json()
    assert (answer["task"], answer["language"], answer["text"]) == ("translate", "english", "a b c")
    assert answer["usage"] == {"type": "duration", "seconds": 3}
    assert stub.calls == [{"name": "a.wav", "language": None, "task": "translate", "prompt": ""}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "xml"}, "response_format: it should be 'json', 'text', 'srt', 'vtt' or 'verbose_json'"),
        ({"temperature": "0.7"}, "temperature: it should be '0' or '0.0', but it is"),
        ({"prompt": "a" * 4001}, "prompt: string should have at most 4000 characters"),
        ({"stream": "true"}, "stream: it should be 'false' or 'False', but it is"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]: it should be 'segment', but it is"),
    ],
)
def test_fields_without_effect_are_refused(fields: dict[str, Any], message: str) -> None:
    answer = post(make_speech_service(), **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


def test_all_values_of_a_repeated_field_count() -> None:
    data: dict[str, Any] = FIELDS | {"timestamp_granularities[]": ["word", "segment"]}
    answer = make_client(make_speech_service()).post(PATH, data=data, files={"file": ("a.wav", b"a")})
    assert answer.json()["error"]["message"].endswith('but it is "word,segment"')


def test_missing_fields_are_named() -> None:
    client = make_client(make_speech_service())
    assert client.post(PATH, files={"file": ("a.wav", b"a")}).json()["error"]["message"] == "model is missing"
    no_file = client.post(PATH, data=FIELDS, files={"other": ("a.wav", b"a")})
    assert no_file.json()["error"]["message"] == "file is missing"
    assert client.post(PATH, data=FIELDS).json()["error"]["message"].startswith("the body is no form of the type multipart")


def test_model_is_found_by_its_folder() -> None:
    service = make_speech_service("tiny", "large")
    assert post(service, model="large").json()["text"] == "a b c"
    answer = post(service)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "model: whisper-1 is not served; the models are tiny, large",
    )
    nobody = TranslationService(ModelSet([]), ServerLimits())
    assert post(nobody).json()["error"]["code"] == "no-transcriber"


def test_damaged_and_large_recordings_are_refused() -> None:
    assert post(make_speech_service(), content=b"").json()["error"] == {
        "code": "empty-data",
        "message": "a.wav: there is no sound in it; record it again",
    }
    settings = ServerSettings(limits=ServerLimits(max_file_bytes=1000))
    for path in (PATH, "/v1/audio/translations"):
        client = make_client(make_speech_service(), settings)
        answer = client.post(path, data=FIELDS, files={"file": ("a.wav", b"a" * 2000)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request-too-large")


def test_late_recording_ends() -> None:
    stub = StubTranscriber()
    stub.gate.clear()
    service = make_speech_service(stub=stub, request_seconds=0.2)

    def open_gate() -> None:
        """Let the first window end when the time of its request is over."""
        while not stub.calls:
            time.sleep(0.01)
        time.sleep(0.3)
        stub.gate.set()

    thread = threading.Thread(target=open_gate)
    thread.start()
    answer = post(service)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request-too-slow")
    thread.join()


def test_recordings_have_their_turn_between_windows() -> None:
    """A short recording does not wait for the end of a long one, and health answers meanwhile."""
    stub = StubTranscriber()
    stub.gate.clear()
    with listen(make_speech_service(stub=stub)) as url:

        async def send() -> list[str]:
            async with httpx2.AsyncClient(base_url=url, timeout=60) as client:

                def start(content: bytes) -> asyncio.Task[httpx2.Response]:
                    return asyncio.create_task(client.post(PATH, data=FIELDS, files={"file": ("a.wav", content)}))

                long = start(b"a" * 50)
                while not stub.calls:
                    await asyncio.sleep(0.01)
                short = start(b"bc")
                while len(stub.calls) < 2 and not stub.gate.is_set():
                    assert (await client.get("/livez")).json() == {"status": "ok"}
                    await asyncio.sleep(0.2)
                    stub.gate.set()
                return [(await answer).json()["text"] for answer in (long, short)]

        assert asyncio.run(send()) == [" ".join("a" * 50), "b c"]
    assert stub.heard.index("c") < 49


def test_recording_of_a_client_that_goes_away_ends() -> None:
    stub = StubTranscriber()
    stub.gate.clear()
    with listen(make_speech_service(stub=stub)) as url:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{url}{PATH}", data=FIELDS, files={"file": ("a.wav", b"a" * 1000)}, timeout=0.5)
        time.sleep(0.2)
        stub.gate.set()
        assert httpx2.post(f"{url}{PATH}", data=FIELDS, files={"file": ("a.wav", b"b")}, timeout=60).json()["text"] == "b"
    assert stub.heard.count("a") < 1000
