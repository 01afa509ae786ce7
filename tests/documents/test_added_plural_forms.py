"""Plural forms of the target language in catalogs and files of keys, and catalogs made of templates."""

from __future__ import annotations

import gettext
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from document_checks import translate_content

from dragoman.documents import json_file, po, qt_ts, yaml_file
from dragoman.documents.document import UnitTranslation, add_plural_forms, write_document
from dragoman.documents.plural_forms import _LIKE_ONE, get_number
from dragoman.documents.plural_rules import _BY_LANGUAGE, get_plural_rule, list_qt_forms
from dragoman.documents.translate_document import DocumentOptions
from expected_errors import raises_code

TEMPLATE = """# Title.
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: tool\\n"
"Language: \\n"
"Content-Type: text/plain; charset=CHARSET\\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgid "Open"
msgstr ""
"""


@pytest.mark.parametrize("language", [*sorted(set(_BY_LANGUAGE) - {"ar", "cy"}), "de", "es", "pt", "pt_BR"])
def test_rules_are_those_of_babel(language: str) -> None:
    plurals = pytest.importorskip("babel.messages.plurals").PLURALS
    if language not in plurals:
        pytest.skip(f"Babel has no rule of gettext for {language}")
    count, expression = get_plural_rule(language)
    assert count == plurals[language][0]
    ours, theirs = gettext.c2py(expression), gettext.c2py(plurals[language][1])
    assert [ours(number) for number in range(300)] == [theirs(number) for number in range(300)]


@pytest.mark.parametrize(
    ("language", "names"),
    [
        *((language, "zero one two few many other") for language in ("ar", "cy")),
        *((language, "one two few other") for language in ("dsb", "gd", "hsb", "sl")),
    ],
)
def test_forms_are_the_categories_of_cldr(language: str, names: str) -> None:
    """Babel's rules of gettext for Arabic and Welsh have other limits, and it has none for some languages."""
    babel = pytest.importorskip("babel")
    form = gettext.c2py(get_plural_rule(language)[1])
    category = babel.Locale.parse(language).plural_form
    assert [names.split()[form(number)] for number in range(300)] == [category(number) for number in range(300)]


RAILS = b"en:\n  files:\n    one: a file\n    other: '%{count} files'\n  name: Files\n"
RAILS_IN_BRACES = b"en: {files: {one: a file, other: some files}}\n"
NESTED = b'{\n  "en": {"files": {\n    "one": "a file",\n    "other": "{{n}} files"\n  }}}'
I18NEXT = b'{"en": {"files_one": "a file", "files_other": "files"}}'


@pytest.mark.parametrize(("language", "expected"), [("de", "one other"), ("pl", "few many one other")])
def test_yaml_and_json_get_the_categories_of_the_language(language: str, expected: str) -> None:
    yaml = pytest.importorskip("ruamel.yaml").YAML(typ="safe")
    for content, parse in ((RAILS, yaml_file.parse), (RAILS_IN_BRACES, yaml_file.parse), (NESTED, json_file.parse)):
        document = add_plural_forms(parse(content), parse, language)
        assert sorted(unit.plural_form for unit in document.units if unit.plural_form) == expected.split(), content
        assert sorted(yaml.load(document.content)["en"]["files"]) == expected.split()
    keys = json.loads(add_plural_forms(json_file.parse(I18NEXT), json_file.parse, language).content)
    assert sorted(keys["en"]) == [f"files_{category}" for category in expected.split()]


@pytest.mark.parametrize(("name", "content"), [
    ("a.json", '{"a": {"one": "One file of %s", "other": "%d files of %s"}}'),
    ("a.json", '{"a": "{g, select, other {{n, plural, one {One file of %s} other {%d files of %s}}}}"}'),
    ("strings.xml", '<resources><plurals name="a"><item quantity="one">One file of %s</item>'
     '<item quantity="other">%d files of %s</item></plurals></resources>'),
])  # fmt: skip
def test_form_of_several_numbers_has_its_number(name: str, content: str) -> None:
    """Russian has the form `one` also for 21, and Polish for 1 only."""
    for language, count in (("ru", 0), ("pl", 1)):
        written = translate_content(name, content, str, DocumentOptions("en", language)).content.decode()
        assert written.count("One file") == count
        assert written.count("%d files of %s") == 4 - count


@pytest.mark.parametrize("language", sorted(_LIKE_ONE))
def test_numbers_like_one_are_those_of_cldr(language: str) -> None:
    assert pytest.importorskip("babel").Locale.parse(language).plural_form(_LIKE_ONE[language]) == "one"


def test_objects_with_other_keys_have_no_forms() -> None:
    content = b'{"choices": {"one": "The one", "other": "Another", "title": "Choices"}, "other": "Other", "one": "One"}'
    assert add_plural_forms(json_file.parse(content), json_file.parse, "pl").content == content


def test_messages_of_qt_get_the_forms_of_the_language() -> None:
    """Qt's lupdate writes one form in Japanese and Hungarian, three in Polish, and six in Arabic."""
    content = (
        b'<TS version="2.1" language="%s" sourcelanguage="en"><context><name>W</name>'
        b'<message numerus="yes"><source>%%n file(s)</source><translation><numerusform/></translation></message>'
        b'<message numerus="yes"><source>%%n new</source><translation type="unfinished"/></message>'
        b'<message numerus="yes"><source>old</source><translation type="vanished"/></message></context></TS>'
    )
    for language, count in ((b"ja", 1), (b"hu", 1), (b"pl", 3), (b"ar", 6), (b"cy", 5), (b"ga", 3)):
        document = qt_ts.parse_qt_ts(content % language)
        document = add_plural_forms(document, qt_ts.parse_qt_ts, language.decode())
        assert [unit.plural_form for unit in document.units] == [*list_qt_forms(language.decode())] * 2
        assert len(document.units) == 2 * count


