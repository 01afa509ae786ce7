"""Proxy of a network, for the messages about addresses that cannot be reached."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

TIMEOUT_SECONDS = 30
"""Seconds without an answer after which a connection fails."""


def suggest_proxy(url: str) -> str:
    """Return what to check if an address is not reached: the proxy that the environment names, without its password."""
    parts = urlsplit(url)
    variable = f"{parts.scheme}_proxy".upper()
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.hostname or ""):
        return f"if the network has a proxy, set {variable}=http://HOST:PORT"
    address = proxy.rpartition("@")[2].rpartition("//")[2]
    return f"check the proxy {address} of {variable}, which may need http://NAME:PASSWORD@{address.rstrip('/')}"
