"""Names of translated files: beside the original, or where the program that reads the project looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.languages import is_known_language, is_same_language

_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_](?:[A-Za-z]{4}|r?[A-Za-z]{2}|[0-9]{3})){0,2}")
_LOCALE_FOLDERS = {
    "_locales", "content", "i18n", "l10n", "lang", "langs", "language", "languages", "locale", "locales", "messages", "po",
    "strings", "translations",
}  # fmt: skip
"""Names of folders with a file, or a folder, for each language."""
_WITH_UNDERSCORE = {".arb", ".po", ".properties", ".rb"}
MAX_PARENTS = 6
"""Folders above a file whose names may be the code of its language."""


def get_output_suffix(path: Path) -> str:
    """Return the ending of the translation of a file: that of the file, and .po for a template of catalogs."""
    return ".po" if path.suffix.lower() == ".pot" else path.suffix


def name_beside(path: Path, language: str) -> Path:
    """Return the name of a translation beside a file, such as `en.de.json` for `en.json`."""
    return path.with_suffix(f".{language or 'translated'}{get_output_suffix(path)}")


def name_in_project(path: Path, source: str, target: str) -> Path | None:
    """Return the name under which the program of a project looks for the translation of a file; None if none is known.

    The code of the source's language is replaced in the name of the file, or in that of a folder above it: `en.json`,
    `messages_en.properties`, `locales/en/app.json`, `en.lproj`. Android's `values`, Apple's `Base.lproj`, files of Java
    without a code, and templates of gettext have rules of their own. A file that exists for the target's language is taken.

    source, target: codes of the languages
    """
    if path.suffix.lower() == ".pot":
        return _name_catalog(path, target)
    folder = _replace_folder(path.parent, source, target, path.suffix)
    stem = _replace_code(path.stem, source, target, [file.stem for file in _list_files(path.parent, path.suffix)], path.suffix)
    if (
        stem is None
        and path.suffix == ".properties"
        and not any(path.stem[start - 1] == "_" for start, _ in _find_codes(path.stem))
    ):
        stem = f"{path.stem}_{target.replace('-', '_')}"
    if stem is None and folder is None:
        stem = _add_code(path, target)
        if stem is None:
            return None
    return (path.parent if folder is None else folder) / (path.name if stem is None else f"{stem}{path.suffix}")


def find_original(path: Path, source: str, target: str) -> Path | None:
    """Return the file whose translation has this name beside it, or in its project; None if there is none.

    source, target: codes of the languages; without them, only `name.json` is found, whose translation is `name.de.json`
    """
    stem, dot, _ = path.stem.rpartition(".")
    beside = path.with_name(stem + path.suffix)
    if dot and beside.is_file():
        return beside
    if not source or not target:
        return None
    candidates = [
        file
        for file in _list_files(path.parent, path.suffix)
        if path.suffix == ".properties" or any(is_same_language(code, source) for _, code in _find_codes(file.stem))
    ]
    for folder in [path.parent, *path.parent.parents][:MAX_PARENTS]:
        candidates += [sibling / path.relative_to(folder) for sibling in _list_folders(folder.parent)]
    files = (file for file in candidates if file != path and file.is_file())
    return next((file for file in files if name_in_project(file, source, target) == path), None)


def find_other_language(path: Path, root: Path, source: str) -> str:
    """Return the code of another language that a file, or a folder around it, has beside one of the source's; empty for none.

    root: folder that the file is in, whose own name does not count
    """
    for _, code in _find_codes(path.stem):
        if _is_other(code, source) and find_original(path, source, code) is not None:
            return code
    for folder in path.parents[: len(path.relative_to(root).parts) - 1]:
        siblings = [_strip_folder(entry.name) for entry in _list_folders(folder.parent)]
        code = _strip_folder(folder.name)
        if _is_other(code, source) and any(name in ("Base", "values") or _is_named_for(name, source) for name in siblings):
            return code
    return ""


def _is_other(code: str, source: str) -> bool:
    return _CODE.fullmatch(code) is not None and is_known_language(code) and not is_same_language(code, source)


def _strip_folder(name: str) -> str:
    """Return the code of a folder of Android or Apple; other names stay."""
    return name.removesuffix(".lproj").removeprefix("values-").removeprefix("b+").replace("+", "-")


def _name_catalog(path: Path, target: str) -> Path | None:
    """Return the place of the catalog of a template of gettext: `locale/de/LC_MESSAGES/app.po`, or `po/de.po`."""
    folders = [path.parent, path.parent.parent]
    for folder in folders:
        codes = [
            entry.name for entry in _list_folders(folder) if (entry / "LC_MESSAGES").is_dir() and _CODE.fullmatch(entry.name)
        ]
        if codes:
            return folder / _spell(target, ["", *codes], "_") / "LC_MESSAGES" / f"{path.stem}.po"
    codes = [file.stem for file in _list_files(path.parent, ".po") if _CODE.fullmatch(file.stem)]
    return path.with_name(f"{_spell(target, ['', *codes], '_')}.po") if codes or path.parent.name == "po" else None


def _replace_folder(parent: Path, source: str, target: str, suffix: str) -> Path | None:
    """Return the folder of the target's language in the place of the nearest folder that is named for the source's."""
    for folder in [parent, *parent.parents][:MAX_PARENTS]:
        siblings = [entry.name for entry in _list_folders(folder.parent)]
        name = None
        if folder.name == "values" and suffix == ".xml":
            name = _replace_code(f"values-{source}", source, target, siblings, suffix)
        elif folder.suffix == ".lproj":
            stem = source if folder.stem == "Base" else folder.stem
            stems = [sibling.removesuffix(".lproj") for sibling in siblings]
            name = _add_suffix(_replace_code(stem, source, target, stems, suffix), ".lproj")
        elif folder.name.startswith("values-") and suffix == ".xml":
            name = _replace_code(folder.name, source, target, siblings, suffix)
        elif _is_named_for(folder.name, source) and (
            folder.parent.name.lower() in _LOCALE_FOLDERS
            or any(_CODE.fullmatch(sibling) for sibling in siblings if sibling != folder.name)
        ):
            is_underscored = folder.parent.name == "_locales" or "LC_MESSAGES" in parent.parts
            name = _replace_code(folder.name, source, target, siblings, ".po" if is_underscored else suffix)
        if name is not None:
            return folder.parent / name / parent.relative_to(folder)
    return None


def _add_code(path: Path, target: str) -> str | None:
    """Return a name without a code with that of the target, as `Texts.de` in .NET or if `Texts.fr` is beside it."""
    names = [file.stem for file in _list_files(path.parent, path.suffix) if file.stem.startswith(f"{path.stem}.")]
    codes = [code for name in names if _CODE.fullmatch(code := name[len(path.stem) + 1 :])]
    has_code = any(path.stem[start - 1] == "." for start, _ in _find_codes(path.stem))
    return f"{path.stem}.{_spell(target, ['', *codes], '-')}" if codes or (path.suffix == ".resx" and not has_code) else None


def _is_named_for(name: str, language: str) -> bool:
    """Return whether a name is the code of a language, with or without a region."""
    return _CODE.fullmatch(name) is not None and is_same_language(name, language)


def _replace_code(name: str, source: str, target: str, siblings: Iterable[str], suffix: str) -> str | None:
    """Return a name whose code, the whole of it or its end, is that of the target; None without a code of the source.

    siblings: names of the files or folders beside it
    suffix: ending of the file, which tells how a region is written if no code has one
    """
    for start, code in _find_codes(name):
        if is_same_language(code, source):
            stem = name[:start]
            codes = [sibling[start:] for sibling in siblings if sibling.startswith(stem) and _CODE.fullmatch(sibling[start:])]
            separator = "-r" if stem == "values-" else "_" if suffix in _WITH_UNDERSCORE else "-"
            return stem + _spell(target, [code, *codes], separator)
    return None


def _find_codes(name: str) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each code of a language that a name may be, or may end in; the longest first."""
    starts = [0, *(match.end() for match in re.finditer(r"[-_.]", name))]
    return ((start, name[start:]) for start in starts if _CODE.fullmatch(name[start:]))


