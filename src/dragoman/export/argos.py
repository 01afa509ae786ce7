"""Export of a bundle to Argos Translate: one `.argosmodel` file, which `argostranslate` and LibreTranslate install.

The file is a zip archive with one folder:

    metadata.json          languages and version of the package
    model/                 the model in the format of CTranslate2, with int8 weights
    sentencepiece.model    SentencePiece model that splits the source
    README.md              model card

Argos splits text into sentences with a model of its own, which the package does not hold.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from dragoman.bundle import Bundle
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.errors import OutputError
from dragoman.export.card_writer import build_model_card
from dragoman.export.ctranslate2 import build_spec, check_exportable
from dragoman.export.result import ExportResult, check_is_translator, count_positions, describe_text_format, unsupported
from dragoman.io.storage import atomic_write, check_path_is_free, make_dirs, to_write_error
from dragoman.languages import LANGUAGE_NAMES, get_language

ENGINE = "Argos Translate"
SUFFIX = ".argosmodel"
PACKAGE_VERSION = "1.0"
ARGOS_VERSION = "1.5"
"""Version of Argos Translate that the package format is for, as the published packages state it."""
MAX_SOURCE_TOKENS = 1024
"""CTranslate2 cuts sources of Argos Translate at this length."""
DECODING_OPTIONS = {"beam_size": 4, "length_penalty": 0.2, "max_decoding_length": 256}
"""Options with which Argos Translate calls CTranslate2; a package cannot change them."""
CHUNK_BYTES = 2**20
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""Time of each file in the archive, so that one bundle gives one archive."""

USAGE = """```python
import argostranslate.package, argostranslate.translate

argostranslate.package.install_from_path("{name}")
print(argostranslate.translate.translate("A sentence.", "{source}", "{target}"))
```"""


def export_argos(
    bundle: Bundle, path: Path, *, scores: Mapping[str, float] | None = None, overwrite: bool = False
) -> ExportResult:
    """Write a package that Argos Translate installs, completely or not at all.

    Args:
        bundle: the model
        path: the new file, which ends with .argosmodel
        scores: scores on a test set by the name of the metric, for the model card
        overwrite: replace an earlier package

    Raises:
        BundleError: the package format cannot express the model.
        MissingDependencyError: the ctranslate2 package is not installed.
        OutputError: the path exists, has another ending, or cannot be written.
    """
    check_is_translator(bundle, ENGINE)
    _check_path(path, overwrite=overwrite)
    check_exportable(bundle.recipe.model)
    if (token := bundle.recipe.tokenizer.language_token) is not None:
        raise unsupported(
            f"tokenizer.language_token = {token!r}",
            f"a package of {ENGINE} has one language pair, and adds no tokens to a source; export to ctranslate2",
        )
    source, target = _get_languages(bundle)
    if not isinstance(bundle.tokenizer.source, SentencePieceTokenizer):
        raise unsupported(
            f"tokenizer.model_type = {bundle.recipe.tokenizer.model_type!r}, or a converted tokenizer of two files",
            f"{ENGINE} reads SentencePiece models with their own pieces only; export to ctranslate2",
        )
    num_positions = count_positions(bundle)
    if bundle.recipe.model.position_encoding != "learned":
        num_positions = max(num_positions, MAX_SOURCE_TOKENS + 1)
    notes = _collect_notes(bundle, num_positions)
    usage = USAGE.format(name=path.name, source=source, target=target)
    card = build_model_card(bundle, usage=usage, scores=scores, notes=notes)
    texts = {
        "metadata.json": json.dumps(_build_metadata(source, target), indent=4, ensure_ascii=False) + "\n",
        "README.md": card,
    }
    spec = build_spec(bundle, num_positions, is_int8=True)
    parent = path.absolute().parent
    try:
        make_dirs(parent)
    except OSError as error:
        raise to_write_error(path, error) from None
    with (
        atomic_write(path, overwrite=overwrite) as stream,
        tempfile.TemporaryDirectory(dir=parent, prefix=".dragoman-") as folder,
    ):
        spec.save(folder)
        folder_name = f"translate-{source}_{target}-{PACKAGE_VERSION.replace('.', '_')}"
        contents = texts | {"sentencepiece.model": bundle.tokenizer.source.serialized_model}
        _write_archive(cast(IO[bytes], stream.buffer), folder_name, contents, Path(folder))
    return ExportResult(path, path.stat().st_size, num_positions, dict(DECODING_OPTIONS), tuple(notes))


def _check_path(path: Path, *, overwrite: bool) -> None:
    if path.suffix != SUFFIX:
        raise OutputError(f"{path}: a package of {ENGINE} ends with {SUFFIX}; give such a name")
    if not overwrite:
        check_path_is_free(path)
    if path.exists() and not (path.is_file() and zipfile.is_zipfile(path)):
        raise OutputError(f"{path}: is not a package that can be replaced; give another name", code="not-replaceable")


def _get_languages(bundle: Bundle) -> tuple[str, str]:
    """Return the codes of both languages. Raise BundleError if one is not known."""
    task = bundle.recipe.task
    codes = {"source_language": task.source_language, "target_language": task.target_language}
    for key, code in codes.items():
        if not code:
            raise unsupported(
                f"task.{key} is empty",
                f"a package of {ENGINE} names both languages; set it in the recipe, or give it to convert",
            )
    return get_language(task.source_language), get_language(task.target_language)


def _build_metadata(source: str, target: str) -> dict[str, Any]:
    return {
        "package_version": PACKAGE_VERSION,
        "argos_version": ARGOS_VERSION,
        "from_code": source,
        "from_name": LANGUAGE_NAMES.get(source, source),
        "to_code": target,
        "to_name": LANGUAGE_NAMES.get(target, target),
        "type": "translate",
        "links": [],
    }


def _collect_notes(bundle: Bundle, num_positions: int) -> list[str]:
    options = ", ".join(f"{name}={value}" for name, value in DECODING_OPTIONS.items())
    notes = [
        *describe_text_format(bundle),
        f"Argos Translate searches with {options}; the recipe's search options have no effect",
        "the weights are int8, so that a few outputs differ from those of float32",
    ]
    if num_positions < MAX_SOURCE_TOKENS:
        notes.append(f"a sentence of more than {num_positions} tokens is an error, because the model has no more positions")
    return notes


def _write_archive(stream: IO[bytes], folder_name: str, contents: Mapping[str, str | bytes], model: Path) -> None:
    """Write the zip archive of a package. contents: the files beside the model by name"""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(_make_entry(f"{folder_name}/{name}"), content)
        for file in sorted(model.iterdir()):
            entry = _make_entry(f"{folder_name}/model/{file.name}")
            with file.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, CHUNK_BYTES)


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, ZIP_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
