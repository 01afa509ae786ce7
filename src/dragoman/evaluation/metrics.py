"""Metrics over a test set, each with a signature that identifies the way it is computed.

References are reference sets as in sacreBLEU: `references[0]` has one reference for every line, and so has `references[1]`.
BLEU scores are comparable only if their signatures agree. "Attention Is All You Need" scores Moses tokens with split compounds.
The same output scores 0.7 to 1.0 higher there than with sacreBLEU's 13a tokens (fairseq's big English-German model: 29.29
against 28.6). So print both.

Functions import sacreBLEU when they need it, because the import would slow down the start of translation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from dragoman.errors import DataError, MissingDependencyError, RecipeError
from dragoman.io.json_fields import OPTIONAL
from dragoman.languages import get_language
from dragoman.text.edit_distance import compute_distance

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.ter import TER

HYPHENATED_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True, slots=True)
class Score:
    """Score over a test set, in percent. Higher is better, except for TER and CER, which count edits and may exceed 100."""

    name: str
    value: float
    signature: str
    note: Annotated[str | None, OPTIONAL] = None
    """Reason why the value says nothing about the outputs, in one sentence."""

    def format(self, digits: int = 2) -> str:
        """Return name, value and signature as one line."""
        return f"{self.name} = {self.value:.{digits}f} ({self.signature})"

    def __str__(self) -> str:
        return self.format()


def compute_perplexity(nll: float) -> float:
    """Return exp of the mean negative log-likelihood per token, limited to a finite number."""
    return math.exp(min(nll, 700.0))


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean of one metric over the test sets of several pairs of languages."""
    signatures = "; ".join(dict.fromkeys(score.signature for score in scores))
    value = sum(score.value for score in scores) / len(scores)
    notes = "; ".join(dict.fromkeys(score.note for score in scores if score.note is not None))
    return Score(scores[0].name, value, f"mean of {len(scores)} pairs of languages; {signatures}", notes or None)


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """Return BLEU (Papineni et al. 2002) of plain text, computed by sacreBLEU (Post 2018)."""
    return corpus_score(bleu_metric(tokenize, lowercase=lowercase), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, word_order: int = 0) -> Score:
    """Return chrF2 (Popović 2015), or chrF2++ with `word_order=2` (Popović 2017)."""
    from sacrebleu.metrics.chrf import CHRF

    return corpus_score(CHRF(word_order=word_order), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return chrF2 of each line against its reference, in percent."""
    from sacrebleu.metrics.chrf import CHRF

    check_lines(hypotheses, [references])
    metric = CHRF()
    return [
        float(metric.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def ter(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, splits_characters: bool = False) -> Score:
    """Return the translation edit rate (Snover et al. 2006), lowercased as in Tercom. Lower is better.

    splits_characters: each Chinese character and kana is a token; otherwise, tokens are between spaces
    """
    return corpus_score(ter_metric(splits_characters=splits_characters), hypotheses, references)


def ter_metric(*, splits_characters: bool = False) -> TER:
    """Return sacreBLEU's TER metric. It splits characters only in text that it normalizes."""
    from sacrebleu.metrics.ter import TER

    return TER(normalized=splits_characters, asian_support=splits_characters)


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Score:
    """Return BLEU of tokenized text without smoothing: the number that Moses' multi-bleu.perl prints.

    lowercase: lowercases all letters; `multi-bleu.perl -lc` lowercases ASCII letters only
    """
    metric = tokenized_bleu_metric(lowercase=lowercase)
    return replace(corpus_score(metric, hypotheses, references), name="tokenized BLEU")


def moses_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str,
    *,
    split_hyphens: bool = False,
    lowercase: bool = False,
) -> Score:
    """Return `tokenized_bleu` of plain text after the Moses tokenizer for `language`.

    split_hyphens: split compounds at their hyphens, as the paper's tables do. The steps are those of tensor2tensor's
        utils/get_ende_bleu.sh. Later versions of that script also convert the system's Unicode punctuation to ASCII, because
        their references are tokenized; this function does not.
    """
    check_lines(hypotheses, references)
    tokens, *reference_tokens = (
        moses_tokenize(lines, language, split_hyphens=split_hyphens) for lines in (hypotheses, *references)
    )
    score = tokenized_bleu(tokens, reference_tokens, lowercase=lowercase)
    import sacremoses

    tokenization = f"tok:moses-{get_language(language)}|sacremoses:{sacremoses.__version__}"
    if split_hyphens:
        tokenization += "|compounds:split"
    name = "compound-split BLEU" if split_hyphens else "Moses BLEU"
    return replace(score, name=name, signature=score.signature.replace("tok:none", tokenization))


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str,
    *,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """Return BLEU as in the paper's tables: on Moses tokens, and with split compounds for German.

    tokenized: whether the text is tokenized already
    """
    splits = uses_split_compounds(language)
    if not tokenized:
        return moses_bleu(hypotheses, references, language, split_hyphens=splits, lowercase=lowercase)
    if not splits:
        return tokenized_bleu(hypotheses, references, lowercase=lowercase)
    lines, *reference_lines = (split_compounds(texts) for texts in (hypotheses, *references))
    score = tokenized_bleu(lines, reference_lines, lowercase=lowercase)
    signature = score.signature.replace("tok:none", "tok:none|compounds:split")
    return replace(score, name="compound-split BLEU", signature=signature)


