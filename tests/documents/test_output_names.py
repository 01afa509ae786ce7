"""Names of translated files in projects. Sources: the documentation of each program that is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.documents.output_names import find_original, name_beside, name_in_project

NAMES = [
    # i18next, vue-i18n, Rails, Angular, Flutter, Chrome
    ("locales/en/common.json", [], "de", "locales/de/common.json"),
    ("src/en.json", [], "de", "src/de.json"),
    ("config/locales/devise.en.yml", [], "pt-BR", "config/locales/devise.pt-BR.yml"),
    ("lib/l10n/app_en.arb", [], "pt-BR", "lib/l10n/app_pt_BR.arb"),
    ("_locales/en/messages.json", ["_locales/zh_CN/messages.json"], "zh-TW", "_locales/zh_TW/messages.json"),
    ("assets/en-US.json", ["assets/fr-FR.json", "assets/de-DE.json"], "de", "assets/de-DE.json"),
    ("assets/en-us.json", [], "pt-BR", "assets/pt-br.json"),
    ("assets/en.json", ["assets/zh-TW.json"], "zh", "assets/zh.json"),
    # Android, Apple
    ("res/values/strings.xml", [], "de", "res/values-de/strings.xml"),
    ("res/values/strings.xml", [], "pt-BR", "res/values-pt-rBR/strings.xml"),
    ("res/values/strings.xml", [], "zh-Hant-TW", "res/values-b+zh+Hant+TW/strings.xml"),
    ("res/values/strings.xml", ["res/values-pt-rBR/strings.xml"], "es-419", "res/values-b+es+419/strings.xml"),
    ("res/values-en-rGB/strings.xml", [], "de", "res/values-de/strings.xml"),
    ("App/Base.lproj/Main.strings", [], "de", "App/de.lproj/Main.strings"),
    ("App/en.lproj/Main.strings", [], "zh-Hans", "App/zh-Hans.lproj/Main.strings"),
    # Java, .NET
    ("src/messages.properties", [], "de", "src/messages_de.properties"),
    ("src/messages_en.properties", [], "pt-BR", "src/messages_pt_BR.properties"),
    ("Strings/en-US/Resources.resw", ["Strings/fr-FR/Resources.resw"], "de-DE", "Strings/de-DE/Resources.resw"),
    ("src/Texts.resx", [], "de", "src/Texts.de.resx"),
    # gettext, Django, Qt
    ("po/app.pot", ["po/fr.po"], "pt-BR", "po/pt_BR.po"),
    ("locale/django.pot", ["locale/fr/LC_MESSAGES/django.po"], "de", "locale/de/LC_MESSAGES/django.po"),
    ("app/locale/en/LC_MESSAGES/django.po", [], "pt-BR", "app/locale/pt_BR/LC_MESSAGES/django.po"),
    ("i18n/app_en.ts", [], "de", "i18n/app_de.ts"),
    # Angular, Hugo
    ("src/locale/messages.xlf", ["src/locale/messages.pt-BR.xlf"], "zh-CN", "src/locale/messages.zh-CN.xlf"),
    ("content/en/guide/start/first.md", [], "de", "content/de/guide/start/first.md"),
    # Without a rule
    ("README.md", [], "de", None),
    ("src/app.pot", [], "de", None),
    ("en/notes.md", [], "de", None),
    ("res/layout/main.xml", [], "de", None),
    ("src/broken.json", [], "de", None),
]


@pytest.mark.parametrize(("original", "others", "target", "expected"), NAMES)
def test_programs_find_the_names(original: str, others: list[str], target: str, expected: str | None, tmp_path: Path) -> None:
    for name in [original, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    translation = name_in_project(tmp_path / original, "en", target)
    assert translation == (tmp_path / expected if expected else None)


def test_originals_are_found_by_the_same_rules(tmp_path: Path) -> None:
    for original, others, target, expected in NAMES:
        for name in [original, *others, expected or original]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        if expected and not original.endswith(".pot") and target != "zh":
            origin = find_original(tmp_path / expected, "en", target)
            assert origin is not None
            assert name_in_project(origin, "en", target) == tmp_path / expected
    assert find_original(tmp_path / "README.md", "en", "de") is None


def test_other_names_stand_beside_the_original() -> None:
    assert name_beside(Path("a/index.html"), "de") == Path("a/index.de.html")
    assert name_beside(Path("a/app.pot"), "de") == Path("a/app.de.po")
    assert name_beside(Path("a.md"), "") == Path("a.translated.md")


def test_project_names_refuse_a_folder() -> None:
    result = CliRunner().invoke(cli, ["translate-file", "en-de", "a.json", "--project-names", "-o", "out"])
    assert result.exit_code == 2
    assert "give one of them" in result.output
