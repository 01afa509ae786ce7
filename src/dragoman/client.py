"""Client of a dragoman server, for programs: `Client` waits for each answer, and `AsyncClient` is for asyncio.

Both return objects of the same classes, and raise `ServerError` for an answer other than success. The server builds its answers
from these classes, too: a field that has its default is left out of the JSON.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from dragoman.errors import MissingDependencyError, ServerError

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:5000"
DEFAULT_TIMEOUT = 120.0
POLL_SECONDS = 0.5
"""Longest time between two questions about a file that is translated; the first ones follow sooner."""


@dataclass(frozen=True, kw_only=True)
class ClientHypothesis:
    """One translation of a segment.

    text: the translation, with its markup
    score: log-probability over the length penalty; None for a segment without words
    alignment: on request, for each word of the translation, the word of the source with the most attention
    source_tokens, tokens: with the attention, the tokens of the source and of the translation
    attention: on request, rows of weights over `source_tokens`: one row for each token, and one for an end token
    """

    text: str
    score: float | None = None
    alignment: tuple[tuple[int, int], ...] = ()
    source_tokens: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class ClientTerm:
    """Term of a glossary in a source. form: the one of the targets that the translation has, or None if it has none"""

    source: str
    targets: tuple[str, ...]
    form: str | None


@dataclass(frozen=True, kw_only=True)
class ClientSegment(ClientHypothesis):
    """Segment of a text, usually a sentence, with its best translation.

    source: the segment, with its markup
    status: "ok", or the reason why the translation may be wrong; see `Translation`
    checks: checks that the translation fails, such as "numbers"
    alternatives: other translations, best first
    unmet_constraints: phrases that the translation should contain and does not, or contains and should not
    """

    source: str
    status: str
    checks: tuple[str, ...]
    alternatives: tuple[ClientHypothesis, ...] = ()
    unmet_constraints: tuple[str, ...] = ()
    terms: tuple[ClientTerm, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClientTranslation:
    """Translation of a text.

    source: language of the text, as it was given or detected
    confidence: probability of a detected language in percent; None for a given one
    """

    text: str
    source: str
    status: str
    segments: tuple[ClientSegment, ...]
    confidence: float | None = None
    alternatives: tuple[str, ...] = ()


class ClientBracket(NamedTuple):
    """Bracket of a tree: its label, its first word, and the word after its last one."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ClientParse:
    """Parse of a sentence; see `dragoman.Parse`.

    tree: tree on one line, in the format of treebank files; empty without a tree
    tags: POS tag of each word
    brackets: outer brackets come first
    """

    words: tuple[str, ...]
    tree: str
    tags: tuple[str | None, ...]
    brackets: tuple[ClientBracket, ...]
    score: float
    status: str
    repairs: tuple[str, ...]
    alternatives: tuple[ClientParse, ...] = ()


@dataclass(frozen=True)
class ClientGlossary:
    """Glossary that the server stores. num_entries: number of its terms"""

    id: str
    name: str
    source: str
    target: str
    num_entries: int


@dataclass(frozen=True)
class ClientFile:
    """Translated file.

    name: name that the server gives the translation
    num_texts: number of texts that were translated
    num_flagged: number of texts that fail a check
    flagged_texts: the first ones of them, as mappings
    """

    name: str
    content: bytes
    num_texts: int
    num_flagged: int
    flagged_texts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class StreamedSentence:
    """Sentence of a stream: the number of its text, counted from 0, the sentence, and its translation."""

    index: int
    source: str
    text: str


class RequestOptions(TypedDict, total=False):
    """Options of `translate`. The server has the default of an option that is missing or None.

    markup: "html" and "xml" keep tags; "none" is the default
    split_sentences: translate each sentence by itself, as is the default
    alternatives: other translations of each segment
    beam_size: hypotheses of beam search; by default those of the bundle
    alignment: also return links between words
    attention: also return the tokens and the attention weights of each hypothesis
    constraints: constraints on the translation of each text, or None for a text without: mappings with `prefix`, `include`,
        `exclude` and `include_any`, as in `TranslationConstraints`. A text with constraints is one sentence.
    glossary: id of a glossary that the server stores, or terms: mappings with `source`, `target`, `case_sensitive` and
        `do_not_translate`, as in `GlossaryEntry`
    strict_terms: require the terms also where the model finds them unlikely
    """

    markup: Literal["none", "html", "xml"]
    split_sentences: bool
    alternatives: int
    beam_size: int | None
    alignment: bool
    attention: bool
    constraints: Sequence[Mapping[str, Any] | None] | None
    glossary: str | Sequence[Mapping[str, Any]] | None
    strict_terms: bool


