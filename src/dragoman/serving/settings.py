"""Settings of the server: limits, addresses and keys. Every limit is on by default."""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.errors import RecipeError
from dragoman.serving.clients import NAME_LENGTH

logger = logging.getLogger("dragoman.serving")

DEEPL_MAX_TEXTS = 50
WEIGHTS_DIR_PREFIX = "dragoman-weights-"
"""Beginning of the name of the temporary folder for packed weights."""
FILE_DIR_PREFIX = "dragoman-files-"
"""Beginning of the name of the temporary folder for files that are translated."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of requests. A request beyond a limit is refused with a message that names the limit.

    max_body_bytes: bytes of a request's body, counted as they arrive
    max_file_bytes: bytes of a request's body that holds a file
    max_files: files that are translated, wait, or are kept for their clients
    file_seconds: time for which a translated file is kept
    max_texts: texts of a request
    max_queue_tokens: tokens of all waiting requests, estimated from their characters
    max_connections: requests that are answered at the same time
    max_pending_bytes: memory of all requests that are read, wait or are answered; each counts 32 KiB and the bytes of its body
        that have arrived
    read_seconds: time for the body of a request to arrive
    queue_seconds: time from the arrival of a whole request to the start of its translation, before it is refused; Weblate
        gives up after 20 seconds
    request_seconds: time from the arrival of a request to its answer
    drain_seconds: time for the requests in progress when the server stops
    """

    max_body_bytes: int = 1 << 20
    max_file_bytes: int = 16 << 20
    max_files: int = 100
    file_seconds: float = 3600.0
    max_texts: int = 1000
    max_queue_tokens: int = 100_000
    max_connections: int = 512
    max_pending_bytes: int = 256 << 20
    read_seconds: float = 30.0
    queue_seconds: float = 15.0
    request_seconds: float = 120.0
    drain_seconds: float = 60.0


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server besides its models.

    host, port: address to listen on
    admin_host, admin_port: address of metrics and of the state of the server; none without a port
    processes: processes that serve; each has its own models, queue and limits
    traces: send OpenTelemetry traces
    api_keys: keys that requests must have; without keys, every request is served
    allowed_origins: origins of web pages that may call the server; none by default; see `PagePolicy`
    allowed_hosts: names of the server besides its addresses and its private names
    proxies: addresses of reverse proxies whose headers name the client and its scheme; none by default
    retry: translate a segment that fails a check once more
    language_check: keep a segment that is in the target language already
    glossary_dir: folder for the glossaries that clients send; by default, memory holds them
    file_dir: folder for files that are translated, which all processes share; by default a private temporary folder
    weights_dir: folder for packed weights, which all processes map; by default each process has its own
    """

    host: str = "127.0.0.1"
    port: int = 5000
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    processes: int = 1
    traces: bool = False
    limits: ServerLimits = field(default_factory=ServerLimits)
    api_keys: ApiKeys | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    retry: bool = True
    language_check: bool = True
    glossary_dir: Path | None = None
    file_dir: Path | None = None
    weights_dir: Path | None = None


class ApiKeys:
    """Keys that are known by their SHA-256 digests. A comparison takes the same time for every key.

    path: file that `reload` reads again
    """

    def __init__(self, digests: list[bytes], path: Path | None = None) -> None:
        self._digests = digests
        self._path = path

    def reload(self) -> None:
        """Read the file again. Keys that it does not have any more are refused from now on.

        Raises RecipeError for a file that cannot be used; the present keys stay.
        """
        if self._path is not None:
            self._digests = ApiKeys.read(self._path)._digests

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one digest in a line, as `dragoman serve --hash-key` prints them; `#` starts a comment.

        Raises RecipeError for a line that is no digest, and for a file without digests.
        """
        digests: list[bytes] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path}: the file of keys cannot be read: {error}", code="invalid-option") from error
        for number, line in enumerate(lines, 1):
            digest = line.split("#")[0].strip()
            if not digest:
                continue
            if len(digest) != hashlib.sha256().digest_size * 2 or not set(digest) <= set("0123456789abcdef"):
                raise RecipeError(
                    f"{path}, line {number}: a line is the SHA-256 digest of a key, 64 digits of 0-9 and a-f; "
                    "print it with dragoman serve --hash-key",
                    code="invalid-option",
                )
            digests.append(bytes.fromhex(digest))
        if not digests:
            raise RecipeError(f"{path}: the file has no key; print one with dragoman serve --hash-key", code="invalid-option")
        return cls(digests, path.absolute())

    def identify(self, key: str) -> str | None:
        """Return the name of the client that has this key, or None for a wrong one."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        # Every digest is compared, so the time does not depend on the place of the key.
        is_known = sum(hmac.compare_digest(digest, known) for known in self._digests) > 0
        return digest.hex()[:NAME_LENGTH] if is_known else None


def reload_keys(settings: ServerSettings, *, report: bool = True) -> None:
    """Read the file of keys again, if there is one. If that fails, the present keys stay, and the log says why.

    report: log it
    """
    if settings.api_keys is None:
        return
    try:
        settings.api_keys.reload()
    except RecipeError as error:
        if report:
            logger.error("reload failed, the present keys stay: %s", error)
        return
    if report:
        logger.info("reloaded the keys")


def hash_key(key: str) -> str:
    """Return the digest of a key as the file of keys has it."""
    return hashlib.sha256(key.encode()).hexdigest()
