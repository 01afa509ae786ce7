"""Page to translate in, and page of the API: static files without a build step, which load nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, Response

CONTENT_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
CONTENT_POLICY = """
    default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-src 'self';
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'
"""
SECURITY_HEADERS = {
    "Content-Security-Policy": " ".join(CONTENT_POLICY.split()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def build_page_router() -> APIRouter:
    """Return the routes of both pages."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        """Return the page."""
        return _answer("translate.html")

    @router.get("/docs")
    async def api_page() -> Response:
        """Return the page of the API."""
        return _answer("docs.html")

    @router.get("/static/swagger-ui.css")
    async def swagger_ui_style() -> Response:
        """Return the style of Swagger UI, which the package fastapi-offline holds."""
        return _answer("swagger-ui.css", "fastapi_offline")

    @router.get("/static/swagger-ui-bundle.js")
    async def swagger_ui() -> Response:
        """Return the script of Swagger UI."""
        return _answer("swagger-ui-bundle.js", "fastapi_offline")

    @router.get("/static/{name}.js")
    async def script(name: Literal["words", "translate", "files", "docs"]) -> Response:
        """Return a script of the pages."""
        return _answer(f"{name}.js")

    @router.get("/static/translate.css")
    async def style() -> Response:
        """Return the style of the page."""
        return _answer("translate.css")

    return router


def _answer(name: str, package: str = "dragoman.serving") -> Response:
    content = files(package).joinpath("static", name).read_bytes()
    return Response(content, media_type=CONTENT_TYPES[name.rpartition(".")[2]], headers=SECURITY_HEADERS)