def uses_split_compounds(language: str) -> bool:
    """Return whether the paper scores this target language with split compounds: German only, with any region."""
    return get_language(language) == "de"


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Return `rich ##AT##-##AT## text` for `rich-text`, like `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g`: matches never overlap."""
    return [HYPHENATED_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return the percentage of lines that equal one of their references, character by character."""
    check_lines(hypotheses, references)
    matches = sum(line in line_references for line, *line_references in zip(hypotheses, *references, strict=True))
    return Score("exact match", 100 * matches / len(hypotheses), f"nrefs:{len(references)}|case:mixed|space:kept")


def character_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return the edits of characters for each 100 characters of the references; the nearest reference of a line counts.

    Raises DataError if no reference has a character.
    """
    check_lines(hypotheses, references)
    num_edits = num_characters = 0
    for line, *line_references in zip(hypotheses, *references, strict=True):
        edits, length = min((compute_distance(line, reference), len(reference)) for reference in line_references)
        num_edits, num_characters = num_edits + edits, num_characters + length
    if not num_characters:
        raise DataError("references: have no characters; give texts", code="empty-data")
    return Score("CER", 100 * num_edits / num_characters, f"nrefs:{len(references)}|case:mixed|space:kept")


def moses_tokenize(lines: Sequence[str], language: str, *, split_hyphens: bool = False) -> list[str]:
    """Return each line as Moses' tokenizer.perl tokenizes it: tokens joined by spaces, with `&` and similar characters escaped.

    language: a language without a Moses list of abbreviations uses the English list
    split_hyphens: also apply `split_compounds`, which splits `a-b-c` at its first hyphen only

    Raises MissingDependencyError without sacremoses.
    """
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise MissingDependencyError("sacremoses", "moses", "BLEU on Moses tokens") from error
    tokenizer = MosesTokenizer(lang=get_language(language))
    tokenized = [tokenizer.tokenize(line, return_str=True) for line in lines]
    return split_compounds(tokenized) if split_hyphens else tokenized


def tokenized_bleu_metric(*, lowercase: bool = False) -> BLEU:
    """Return the sacreBLEU metric of `tokenized_bleu`."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", force=True, smooth_method="none", lowercase=lowercase)


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> BLEU:
    """Return sacreBLEU's BLEU metric. "none" suppresses its warning about tokenized text.

    Raises RecipeError for a tokenizer that is unknown or cannot run.
    """
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise RecipeError(
            f"{tokenize!r}: unknown BLEU tokenizer; use one of {', '.join(BLEU.TOKENIZERS)}", code="unknown-metric"
        )
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    except (RuntimeError, OSError, AssertionError) as error:  # no MeCab, another dictionary, or a model without download
        reason = " ".join(str(error).split())
        raise RecipeError(
            f"the BLEU tokenizer {tokenize!r} cannot run: {reason}; choose another (--bleu-tokenizer or task.bleu_tokenizer)",
            code="unknown-metric",
        ) from error


def corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return the score by a metric of sacreBLEU, with its name and signature."""
    check_lines(hypotheses, references)
    return to_score(metric, metric.corpus_score(hypotheses, references))


def to_score(metric: Metric, result: Any) -> Score:
    return Score(result.name, result.score, str(metric.get_signature()), explain_zero_bleu(result))


def explain_zero_bleu(result: Any) -> str | None:
    """Return why BLEU is 0 although the outputs may be good; None for another value and for other metrics.

    BLEU is a geometric mean of the precisions of 1-grams to 4-grams, so one precision of 0 makes it 0.
    """
    if not hasattr(result, "totals") or result.score > 0 or not result.totals[0]:
        return None
    if 0 in result.totals:
        order = len(result.totals)
        return f"BLEU counts {order}-grams, and no output has {order} tokens, so it is 0; compare by chrF or exact match"
    if not result.counts[0]:
        return None
    order = result.counts.index(0) + 1
    return f"no {order}-gram of the outputs is in a reference, so BLEU without smoothing is 0; compare by chrF"


def check_lines(hypotheses: Sequence[str], references: Sequence[Sequence[str]], system: str = "") -> None:
    """Raise DataError unless there is a hypothesis and every reference set has one line for each hypothesis."""
    if not references or any(isinstance(lines, str) for lines in references):
        raise DataError("references: not a list of reference sets; write a single set as [lines]", code="invalid-argument")
    for number, lines in enumerate(references, start=1):
        if not hypotheses or len(lines) != len(hypotheses):
            raise DataError(
                f"{system}{len(hypotheses)} hypotheses but {len(lines)} references in set {number}; "
                "give one reference for each hypothesis, and at least one",
                code="length-mismatch",
            )
