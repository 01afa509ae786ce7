"""Tokenizers of both sides of a pair: training, import, writing and reading."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.config import Normalization, Recipe, TokenizerConfig
from dragoman.data.tokenization.language_tokens import LanguageTokens
from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.piece_vocabulary import PieceList, PieceVocabulary, read_pieces_file
from dragoman.data.tokenization.reserved_tokens import add_language_tokens, add_reserved_tokens
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer, import_sentencepiece, train_sentencepiece
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, UNKNOWN_ID
from dragoman.data.tokenization.vocabulary import NotifyFn, TextTokenizer, Vocabulary
from dragoman.errors import BundleError, RecipeError
from dragoman.hooks import load_task

if TYPE_CHECKING:
    from dragoman.data.tokenization.token_list import Side, TokenListTokenizer

SOURCE_MODEL_FILE, TARGET_MODEL_FILE = "source.model", "target.model"
SOURCE_PIECES_FILE, TARGET_PIECES_FILE = "source.vocab.json", "target.vocab.json"
"""Files of the pieces of a `PieceVocabulary`. A vocabulary that both sides share is in the first."""
SOURCE_TOKENS_FILE, TARGET_TOKENS_FILE = "source.tokens.json", "target.tokens.json"
"""Files of a `TokenListTokenizer`, instead of the models."""
LABELS_FILE = "labels.json"
"""File of the target's labels, if the target is trees."""
_MARKS = dict(zip("。、「」『』《》〈〉【】〜", '.,""""""""[]~', strict=True))
_OTHER_FORMS = re.compile(f"[\ufb00-\ufb06\uff01-\uff5e{''.join(_MARKS)}]")  # also ligatures and wide forms
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class PairTokenizer:
    """Tokenizers of both sides. They are one object if they are joint and normalize text alike.

    target: the tokenizer of the target; for trees, their `TreeLabels`
    append_source_eos: the encoder reads an end token after each source
    languages: the languages and their tokens of a model of many languages; None for all other models
    prepend_bos: source and output begin with the begin token
    source_prefix: text before each source, such as a task of T5
    """

    def __init__(
        self,
        source: TextTokenizer,
        target: Vocabulary,
        *,
        append_source_eos: bool,
        languages: LanguageTokens | None = None,
        prepend_bos: bool = False,
        source_prefix: str = "",
    ) -> None:
        self.source = source
        self.target = target
        self.append_source_eos = append_source_eos
        self.languages = languages
        self.prepend_bos = prepend_bos
        self.source_prefix = source_prefix
        self._read_characters: dict[str, bool] = {}

    def replace(self, **changes: Any) -> PairTokenizer:
        names = ("source", "target", "append_source_eos", "languages", "prepend_bos", "source_prefix")
        return PairTokenizer(**{name: getattr(self, name) for name in names} | changes)

    @property
    def is_joint(self) -> bool:
        return self.source is self.target

    @property
    def has_text_target(self) -> bool:
        """Return whether the target is text; otherwise it is the labels of trees."""
        return isinstance(self.target, SentencePieceTokenizer | PieceVocabulary) or _is_token_list(self.target)

    @property
    def shares_vocabulary(self) -> bool:
        """Return whether both sides share the ids of their tokens, although their models may differ."""
        source, target = self.source, self.target
        if self.is_joint or not self.has_text_target:
            return self.is_joint
        return len(source) == len(target) and source.ids_to_pieces(range(len(source))) == target.ids_to_pieces(
            range(len(target))
        )

    @cached_property
    def marked(self) -> PairTokenizer | None:
        """Tokenizers with the same ids that encode marks of placeholders and terms to reserved tokens, and decode them.

        None if a vocabulary has no reserved tokens for the marks.
        """
        if not isinstance(self.source, SentencePieceTokenizer) or not isinstance(self.target, SentencePieceTokenizer):
            return None
        source = self.source.define_marks()
        target = source if self.is_joint else self.target.define_marks()
        if source is None or target is None:
            return None
        return self.replace(source=source, target=target)

    @property
    def decoder_prompt(self) -> tuple[int, ...]:
        """Return the ids that the decoder reads before each output, after its start token."""
        return self._begin if self.languages is None else self.languages.get_decoder_prompt(self.target)

    @property
    def _begin(self) -> tuple[int, ...]:
        return (BEGIN_ID,) if self.prepend_bos else ()

    @property
    def num_language_tokens(self) -> int:
        """Return the number of tokens before the text of each source that has a text; see `prefixes`."""
        return max(len(self._source_start), int(self.languages is not None)) + len(self._prefix_ids)

    @property
    def prefixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids before each source, and those before each target.

        They are the begin token or the tokens of the chosen languages, and then the source's prefix.
        """
        return (*self._source_start, *self._prefix_ids), self.decoder_prompt

    @property
    def _source_start(self) -> Sequence[int]:
        """Return the begin token, or the token of the chosen languages."""
        token = None if self.languages is None else self.languages.get_source_token(self.source)
        return self._begin if self.languages is None else self._encode_language(token) if token else ()

    @property
    def prefix_lengths(self) -> tuple[int, int]:
        """Return the number of tokens before each source and each target; see `prefixes`."""
        num_target = len(self._begin) if self.languages is None else int(self.languages.placement == "both")
        return self.num_language_tokens, num_target

    def with_languages(self, languages: LanguageTokens | None) -> PairTokenizer:
        return self.replace(languages=languages)

    def select_languages(
        self, source_language: str | None, target_language: str | None, *, zero_shot: bool = False
    ) -> PairTokenizer:
        """Return the same tokenizers for these languages of a model of many; None keeps the present choice.

        Raises RecipeError: the model does not have the language or the pair, or has no language tokens. With zero_shot, it need
            not have the pair.
        """
        if source_language is None and target_language is None:
            return self
        if self.languages is None:
            key, language = ("source_language", source_language) if source_language else ("target_language", target_language)
            raise RecipeError(
                f"decoding.{key} = {language!r}: the model translates between two fixed languages; leave it out",
                code="invalid-option",
            )
        return self.with_languages(self.languages.select(self.source, source_language, target_language, zero_shot=zero_shot))

    def encode_source(self, text: str) -> list[int]:
        """Return the ids that the encoder reads, with the language token of a model of many languages.

        Raises DataError: half of a surrogate pair, or a text without a language, if the model has many.
        """
        prefix: list[int] = []
        if text.strip():
            first: Sequence[int] = self._begin
            if self.languages is not None:
                token, text = self.languages.split_source(self.source, text)
                first = self._encode_language(token)
            prefix = [*first, *self._prefix_ids]
        return [*prefix, *self.source.encode(text), *([END_ID] if self.append_source_eos else [])]

    @cached_property
    def _prefix_ids(self) -> list[int]:
        return self.source.encode(self.source_prefix) if self.source_prefix else []

    def get_source_pieces(self, source: Sequence[int]) -> list[str]:
        """Return the pieces of an encoded source. Those of the source prefix, which is not in the text, are empty."""
        pieces = self.source.ids_to_pieces(source)
        end = self.num_language_tokens if self._prefix_ids else 0
        start = end - len(self._prefix_ids)
        return [*pieces[:start], *[""] * (end - start), *pieces[end:]] if [*source[start:end]] == self._prefix_ids else pieces

    def _encode_language(self, token: str) -> list[int]:
        """Return the ids of a language token: those that it has in a text, if a text can hold it, or that of its piece."""
        piece_id = self.source.piece_to_id(token)
        if piece_id is None:
            return []
        is_text = self.languages is not None and self.languages.placement == "source"
        return ids if is_text and piece_id in (ids := self.source.encode(token)) else [piece_id]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several sources, as `encode_source` does."""
        if self.languages is not None or self.prepend_bos or self.source_prefix:
            return [self.encode_source(text) for text in texts]
        suffix = [END_ID] if self.append_source_eos else []
        return [ids + suffix for ids in self.source.encode_batch(texts)]

    def reads(self, text: str) -> bool:
        """Return whether the source has pieces for a text, and needs no bytes or unknown token for its characters."""
        return self._has_pieces(self.fold(text))

    def fold(self, text: str) -> str:
        """Return a source with usual letters and marks for ligatures, wide forms and Chinese marks without pieces."""
        if text.isascii() or not _OTHER_FORMS.search(text):
            return text

        def write(match: re.Match[str]) -> str:
            if self._has_pieces(match[0]):
                return match[0]
            written = _MARKS.get(match[0]) or unicodedata.normalize("NFKC", match[0])
            before, after = text[max(match.start() - 1, 0) : match.start()], text[match.end() : match.end() + 1]
            return " " * (written in "([" and before.isalpha()) + written + " " * (written in ".,;:!?)]" and after.isalpha())

        return _OTHER_FORMS.sub(write, text)

    def _has_pieces(self, text: str) -> bool:
        if (answer := self._read_characters.get(text)) is None:
            ids = self.source.encode(text) if isinstance(self.source, SentencePieceTokenizer | PieceVocabulary) else []
            answer = UNKNOWN_ID not in ids and not any(map(_BYTE_PIECE.fullmatch, self.source.ids_to_pieces(ids)))
            if len(text) == 1:
                self._read_characters[text] = answer
        return answer

    def strip_language_token(self, text: str) -> str:
        """Return a source without its own language token, if the model reads one in texts."""
        languages = self.languages
        if languages is None or languages.placement != "source":
            return text
        return text[len(languages.find_token(self.source, text)) :]

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of the target without begin and end tokens."""
        return self.target.encode(text)


def read_recipe_tokenizer(folder: Path, recipe: Recipe) -> PairTokenizer:
    """Read the tokenizers of a recipe that is trained, with its source prefix and its language tokens if it has any."""
    config = recipe.tokenizer
    tokenizer = read_tokenizer(folder, config, append_source_eos=recipe.model.append_source_eos)
    tokenizer = tokenizer.replace(source_prefix=config.source_prefix)
    if config.language_token is None:
        return tokenizer
    return tokenizer.with_languages(
        LanguageTokens(
            config.language_token,
            config.language_token_placement,
            *recipe.default_pair,
            codes=tuple(recipe.languages),
            pairs=tuple(recipe.language_pairs),
            text_may_choose=False,
        )
    )


def get_identity(vocabulary: Vocabulary) -> bytes:
    """Return bytes that determine the ids of every text, except for lower-casing."""
    pieces = vocabulary.serialized_pieces if isinstance(vocabulary, PieceVocabulary) else b""
    return vocabulary.serialized_model + pieces


def _is_token_list(vocabulary: Vocabulary) -> bool:
    from dragoman.data.tokenization.token_list import TokenListTokenizer

    return isinstance(vocabulary, TokenListTokenizer)


def write_tokenizer(folder: Path, tokenizer: PairTokenizer) -> None:
    """Write the tokenizers into a folder, a joint one once."""
    source, target = tokenizer.source, tokenizer.target
    (folder / (SOURCE_TOKENS_FILE if _is_token_list(source) else SOURCE_MODEL_FILE)).write_bytes(source.serialized_model)
    if isinstance(source, PieceVocabulary):
        (folder / SOURCE_PIECES_FILE).write_bytes(source.serialized_pieces)
    if not tokenizer.is_joint:
        target_file = TARGET_TOKENS_FILE if _is_token_list(target) else TARGET_MODEL_FILE
        (folder / (target_file if tokenizer.has_text_target else LABELS_FILE)).write_bytes(target.serialized_model)
        is_shared = (
            isinstance(source, PieceVocabulary)
            and isinstance(target, PieceVocabulary)
            and source.piece_list == target.piece_list
        )
        if isinstance(target, PieceVocabulary) and not is_shared:
            (folder / TARGET_PIECES_FILE).write_bytes(target.serialized_pieces)


def list_tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a folder that `write_tokenizer` wrote."""
    names = (
        SOURCE_MODEL_FILE, SOURCE_PIECES_FILE, SOURCE_TOKENS_FILE, TARGET_MODEL_FILE, TARGET_PIECES_FILE, TARGET_TOKENS_FILE,
        LABELS_FILE,
    )  # fmt: skip
    return [folder / name for name in names if (folder / name).exists()]


