"""Folders of pages, translated with a function in place of a model, as `dragoman translate-file` does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from document_checks import make_stub

from dragoman.documents.document import add_plural_forms
from dragoman.documents.folder_files import list_files
from dragoman.documents.folder_links import NO_ANCHORS, find_linked_anchors
from dragoman.documents.formats import get_parser, read_document
from dragoman.documents.translate_document import DocumentOptions, translate_document


def change_words(text: str) -> str:
    """Return a text in which each word of letters is another one, so that the ids of headings are others, too."""
    return re.sub(r"[^\W\d_]+", lambda match: f"{match[0][0]}ü{match[0][1:]}", text)


def translate_folder(
    folder: Path, output: Path, change: Callable[[str], str] = change_words, language: str = "de"
) -> list[str]:
    """Write a translation of a folder, in which files of other formats are as they were. Return the flagged texts."""
    flagged = []
    files = list_files([folder])
    anchors = find_linked_anchors(files.places)
    stub = make_stub(change)
    for path in sorted(folder.rglob("*")):
        place = output / path.relative_to(folder)
        if not path.is_file():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if path not in files.places:
            place.write_bytes(path.read_bytes())
            continue
        parse = get_parser(path.name)
        document = add_plural_forms(read_document(path), parse, language)
        linked = anchors.get(path, NO_ANCHORS)
        document.keep_anchors(linked.names, linked.is_hugo)
        result = translate_document(document, parse, stub, DocumentOptions("en", language))
        flagged += [f"{path.name}: {text.unit.source[:90]} {text.flags}" for text in result.results if text.flags]
        place.write_bytes(result.content)
    return flagged
