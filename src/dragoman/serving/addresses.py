"""Addresses of the server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

from dragoman.errors import RecipeError
from dragoman.serving.settings import ServerSettings

OnReady = Callable[[str, dict[str, list[str]]], None]
"""Function that is called with the address and the targets of each language when the server accepts requests."""


def bind_addresses(settings: ServerSettings, stack: ExitStack) -> tuple[socket.socket, socket.socket | None]:
    """Return sockets for requests and for the admin port, which the stack closes.

    Raises RecipeError for an address that cannot be used.
    """
    server_socket = stack.enter_context(_bind(settings.host, settings.port, "--host and --port"))
    if settings.admin_port is None:
        return server_socket, None
    return server_socket, stack.enter_context(_bind(settings.admin_host, settings.admin_port, "--admin-host and --admin-port"))


def format_url(settings: ServerSettings, server_socket: socket.socket) -> str:
    """Return the address of the page."""
    return f"http://{_format_address(settings.host, server_socket.getsockname()[1])}/"


def _format_address(host: str, port: int) -> str:
    """Return host and port as a URL has them: an address of IPv6 is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int, options: str) -> socket.socket:
    """Return a socket that has taken an address. Raises RecipeError, which names the options, if the system refuses it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (")[0]  # Python adds the address in brackets
        raise RecipeError(
            f"{_format_address(host, port)}: the server cannot listen there ({problem.lower()}); give another address by "
            f"{options}",
            code="invalid-option",
        ) from error
