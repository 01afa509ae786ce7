"""Tests of breaks between lines, on a set with their right division: / ends a text, and ~ is inside a sentence."""

from __future__ import annotations

import re

from dragoman.text.breaks import find_boundaries

LINES = {
    "addresses": [
        "Jane Doe/12 High Street/Springfield, IL 62704/USA", "Acme Ltd./attn. Ms Smith/PO Box 7/London",
        "Opening hours:/Mon to Fri 9 am to 5 pm/closed on Sundays", "Phone: 555 0100/Fax: 555 0101/E-mail: a@b.org",
        "The Manager/Hotel Bellevue/3, Lake Road/Geneva", "John Smith/c∕o Jones/5 Mill Lane",
    ],
    "poems": [
        "Roses are red,/violets are blue,/sugar is sweet,/and so are you.",
        "The woods are lovely, dark and deep,/But I have promises to keep,/And miles to go before I sleep.",
        "Tyger Tyger, burning bright,/In the forests of the night;/What immortal hand or eye,/Could frame thy symmetry?",
        "so much depends/upon/a red wheel/barrow",
        "Shall I compare thee to a summer's day?/Thou art more lovely and more temperate:/Rough winds do shake the buds",
    ],
    "menus": [
        "Soup of the day/Roast chicken with potatoes/Apple pie", "fish and chips/mushy peas/bread and butter",
        "Home/About us/Contact/Sign in", "2 eggs/100 g flour/a pinch of salt", "Coffee 2.50/Tea 2.00/Hot chocolate 3.00",
        "Grilled salmon~with lemon butter/House salad",
    ],
    "contents": ["1 Introduction/3", "Chapter 1/The beginning/7", "Preface/vii", "Index/210", "A. Appendix/xii"],
    "paragraphs": [
        "This agreement is made between~the two parties named below.", "Welcome to~our new home page",
        "We offer the best~service in town. Call~us today!", "Please note that the office~is closed on public holidays.",
        "For more information/Please contact us.", "The quick brown fox~jumps over the lazy dog.",
        "Our team of 25~engineers works in Berlin.", "He came in and said,/then left again.",
        "Dear Sir or Madam,/thank you for your letter.", "Terms and conditions~apply.",
        "It was raining./We stayed at home.", "You need 3~apples for this cake.",
    ],
}  # fmt: skip


def test_texts_end_at_breaks_but_sentences_do_not() -> None:
    num_right, num_breaks = 0, 0
    for texts in LINES.values():
        for text in texts:
            lines = re.split("[/~]", text)
            expected = [mark == "/" for mark in re.findall("[/~]", text)]
            num_right += sum(a == b for a, b in zip(find_boundaries(lines), expected, strict=True))
            num_breaks += len(expected)
    assert (num_right, num_breaks) == (58, 60), "two lines of addresses begin in lower case; without the rule, 50 are right"


def test_tabs_end_texts() -> None:
    assert find_boundaries(["Chapter one", "the start", "seven"], tabs=[0, 1]) == [True, True]
