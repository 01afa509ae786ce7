"""Scores over a test set, each with the signature that says how it was counted.

One system's lines stand against one or more reference sets: `references[0]` holds a reference for every line, and so does
`references[1]`, as in sacreBLEU. Two BLEU numbers may be compared only where their signatures agree: the same output scores
0.7 to 1.0 higher with Moses tokens and split compounds, as "Attention Is All You Need" was scored, than with sacreBLEU's
13a (fairseq's big English-German model: 29.29 against 28.6). So print both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from dragoman.errors import DataError, MissingExtraError, RecipeError

COMPOUND = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True, slots=True)
class Score:
    """One number over a test set, in percent: higher is better, but for TER, which counts errors and may pass 100."""

    name: str
    value: float
    signature: str

    def format(self, digits: int = 2) -> str:
        return f"{self.name} = {self.value:.{digits}f} ({self.signature})"

    def __str__(self) -> str:
        return self.format()


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """BLEU (Papineni et al. 2002) of plain text, as sacreBLEU counts it (Post 2018)."""
    return corpus_score(bleu_metric(tokenize, lowercase=lowercase), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, word_order: int = 0) -> Score:
    """chrF2 (Popović 2015); with `word_order=2`, chrF2++ (Popović 2017)."""
    return corpus_score(CHRF(word_order=word_order), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Translation edit rate (Snover et al. 2006), lowercased as Tercom does: lower is better."""
    return corpus_score(TER(), hypotheses, references)


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Score:
    """BLEU of text that is tokenised already, unsmoothed: the number that Moses' multi-bleu.perl prints.

    `lowercase` reaches every letter; `multi-bleu.perl -lc` leaves those outside ASCII as they are.
    """
    metric = BLEU(tokenize="none", force=True, smooth_method="none", lowercase=lowercase)
    return replace(corpus_score(metric, hypotheses, references), name="tokenised BLEU")


def moses_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str) -> Score:
    """`tokenised_bleu` of plain text after the Moses tokeniser for `language`."""
    check_lines(hypotheses, references)
    tokens = moses_tokenise(hypotheses, language)
    score = tokenised_bleu(tokens, [moses_tokenise(lines, language) for lines in references])
    return replace(score, name="Moses BLEU", signature=_moses_signature(score, language))


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str) -> Score:
    """`moses_bleu` with `split_compounds` in between: the flavour of the paper's tables.

    The steps are those of tensor2tensor's utils/get_ende_bleu.sh as first published. Its later version also turns the
    system's Unicode punctuation into ASCII before the tokeniser, the references left as they are; that is not done here.
    """
    check_lines(hypotheses, references)
    tokens = split_compounds(moses_tokenise(hypotheses, language))
    score = tokenised_bleu(tokens, [split_compounds(moses_tokenise(lines, language)) for lines in references])
    signature = f"{_moses_signature(score, language)}|compounds:split"
    return replace(score, name="compound-split BLEU", signature=signature)


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """The share of lines that equal one of their references, character by character."""
    check_lines(hypotheses, references)
    matches = sum(line in choices for line, *choices in zip(hypotheses, *references, strict=True))
    return Score("exact match", 100 * matches / len(hypotheses), f"nrefs:{len(references)}|case:mixed|space:kept")


def moses_tokenise(lines: Sequence[str], language: str) -> list[str]:
    """Each line as Moses' tokenizer.perl cuts it, tokens joined by spaces, `&` and its like escaped.

    A language for which Moses has no list of abbreviations gets the English one, as in Moses itself.
    """
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise MissingExtraError("sacremoses", "moses", "Moses-tokenised BLEU") from error
    tokenizer = MosesTokenizer(lang=language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """`rich-text` becomes `rich ##AT##-##AT## text`.

    As in Perl's s///g, matches never overlap, so of two hyphens around one letter only the first splits: `a-b-c` keeps `b-c`.
    """
    return [COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> BLEU:
    """sacreBLEU's BLEU, with a one-line error for a tokeniser that is unknown or cannot run here."""
    if tokenize not in BLEU.TOKENIZERS:
        raise RecipeError(f"unknown BLEU tokeniser {tokenize!r}: allowed are {', '.join(BLEU.TOKENIZERS)}")
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase)
    except (RuntimeError, OSError) as error:  # a missing MeCab; a SentencePiece model that cannot be downloaded
        raise RecipeError(f"BLEU tokeniser {tokenize!r} cannot run here: {' '.join(str(error).split())}") from error


def corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    check_lines(hypotheses, references)
    result = metric.corpus_score(hypotheses, references)
    return Score(result.name, result.score, str(metric.get_signature()))


def check_lines(hypotheses: Sequence[str], references: Sequence[Sequence[str]], system: str = "") -> None:
    """Raise `DataError` unless every reference set has one line for each hypothesis, and there is at least one."""
    if not references or any(isinstance(lines, str) for lines in references):
        raise DataError("references are a list of reference sets: give a single set as [lines]")
    for number, lines in enumerate(references, start=1):
        if not hypotheses or len(lines) != len(hypotheses):
            raise DataError(
                f"{system}{len(hypotheses)} hypotheses against {len(lines)} references in set {number}: "
                "they must be as many, and at least one"
            )


def _moses_signature(score: Score, language: str) -> str:
    import sacremoses

    return score.signature.replace("tok:none", f"tok:moses-{language}|sacremoses:{sacremoses.__version__}")
