"""Public indexes of models: Mozilla's for Firefox, the OPUS-MT models of the Hugging Face hub, and that of Argos Translate.

Sources of the formats: `PublicModelsJsonGenerator` in mozilla/translations, the hub's API of models, and index.json of
argosopentech/argospm-index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dragoman.catalog.entries import CatalogModel, RemoteFile
from dragoman.errors import DataError
from dragoman.model_packages import CATALOG_INDEXES

FIREFOX, OPUS_MT, ARGOS = CATALOG_INDEXES
SHIPPED_LIST = "models.json"
"""List that comes with dragoman: index → kind of model → pairs. The kind of Argos is the version of the package."""
FIREFOX_BYTES = {"tiny": 17_140_836, "base-memory": 31_561_787}
"""Bytes of the int8 weights by architecture (metadata.json of mozilla/firefox-translations-models)."""
OPUS_MT_BYTES = 75_000_000
"""About the number of weights of an OPUS-MT model: 6 layers, 512 wide, some 60,000 pieces."""
_ARCHITECTURES = ("base-memory", "base", "tiny")
"""Architectures of Firefox's models, that of the plain name first."""
_LANGUAGE = re.compile(r"[a-z]{2,8}(?:[_-][A-Za-z]{2,8})?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,120}")
_OPUS_NAME = re.compile(r"Helsinki-NLP/opus-mt-((?:tc-big-)?)([a-z]{2,3})-([a-z]{2,3})")
_FIREFOX_PARTS = ("model", "lexicalShortlist", "vocab", "srcVocab", "trgVocab")


@dataclass(frozen=True)
class Index:
    """Index of a project.

    address: of the JSON document
    parse: function that returns the models of the document
    """

    name: str
    address: str
    parse: Callable[[Any], Iterator[CatalogModel]]