def test_singular_of_catalog_is_the_form_of_one() -> None:
    header = f'msgid ""\nmsgstr "Plural-Forms: nplurals=6; plural=({get_plural_rule("ar")[1]});\\n"\n\n'
    forms = "".join(f'msgstr[{form}] ""\n' for form in range(6))
    document = po.parse(f'{header}msgid "One day"\nmsgid_plural "%d days"\n{forms}'.encode())
    assert [unit.source for unit in document.units] == ["%d days", "One day", *["%d days"] * 4]


@pytest.mark.parametrize(("language", "num_forms"), [("ja", 1), ("de", 2), ("ru", 3), ("sl", 4), ("ar", 6)])
def test_template_becomes_a_catalog_of_the_language(language: str, num_forms: int, tmp_path: Path) -> None:
    """Babel reads the result, and msgfmt compiles it where it is installed."""
    pofile = pytest.importorskip("babel.messages.pofile")
    document = add_plural_forms(po.parse(TEMPLATE.encode()), po.parse, language)
    content = write_document(document, {unit.id: UnitTranslation(f"ü {unit.source}") for unit in document.units}, language)
    assert content.startswith(b'# Title.\nmsgid ""\n')
    catalog = pofile.read_po(io.BytesIO(content), abort_invalid=True)
    assert (str(catalog.locale), catalog.num_plurals, catalog.charset, catalog.fuzzy) == (language, num_forms, "utf-8", False)
    entry = catalog.get("%d file")
    assert len(entry.string) == num_forms
    assert all(entry.string)
    assert "c-format" in entry.flags
    assert "fuzzy" not in entry.flags
    if shutil.which("msgfmt"):
        path = tmp_path / "a.po"
        path.write_bytes(content)
        subprocess.run(["msgfmt", "--check-format", "--check-domain", "-o", tmp_path / "a.mo", path], check=True)


def test_template_without_a_header_gets_one() -> None:
    content = b'msgid "Open"\nmsgstr ""\n'
    document = add_plural_forms(po.parse(content), po.parse, "pt-BR")
    assert document.content.startswith(
        b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: pt_BR\\n"\n'
        b'"Plural-Forms: nplurals=2; plural=(n > 1);\\n"\n\nmsgid "Open"'
    )


def test_template_of_babel_gets_a_language() -> None:
    """Babel's templates state UTF-8, and neither a language nor plural forms."""
    head = '#, fuzzy\nmsgid ""\nmsgstr ""\n"Generated-By: Babel 2.16\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    entry = 'msgid "a day"\nmsgid_plural "%(n)d days"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    document = add_plural_forms(po.parse((head + entry).encode()), po.parse, "ru")
    assert '"Language: ru\\n"' in document.content.decode()
    assert "fuzzy" not in document.content.decode()
    assert len(document.units) == 3
    translated = (head + entry.replace('[0] ""', '[0] "x"')).encode()
    assert add_plural_forms(po.parse(translated), po.parse, "ru").content == translated


def test_template_may_state_the_language_of_its_sources() -> None:
    content = (
        b'msgid ""\nmsgstr ""\n"Project-Id-Version: PACKAGE VERSION\\n"\n"Language: en_US\\n"\n'
        b'"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
        b'msgid "Open"\nmsgstr ""\n'
    )
    options = DocumentOptions("en", "ja")
    result = translate_content("a.po", content, lambda line: f"ü {line}", options)
    written = result.content.decode()
    assert '"Language: ja\\n"\n' in written
    assert '"Plural-Forms: nplurals=1; plural=(0);\\n"\n' in written
    assert 'msgstr "ü Open"' in written
    with raises_code("unsupported-language"):
        translate_content("a.po", content.replace(b"en_US", b"fr"), options=options)


def test_catalogs_of_a_language_keep_their_headers() -> None:
    content = TEMPLATE.replace("CHARSET", "UTF-8").replace("INTEGER; plural=EXPRESSION", "2; plural=(n > 1)").encode()
    assert add_plural_forms(po.parse(content), po.parse, "ru").content == content


def test_catalog_with_translations_keeps_its_language() -> None:
    """Otherwise its translations would stand in a catalog of another language."""
    polish = b'msgid ""\nmsgstr "Language: pl\\n"\n\nmsgid "Open"\nmsgstr "Otw\xc3\xb3rz"\n'
    assert add_plural_forms(po.parse(polish), po.parse, "de").content == polish
    assert b"Language: de" in add_plural_forms(po.parse(polish.replace(b"Otw\xc3\xb3rz", b"")), po.parse, "de").content


@pytest.mark.parametrize(("language", "ends"), [("de", ""), ("ja", "0"), ("pl", "0 1 2"), ("ar", "0 1 2 3 4 5"), ("sl", "")])
def test_forms_of_i18next_3_have_numbers(language: str, ends: str) -> None:
    document = json_file.parse(b'{"a": "One", "a_plural": "{{count}} files", "step_0": "First"}')
    document = add_plural_forms(document, json_file.parse, language)
    forms = {unit.key: unit.plural_form for unit in document.units if unit.plural_form}
    assert forms == {f"a_{end}": f"#{end}" for end in ends.split()}
    assert json.loads(document.content).keys() - {"a", "a_plural", "step_0"} == forms.keys()
    assert add_plural_forms(document, json_file.parse, language) is document
    other = json_file.parse(b'{"a": "One", "a_plural": "Two"}')
    assert add_plural_forms(other, json_file.parse, language) is other


def test_number_of_a_form_of_i18next_3_has_that_form() -> None:
    assert [get_number(f"#{form}", "pl") for form in range(4)] == [1, 2, 5, None]
