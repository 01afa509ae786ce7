"""Recipe section `tokenizer`: the tokenizers of both languages."""

from typing import Annotated, Literal

from dragoman.config.fields import FileName, Fraction, PositiveInt, VocabSize
from dragoman.config.section import Limits, RecipeSection, model_validator


def _check_language_pattern(pattern: str) -> None:
    """Raise ValueError unless it has one place for a language."""
    if pattern.replace("{}", "", 1).count("{") or pattern.count("{}") != 1 or pattern.count("}") != 1:
        raise ValueError("has one place for the language, written {}; an example is '>>{}<<'")


def _check_extra_token(token: str) -> None:
    """Raise ValueError if it holds a space, or SentencePiece's mark of one."""
    if not token or any(character.isspace() or character == "▁" or not character.isprintable() for character in token):
        raise ValueError("is one token without spaces and without ▁; an example is '<ui>'")


LanguagePattern = Annotated[str, _check_language_pattern]
ExtraToken = Annotated[str, _check_extra_token]
Normalization = Literal["nfkc", "nfc", "identity"]


class TokenizerConfig(RecipeSection):
    """Tokenizer: a SentencePiece model or a list of tokens for both languages, or one for each."""

    model_type: Literal["bpe", "unigram", "word-piece", "word", "char", "byte", "subword-nmt", "byte-level-bpe"] = "bpe"
    """`bpe`, `unigram` and `word-piece` are SentencePiece models; `word`, `char` and `byte` are levels; `subword-nmt` applies
    codes of subword-nmt or fastBPE, or reads pieces (`foo@@ bar`); bundles of BART have `byte-level-bpe`."""
    joint: bool = True
    """Whether both languages share one model and vocabulary."""
    vocab_size: VocabSize = 32_000
    """Pieces of the joint or source vocabulary, the four special pieces included and reserved_tokens not; `word`, `char` and
    `subword-nmt` may have fewer, and `byte` has 260."""
    target_vocab_size: VocabSize | None = None
    """Pieces of the target vocabulary if joint = false, by default vocab_size."""
    reserved_tokens: Annotated[int, Limits(ge=0, le=4096)] = 64
    """Ids beside vocab_size that a new vocabulary reserves for placeholders and language tags; no text is encoded to them."""
    byte_fallback: bool = True
    """Whether unknown characters become byte pieces instead of `<unk>`; `word` and `subword-nmt` have no byte pieces."""
    character_coverage: Annotated[float, Limits(ge=0.98, le=1.0)] = 1.0
    """Share of the training text's characters that the vocabulary covers."""
    normalization: Normalization | None = None
    """Unicode normalization of both sides, by default `nfc` of the source and `identity` of the target; `nfkc` rewrites `²` as
    `2`."""
    source_normalization: Normalization | None = None
    """Unicode normalization of the source, by default that of normalization."""
    split_digits: bool = False
    """Whether each digit is a piece of its own, which helps with numbers that are not in the training text."""
    lowercase: bool = False
    """Whether both sides are lower-cased before tokenization."""
    model_file: FileName | None = None
    """Existing SentencePiece model, joint or of the source, instead of a new one; vocab_size is then ignored."""
    target_model_file: FileName | None = None
    """Existing SentencePiece model of the target if joint = false."""
    codes_file: FileName | None = None
    """Codes of subword-nmt or fastBPE for `subword-nmt`, joint or of the source; without them, the text holds its pieces."""
    target_codes_file: FileName | None = None
    """Codes of the target if joint = false, by default codes_file."""
    vocab_file: FileName | None = None
    """Tokens of `word`, `char` or `subword-nmt`, joint or of the source: fairseq's dict.txt, or one token a line; by default
    those of the training text."""
    target_vocab_file: FileName | None = None
    """Tokens of the target if joint = false, by default those of the training text."""
    train_sentences: PositiveInt | None = None
    """Most sentences to train the model on, spread over the corpora, by default 500,000 for unigram, else 2,000,000."""
    language_token: LanguagePattern | None = None
    """Pattern of the language tokens of a model of many languages, such as `>>{}<<`; none by default."""
    language_token_placement: Literal["source", "both"] = "source"
    """Token of the target language before each source, or tokens of both: the source language's before the source, the
    target language's before the output."""
    prepend_bos: bool = False
    """Whether source and output begin with the begin token, as in BART; the decoder reads it behind its start token."""
    source_prefix: str = ""
    """Text before each source, such as T5's "translate English to German: "; none by default."""
    extra_tokens: list[ExtraToken] = []
    """Tokens beside vocab_size that text holds and that are never split, such as domain tags or placeholders; those that the
    bundle of training.init_from lacks are added to its vocabulary."""
    sampling_alpha: Fraction = 0.0
    """Subword regularization of training text: the probability of BPE-dropout, or α of unigram sampling; 0 turns it off."""

    @property
    def max_train_sentences(self) -> int:
        """Return the most sentences to train on. The defaults keep the memory of training below 1.5 GiB."""
        return self.train_sentences or (500_000 if self.model_type == "unigram" else 2_000_000)

    @property
    def is_sentencepiece(self) -> bool:
        """Return whether the tokenizer is a SentencePiece model."""
        return self.model_type in ("bpe", "unigram", "word-piece")

    @property
    def files(self) -> list[str]:
        """Return the files that the tokenizer is made from."""
        files = (
            self.model_file, self.target_model_file, self.codes_file, self.target_codes_file, self.vocab_file,
            self.target_vocab_file,
        )  # fmt: skip
        return [file for file in files if file is not None]

    def get_normalization(self, side: Literal["source", "target"]) -> Normalization:
        """Return the Unicode normalization of one side of a new vocabulary."""
        if side == "source":
            return self.source_normalization or self.normalization or "nfc"
        return self.normalization or "identity"

    def format_language_token(self, language: str) -> str:
        """Return the token of a language. Call it only if the recipe has language tokens."""
        assert self.language_token is not None
        return self.language_token.format(language)

    def describe_training(self) -> str:
        """Return the start of the training as a message."""
        size = f"at most {self.vocab_size:,}" if self.model_type in ("word", "char", "subword-nmt") else f"{self.vocab_size:,}"
        return f"training a {self.model_type} tokenizer of {'260' if self.model_type == 'byte' else size} pieces"

    @model_validator
    def _check_model_type(self) -> None:
        model_type, is_list = self.model_type, self.model_type in ("word", "char", "subword-nmt")
        has_codes = self.codes_file is not None or self.target_codes_file is not None
        has_list = self.vocab_file is not None or self.target_vocab_file is not None
        for is_invalid, message in (
            (
                not self.is_sentencepiece and (self.model_file is not None or self.target_model_file is not None),
                "model_file is for SentencePiece models; give vocab_file, or drop it",
            ),
            (has_list and not is_list, "vocab_file is for word, char and subword-nmt; drop it, or give model_file"),
            (has_codes and model_type != "subword-nmt", "codes_file is for subword-nmt; set model_type = 'subword-nmt'"),
            (
                self.byte_fallback and model_type in ("word", "subword-nmt", "byte-level-bpe"),
                "byte_fallback = true, but its vocabulary has no byte pieces; set byte_fallback = false",
            ),
            (not self.byte_fallback and model_type == "byte", "byte_fallback = false, but its pieces are bytes; drop it"),
            (
                self.character_coverage < 1 and model_type not in ("bpe", "unigram", "char"),
                "character_coverage is for bpe, unigram and char; drop it",
            ),
            (
                self.prepend_bos and self.language_token is not None,
                "prepend_bos is for models without language tokens; drop it",
            ),
            (self.split_digits and model_type not in ("bpe", "unigram"), "split_digits is for bpe and unigram; drop it"),
            (
                self.lowercase and any(token != token.lower() for token in self.extra_tokens),
                "extra_tokens has capital letters, but lowercase = true; write it in small letters",
            ),
            (self.extra_tokens and not self.is_sentencepiece, "extra_tokens is for bpe and unigram; drop it"),
            (len(set(self.extra_tokens)) < len(self.extra_tokens), "extra_tokens names a token twice; drop one"),
            (self.sampling_alpha and not self.is_sentencepiece, "sampling_alpha is for bpe and unigram; drop it"),
            (
                self.joint and (self.target_codes_file is not None or self.target_vocab_file is not None),
                "target_codes_file and target_vocab_file are for joint = false; drop them, or set joint = false",
            ),
            (
                self.target_codes_file is not None and self.codes_file is None,
                "target_codes_file needs codes_file; give both",
            ),
        ):
            if is_invalid:
                raise ValueError(f"model_type = {model_type!r}: {message}")
