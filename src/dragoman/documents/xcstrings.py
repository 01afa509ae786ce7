"""String catalogs of Xcode (.xcstrings), which hold the texts of all languages.

A text without a translation gets one for the target language, with the variations of its source and the plural forms of the
language. Its state is `translated` or `needs_review`. Entries with `"shouldTranslate" : false` stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.documents.document import Document, Edit, Unit, UnitState, UnitTranslation
from dragoman.documents.encoded_text import EncodedText, decode
from dragoman.documents.json_file import Path, decode_string, read_strings
from dragoman.documents.plural_forms import CATEGORIES, list_missing_categories
from dragoman.documents.plural_rules import get_plural_rule
from dragoman.documents.reading import check_texts, join_keys
from dragoman.errors import DataError
from dragoman.languages import is_same_language

_UNIT = ("stringUnit", "value")
_NEW = "new"
_Variation = Path
"""Keys between a language and its text, such as `("variations", "plural", "one")`."""


@dataclass
class _StringCatalog:
    """Texts of a catalog.

    values, places: text, and place of each value, by its path
    texts: texts of an entry in a language by their variation
    languages: languages of an entry
    """

    text: EncodedText
    values: dict[Path, str] = field(default_factory=dict)
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    texts: dict[tuple[str, str], dict[_Variation, str]] = field(default_factory=dict)
    languages: dict[str, list[str]] = field(default_factory=dict)

    def list_entries(self) -> list[str]:
        """Return the keys of the entries to translate."""
        return [path[1] for path in self.places if len(path) == 2 and path[0] == "strings" and self._is_translated(path)]

    def _is_translated(self, path: Path) -> bool:
        start, end = self.places.get((*path, "shouldTranslate"), (0, 0))
        localizations = (*path, "localizations")
        has_objects = self.is_object(path) and (localizations not in self.places or self.is_object(localizations))
        return has_objects and bool(path[1].strip()) and self.text.text[start:end] != "false"

    def is_object(self, path: Path) -> bool:
        """Return whether there is an object at a path."""
        return path in self.places and self.text.text[self.places[path][0]] == "{"

    def list_texts(self, key: str, language: str) -> dict[_Variation, str]:
        """Return the texts of an entry in a language by their variation."""
        return self.texts.get((key, language), {})

    def index(self) -> None:
        """Find the texts of each entry and language."""
        for path, value in self.values.items():
            if path[0] == "strings" and path[2:3] == ("localizations",) and path[-2:] == _UNIT and len(path) > 5:
                self.texts.setdefault((path[1], path[3]), {})[path[4:-2]] = value
        for key, language in self.texts:
            self.languages.setdefault(key, []).append(language)


def parse_xcstrings(content: bytes) -> Document:
    """Return the document of a string catalog. Raises DataError for other content."""
    catalog = _StringCatalog(decode(content))
    text = catalog.text

    def add_place(path: Path, start: int, end: int) -> None:
        catalog.places[path] = start, end

    for string in read_strings(text.text, on_other=add_place):
        add_place(string.path, string.start, string.end)
        catalog.values[string.path] = decode_string(text.text[string.start : string.end])
    source_language = catalog.values.get(("sourceLanguage",), "")
    if not source_language or ("strings",) not in catalog.places:
        raise DataError("the file has no sourceLanguage or no strings, so it is no string catalog", code="invalid-format")
    catalog.index()
    units: list[Unit] = []
    paths: dict[str, Path] = {}
    for key in catalog.list_entries():
        sources = catalog.list_texts(key, source_language)
        for language in catalog.languages.get(key, ()):
            for variation, value in catalog.list_texts(key, language).items() if language != source_language else ():
                path = ("strings", key, "localizations", language, *variation)
                source = _find_source(sources, variation, key)
                if source is None or not source.strip():
                    continue
                stated = catalog.values.get((*path, "stringUnit", "state"), "translated")
                state: UnitState = "untranslated" if stated == _NEW else "translated" if stated == "translated" else "fuzzy"
                unit = Unit(
                    str(len(units)),
                    source,
                    target="" if stated == _NEW else value,
                    state=state if value else "untranslated",
                    context=join_keys((key, *variation)),
                    plural_form=variation[-1] if variation[-2:-1] == ("plural",) else "",
                    target_language=language,
                )
                units.append(unit)
                check_texts(len(units), len(content))
                paths[unit.id] = path

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        path = (*paths[unit.id], "stringUnit")
        state = "translated" if translation.state == "translated" else "needs_review"
        written = ((*path, "value"), translation.text), ((*path, "state"), state)
        return [
            text.make_edit(*catalog.places[place], json.dumps(value, ensure_ascii=False))
            for place, value in written
            if place in catalog.places
        ]

    return Document(
        content,
        units,
        "xcstrings",
        make_edits,
        source_language,
        make_plural_edits=lambda language: list(_add_language(catalog, source_language, language)),
    )


def _find_source(sources: Mapping[_Variation, str], variation: _Variation, key: str) -> str | None:
    """Return the source of a variation: the same one, else that of `other`, else the text without variations or the key."""
    for general in ((), ("plural",), ("plural", "device")):
        pairs = zip(variation, ("", *variation), strict=False)
        if (source_variation := tuple("other" if parent in general else name for name, parent in pairs)) in sources:
            return sources[source_variation]
    return None if variation[:1] == ("substitutions",) else sources.get((), key)


def _add_language(catalog: _StringCatalog, source_language: str, language: str) -> Iterator[Edit]:
    """Yield the edits that add the missing texts of a language, in the state `new`."""
    stated = dict.fromkeys(code for codes in catalog.languages.values() for code in codes if code != source_language)
    code = next((code for code in stated if code == language), "") or next(
        (code for code in stated if is_same_language(code, language)), language
    )
    for key in catalog.list_entries():
        path = ("strings", key, "localizations")
        if (*path, code) in catalog.places:
            yield from _add_forms(catalog, (*path, code), key, language)
            continue
        start, end = catalog.places.get((*path, source_language), (0, 0))
        try:
            source = json.loads(catalog.text.text[start:end], strict=False) if end else {}
        except ValueError:
            raise DataError("the file has comments or a comma before an end, so it is no JSON", code="invalid-format") from None
        if isinstance(source, dict) and "stringSet" in source:  # phrases of shortcuts, which are not translated one by one
            continue
        added = _copy_new(source, language, key) if source else {"stringUnit": {"state": _NEW, "value": key}}
        if path in catalog.places:
            yield _insert(catalog, path, {code: added})
        else:
            yield _insert(catalog, path[:2], {"localizations": {code: added}})


def _add_forms(catalog: _StringCatalog, path: Path, key: str, language: str) -> Iterator[Edit]:
    """Yield the edits that add the missing plural forms of a language to the texts that it has."""
    plurals: dict[_Variation, set[str]] = {}
    for variation in catalog.list_texts(key, path[-1]):
        if variation[-2:-1] == ("plural",):
            plurals.setdefault(variation[:-1], set()).add(variation[-1])
    for variation, present in plurals.items():
        value = catalog.list_texts(key, path[-1]).get((*variation, "other"), "")
        missing = list_missing_categories(language, present)
        added = {name: {"stringUnit": {"state": _NEW, "value": value}} for name in missing}
        if added and catalog.is_object((*path, *variation)):
            yield _insert(catalog, (*path, *variation), added)


def _copy_new(source: object, language: str, key: str) -> object:
    """Return the texts of a source as new ones of a language, with its plural forms."""
    if not isinstance(source, dict):
        return source
    copied: dict[str, object] = {}
    for name, value in source.items():
        if name == "stringUnit" and isinstance(value, dict):
            copied[name] = _make_new(value, key)
        elif name == "plural" and isinstance(value, dict):
            units = {
                form: text["stringUnit"] for form, text in value.items() if isinstance(text, dict) and "stringUnit" in text
            }
            names = units.keys() | set(list_missing_categories(language, set(units)))
            if get_plural_rule(language)[0] == 1 and "other" in names:
                names &= {"zero", "other"}
            forms = (form for form in CATEGORIES if form in names)
            copied[name] = {form: {"stringUnit": _make_new(units.get(form, units.get("other")), key)} for form in forms}
        else:
            copied[name] = _copy_new(value, language, key)
    return copied


def _make_new(unit: object, key: str) -> dict[str, object]:
    """Return a text of a source, or the key of its entry, as a new one."""
    return {"state": _NEW, "value": unit.get("value", key) if isinstance(unit, dict) else key}


def _insert(catalog: _StringCatalog, path: Path, members: Mapping[str, object]) -> Edit:
    """Return the edit that adds members at the end of an object, indented as Xcode does."""
    text = catalog.text.text
    start, end = catalog.places[path]
    last = start + len(text[start : end - 1].rstrip())
    line_start = text.rfind("\n", 0, end) + 1
    indent = text[line_start : end - 1] if not text[line_start : end - 1].strip() else ""
    lines = json.dumps(members, ensure_ascii=False, indent=2, separators=(",", " : ")).split("\n")[1:-1]
    separator = "" if text[last - 1] in "{," else ","
    written = "".join(f"\n{indent}{line}" for line in lines)
    return catalog.text.make_edit(last, end - 1, f"{separator}{written}\n{indent}".replace("\n", catalog.text.newline))