def read_tokenizer(folder: Path, config: TokenizerConfig, *, append_source_eos: bool) -> PairTokenizer:
    """Return the tokenizers that `write_tokenizer` wrote. Raise BundleError if a file is missing or damaged."""

    def read_model_bytes(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise BundleError(f"{folder / name}: cannot be read: {error.strerror}", code="tokenizer-damaged") from None

    def read_sentencepiece(name: str) -> SentencePieceTokenizer:
        return SentencePieceTokenizer(read_model_bytes(name), lowercase=config.lowercase, name=str(folder / name))

    def read_pieces(name: str) -> PieceList:
        return read_pieces_file(read_model_bytes(name), name=str(folder / name))

    if (folder / SOURCE_PIECES_FILE).exists():
        pieces = read_pieces(SOURCE_PIECES_FILE)
        target_pieces = read_pieces(TARGET_PIECES_FILE) if (folder / TARGET_PIECES_FILE).exists() else pieces
        piece_source = PieceVocabulary(read_model_bytes(SOURCE_MODEL_FILE), pieces, name=str(folder / SOURCE_MODEL_FILE))
        if not (folder / TARGET_MODEL_FILE).exists():
            piece_target = piece_source
        else:
            piece_target = PieceVocabulary(
                read_model_bytes(TARGET_MODEL_FILE), target_pieces, name=str(folder / TARGET_MODEL_FILE)
            )
        return PairTokenizer(piece_source, piece_target, append_source_eos=append_source_eos, prepend_bos=config.prepend_bos)

    def read_side(model_file: str, tokens_file: str) -> TextTokenizer:
        if config.is_sentencepiece:
            return read_sentencepiece(model_file)
        from dragoman.data.tokenization.token_list import read_token_list  # most models have SentencePiece

        return read_token_list(read_model_bytes(tokens_file), lowercase=config.lowercase, name=str(folder / tokens_file))

    source = read_side(SOURCE_MODEL_FILE, SOURCE_TOKENS_FILE)
    if (folder / LABELS_FILE).exists():
        return PairTokenizer(
            source,
            load_task("parsing").read_vocabulary(read_model_bytes(LABELS_FILE), name=str(folder / LABELS_FILE)),
            append_source_eos=append_source_eos,
        )
    has_target_file = any((folder / name).exists() for name in (TARGET_MODEL_FILE, TARGET_TOKENS_FILE))
    target = read_side(TARGET_MODEL_FILE, TARGET_TOKENS_FILE) if has_target_file or not config.joint else source
    return PairTokenizer(source, target, append_source_eos=append_source_eos, prepend_bos=config.prepend_bos)


def import_tokenizer(
    config: TokenizerConfig, *, root: Path, append_source_eos: bool, languages: Sequence[str] = ()
) -> PairTokenizer:
    """Return the SentencePiece models that the recipe names relative to `root`, with special pieces moved to 0 to 3.

    A joint model gets the tokens of those languages that it has no token for.

    Raises DataError, BundleError, RecipeError: see `import_sentencepiece`.
    """
    assert config.model_file is not None
    source = add_language_tokens(
        import_sentencepiece(config, "model_file", root / config.model_file), config, languages if config.joint else ()
    )
    if config.joint:
        return PairTokenizer(source, source, append_source_eos=append_source_eos, prepend_bos=config.prepend_bos)
    assert config.target_model_file is not None
    return PairTokenizer(
        source,
        import_sentencepiece(config, "target_model_file", root / config.target_model_file),
        append_source_eos=append_source_eos,
        prepend_bos=config.prepend_bos,
    )


def train_tokenizer(
    sources: Iterable[str],
    targets: Iterable[str],
    config: TokenizerConfig,
    *,
    append_source_eos: bool,
    seed: int,
    languages: Sequence[str] = (),
    root: Path = Path(),
    notify: NotifyFn = lambda _: None,
) -> PairTokenizer:
    """Train a joint vocabulary on both sides, or one on each side.

    The sides of a joint vocabulary have a tokenizer each if their normalization differs.

    append_source_eos: the encoder reads an end token after each source
    languages: the languages that have a token
    root: the folder that the recipe's files of codes and tokens are relative to
    notify: receives the number of skipped lines

    Raises DataError, RecipeError: see `train_one_side`.
    """
    rules = config.get_normalization("source"), config.get_normalization("target")

    def train(texts: Iterable[str], side: Side, normalization: Normalization) -> SentencePieceTokenizer | TokenListTokenizer:
        return train_one_side(
            texts, config, side, normalization=normalization, seed=seed, languages=languages, root=root, notify=notify
        )

    if not config.joint:
        source, target = train(sources, "source", rules[0]), train(targets, "target", rules[1])
    else:
        target = train(chain((normalize(text, rules[0]) for text in sources), targets), "source", rules[1])
        source = target if rules[0] == rules[1] else target.with_normalization(rules[0])
    return PairTokenizer(source, target, append_source_eos=append_source_eos, prepend_bos=config.prepend_bos)


def train_one_side(
    texts: Iterable[str],
    config: TokenizerConfig,
    side: Side,
    *,
    normalization: Normalization,
    seed: int,
    languages: Sequence[str] = (),
    root: Path,
    notify: NotifyFn,
) -> SentencePieceTokenizer | TokenListTokenizer:
    """Train the tokenizer of one side; the source stands for both sides of a joint tokenizer.

    Raises DataError, RecipeError: see `train_sentencepiece`, `train_word_pieces`, `build_token_list` and `add_reserved_tokens`.
    """
    key, vocab_size = "tokenizer.vocab_size", config.vocab_size
    if side == "target" and config.target_vocab_size is not None:
        key, vocab_size = "tokenizer.target_vocab_size", config.target_vocab_size
    if config.model_type == "word-piece":
        from dragoman.data.tokenization.word_pieces import train_word_pieces

        pieces = train_word_pieces(texts, config, normalization=normalization, vocab_size=vocab_size, key=key)
        return add_reserved_tokens(pieces, config, languages)
    if config.is_sentencepiece:
        model = train_sentencepiece(
            texts, config, normalization=normalization, vocab_size=vocab_size, seed=seed, key=key, notify=notify
        )
        return add_reserved_tokens(model, config, languages)
    from dragoman.data.tokenization.token_list import build_token_list

    token_list = build_token_list(
        texts, config, side=side, normalization=normalization, root=root, vocab_size=vocab_size, notify=notify
    )
    is_imported = (config.vocab_file if side == "source" else config.target_vocab_file) is not None
    return (add_language_tokens if is_imported else add_reserved_tokens)(token_list, config, languages)
