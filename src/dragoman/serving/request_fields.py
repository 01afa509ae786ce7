"""Fields of a request from JSON, a form or the query, checked by a pydantic model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from dragoman.serving.http_errors import HttpError
from dragoman.text.encodings import find_codec

MAX_FIELDS = 2000
"""Fields of a form."""
PIECE_BYTES = 1 << 14
"""Bytes of a form that are parsed at once."""
MAX_QUOTED = 40
TYPE_NAMES = frozenset(("str", "int", "bool"))
"""Names of types that pydantic puts behind the name of a field that has several."""


class RequestFields(BaseModel):
    """Base of the fields of a request. Unknown fields are left out, because clients send fields that other servers have."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class OwnFields(RequestFields):
    """Base of the fields of our own API, which refuses unknown fields."""

    model_config = RequestFields.model_config | {"extra": "forbid"}


FieldsT = TypeVar("FieldsT", bound=RequestFields)


def describe_fields(model: type[RequestFields], example: Mapping[str, Any], *, in_query: bool = False) -> dict[str, Any]:
    """Return the part of the OpenAPI description for the fields of a route, because the route reads them itself.

    example: fields of a request that works, or several examples by their names
    in_query: the fields are in the query; otherwise they are in a body of JSON or a form
    """
    schema = model.model_json_schema()
    schema = _inline_definitions(schema, schema.pop("$defs", {}))
    if in_query:
        required = schema.get("required", [])
        return {
            "parameters": [
                {"name": name, "in": "query", "required": name in required, "schema": field, "example": example.get(name)}
                for name, field in schema["properties"].items()
            ]
        }
    content = {"schema": schema, "example": dict(example)}
    if all(isinstance(fields, Mapping) for fields in example.values()):
        content = {"schema": schema, "examples": {name: {"value": fields} for name, fields in example.items()}}
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": dict.fromkeys(types, content)}}


