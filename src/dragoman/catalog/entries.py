"""A published model, and files on a server."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME_BYTES = 60 * 2**20
"""Memory of a process without the weights: NumPy, SentencePiece, the vocabulary and buffers (`make bench-startup`)."""


@dataclass(frozen=True)
class RemoteFile:
    """File of a model or a corpus on a server.

    url: address, http or https; a name that ends in .gz is unpacked
    name: name under which it is stored
    sha256: of the unpacked file, in hexadecimal digits; None if the index states none
    num_bytes: size of a file that is not unpacked, of which a part can be fetched; None if the index states none
    """

    url: str
    name: str
    sha256: str | None = None
    num_bytes: int | None = None


@dataclass(frozen=True)
class CatalogModel:
    """Model that another project publishes.

    name: name that commands take, such as firefox-en-pt
    index: index that lists it: firefox, opus-mt or argos
    source_language, target_language: codes as the index writes them
    license: license of the weights; None if the index states none
    weight_bytes: bytes of the weights in int8; None if they are not known
    score: published score with its test set; None if there is none
    hub_name: repository of the Hugging Face hub that holds the model; None if `files` do
    files: files to fetch; empty if the list that comes with dragoman does not state them
    """

    name: str
    index: str
    source_language: str
    target_language: str
    license: str | None = None
    weight_bytes: int | None = None
    score: str | None = None
    hub_name: str | None = None
    files: tuple[RemoteFile, ...] = ()

    @property
    def pair(self) -> str:
        """Return both languages: en-pt."""
        return f"{self.source_language}-{self.target_language}"

    @property
    def memory_bytes(self) -> int | None:
        """Return about how much memory translation takes: the weights in int8 and `RUNTIME_BYTES`."""
        return None if self.weight_bytes is None else self.weight_bytes + RUNTIME_BYTES
