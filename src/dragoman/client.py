"""Client of a dragoman server, for programs: `Client` waits for each answer, and `AsyncClient` is for asyncio.

Both read the answers into the same classes and raise `ServerError` for an answer other than success.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dragoman.errors import MissingDependencyError, ServerError

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:5000"
DEFAULT_TIMEOUT = 120.0
POLL_SECONDS = 0.5
"""Time between two questions about a file that is translated."""


@dataclass(frozen=True)
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
class ClientSegment(ClientHypothesis):
    """Segment of a text, usually a sentence, with its best translation.

    source: the segment, with its markup
    status: "ok", or the reason why the translation may be wrong; see `Translation`
    checks: checks that the translation fails, such as "numbers"
    alternatives: other translations, best first
    unmet_constraints: phrases that the translation should contain and does not, or contains and should not
    terms: terms of the glossary, each with the form that the translation has, or None if it has none
    """

    source: str = ""
    status: str = "ok"
    checks: tuple[str, ...] = ()
    alternatives: tuple[ClientHypothesis, ...] = ()
    unmet_constraints: tuple[str, ...] = ()
    terms: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ClientParse:
    """Parse of a sentence; see `dragoman.Parse`.

    tree: tree on one line, in the format of treebank files; empty without a tree
    tags: POS tag of each word
    brackets: label, first word and end (exclusive) of each bracket; outer brackets come first
    """

    words: tuple[str, ...]
    tree: str
    tags: tuple[str, ...]
    brackets: tuple[tuple[str, int, int], ...]
    score: float
    status: str
    repairs: tuple[str, ...] = ()
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


def _build_fields(texts: Sequence[str], target: str, source: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"texts": list(texts), "target": target, **({"source": source} if source else {}), **options}


def _read_translation(fields: Mapping[str, Any]) -> ClientTranslation:
    return ClientTranslation(
        fields["text"],
        fields["source"],
        fields["status"],
        tuple(map(_read_segment, fields["segments"])),
        fields.get("confidence"),
        tuple(fields.get("alternatives", ())),
    )


def _read_segment(fields: Mapping[str, Any]) -> ClientSegment:
    return ClientSegment(
        **_read_hypothesis(fields),
        source=fields["source"],
        status=fields["status"],
        checks=tuple(fields["checks"]),
        alternatives=tuple(ClientHypothesis(**_read_hypothesis(other)) for other in fields.get("alternatives", ())),
        unmet_constraints=tuple(fields.get("unmet_constraints", ())),
        terms=tuple((term["source"], term["form"]) for term in fields.get("terms", ())),
    )


def _read_hypothesis(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": fields["text"],
        "score": fields.get("score"),
        "alignment": tuple((source, target) for source, target in fields.get("alignment", ())),
        "source_tokens": tuple(fields.get("source_tokens", ())),
        "tokens": tuple(fields.get("tokens", ())),
        "attention": tuple(map(tuple, fields.get("attention", ()))),
    }


def _read_parse(fields: Mapping[str, Any]) -> ClientParse:
    return ClientParse(
        tuple(fields["words"]),
        fields["tree"],
        tuple(fields["tags"]),
        tuple((bracket["label"], bracket["start"], bracket["end"]) for bracket in fields["brackets"]),
        fields["score"],
        fields["status"],
        tuple(fields["repairs"]),
        tuple(map(_read_parse, fields.get("alternatives", ()))),
    )


def _read_glossary(fields: Mapping[str, Any]) -> ClientGlossary:
    return ClientGlossary(
        fields["glossary_id"], fields["name"], fields["source_lang"], fields["target_lang"], fields["entry_count"]
    )


def _build_glossary_fields(name: str, entries: Mapping[str, str], target: str, source: str) -> dict[str, str]:
    """Return the fields of a glossary. Raises ValueError for a term with a tab or a line break."""
    for term in (*entries, *entries.values()):
        if set(term) & {"\t", "\n", "\r"}:
            raise ValueError(f"entries: {term!r} has a tab or a line break; remove it")
    lines = "\n".join(f"{term}\t{translation}" for term, translation in entries.items())
    return {"name": name, "source_lang": source, "target_lang": target, "entries": lines, "entries_format": "tsv"}


def _build_file_fields(path: Path, target: str, source: str | None, scope: str, accept: bool) -> dict[str, Any]:
    """Return the parts of the request that sends a file."""
    fields = {"target": target, "scope": scope, "accept": "true" if accept else "false"} | (
        {"source": source} if source else {}
    )
    return {"data": fields, "files": {"file": (path.name, path.read_bytes())}}


def _is_finished(state: Mapping[str, Any]) -> bool:
    """Return whether a file is translated. Raises ServerError if it cannot be."""
    if state["status"] == "error":
        raise ServerError(state["error"]["message"], status=200, server_code=state["error"]["code"])
    return bool(state["status"] == "done")


def _read_file(state: Mapping[str, Any], content: bytes) -> ClientFile:
    return ClientFile(state["name"], content, state["done"], state["flagged"], tuple(state["flagged_texts"]))


def _to_error(response: httpx.Response) -> ServerError:
    """Return the error of an answer whose body was read."""
    try:
        if "message" in (fields := response.json()):  # the routes of glossaries are DeepL's
            return ServerError(fields["message"], status=response.status_code)
        error = fields["error"]
        return ServerError(error["message"], status=response.status_code, server_code=error["code"])
    except (ValueError, KeyError, TypeError):
        return ServerError(f"the server answered {response.status_code}", status=response.status_code)


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
                return _read_translation(fields)
        return None


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("httpx", "client", "dragoman.Client") from error
    return httpx


def _describe_failure(error: Exception, url: str) -> ServerError:
    return ServerError(f"{url}: the server cannot be reached or does not answer ({type(error).__name__}); is it running?")


class Client:
    """Client that waits for each answer. Use it as a context manager, or call `close`."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Set the address of the server, a key if the server asks for one, and the longest wait in seconds."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._httpx = _import_httpx()
        self._url = url
        self._client: httpx.Client = self._httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def translate(
        self,
        texts: Sequence[str],
        target: str,
        source: str | None = None,
        *,
        markup: Literal["none", "html", "xml"] = "none",
        split_sentences: bool = True,
        alternatives: int = 0,
        beam_size: int | None = None,
        alignment: bool = False,
        attention: bool = False,
        constraints: Sequence[Mapping[str, Any] | None] = (),
        glossary: str | Sequence[Mapping[str, Any]] | None = None,
        strict_terms: bool = False,
    ) -> list[ClientTranslation]:
        """Translate texts; return one result for each, in order.

        source: language of the texts; None detects that of each text
        markup: "html" and "xml" keep tags
        alternatives: other translations of each segment
        beam_size: hypotheses of beam search; by default those of the bundle
        alignment: also return links between words
        attention: also return the tokens and the attention weights of each hypothesis
        constraints: constraints on the translation of each text, or None for a text without: mappings with `prefix`, `include`,
            `exclude` and `include_any`, as in `TranslationConstraints`. A text with constraints is one sentence.
        glossary: id of a glossary that the server stores, or terms: mappings with `source`, `target`, `case_sensitive` and
            `do_not_translate`, as in `GlossaryEntry`
        strict_terms: require the terms also where the model finds them unlikely

        Raises ServerError if the server refuses the request or cannot be reached.
        """
        options = _build_options(beam_size, constraints, alternatives=alternatives, markup=markup)
        options |= {"split_sentences": split_sentences, "alignment": alignment, "attention": attention}
        options |= _build_glossary_options(glossary, strict_terms)
        answer = self._request("POST", "/v1/translate", json=_build_fields(texts, target, source, options))
        return [_read_translation(fields) for fields in answer["translations"]]

    def stream(self, text: str, target: str, source: str | None = None) -> Iterator[StreamedSentence | ClientTranslation]:
        """Yield the sentences of a text as they are finished, in any order, and at last the whole translation."""
        reader = _EventReader()
        try:
            fields = _build_fields([text], target, source, {})
            with self._client.stream("POST", "/v1/translate/stream", json=fields) as response:
                if response.status_code != 200:
                    response.read()
                    raise _to_error(response)
                yield from filter(None, map(reader.read, response.iter_lines()))
        except self._httpx.TransportError as error:
            raise _describe_failure(error, self._url) from error

    def parse(
        self,
        sentences: Sequence[str | Sequence[str]],
        *,
        tags: Sequence[Sequence[str] | None] = (),
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
        fields = _build_parse_fields(sentences, tags, tokenize, alternatives, beam_size, constrained)
        return list(map(_read_parse, self._request("POST", "/v1/parse", json=fields)["parses"]))

    def languages(self) -> dict[str, list[str]]:
        """Return the languages of the server, each with the languages that it is translated to."""
        languages: dict[str, list[str]] = self._request("GET", "/v1/languages")["languages"]
        return languages

    def add_glossary(self, name: str, entries: Mapping[str, str], target: str, source: str) -> ClientGlossary:
        """Store a glossary on the server, for the argument `glossary` of `translate`.

        entries: translations by their terms

        Raises ServerError if the server refuses it, as one without room for it does, and ValueError for a term with a tab or a
        line break.
        """
        fields = _build_glossary_fields(name, entries, target, source)
        return _read_glossary(self._request("POST", "/v2/glossaries", json=fields))

    def glossaries(self) -> list[ClientGlossary]:
        """Return the glossaries that the server stores, oldest first."""
        return list(map(_read_glossary, self._request("GET", "/v2/glossaries")["glossaries"]))

    def remove_glossary(self, glossary_id: str) -> None:
        """Remove a glossary from the server. Raises ServerError for an unknown id."""
        self._send("DELETE", f"/v2/glossaries/{glossary_id}")

    def translate_file(
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
        state = self._request("POST", "/v1/files", **_build_file_fields(Path(path), target, source, scope, accept))
        try:
            while not _is_finished(state):
                time.sleep(POLL_SECONDS)
                state = self._request("GET", f"/v1/files/{state['id']}")
            return _read_file(state, self._send("GET", f"/v1/files/{state['id']}/content").content)
        finally:
            with suppress(ServerError):  # the server removes it after a time
                self._send("DELETE", f"/v1/files/{state['id']}")

    def _request(self, method: str, path: str, **options: Any) -> Any:
        return self._send(method, path, **options).json()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **options)
        except self._httpx.TransportError as error:
            raise _describe_failure(error, self._url) from error
        if not response.is_success:
            raise _to_error(response)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class AsyncClient:
    """Client for asyncio, with the methods of `Client`."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Set the address of the server, a key if the server asks for one, and the longest wait in seconds."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._httpx = _import_httpx()
        self._url = url
        self._client: httpx.AsyncClient = self._httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout)

    async def translate(
        self,
        texts: Sequence[str],
        target: str,
        source: str | None = None,
        *,
        markup: Literal["none", "html", "xml"] = "none",
        split_sentences: bool = True,
        alternatives: int = 0,
        beam_size: int | None = None,
        alignment: bool = False,
        attention: bool = False,
        constraints: Sequence[Mapping[str, Any] | None] = (),
        glossary: str | Sequence[Mapping[str, Any]] | None = None,
        strict_terms: bool = False,
    ) -> list[ClientTranslation]:
        """Translate texts; see `Client.translate`."""
        options = _build_options(beam_size, constraints, alternatives=alternatives, markup=markup)
        options |= {"split_sentences": split_sentences, "alignment": alignment, "attention": attention}
        options |= _build_glossary_options(glossary, strict_terms)
        answer = await self._request("POST", "/v1/translate", json=_build_fields(texts, target, source, options))
        return [_read_translation(fields) for fields in answer["translations"]]

    async def stream(
        self, text: str, target: str, source: str | None = None
    ) -> AsyncIterator[StreamedSentence | ClientTranslation]:
        """Yield the sentences of a text as they are finished; see `Client.stream`."""
        reader = _EventReader()
        try:
            fields = _build_fields([text], target, source, {})
            async with self._client.stream("POST", "/v1/translate/stream", json=fields) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _to_error(response)
                async for line in response.aiter_lines():
                    if (event := reader.read(line)) is not None:
                        yield event
        except self._httpx.TransportError as error:
            raise _describe_failure(error, self._url) from error

    async def parse(
        self,
        sentences: Sequence[str | Sequence[str]],
        *,
        tags: Sequence[Sequence[str] | None] = (),
        tokenize: Literal["none", "ptb", "ontonotes"] = "none",
        alternatives: int = 0,
        beam_size: int | None = None,
        constrained: bool = True,
    ) -> list[ClientParse]:
        """Parse sentences; see `Client.parse`."""
        fields = _build_parse_fields(sentences, tags, tokenize, alternatives, beam_size, constrained)
        return list(map(_read_parse, (await self._request("POST", "/v1/parse", json=fields))["parses"]))

    async def languages(self) -> dict[str, list[str]]:
        """Return the languages of the server, each with the languages that it is translated to."""
        languages: dict[str, list[str]] = (await self._request("GET", "/v1/languages"))["languages"]
        return languages

    async def add_glossary(self, name: str, entries: Mapping[str, str], target: str, source: str) -> ClientGlossary:
        """Store a glossary on the server; see `Client.add_glossary`."""
        fields = _build_glossary_fields(name, entries, target, source)
        return _read_glossary(await self._request("POST", "/v2/glossaries", json=fields))

    async def glossaries(self) -> list[ClientGlossary]:
        """Return the glossaries that the server stores, oldest first."""
        return list(map(_read_glossary, (await self._request("GET", "/v2/glossaries"))["glossaries"]))

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
        """Send a file, wait for its translation, and remove it from the server; see `Client.translate_file`."""
        fields = await asyncio.to_thread(_build_file_fields, Path(path), target, source, scope, accept)
        state = await self._request("POST", "/v1/files", **fields)
        try:
            while not _is_finished(state):
                await asyncio.sleep(POLL_SECONDS)
                state = await self._request("GET", f"/v1/files/{state['id']}")
            return _read_file(state, (await self._send("GET", f"/v1/files/{state['id']}/content")).content)
        finally:
            with suppress(ServerError):  # the server removes it after a time
                await self._send("DELETE", f"/v1/files/{state['id']}")

    async def _request(self, method: str, path: str, **options: Any) -> Any:
        return (await self._send(method, path, **options)).json()

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._client.request(method, path, **options)
        except self._httpx.TransportError as error:
            raise _describe_failure(error, self._url) from error
        if not response.is_success:
            raise _to_error(response)
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _build_options(beam_size: int | None, constraints: Sequence[Mapping[str, Any] | None], **options: Any) -> dict[str, Any]:
    if beam_size is not None:
        options["beam_size"] = beam_size
    if constraints:
        options["constraints"] = list(constraints)
    return options


def _build_glossary_options(glossary: str | Sequence[Mapping[str, Any]] | None, strict_terms: bool) -> dict[str, Any]:
    if glossary is None:
        return {}
    terms = glossary if isinstance(glossary, str) else [dict(term) for term in glossary]
    return {"glossary": terms, "strict_terms": strict_terms}


def _build_parse_fields(
    sentences: Sequence[str | Sequence[str]],
    tags: Sequence[Sequence[str] | None],
    tokenize: str,
    alternatives: int,
    beam_size: int | None,
    constrained: bool,
) -> dict[str, Any]:
    fields = {"sentences": list(sentences), "tokenize": tokenize, "alternatives": alternatives, "constrained": constrained}
    return fields | ({"tags": list(tags)} if tags else {}) | ({} if beam_size is None else {"beam_size": beam_size})
