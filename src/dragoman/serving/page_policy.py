"""Web pages of other sites may not call the server, unless its operator names them.

A browser sends a page's requests with the rights of its user, to a server on the user's machine or network too. It names the
page's site in `Origin` and in `Sec-Fetch-Site`. A site whose name resolves to the address of the server (DNS rebinding) seems
to be the server's own page, but its requests have a foreign name in `Host`. Programs that are no browser send no `Origin`.

Sources: Fetch (WHATWG), "Origin header" and "CORS protocol"; Fetch Metadata Request Headers (W3C); RFC 6761 for names that no
site can own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from dragoman.errors import RecipeError
from dragoman.serving.http_errors import HttpError

PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc")
"""Endings of names that the public name system does not have, so that no site can be reached by them."""
DEFAULT_PORTS = {"http": 80, "https": 443}
NAME_PUNCTUATION = str.maketrans("", "", "-_.")
OWN_SITES = frozenset(("same-origin", "none"))
"""Values of `Sec-Fetch-Site` of the server's own page, and of an address that the user has typed."""
MAX_QUOTED = 100


@dataclass(frozen=True)
class Origin:
    """Site of a page. port: None for a scheme without a default port, and without a port of its own"""

    scheme: str
    host: str
    port: int | None


class PagePolicy:
    """Sites whose pages may call the server, and names by which it may be called.

    host: address that the server listens on
    allowed_origins: sites as `https://name:port`; `null`; `scheme://*` for all sites of a scheme; `*` for all
    allowed_hosts: names of the server besides its own; `*` for all
    """

    def __init__(self, host: str, allowed_origins: Iterable[str] = (), allowed_hosts: Iterable[str] = ()) -> None:
        self._origins = {_normalize_origin(origin) for origin in allowed_origins}
        self._named_hosts = {_normalize_host(name) for name in allowed_hosts}
        self._own_hosts = {_normalize_host(host), _normalize_host(socket.gethostname()), "localhost", ""}

    def check(self, headers: Mapping[bytes, bytes], method: str, path: str, page_paths: Iterable[str]) -> None:
        """Raise HttpError for a request by a foreign name, or of a page of another site.

        page_paths: paths, or beginnings of paths, that a link on another site may lead to
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not self.allows_host(host):
            raise HttpError(
                403,
                f"Host: {_quote(host)} is no name of this server; call it by its address, or start it with --allow-host NAME",
                "foreign-host",
            )
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none").decode("latin-1").strip().lower()
        if origin is not None:
            text = origin.decode("latin-1").strip()
            if not self.allows_origin(text) and not self._is_own_page(text, host):
                raise HttpError(
                    403,
                    f"Origin: pages of {_quote(text)} may not call this server; start it with --allow-origin URL to allow them",
                    "foreign-origin",
                )
        elif site not in OWN_SITES and "*" not in self._origins:
            is_link = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == (b"navigate", b"document")
            if not (is_link and method in ("GET", "HEAD") and _is_below(path, page_paths)):
                raise HttpError(
                    403,
                    f"Sec-Fetch-Site: a page of another site ({_quote(site)}) may not call this server; start it with "
                    "--allow-origin URL, and let the page use CORS",
                    "foreign-origin",
                )

    def allows_host(self, value: str) -> bool:
        """Return whether the server may be called by a header `Host`: its address, a private name, or an allowed one.

        A name without a dot and the endings of `PRIVATE_SUFFIXES` are private.
        """
        if "*" in self._named_hosts:
            return True
        host = _normalize_host(value)
        if _is_address(host) or host in self._own_hosts or host in self._named_hosts:
            return True
        is_name = host.isascii() and host.translate(NAME_PUNCTUATION).isalnum()
        return is_name and ("." not in host or host.endswith(PRIVATE_SUFFIXES))

    def allows_origin(self, value: str) -> bool:
        """Return whether the operator allows the pages of a site."""
        origin = _normalize_origin(value)
        if origin in self._origins or "*" in self._origins or f"{value.partition(':')[0].lower()}://*" in self._origins:
            return True
        parsed = _parse_origin(value)
        return parsed is not None and parsed.scheme in DEFAULT_PORTS and parsed.host in self._named_hosts

    def _is_own_page(self, value: str, host: str) -> bool:
        """Return whether an origin is the server itself, by the name and the port of the header `Host`."""
        origin = _parse_origin(value)
        own = _parse_origin(f"{origin.scheme}://{host}") if origin is not None else None
        return origin is not None and origin.scheme in DEFAULT_PORTS and origin == own


def check_names(origins: Iterable[str], hosts: Iterable[str], proxies: Iterable[str]) -> None:
    """Raise RecipeError for a site, a name or an address of a proxy that no request can have."""
    for origin in origins:
        if origin.lower() not in ("*", "null") and not origin.endswith("://*") and _parse_origin(origin.strip()) is None:
            raise _refuse("--allow-origin", origin, "site; give its address, such as https://example.org")
    for host in hosts:
        if host != "*" and (not _normalize_host(host) or set(host) & set("/@*?# ")):
            raise _refuse("--allow-host", host, "name of a server; give one such as translate.example.org")
    for proxy in proxies:
        try:
            ip_network("0.0.0.0" if proxy == "*" else proxy)
        except ValueError:
            raise _refuse("--proxy", proxy, "address; give one such as 127.0.0.1 or 172.16.0.0/12") from None


def _refuse(option: str, value: str, problem: str) -> RecipeError:
    return RecipeError(f"{option} {value}: is no {problem}", code="invalid-option")


def _normalize_host(value: str) -> str:
    """Return the name of a header `Host` in small letters, without port, brackets and the dot of the root."""
    name = value.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0].partition("%")[0]
    if name.count(":") <= 1:
        name = name.partition(":")[0]
    return name.removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _parse_origin(value: str) -> Origin | None:
    """Return an origin, or None for another text, such as `null`."""
    try:
        parts = urlsplit(value.lower())
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname or parts.username is not None or parts.path not in ("", "/") or parts.query:
        return None
    default = DEFAULT_PORTS.get(parts.scheme)
    return Origin(parts.scheme, parts.hostname.removesuffix("."), default if port is None else port)


def _normalize_origin(value: str) -> str:
    """Return a text that equal sites have in common; `null` and patterns stay as they are."""
    text = value.strip().lower()
    origin = _parse_origin(text)
    return text if origin is None or origin.host == "*" else f"{origin.scheme}://{origin.host}:{origin.port or ''}"


def _is_below(path: str, beginnings: Iterable[str]) -> bool:
    """Return whether a path is one of these, or begins with one that ends in a slash."""
    return any(path == item or (item != "/" and item.endswith("/") and path.startswith(item)) for item in beginnings)


def _quote(value: str) -> str:
    """Return the beginning of a text of a client, without characters that change how a terminal shows it."""
    text = "".join(character if character.isprintable() else "?" for character in value[:MAX_QUOTED])
    return text or "(empty)"
