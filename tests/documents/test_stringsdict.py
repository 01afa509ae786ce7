"""Files of plural forms of Apple: forms, formats with words, added forms, and files that are none."""

from __future__ import annotations

import plistlib

from document_checks import check_document

from dragoman.documents.document import UnitTranslation, add_plural_forms, write_document
from dragoman.documents.stringsdict import parse_stringsdict

FILE = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
\t<key>%d files</key>
\t<dict>
\t\t<key>NSStringLocalizedFormatKey</key>
\t\t<string>%#@files@ in %#@places@</string>
\t\t<key>files</key>
\t\t<dict>
\t\t\t<key>NSStringFormatSpecTypeKey</key>
\t\t\t<string>NSStringPluralRuleType</string>
\t\t\t<key>NSStringFormatValueTypeKey</key>
\t\t\t<string>d</string>
\t\t\t<key>one</key>
\t\t\t<string>%d file &amp; more</string>
\t\t\t<key>other</key>
\t\t\t<string>%d files &amp; more</string>
\t\t</dict>
\t</dict>
</dict>
</plist>
"""


def test_forms_and_formats_are_texts() -> None:
    document = check_document(parse_stringsdict, FILE)
    assert [(unit.source, unit.plural_form) for unit in document.units] == [
        ("%#@files@ in %#@places@", ""), ("%d file & more", "one"), ("%d files & more", "other"),
    ]  # fmt: skip


def test_widths_and_devices_are_texts() -> None:
    rules = "".join(
        f"<key>{name}</key><dict><key>NSString{kind}RuleType</key><dict><key>{case}</key><string>A text</string></dict></dict>"
        for name, kind, case in (("a", "VariableWidth", "20"), ("b", "DeviceSpecific", "mac"))
    )
    document = check_document(parse_stringsdict, f"<plist><dict>{rules}</dict></plist>".encode())
    assert [unit.source for unit in document.units] == ["A text"] * 2


def test_forms_of_the_language_are_added() -> None:
    document = add_plural_forms(parse_stringsdict(FILE), parse_stringsdict, "pl")
    translations = {unit.id: UnitTranslation(f"<{unit.plural_form}>") for unit in document.units[1:]}
    files = plistlib.loads(write_document(document, translations))["%d files"]["files"]
    assert {name: text for name, text in files.items() if not name.startswith("NS")} == {
        name: f"<{name}>" for name in ("one", "few", "many", "other")
    }
    assert add_plural_forms(parse_stringsdict(FILE), parse_stringsdict, "de").content == FILE
