"""Scores over a test set, each with the signature that says how it was counted.

One system's lines stand against one or more reference sets, as in sacreBLEU: `references[0]` holds a reference for
every line, and so does `references[1]`. Two BLEU numbers may be compared only where their signatures agree: the same
output scores 0.7 to 1.0 higher with Moses tokens and split compounds, as "Attention Is All You Need" was scored, than
with sacreBLEU's 13a (fairseq's big English-German model: 29.29 against 28.6). So print both.

sacreBLEU is imported where it counts: who translates need not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dragoman.errors import DataError, MissingDependencyError, RecipeError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU

HYPHENATED_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True, slots=True)
class Score:
    """One number over a test set, in percent. Higher is better, but for TER, which counts edits and may pass 100."""

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
    from sacrebleu.metrics.chrf import CHRF

    return corpus_score(CHRF(word_order=word_order), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Translation edit rate (Snover et al. 2006), lowercased as Tercom does: lower is better."""
    from sacrebleu.metrics.ter import TER

    return corpus_score(TER(), hypotheses, references)


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Score:
    """BLEU of text that is tokenised already, unsmoothed: the number that Moses' multi-bleu.perl prints.

    `lowercase` reaches every letter; `multi-bleu.perl -lc` leaves those outside ASCII as they are.
    """
    metric = tokenized_bleu_metric(lowercase=lowercase)
    return replace(corpus_score(metric, hypotheses, references), name="tokenised BLEU")


def moses_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str, *, lowercase: bool = False
) -> Score:
    """`tokenised_bleu` of plain text after the Moses tokeniser for `language`."""
    return _score_moses_tokens(hypotheses, references, language, split_hyphens=False, lowercase=lowercase)


def compound_split_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str, *, lowercase: bool = False
) -> Score:
    """`moses_bleu` with compounds split at their hyphens: the flavour of the paper's tables.

    The steps are those of tensor2tensor's utils/get_ende_bleu.sh. Later versions of that script first turn the system's
    Unicode punctuation into ASCII (against references that came tokenised); that is not done here.
    """
    return _score_moses_tokens(hypotheses, references, language, split_hyphens=True, lowercase=lowercase)


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str,
    *,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """BLEU as the paper's tables have it: over Moses' tokens, of German with compounds split.

    tokenised: the text is tokenised already, and its tokens are taken as they stand
    """
    if not tokenized:
        score_fn = compound_split_bleu if uses_split_compounds(language) else moses_bleu
        return score_fn(hypotheses, references, language, lowercase=lowercase)
    if not uses_split_compounds(language):
        return tokenized_bleu(hypotheses, references, lowercase=lowercase)
    lines, *reference_lines = (split_compounds(texts) for texts in (hypotheses, *references))
    score = tokenized_bleu(lines, reference_lines, lowercase=lowercase)
    signature = score.signature.replace("tok:none", "tok:none|compounds:split")
    return replace(score, name="compound-split BLEU", signature=signature)


def uses_split_compounds(language: str) -> bool:
    """Whether the paper's numbers for a target language are of split compounds: German's, however its code goes on."""
    return language.lower().replace("_", "-").split("-")[0] in ("de", "deu", "ger")


def split_compounds(lines: Sequence[str]) -> list[str]:
    """`rich ##AT##-##AT## text` of `rich-text`, as `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g` does: matches never overlap."""
    return [HYPHENATED_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """The share of lines that equal one of their references, character by character."""
    check_lines(hypotheses, references)
    matches = sum(line in line_references for line, *line_references in zip(hypotheses, *references, strict=True))
    return Score("exact match", 100 * matches / len(hypotheses), f"nrefs:{len(references)}|case:mixed|space:kept")


def moses_tokenize(lines: Sequence[str], language: str, *, split_hyphens: bool = False) -> list[str]:
    """Each line as Moses' tokenizer.perl cuts it: tokens joined by spaces, `&` and its like escaped.

    `compounds_split`: see `split_compounds`; `a-b-c` splits at its first hyphen only. A language without a Moses list of
    abbreviations gets the English one.
    """
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise MissingDependencyError("sacremoses", "moses", "Moses-tokenised BLEU") from error
    tokenizer = MosesTokenizer(lang=language)
    tokenized = [tokenizer.tokenize(line, return_str=True) for line in lines]
    return split_compounds(tokenized) if split_hyphens else tokenized


def tokenized_bleu_metric(*, lowercase: bool = False) -> BLEU:
    """What `tokenised_bleu` counts by."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", force=True, smooth_method="none", lowercase=lowercase)


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> BLEU:
    """sacreBLEU's BLEU, with a one-line error for a tokeniser that is unknown or cannot run here.

    Who asks for "none" has tokens, and need not be told that they look like some.
    """
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise RecipeError(f"unknown BLEU tokeniser {tokenize!r}: allowed are {', '.join(BLEU.TOKENIZERS)}")
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    except (RuntimeError, OSError) as error:  # MeCab is missing; a SentencePiece model cannot be downloaded
        raise RecipeError(f"BLEU tokeniser {tokenize!r} cannot run here: {' '.join(str(error).split())}") from error


def corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """The score by any of sacreBLEU's metrics, under sacreBLEU's name and signature."""
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


def _score_moses_tokens(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str, *, split_hyphens: bool, lowercase: bool
) -> Score:
    check_lines(hypotheses, references)
    tokens, *reference_tokens = (
        moses_tokenize(lines, language, split_hyphens=split_hyphens) for lines in (hypotheses, *references)
    )
    score = tokenized_bleu(tokens, reference_tokens, lowercase=lowercase)
    import sacremoses

    tokenization = f"tok:moses-{language}|sacremoses:{sacremoses.__version__}"
    if split_hyphens:
        tokenization += "|compounds:split"
    name = "compound-split BLEU" if split_hyphens else "Moses BLEU"
    return replace(score, name=name, signature=score.signature.replace("tok:none", tokenization))