class AsyncClient:
    """Client for asyncio. Use it as an asynchronous context manager, or call `close`."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Set the address of the server, a key if the server asks for one, and the longest wait in seconds.

        Raises ServerError for an address or a key that no request can have.
        """
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url, self._httpx = url, _import_httpx()
        try:
            self._client = self._connect(base_url=url, headers=headers, timeout=timeout)
        except (self._httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ServerError(f"{url}: the address or the key cannot be used: {error}") from None

    async def translate(
        self, texts: Sequence[str], target: str, source: str | None = None, **options: Unpack[RequestOptions]
    ) -> list[ClientTranslation]:
        """Translate texts; return one result for each, in order.

        source: language of the texts; None detects that of each text
        options: see `RequestOptions`

        Raises ServerError if the server refuses the request or cannot be reached.
        """
        texts = _list_texts("translate", texts)
        answer = await self._post("/v1/translate", texts=texts, target=target, source=source or None, **options)
        return self._read(answer, lambda fields: _build(list[ClientTranslation], fields["translations"]))

    async def parse(
        self,
        sentences: Sequence[str | Sequence[str]],
        *,
        tags: Sequence[Sequence[str] | None] | None = None,
        tokenize: Literal["none", "ptb", "ontonotes"] = "none",
        alternatives: int = 0,
        beam_size: int | None = None,
        constrained: bool = True,
    ) -> list[ClientParse]:
        """Parse sentences, as texts or as lists of words; return one parse for each, in order.

        tags: POS tags of each sentence, or None for a sentence whose tags are predicted
        tokenize: rule that splits a text into words: "none" at white space, "ptb" as the Penn treebank does, "ontonotes" also
            at hyphens
        alternatives: other trees of each sentence
        beam_size: hypotheses of beam search; by default those of the bundle
        constrained: allow only tokens that a tree over the words can continue with; otherwise the output is repaired

        Raises ServerError if the server has no parser, refuses the request or cannot be reached.
        """
        options = {"tags": tags, "tokenize": tokenize, "alternatives": alternatives, "beam_size": beam_size}
        sentences = _list_texts("parse", sentences)
        answer = await self._post("/v1/parse", sentences=sentences, constrained=constrained, **options)
        return self._read(answer, lambda fields: _build(list[ClientParse], fields["parses"]))

    async def languages(self) -> dict[str, list[str]]:
        """Return the languages of the server, each with the languages that it is translated to."""
        answer = await self._send("GET", "/v1/languages")
        return self._read(answer, lambda fields: _build(dict[str, list[str]], fields["languages"]))

    async def add_glossary(self, name: str, entries: Mapping[str, str], target: str, source: str) -> ClientGlossary:
        """Store a glossary on the server, for the argument `glossary` of `translate`.

        entries: translations by their terms

        Raises ServerError if the server refuses it, as one without room for it does, and ValueError for a term with a tab or a
        line break.
        """
        answer = await self._post("/v2/glossaries", **_build_glossary_fields(name, entries, target, source))
        return self._read(answer, _read_glossary)

    async def glossaries(self) -> list[ClientGlossary]:
        """Return the glossaries that the server stores, oldest first."""
        answer = await self._send("GET", "/v2/glossaries")
        return self._read(answer, lambda fields: list(map(_read_glossary, fields["glossaries"])))

    async def remove_glossary(self, glossary_id: str) -> None:
        """Remove a glossary from the server. Raises ServerError for an unknown id."""
        await self._send("DELETE", f"/v2/glossaries/{glossary_id}")

    async def translate_file(
        self,
        path: str | Path,
        target: str,
        source: str | None = None,
        *,
        scope: Literal["empty", "fuzzy", "all"] = "empty",
        accept: bool = False,
    ) -> ClientFile:
        """Send a file, wait for its translation, and remove it from the server.

        scope: texts of a file with translations: those without one, also those with a fuzzy one, or all
        accept: mark translations without a failed check as good; otherwise a human has to check them

        Raises OSError if the file cannot be read, and ServerError if the server refuses it or cannot translate it.
        """
        content = await self._read_bytes(Path(path))
        fields = {"target": target, "scope": scope, "accept": "true" if accept else "false"} | (
            {"source": source} if source else {}
        )
        answer = await self._send("POST", "/v1/files", data=fields, files={"file": (Path(path).name, content)})
        state = self._read(answer, lambda fields: dict(fields, id=fields["id"]))
        url = f"/v1/files/{state['id']}"
        pause = POLL_SECONDS / 16
        try:
            while not _is_finished(state):
                await self._sleep(pause)
                pause = min(2 * pause, POLL_SECONDS)
                state = self._read(await self._send("GET", url), dict)
            content = (await self._send("GET", f"{url}/content")).content
            return ClientFile(state["name"], content, state["done"], state["flagged"], tuple(state["flagged_texts"]))
        finally:
            with suppress(ServerError):  # the server removes it after a time
                await self._send("DELETE", url)

    async def stream(
        self, text: str, target: str, source: str | None = None
    ) -> AsyncIterator[StreamedSentence | ClientTranslation]:
        """Yield the sentences of a text as they are finished, in any order, and at last the whole translation."""
        reader, fields = _EventReader(), _build_fields(texts=[text], target=target, source=source or None)
        try:
            async with self._client.stream("POST", "/v1/translate/stream", json=fields) as response:
                if not _has_events(response):
                    await response.aread()
                    raise self._refuse(response)
                async for line in response.aiter_lines():
                    if (event := reader.read(line)) is not None:
                        yield event
        except self._httpx.RequestError as error:
            raise self._describe_failure(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _post(self, path: str, **fields: Any) -> httpx.Response:
        return await self._send("POST", path, json=_build_fields(**fields))

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._request(method, path, **options)
        except self._httpx.RequestError as error:
            raise self._describe_failure(error) from error
        if not response.is_success:
            raise self._refuse(response)
        return response

    def _read(self, response: httpx.Response, read: Callable[[Any], T]) -> T:
        """Return what a function reads in an answer. Raises ServerError for an answer of another server."""
        try:
            return read(response.json())
        except (ValueError, KeyError, TypeError):
            raise self._refuse(response) from None

    def _refuse(self, response: httpx.Response) -> ServerError:
        """Return the error of an answer whose body was read."""
        status = response.status_code
        try:
            if "message" in (fields := response.json()):  # the routes of glossaries are DeepL's
                return ServerError(fields["message"], status=status)
            return ServerError(fields["error"]["message"], status=status, server_code=fields["error"]["code"])
        except (ValueError, KeyError, TypeError):
            problem = f"answered {status}, but not as a dragoman server does; check the address"
            return ServerError(f"{self._url}: {problem}", status=status)

    def _describe_failure(self, error: Exception) -> ServerError:
        problem = "the server cannot be reached or does not answer"
        return ServerError(f"{self._url}: {problem} ({type(error).__name__}); is it running?")

    def _connect(self, **settings: Any) -> Any:
        return self._httpx.AsyncClient(**settings)

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return cast("httpx.Response", await self._client.request(method, path, **options))

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _read_bytes(self, path: Path) -> bytes:
        return await asyncio.to_thread(path.read_bytes)


class _BlockingCalls(AsyncClient):
    """Calls whose coroutines end without a suspension, because each step blocks."""

    def _connect(self, **settings: Any) -> Any:
        return self._httpx.Client(**settings)

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return cast("httpx.Response", self._client.request(method, path, **options))

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()


def _wait(call: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    """Return the method of `Client` that makes a call of `AsyncClient` and waits for its result."""

    @functools.wraps(call)
    def make_call(client: Client, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            call(client._calls, *args, **options).send(None)
        except StopIteration as stop:
            return cast(T, stop.value)
        raise AssertionError(f"{call.__name__} was suspended")

    return make_call


class Client:
    """Client with the calls of `AsyncClient`, which waits for each answer. Use it as a context manager, or call `close`."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Set the address of the server, a key if the server asks for one, and the longest wait in seconds."""
        self._calls = _BlockingCalls(url, api_key=api_key, timeout=timeout)

    translate = _wait(AsyncClient.translate)
    parse = _wait(AsyncClient.parse)
    languages = _wait(AsyncClient.languages)
    add_glossary = _wait(AsyncClient.add_glossary)
    glossaries = _wait(AsyncClient.glossaries)
    remove_glossary = _wait(AsyncClient.remove_glossary)
    translate_file = _wait(AsyncClient.translate_file)

    def stream(self, text: str, target: str, source: str | None = None) -> Iterator[StreamedSentence | ClientTranslation]:
        """Yield the sentences of a text as they are finished, in any order, and at last the whole translation."""
        reader, fields = _EventReader(), _build_fields(texts=[text], target=target, source=source or None)
        try:
            with self._calls._client.stream("POST", "/v1/translate/stream", json=fields) as response:
                if not _has_events(response):
                    response.read()
                    raise self._calls._refuse(response)
                yield from filter(None, map(reader.read, response.iter_lines()))
        except self._calls._httpx.RequestError as error:
            raise self._calls._describe_failure(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._calls._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def _build_reader(kind: Hashable) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cast(Any, kind))


def _build(kind: type[T], fields: Any) -> T:
    """Return a part of an answer as an object of this class."""
    return cast(T, _build_reader(cast(Hashable, kind)).validate_python(fields))


def _read_glossary(fields: Mapping[str, Any]) -> ClientGlossary:
    return ClientGlossary(
        fields["glossary_id"], fields["name"], fields["source_lang"], fields["target_lang"], fields["entry_count"]
    )


def _list_texts(verb: str, texts: Sequence[T]) -> list[T]:
    """Return texts as a list. Raises TypeError for a single text."""
    if isinstance(texts, str):
        raise TypeError(f"{verb}: a list of texts is needed, not a text; write {verb}([text], …)")
    return list(texts)


def _build_fields(**fields: Any) -> dict[str, Any]:
    """Return the fields of a request, without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def _build_glossary_fields(name: str, entries: Mapping[str, str], target: str, source: str) -> dict[str, str]:
    """Return the fields of a glossary. Raises ValueError for a term with a tab or a line break."""
    for term in (*entries, *entries.values()):
        if set(term) & {"\t", "\n", "\r"}:
            raise ValueError(f"entries: {term!r} has a tab or a line break; remove it")
    lines = "\n".join(f"{term}\t{translation}" for term, translation in entries.items())
    return {"name": name, "source_lang": source, "target_lang": target, "entries": lines, "entries_format": "tsv"}


def _is_finished(state: Mapping[str, Any]) -> bool:
    """Return whether a file is translated. Raises ServerError if it cannot be."""
    if state["status"] == "error":
        raise ServerError(state["error"]["message"], status=200, server_code=state["error"]["code"])
    return bool(state["status"] == "done")


def _has_events(response: httpx.Response) -> bool:
    return bool(response.headers.get("content-type", "").startswith("text/event-stream"))


class _EventReader:
    """Reader of server-sent events, line by line."""

    def __init__(self) -> None:
        self._name = ""

    def read(self, line: str) -> StreamedSentence | ClientTranslation | None:
        """Return the sentence or the text that a line completes. Raises ServerError for an error event."""
        import json

        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            fields = json.loads(line.removeprefix("data: "))
            if self._name == "error":
                raise ServerError(fields["message"], status=200, server_code=fields["code"])
            if self._name == "sentence":
                return StreamedSentence(fields["index"], fields["source"], fields["text"])
            if self._name == "text":
                return _build(ClientTranslation, fields)
        return None


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("httpx", "client", "dragoman.Client") from error
    return httpx