def parse_index(index: Index, content: bytes) -> list[CatalogModel]:
    """Return the models of an index.

    Raises DataError if the content is no such index.
    """
    try:
        return list(index.parse(json.loads(content)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"[:120]
        raise DataError(
            f"{index.address}: is not an index of the form that this version reads ({reason}); update dragoman",
            code="invalid-data",
        ) from None


def _parse_firefox(document: Mapping[str, Any]) -> Iterator[CatalogModel]:
    """Yield the models of Mozilla's index, in which one pair may have several architectures. A released version comes first."""
    base = document["baseUrl"].rstrip("/")
    for versions in document["models"].values():
        by_architecture: dict[str, Mapping[str, Any]] = {}
        for version in sorted(versions, key=lambda version: not str(version.get("releaseStatus")).startswith("Release")):
            by_architecture.setdefault(version["architecture"], version)
        for architecture, kind in _iter_kinds(by_architecture):
            version = by_architecture[architecture]
            parts = [version["files"][part] for part in _FIREFOX_PARTS if version["files"].get(part)]
            model_file = version["files"]["model"]
            bleu = (version.get("metrics") or {}).get("flores200-plus", {}).get("bleu")
            yield _make_firefox_model(
                (version["sourceLanguage"], version["targetLanguage"]),
                kind,
                weight_bytes=model_file.get("uncompressedSize"),
                score=None if bleu is None else f"BLEU {float(bleu):.1f} (FLORES)",
                files=tuple(
                    _make_file(f"{base}/{part['path']}", part.get("uncompressedHash") if part is model_file else None)
                    for part in parts
                ),
            )


def _iter_kinds(architectures: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the architectures that a pair has, each with its part of the model's name, which is empty for the first one."""
    for position, architecture in enumerate(name for name in _ARCHITECTURES if name in architectures):
        yield architecture, architecture if position else ""


def _make_firefox_model(
    languages: tuple[str, str],
    kind: str,
    *,
    weight_bytes: int | None,
    score: str | None = None,
    files: tuple[RemoteFile, ...] = (),
) -> CatalogModel:
    name = "-".join([FIREFOX, *map(_check_language, languages), *([kind] if kind else [])])
    size = None if weight_bytes is None else int(weight_bytes)
    return CatalogModel(name, FIREFOX, *languages, license="MPL-2.0", weight_bytes=size, score=score, files=files)


def _parse_opus_mt(document: list[Mapping[str, Any]]) -> Iterator[CatalogModel]:
    """Yield the models of the hub's list whose name has one language on each side."""
    for entry in document:
        if match := _OPUS_NAME.fullmatch(entry["id"]):
            licenses = [tag.removeprefix("license:") for tag in entry.get("tags", ()) if tag.startswith("license:")]
            yield _make_opus_mt_model(match[1], (match[2], match[3]), licenses[0] if licenses else None)


def _make_opus_mt_model(kind: str, languages: tuple[str, str], license_name: str | None) -> CatalogModel:
    name = f"{OPUS_MT}-{kind}{'-'.join(map(_check_language, languages))}"
    size = None if kind else OPUS_MT_BYTES
    hub_name = f"Helsinki-NLP/{name}"
    return CatalogModel(name, OPUS_MT, *languages, license=license_name, weight_bytes=size, hub_name=hub_name)


def _parse_argos(document: list[Mapping[str, Any]]) -> Iterator[CatalogModel]:
    """Yield the packages of Argos's index that translate and have an address of HTTP."""
    for entry in document:
        addresses = [link for link in entry.get("links", ()) if link.startswith(("http://", "https://"))]
        if addresses and entry.get("type", "translate") == "translate":
            yield _make_argos_model((entry["from_code"], entry["to_code"]), addresses[0])


def _make_argos_model(languages: tuple[str, str], address: str) -> CatalogModel:
    return CatalogModel(
        f"{ARGOS}-{'-'.join(map(_check_language, languages))}", ARGOS, *languages, files=(_make_file(address, None),)
    )


def _make_file(url: str, sha256: str | None) -> RemoteFile:
    """Return a file with a name that stays inside of a folder."""
    name = url.rsplit("/", 1)[-1].removesuffix(".gz")
    if not url.startswith(("http://", "https://")) or not _FILE_NAME.fullmatch(name):
        raise ValueError(f"no address of a file: {url[:80]!r}")
    if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"no SHA-256: {sha256[:80]!r}")
    return RemoteFile(url, name, sha256)


def _check_language(code: str) -> str:
    if not _LANGUAGE.fullmatch(code):
        raise ValueError(f"no language code: {code[:20]!r}")
    return code


INDEXES = {
    index.name: index
    for index in (
        Index(
            FIREFOX,
            "https://storage.googleapis.com/moz-fx-translations-data--303e-prod-translations-data/db/models.json",
            _parse_firefox,
        ),
        Index(OPUS_MT, "https://huggingface.co/api/models?author=Helsinki-NLP&search=opus-mt&limit=3000", _parse_opus_mt),
        Index(ARGOS, "https://raw.githubusercontent.com/argosopentech/argospm-index/main/index.json", _parse_argos),
    )
}


@cache
def read_shipped_list(name: str) -> tuple[CatalogModel, ...]:
    """Return the models of an index that the list of this version of dragoman names."""
    document = json.loads((files("dragoman.catalog") / SHIPPED_LIST).read_text(encoding="utf-8"))
    return tuple(_iter_shipped(name, document[name]))


def _iter_shipped(name: str, document: Mapping[str, str]) -> Iterator[CatalogModel]:
    kinds: Mapping[str, set[tuple[str, str]]] = {
        kind: {(pair.split("-")[0], pair.split("-")[1]) for pair in pairs.split()} for kind, pairs in document.items()
    }
    if name == FIREFOX:
        for languages in sorted(set().union(*kinds.values())):
            for architecture, kind in _iter_kinds({name for name, pairs in kinds.items() if languages in pairs}):
                yield _make_firefox_model(languages, kind, weight_bytes=FIREFOX_BYTES.get(architecture))
    for kind, pairs in kinds.items():
        for languages in sorted(pairs):
            if name == OPUS_MT:
                yield _make_opus_mt_model(f"{kind}-" if kind else "", languages, None)
            elif name == ARGOS:
                pair = "_".join(languages)
                address = f"https://argos-net.com/v1/translate-{pair}-{kind.replace('.', '_')}.argosmodel"
                yield _make_argos_model(languages, address)