def _inline_definitions(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema with its definitions where it refers to them, because the description has no place for them."""
    if isinstance(schema, list):
        return [_inline_definitions(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline_definitions(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inline_definitions(value, definitions) for name, value in schema.items()}


async def read_fields(request: Request, *, list_fields: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields of the query and of the body; those of the body win.

    list_fields: fields that a form may repeat, which become lists

    Raises HttpError for a body that is no JSON object, or no form, in UTF-8, and for such a query. It also does for a body of
    another type, which a browser would send for a page of another site without asking the server first.
    """
    # Starlette replaces what is no UTF-8, which would change the text.
    fields = _collect(_parse_form(request.scope["query_string"], "the query"), list_fields)
    body = await request.body()
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return fields
    if content_type == "multipart/form-data":
        if not _is_utf8(body):  # Starlette reads it as Latin-1
            raise HttpError(400, "the body is no form in UTF-8")
        async with open_form(request) as form:
            pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        return fields | _collect(pairs, list_fields)
    if content_type == "application/x-www-form-urlencoded" and not body.startswith(b'{"'):  # curl -d sends this type
        # A form of 1 MiB of %20 takes longer than other clients may wait.
        return fields | _collect(await asyncio.to_thread(_parse_form, body, "the body"), list_fields)
    if content_type != "application/json" and not (content_type.startswith("application/") and content_type.endswith("+json")):
        raise HttpError(415, "the body is no form; send JSON with Content-Type: application/json", "unsupported-type")
    try:
        content = json.loads(body.decode("utf-8-sig"))  # json.loads lets halves of surrogate pairs through
        if not isinstance(content, dict):
            raise HttpError(400, "the body is no JSON object")
        if b"\\u" in body:
            _check_encoding(content)
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is no JSON in UTF-8") from None
    return fields | content


def _check_encoding(content: Mapping[str, Any]) -> None:
    """Raise HttpError if a field of JSON has half of a surrogate pair, which its escapes can write."""
    for name, value in content.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            name = name.encode(errors="replace").decode()
            raise HttpError(400, f"{name}: the text has half of a surrogate pair, which UTF-8 cannot encode") from None


@asynccontextmanager
async def open_form(request: Request) -> AsyncIterator[FormData]:
    """Give a form of the type multipart/form-data, without fields if the request has no body of a form.

    Raises HTTPException for a damaged form and one of the other type, and HttpError for another encoding than UTF-8.
    """
    content_type, options = parse_options_header(request.headers.get("content-type"))
    if content_type == b"application/x-www-form-urlencoded":
        raise HTTPException(400)
    # Starlette decodes with any codec of Python. Punycode takes time by the square of the length.
    if find_codec(options.get(b"charset", b"utf-8").decode("latin-1")) != "utf-8":
        raise HttpError(400, "the body is no form in UTF-8")
    if content_type != b"multipart/form-data":
        yield FormData()
        return
    try:
        form = await MultiPartParser(request.headers, _split(request.stream()), max_fields=MAX_FIELDS, max_files=1).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None
    try:
        yield form
    finally:
        await form.close()


async def _split(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield chunks in short pieces. Other clients are answered after each, because the parser takes 0.4 s for 1 MiB."""
    async for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            yield chunk[start : start + PIECE_BYTES]
            await asyncio.sleep(0)


def _parse_form(content: bytes, place: str) -> list[tuple[str, str]]:
    """Return the fields of a form. Raises HttpError, with the place of the form, for one that is not in UTF-8 or too long."""
    try:
        return parse_qsl(content.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise HttpError(400, f"{place} is no form in UTF-8 with at most {MAX_FIELDS} fields") from None


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _collect(pairs: list[tuple[str, str]], list_fields: frozenset[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in list_fields:
            fields.setdefault(name, []).append(value)
        elif value.isascii() and value.isdecimal() and name == "alternatives":
            fields[name] = int(value[:9])
        else:
            fields[name] = value
    return fields


def check_fields(model: type[FieldsT], fields: Mapping[str, Any], *, missing: str = "{name} is missing") -> FieldsT:
    """Return the checked fields.

    missing: message for a field that is absent

    Raises HttpError, with the first wrong field in one line.
    """
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        raise HttpError(400, _describe_problem(error, missing)) from None


def _describe_problem(error: ValidationError, missing: str) -> str:
    """Return the problem of the first wrong field in one line.

    A field of several types has a problem for each type. Those of the type that reads furthest into the value count.
    """
    problems = error.errors(include_url=False, include_context=False)
    problems = [problem for problem in problems if problem["loc"][0] == problems[0]["loc"][0]]
    names = [_name_field(problem["loc"]) for problem in problems]
    name = max(names, key=lambda name: name.count("[") + name.count("."))
    problems = [problem for problem, other in zip(problems, names, strict=True) if other == name]
    kinds = {problem["type"] for problem in problems}
    if "missing" in kinds:
        return missing.format(name=name)
    if "extra_forbidden" in kinds:
        return f"{name}: there is no such field"
    messages = dict.fromkeys(problem["msg"].removeprefix("Input should be ") for problem in problems)
    # The message of a list's item says "string should have …" and the like.
    is_type = all(problem["msg"].startswith("Input should be ") for problem in problems)
    text = f"it should be {' or '.join(messages)}" if is_type else " or ".join(messages)
    value = json.dumps(problems[0]["input"], ensure_ascii=False, default=str)
    quoted = value if len(value) <= MAX_QUOTED else value[:MAX_QUOTED] + "…"
    return f"{name}: {text[0].lower()}{text[1:]}, but it is {quoted}".replace("\n", " ")


def _name_field(location: Sequence[int | str]) -> str:
    """Return the name of a field, such as `constraints[0].prefix`, without the types of a field that has several."""
    name = str(location[0])
    for part in location[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in TYPE_NAMES:
            name += f".{part}"
    return name