def _spell(target: str, codes: Sequence[str], separator: str) -> str:
    """Return a code as the codes of a project are written: the project's own one, if it has one for this language.

    codes: those of the project, that of the source first
    separator: what stands before a region, if no code has one
    """
    plain = re.sub("-r(?=[A-Z])|_", "-", target)
    present = {re.sub("-r(?=[A-Z])|_", "-", code).lower(): code for code in codes if is_same_language(code, target)}
    if plain.lower() in present:
        return present[plain.lower()]
    regional = next((code for code in codes if "-" in code or "_" in code), "")
    if len(present) == 1 and "-" not in plain and regional == codes[0]:
        return next(iter(present.values()))
    if regional:
        separator = "_" if "_" in regional else "-r" if separator == "-r" else "-"
        plain = plain.lower() if regional.islower() else plain
    if separator == "-r" and re.search("-(?![A-Za-z]{2}$)", plain):  # a script or a number, which Android writes otherwise
        return f"b+{plain.replace('-', '+')}"
    return plain.replace("-", separator)


def _add_suffix(name: str | None, suffix: str) -> str | None:
    return None if name is None else name + suffix


def _list_folders(folder: Path) -> list[Path]:
    return [entry for entry in _list(folder) if entry.is_dir()]


def _list_files(folder: Path, suffix: str) -> list[Path]:
    return [entry for entry in _list(folder) if entry.suffix == suffix]


def _list(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted; nothing for a folder that cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
