"""The tokenizer 13a and the constants of BLEU and chrF are those of sacreBLEU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.evaluation.metrics import bleu_metric
from dragoman.evaluation.pairwise_similarity import tokenize_13a

TEXTS = st.lists(
    st.sampled_from(
        [*map(chr, range(32, 127)), "1.5", "2,", "3-4", "&amp;", "&lt;", "<skipped>", "-\n", "\n", "\u00a0", "ß", "。"]
    ),
    max_size=30,
).map("".join)


@given(TEXTS | st.text(max_size=30))
def test_tokens_are_those_of_sacrebleu(line: str) -> None:
    assert tokenize_13a(line) == bleu_metric("13a").tokenizer(line)
