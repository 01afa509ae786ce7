"""Files that we write, read by other programs: msgfmt, the Translate Toolkit, and the schemas of XLIFF.

    PYTHONPATH=benchmarks python -m documents.other_programs FOLDER... [--schemas DIR] [--files 200]

Each file under the folders is pseudo-translated, with one text in three marked for review. A program reads the original and the
new file. A defect is a new file that it refuses although it reads the original. msgfmt checks PO files with `-c`. The Translate
Toolkit, Weblate's library of formats, has to have as many texts as in the original, and the new ones. It is under the GPL and
is no dependency: install it beside this package. `--schemas` has the files xml.xsd,
xliff-core-1.2-strict.xsd and xliff-core-2.0.xsd.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from dragoman.documents.document import UnitTranslation, UnwritableUnitsError, check_written, write_document
from dragoman.documents.formats import get_parser, parse_document
from dragoman.errors import DataError

from .donor_files import find_files, make_pseudo_text

STORES = {
    "po": "translate.storage.pypo.pofile", "xlf": "translate.storage.xliff.xlifffile", "ts": "translate.storage.ts2.tsfile",
    "tmx": "translate.storage.tmx.tmxfile", "resx": "translate.storage.resx.RESXFile",
    "properties": "translate.storage.properties.javautf8file", "strings": "translate.storage.properties.stringsutf8file",
    "xml": "translate.storage.aresource.AndroidResourceFile", "json": "translate.storage.jsonl10n.JsonNestedFile",
    "yaml": "translate.storage.yaml.YAMLFile",
}  # fmt: skip
_PATTERN = "Ŧḗẋŧ {} Ŧḗẋŧ"

Read = Callable[[str, bytes], str]
"""Function from the name and the bytes of a file to the reason why it cannot be read; empty if it can."""


def translate(name: str, content: bytes) -> tuple[bytes, list[tuple[str, str]]] | None:
    """Return the pseudo-translated file, and each text with its translation; None if it has no text or is refused."""
    try:
        document = parse_document(name, content)
        units = [unit for unit in document.units if unit.state != "locked"]
        states: list[Literal["translated", "fuzzy"]] = [
            "fuzzy" if index % 3 == 0 else "translated" for index in range(len(units))
        ]
        translations = {
            unit.id: UnitTranslation(make_pseudo_text(unit, _PATTERN), state) for unit, state in zip(units, states, strict=True)
        }
        written = write_document(document, translations)
        try:
            check_written(document, translations, written, get_parser(name))
        except UnwritableUnitsError as error:
            translations = {key: value for key, value in translations.items() if key not in error.unit_ids}
            written = write_document(document, translations)
    except DataError:
        return None
    plain = [unit for unit in units if unit.markup == "none" and unit.id in translations]
    return (written, [(unit.source, translations[unit.id].text) for unit in plain]) if translations else None


def run_msgfmt(name: str, content: bytes) -> str:
    """Return what `msgfmt -c` says about a PO file that it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.po"
        path.write_bytes(content)
        result = subprocess.run(["msgfmt", "-c", "-o", "/dev/null", str(path)], capture_output=True, text=True, check=False)
    return result.stderr[:300] if result.returncode else ""


def load_store(kind: str) -> Callable[[], Any]:
    """Return the class of the Translate Toolkit for a format."""
    module, _, name = STORES[kind].rpartition(".")
    store: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return store


def read_texts(kind: str, content: bytes) -> tuple[int, set[str], set[str]]:
    """Return the number of texts that the Translate Toolkit reads, the sources and the translations. Raises its errors."""
    if kind == "xlf" and re.search(rb'<xliff[^>]+version="2', content):
        store = importlib.import_module("translate.storage.xliff2").Xliff2File()
    else:
        store = load_store(kind)()
    store.parse(content)
    units = [unit for unit in store.units if unit.istranslatable() or unit.target]
    sources = {form for unit in units for form in _list_forms(unit.source)}
    return len(units), sources, {form for unit in units for form in _list_forms(unit.target)}


def _list_forms(text: Any) -> list[str]:
    return [_fold(str(form)) for form in getattr(text, "strings", None) or [text or ""]]


def check_toolkit(kind: str, original: bytes, written: bytes, texts: Sequence[tuple[str, str]]) -> str:
    """Return why the Translate Toolkit does not read a new file as it reads the original; empty if it does.

    Texts that it does not find in the original do not count.
    """
    try:
        count, *known = read_texts(kind, original)
    except Exception:
        return "skipped"
    try:
        new_count, sources, targets = read_texts(kind, written)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if new_count != count:
        return f"{new_count} texts, and {count} before"
    expected = [_fold(text) for source, text in texts if _fold(source) in known[0] | known[1]]
    missing = [text for text in expected if text not in sources | targets]
    return f"{len(missing)} of {len(expected)} texts are others, such as {missing[0][:60]!r}" if missing else ""


def _fold(text: str) -> str:
    return " ".join(text.split())


def load_schema(folder: Path) -> Read:
    """Return a function that validates an XLIFF file by the schema of its version."""
    etree = importlib.import_module("lxml.etree")
    schemas = {}
    for version, name in (("1.2", "xliff-core-1.2-strict.xsd"), ("2.0", "xliff-core-2.0.xsd")):
        # Both refer to another schema by an address or a path that is not here.
        text = re.sub(
            r'schemaLocation="[^"]*xml\.xsd"', 'schemaLocation="xml.xsd"', (folder / name).read_text(encoding="utf-8")
        )
        schemas[version] = etree.XMLSchema(etree.fromstring(text.encode(), base_url=f"{folder}/"))

    def validate(name: str, content: bytes) -> str:
        tree = etree.fromstring(content)
        schema = schemas.get(tree.get("version"))
        if schema is None:
            return "a version without a schema"
        return "" if schema.validate(tree) else str(schema.error_log.last_error)[:300]

    return validate


def main() -> int:
    """Print a table. The status is 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--files", type=int, default=200, help="most files of each format")
    options = parser.parse_args()
    readers: dict[str, Read] = {"msgfmt -c": run_msgfmt} if shutil.which("msgfmt") else {}
    if options.schemas:
        readers["schema"] = load_schema(options.schemas)
    has_toolkit = importlib.util.find_spec("translate") is not None
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    defects: list[str] = []
    for kind, paths in find_files(options.folders, options.files, random.Random(1)).items():
        for path in paths:
            content = path.read_bytes()
            if (result := translate(path.name, content)) is None:
                continue
            written, texts = result
            problems = []
            for name, read in readers.items():
                if (name == "msgfmt -c") == (kind == "po") and kind in ("po", "xlf"):
                    problems.append((name, "skipped" if read(path.name, content) else read(path.name, written)))
            if has_toolkit and kind in STORES:
                problems.append(("translate-toolkit", check_toolkit(kind, content, written, texts)))
            for name, problem in problems:
                status = {"": "read", "skipped": "original refused"}.get(problem, "defect")
                counts[kind, name][status] += 1
                if status == "defect":
                    defects.append(f"{name}: {path}: {problem}")
    print("| format | program | read | original refused | defects |\n| --- | --- | --- | --- | --- |")
    for (kind, name), row in counts.items():
        print(f"| {kind} | {name} | {row['read']} | {row['original refused']} | {row['defect']} |")
    for defect in defects:
        print(f"DEFECT {defect}")
    return int(bool(defects))


if __name__ == "__main__":
    sys.exit(main())
