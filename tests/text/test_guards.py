"""Checks of translations: each check on an output that it must flag and on outputs that it must pass."""

from __future__ import annotations

import pytest

from dragoman.text.guards import check_translation


@pytest.mark.parametrize(
    ("source", "translation", "language", "checks"),
    [
        ("It costs 1,250 euros.", "Es kostet 1.250 Euro.", "de", []),
        ("It costs 1,250 euros.", "Es kostet 1.520 Euro.", "de", ["numbers"]),
        ("3 men", "drei Männer", "de", []),
        ("in 2019", "２０１９年", "ja", []),
        ("في عام ٢٠١٩", "in 2019", "en", []),
        ("See https://a.b/c?d=1.", "Siehe https://a.b/c?d=1 dort.", "de", []),
        ("See https://a.b/c?d=1.", "Siehe https://a.b/c.", "de", ["urls"]),
        ("Mail me@a.org", "Schreiben", "de", ["emails"]),
        ("The dog runs fast", "Der Hund läuft und läuft und läuft und läuft", "de", ["repetition"]),
        ("no no no no no", "nein nein nein nein nein", "de", []),
        ("a b c d. a b c d. a b c d.", "e f g h. e f g h. e f g h.", "de", []),
        ("A long enough sentence of words.", "Ja", "de", ["length"]),
        ("Open the main window now", "Open the main window now", "de", ["untranslated"]),
        ("LibreOffice Writer", "LibreOffice Writer", "de", []),
        ("The weather is fine today, I think.", "Die Wetter ist heute gut, denke ich.", "ru", ["script"]),
        ("The weather is fine today, I think.", "今天天气很好，我想是这样的，你觉得呢？真的很好啊", "zh", []),
        ("Run git commit --amend --no-edit --quiet", "git commit --amend --no-edit --quiet を", "ja", []),
    ],
)
def test_checks(source: str, translation: str, language: str, checks: list[str]) -> None:
    assert check_translation(source, translation, language) == checks
