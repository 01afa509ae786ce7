"""Checks of translations: each check on an output that it must flag and on outputs that it must pass."""

from __future__ import annotations

import pytest

from dragoman.text.guards import check_translation
from dragoman.text.length_ratios import LengthRatios, measure_length_ratios


def test_checks(subtests: pytest.Subtests) -> None:
    for source, translation, language, checks in [
        ("It costs 1,250 euros.", "Es kostet 1.250 Euro.", "de", []),
        ("It costs 1,250 euros.", "Es kostet 1.520 Euro.", "de", ["numbers"]),
        ("3 men", "drei Männer", "de", []),
        ("in 2019", "２０１９年", "ja", []),
        ("في عام ٢٠١٩", "in 2019", "en", []),
        ("It has 20 parts.", "Es hat 2 0 Teile.", "de", []),
        ("It has 20 parts.", "Es hat 12 Teile.", "de", ["numbers"]),
        ("It costs 0 %.", "Es kostet 05.", "de", ["numbers"]),
        ("The 2nd floor is closed.", "Der Boden ist geschlossen.", "de", ["numbers"]),
        ("The 2nd floor is closed.", "Der 2. Stock ist geschlossen.", "de", []),
        ("The 2nd floor is closed.", "Die zweite Etage ist geschlossen.", "de", []),
        ("It has 2 floors and a 12TH one.", "Es hat Etagen und eine zwölfte.", "de", []),
        ("It is 5% more.", "Das ist mehr.", "de", ["numbers"]),
        ("It is 5% more.", "Das sind 5 % mehr.", "de", []),
        ("It is 0.5 mm.", "Das sind mm.", "de", ["numbers"]),
        ("It is 12° warm.", "Es ist warm.", "de", ["numbers"]),
        ("It costs €5.", "Es kostet Geld.", "de", ["numbers"]),
        ("It costs 5 €.", "Es kostet 5.", "de", ["numbers"]),
        ("It costs £250, I said.", "Es kostet 250, sagte ich.", "de", ["numbers"]),
        ("It costs $3bn now.", "Das kostet jetzt 3 Milliarden Dollar.", "de", []),
        ("It costs €5.", "Es kostet 5,- Euro.", "de", []),
        ("It costs €5.", "Es kostet EUR 5.", "de", []),
        ("It costs €5.", "它的价格是5欧元。", "zh", []),
        ("It costs £5.", "Es kostet \ufffdcat5.", "de", ["numbers", "script"]),
        ("\ufffd is here.", "\ufffd ist hier.", "de", []),
        ("See https://a.b/c?d=1.", "Siehe https://a.b/c?d=1 dort.", "de", []),
        ("See https://a.b/c?d=1.", "Siehe https://a.b/c.", "de", ["urls"]),
        ("Mail me@a.org", "Schreiben", "de", ["emails"]),
        ("The dog runs fast", "Der Hund läuft und läuft und läuft und läuft", "de", ["repetition"]),
        ("no no no no no", "nein nein nein nein nein", "de", []),
        ("a b c d. a b c d. a b c d.", "e f g h. e f g h. e f g h.", "de", []),
        ("A long enough sentence of words.", "Ja", "de", ["length", "endpunc"]),
        ("The file was not saved to the disk.", "Die Datei wurde nicht", "de", ["endpunc"]),
        ("The file was not saved to the disk.", "Die Datei wurde nicht.", "de", []),
        ("The file was not saved to the disk", "Die Datei wurde nicht", "de", []),
        ("The file was not saved to the disk.", "Die Datei wurde nicht auf der Platte gespeichert", "de", []),
        ("The file was not saved to the disk.", "文件未保存到磁盘", "zh", []),
        ("Open the main window now", "Open the main window now", "de", ["untranslated"]),
        ("LibreOffice Writer", "LibreOffice Writer", "de", []),
        ("The weather is fine today, I think.", "Die Wetter ist heute gut, denke ich.", "ru", ["script"]),
        ("The weather is fine today, I think.", "今天天气很好，我想是这样的，你觉得呢？真的很好啊", "zh", []),
        ("Run git commit --amend --no-edit --quiet", "git commit --amend --no-edit --quiet を", "ja", []),
    ]:
        with subtests.test(source=source, translation=translation, language=language, checks=checks):
            assert check_translation(source, translation, language) == checks


def test_length_ratios_are_quantiles_of_the_training_pairs() -> None:
    # 10,000 sources of 40 and of 100 characters. In each bucket, 10 of 10,000 ratios are below each limit.
    short = [(40, 10 + index % 100) for index in range(10_000)]
    long = [(100, 80 + index % 41) for index in range(10_000)]
    outliers = [(40, 1)] * 10 + [(40, 900)] * 10 + [(100, 1)] * 10 + [(100, 900)] * 10
    ratios = measure_length_ratios(short + long + outliers, "en", "de")
    assert ratios == LengthRatios("en", "de", (40,), (10 / 40, 80 / 100), (109 / 40, 120 / 100))
    assert measure_length_ratios(short[:999]) is None
    source = "a b c d e f g h i j k l m n o p q r s t " * 2 + "u v w x y z a b c d "
    assert len(source) == 100
    for length, expected in ((79, ["length"]), (80, []), (120, []), (121, ["length"])):
        translation = "".join(chr(0xC0 + index % 23) for index in range(length))
        assert check_translation(source, translation, "de", ratios) == expected
        assert check_translation(source, translation, "de") == []
    with pytest.raises(ValueError, match="bucket"):
        LengthRatios("en", "de", (40,), (0.5,), (2.0,))
