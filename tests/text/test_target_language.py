"""Sentences that are in the target language already."""

from __future__ import annotations

import errno
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dragoman.text import language_identifier, target_language
from dragoman.text.language_identifier import make_identifier
from dragoman.text.target_language import find_target_language
from expected_errors import raises_code

KEPT = (
    ("en", "de", "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."),
    ("en", "de", "Wir haben am Abend online nach einem Hotel gesucht, und es war leider keines mehr frei."),
    ("en", "de", "Das ist gut."),
    ("en", "de", "Änderungen übernehmen"),
    ("en", "de", "„Der Zug ist schon wieder zu spät gekommen“, so Baker."),
    ("en", "de", "Baker fuhr fort: „Die Bremsen wurden gestern noch geprüft.“"),
    ("en", "de", "Lake Placid 1980: Die Läufer haben am letzten Tag noch eine Medaille gewonnen."),
    ("en", "de", "Der Verein (Friends of the Lake and the Old Mill) sammelt seit zehn Jahren Spenden für das Ufer."),
    ("en", "de", "Er sagte gestern im Radio: „Stay home, please“, und niemand hat darüber gelacht."),
    ("en", "de", "Mary Smith vom Institute of Fine Arts in der Stadt Los Angeles"),
    ("en", "pt", "Ontem fomos à praia (Long Beach) com os meus pais."),
    ("es", "pt", "Não encontrei as chaves que deixei em cima da mesa."),
    ("de-DE", "en_US", "The village was destroyed by the storm, and they never returned."),
    ("en", "zh-Hans", "请使用 Git 提交您的更改。"),
    ("zh", "en", "Save the file and close it."),
)
TRANSLATED = (
    ("en", "de", "We saw the house yesterday, and it is not very big."),
    ("en", "de", "Hotel Information"),
    ("en", "de", "Apply changes"),
    ("en", "de", "Was this a hit?"),
    ("en", "de", "Herr Müller and Frau Schmidt visited the Bundesverfassungsgericht in Karlsruhe."),
    ("en", "de", 'He said: "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."'),
    ("en", "de", "He told me: Wir haben das Haus gestern gesehen, und es ist nicht sehr groß, aber sehr alt."),
    ("en", "de", "In the film „Das Haus ist alt, und wir haben es gestern nicht gesehen, weil es geregnet hat“"),
    ("de", "en", "„Wir haben das Haus gestern gesehen, und es ist nicht sehr groß“, so Brown-Shelley."),
    ("es", "pt", "No encontré las llaves que dejé encima de la mesa."),
    ("en", "zh", "The word 你好吗 means how are you."),
    ("zh", "en", "Visit 北京 and see the wall."),
    ("de", "de", "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."),
    ("", "de", "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."),
    ("xx", "de", "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."),
)


def test_sentences_that_are_surely_in_the_target_language(subtests: pytest.Subtests) -> None:
    """Each text is in the language that its words have; py3langid, an independent program, decides between Latin scripts."""
    pytest.importorskip("py3langid")
    for is_kept, cases in ((True, KEPT), (False, TRANSLATED)):
        for source, target, text in cases:
            with subtests.test(text=text):
                assert find_target_language([text], source, target) == [is_kept]


def test_neighbors_decide_about_short_texts() -> None:
    """A text that is of no language by itself stays among German texts, and is translated among English and mixed ones."""
    pytest.importorskip("py3langid")
    german = ["Wir haben das Haus gestern gesehen.", "Es war leider nicht sehr groß.", "Danach sind wir nach Hause gefahren."]
    english = ["We saw the house yesterday.", "It was not very big.", "Then we drove home."]
    short = ["Was ist los?"]
    assert find_target_language(short, "en", "de") == [False]
    assert find_target_language(german + short, "en", "de") == [True] * 4
    assert find_target_language(english + short, "en", "de") == [False] * 4
    assert find_target_language(german + short + english, "en", "de") == [True] * 3 + [False] * 4
    assert find_target_language([*german, "Apply changes"], "en", "de") == [True] * 3 + [False]
    assert find_target_language([*german, "Umarme Tom!", "Minute."], "en", "de") == [True] * 5
    mixed = ["The first line: Wir haben das Haus gestern gesehen, und es war nicht sehr groß."]
    assert find_target_language(german + mixed, "en", "de") == [True] * 4
    assert find_target_language(english + mixed, "en", "de") == [False] * 4
    far = [*german, *english * 4, *short]
    assert find_target_language(far, "en", "de") == [True] * 3 + [False] * 13


def test_identifier_of_two_languages_decides_as_the_complete_one() -> None:
    pytest.importorskip("py3langid")
    complete, small = make_identifier(norm_probs=False), make_identifier(["de", "en", "unknown"], norm_probs=False)
    complete.set_languages(["de", "en"])
    assert small.labels == complete.labels == ["de", "en"]
    for text in ("Wir haben das Haus gesehen.", "We saw the house.", "OK"):
        assert dict(small.rank(text)) == pytest.approx(dict(complete.rank(text)))


def test_threads_that_ask_at_the_same_time_read_the_tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    langid = pytest.importorskip("py3langid.langid")
    calls: list[str] = []

    def read_slowly(path: str, **_: bool) -> object:
        calls.append(path)
        time.sleep(0.1)  # the other threads ask meanwhile
        return langid.LanguageIdentifier(np.zeros((1, 2)), np.zeros(2), ["de", "en"], [0] * 256, [0], tk_row=[0])

    monkeypatch.setattr(language_identifier, "_TABLES", language_identifier._Tables())
    monkeypatch.setattr(langid.LanguageIdentifier, "from_model_file", read_slowly)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: make_identifier(norm_probs=False), range(4)))
    assert len(calls) == 1


def test_full_folder_for_temporary_files_ends_the_check_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    langid = pytest.importorskip("py3langid.langid")

    def fail(path: str) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(language_identifier, "_TABLES", language_identifier._Tables())
    monkeypatch.setattr(langid.LanguageIdentifier, "from_model_file", fail)
    target_language.load_identifier.cache_clear()
    try:
        for _ in range(2):
            assert find_target_language(["Das ist ein ganz gewöhnlicher Satz."], "en", "de") == [False]
    finally:
        target_language.load_identifier.cache_clear()
    assert len(caplog.messages) == 1
    assert "no room for the model of py3langid (No space left on device); free some, or set TMPDIR" in caplog.text
    with raises_code("disk-full", "TMPDIR"):
        make_identifier(norm_probs=True)


def test_tables_are_read_for_new_languages_and_at_most_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    langid = pytest.importorskip("py3langid.langid")
    calls: list[str] = []

    def read(path: str) -> object:
        calls.append(path)
        return langid.LanguageIdentifier(np.zeros((1, 3)), np.zeros(3), ["de", "en", "fr"], [0] * 256, [0], tk_row=[0])

    monkeypatch.setattr(language_identifier, "_TABLES", language_identifier._Tables())
    monkeypatch.setattr(langid.LanguageIdentifier, "from_model_file", read)
    asked = [("de", "en"), ("en",), ("en", "fr"), ("de", "fr"), ("fr", "xx"), ("yy",)]
    automata = set()
    for languages, num_calls in zip(asked, (1, 1, 2, 2, 3, 3), strict=True):
        identifier = make_identifier(languages, norm_probs=False)
        automata.add(id(identifier.tk_nextmove))
        assert (identifier.labels, len(calls)) == (sorted({"de", "en", "fr"} & set(languages)), num_calls)
    assert len(automata) == 1
    assert make_identifier(norm_probs=True).labels == ["de", "en", "fr"]
