"""Texts that tokenizers split in unusual ways, for comparisons of ids."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

PLAIN = [
    "The house is old and green.",
    "My sister reads a long book.",
    "Wir kauften drei Birnen und eine Melone.",
    "Das Haus ist alt.",
]
ODD = [
    "", " ", "   ", "\t", "\n", "a", " a", "a ", "  a  b  ", "a\tb\nc", "a\u00a0b", "a\u3000b", "a\u200bb", "▁", "▁a", "a▁b",
    "🙂", "🙂🙂 a 🙂", "e\u0301", "é", "\ufb01n", "①②", "\uff21\uff22", "<", "<<", ">>", ">> <<", ">>x<<", "a >>x<< b",
    ">>deu<<", ">>deu<< The house", ">>deu<<The house", " >>deu<< The house", ">>deu The", "<s>", "</s>", "<unk>",
    "The <unk> house", "The </s> house", "<mask>", "a <mask> b", "a<mask>b", "house.", "HOUSE", "hou\u017fe", "x" * 60,
    "日本語", "हिन्दी", "العربية", "…", "a_b", "&amp;", "0123456789", "3.14", "-", "--", "'", "“quoted”",
    "e\u0323\u0302", "\u0301a", "a\u3000\u0301b", "\u1100\u1161\u11ab", "क\u093c", "½\u0301", "กำลัง น้ำ", "m² 10①", "，、。！",
    "\x01a\x7f", "a\r\nb", "👩\u200d👩\u200d👧", "\u202ea\ufeff", "한국어", "ς İ ǆ", "x²$x", "①<b>",
]  # fmt: skip
TEMPLATES = ("a{0}b", "The {0} house", "{0} old", "old {0}", "{0}{0}")


def make_odd_texts(tokens: Sequence[str], count: int = 240) -> list[str]:
    """Return texts of plain sentences, odd strings and these tokens, which touch each other, words and spaces."""
    random = Random(7)
    texts = [*PLAIN, *ODD, *tokens, *(template.format(token) for token in tokens for template in TEMPLATES)]
    parts = [*" ".join(PLAIN).split(), *ODD, *(list(tokens) * 8)]
    while len(texts) < count:
        texts.append(random.choice(["", " ", "  "]).join(random.choices(parts, k=random.randint(2, 7))))
    return texts
