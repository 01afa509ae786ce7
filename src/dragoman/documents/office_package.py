"""Office Open XML packages: the names of the parts with texts, and packages that cannot be translated."""

from __future__ import annotations

import re
from collections.abc import Collection

from dragoman.documents.reading import check_parts
from dragoman.documents.zip_document import ZipMembers

_TYPES_MEMBER = "[Content_Types].xml"
_MAIN_TYPES = {
    "docx": ("wordprocessingml.document.main+xml", "wordprocessingml.template.main+xml"),
    "pptx": (
        "presentationml.presentation.main+xml",
        "presentationml.slideshow.main+xml",
        "presentationml.template.main+xml",
    ),
    "xlsx": ("spreadsheetml.sheet.main+xml", "spreadsheetml.template.main+xml"),
}
# Main parts of files with macros, such as `ms-word.template.macroEnabledTemplate.main+xml`, are read as those without.
_MACRO_TYPE = re.compile(r"ms-(word|excel|powerpoint)\.(\w+)\.macroEnabled(?:Template)?(?=\.main\+xml$)")
_FAMILIES = {"word": "wordprocessingml", "excel": "spreadsheetml", "powerpoint": "presentationml"}


def list_parts(members: ZipMembers, part_types: Collection[str]) -> list[str]:
    """Return the members whose content type ends with one of `part_types`, in the order of the archive.

    Raises DataError for a package with a signature, and for one of another kind than its format.
    """
    source = members.read_xml(_TYPES_MEMBER)
    overrides: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for element in source.iter_elements(("Override", "Default")):
        check_parts(len(overrides) + len(defaults))
        if element.name == "Override":
            overrides[element.attributes.get("PartName", "").lstrip("/")] = element.attributes.get("ContentType", "")
        else:
            defaults[element.attributes.get("Extension", "").lower()] = element.attributes.get("ContentType", "")
    types = {
        name: _MACRO_TYPE.sub(
            lambda match: f"{_FAMILIES[match[1]]}.{match[2]}",
            overrides.get(name) or defaults.get(name.rpartition(".")[2].lower(), ""),
        )
        for name in members.members
    }
    if any(name.startswith("_xmlsignatures/") for name in members.members):
        raise members.error("has a digital signature, which a change breaks; remove the signature first")
    if not any(kind.endswith(_MAIN_TYPES[members.format_name]) for kind in types.values()):
        raise members.error("holds a document of another kind; give it the name that fits", "unknown-format")
    return [name for name in members.members if types[name].endswith(tuple(part_types))]
