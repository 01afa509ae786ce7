"""Forms with a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from dragoman.serving.http_errors import HttpError
from dragoman.serving.request_fields import FieldsT, RequestFields, check_fields, open_form

MAX_NAME = 200
"""Most characters of the name of a file."""


@dataclass(frozen=True)
class Upload:
    """Form with a file.

    fields: its other fields. Values of one whose name ends with `[]` are joined by commas; of any other, the last one counts.
    name, content: the file; None if there is none
    """

    fields: dict[str, str]
    name: str | None
    content: bytes

    def check(self, model: type[FieldsT], missing: str = "{name} is missing") -> tuple[FieldsT, str]:
        """Return the checked fields and the name of the file. Raises HttpError for a field that is wrong or missing."""
        fields = check_fields(model, self.fields, missing=missing)
        if self.name is None:
            raise HttpError(400, missing.format(name="file"))
        return fields, check_name(self.name)


async def read_upload(request: Request) -> Upload:
    """Return the form of a request, whose other fields may be in the query. Raises HttpError for another body."""
    try:
        async with open_form(request) as form:
            values = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
            fields = dict(values)
            for key in fields:
                if key.endswith("[]"):
                    fields[key] = ",".join(value for other, value in values if other == key)
            file = form.get("file")
            name, content = (file.filename or "", await file.read()) if isinstance(file, UploadFile) else (None, b"")
            return Upload(dict(request.query_params) | fields, name, content)
    except HTTPException:
        raise HttpError(400, "the body is no form of the type multipart/form-data with one file") from None


def check_name(name: str) -> str:
    """Return the name of a file without folders. Raises HttpError for one that is too long or has control characters."""
    name = name.replace("\\", "/").rpartition("/")[2]
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise HttpError(400, f"file: its name needs 1 to {MAX_NAME} printable characters, with the ending of its format")
    return name


def describe_upload(model: type[RequestFields]) -> dict[str, Any]:
    """Return the part of the OpenAPI description for a form with a file."""
    schema = model.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema.setdefault("required", []).append("file")
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
