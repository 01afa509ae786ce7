"""Sentences that are in the target language already."""

from __future__ import annotations

import pytest

from dragoman.text.language_identifier import make_identifier
from dragoman.text.target_language import is_in_target_language

KEPT = (
    ("en", "de", "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."),
    ("en", "de", "Wir haben am Abend online nach einem Hotel gesucht, und es war leider keines mehr frei."),
    ("de-DE", "en_US", "The village was destroyed by the storm, and they never returned."),
    ("en", "zh-Hans", "请使用 Git 提交您的更改。"),
    ("zh", "en", "Save the file and close it."),
)
TRANSLATED = (
    ("en", "de", "We saw the house yesterday, and it is not very big."),
    ("en", "de", "Hotel Information"),
    ("en", "de", "Das ist gut."),
    ("en", "de", "Rainer Werner Fassbinder, Werner Herzog, Wim Wenders und Andere"),
    ("en", "de", "Herr Müller and Frau Schmidt visited the Bundesverfassungsgericht in Karlsruhe."),
    ("en", "de", 'He said: "Wir haben das Haus gestern gesehen, und es ist nicht sehr groß."'),
    ("en", "de", "He told me: Wir haben das Haus gestern gesehen, und es ist nicht sehr groß, aber sehr alt."),
    ("en", "de", "In the film „Das Haus ist alt, und wir haben es gestern nicht gesehen, weil es geregnet hat“"),
    ("en", "de", "for (int der = 0; der < ein; der++) { ist.und(nicht); }"),
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
                assert is_in_target_language(text, source, target) is is_kept


def test_restricted_identifier_leaves_others_unrestricted() -> None:
    pytest.importorskip("py3langid")
    make_identifier(norm_probs=True).set_languages(["de", "en"])
    assert "fr" in make_identifier(norm_probs=True).labels
