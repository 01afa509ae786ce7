"""Clients of the server: the one that sent a request, what belongs to it, and its share of what all clients have together.

A client is a key, if the server has keys, and otherwise an address. So no client takes all places for files and glossaries, or
all of the queue.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

IPV6_NETWORK_BITS = 64
NAME_LENGTH = 16
"""Characters of the name of a client."""
CLIENT = "client_of_key"
"""Name, in the state of a request, of the client whose key it has."""
QUEUE_CLIENT: ContextVar[str] = ContextVar("queue_client", default="")
"""Name of the client whose request this task answers."""


@dataclass(frozen=True)
class Requester:
    """Sender of a request. name: digest of its key or of its address. has_key: the server has keys"""

    name: str = ""
    has_key: bool = False

    @property
    def owner(self) -> str:
        """Return the name of the only client that may read what this one sends; empty without keys."""
        return self.name if self.has_key else ""


ANYBODY = Requester()
"""Requester that is not known, which shares with nobody."""


def identify_client(scope: Any) -> Requester:
    """Return the client of a request: that of its key, or that of its address."""
    if (client := scope.get("state", {}).get(CLIENT)) is not None:
        return Requester(client, has_key=True)
    return Requester(_name_address((scope.get("client") or ("",))[0]))


def admit_client(scope: Any, name: str) -> None:
    """Note that a request has the key of this name."""
    scope.setdefault("state", {})[CLIENT] = name
    QUEUE_CLIENT.set(name)


def has_share(num_own: int, num_taken: int, limit: int, num_more: int = 1) -> bool:
    """Return whether a client may take more of what all clients have together: at most as much as it leaves to others."""
    return num_own + num_more <= limit - num_taken


@lru_cache(maxsize=4096)
def _name_address(address: str) -> str:
    """Return the name of the client with an address. One client may have a whole network of IPv6."""
    network: object = address
    try:
        parsed = ip_address(address.partition("%")[0])
        if not isinstance(parsed, IPv4Address):
            network = parsed.ipv4_mapped or ip_network((int(parsed), IPV6_NETWORK_BITS), strict=False)
    except ValueError:
        pass  # no address, as from a socket of the file system
    return hashlib.sha256(str(network).encode()).hexdigest()[:NAME_LENGTH]
