"""Tokenizers of both sides of a pair: training, import, writing and reading."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.sentencepiece import (
    NotifyFn,
    SentencePieceTokenizer,
    Vocabulary,
    import_sentencepiece,
    train_sentencepiece,
)
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import BundleError

SOURCE_MODEL_FILE, TARGET_MODEL_FILE = "source.model", "target.model"
LABELS_FILE = "labels.json"
"""File of the target's labels, if the target is trees."""


class PairTokenizer:
    """Tokenizers of both sides, which are one object if they are joint.

    Args:
        source: the tokenizer of the source
        target: the tokenizer of the target; for trees, their `TreeLabels`
        append_source_eos: the encoder reads an end token after each source
    """

    def __init__(self, source: SentencePieceTokenizer, target: Vocabulary, *, append_source_eos: bool) -> None:
        self.source = source
        self.target = target
        self.append_source_eos = append_source_eos

    @property
    def is_joint(self) -> bool:
        """Return whether both sides share one model."""
        return self.source is self.target

    def encode_source(self, text: str) -> list[int]:
        """Return the ids that the encoder reads."""
        return self.source.encode(text) + ([END_ID] if self.append_source_eos else [])

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of the target without begin and end tokens."""
        return self.target.encode(text)


def write_tokenizer(folder: Path, tokenizer: PairTokenizer) -> None:
    """Write the tokenizers into a folder, a joint one once."""
    (folder / SOURCE_MODEL_FILE).write_bytes(tokenizer.source.serialized_model)
    if not tokenizer.is_joint:
        name = TARGET_MODEL_FILE if isinstance(tokenizer.target, SentencePieceTokenizer) else LABELS_FILE
        (folder / name).write_bytes(tokenizer.target.serialized_model)


def read_tokenizer(folder: Path, config: TokenizerConfig, *, append_source_eos: bool) -> PairTokenizer:
    """Return the tokenizers that `write_tokenizer` wrote. Raise BundleError if a file is missing or damaged."""

    def read_model_bytes(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise BundleError(f"{folder / name}: cannot be read: {error.strerror}", code="tokenizer-damaged") from None

    def read_sentencepiece(name: str) -> SentencePieceTokenizer:
        return SentencePieceTokenizer(read_model_bytes(name), lowercase=config.lowercase, name=str(folder / name))

    source = read_sentencepiece(SOURCE_MODEL_FILE)
    if (folder / LABELS_FILE).exists():
        from dragoman.data.tokenization.tree_labels import read_labels  # imported late, because translation does not need it

        return PairTokenizer(
            source,
            read_labels(read_model_bytes(LABELS_FILE), name=str(folder / LABELS_FILE)),
            append_source_eos=append_source_eos,
        )
    return PairTokenizer(
        source, source if config.joint else read_sentencepiece(TARGET_MODEL_FILE), append_source_eos=append_source_eos
    )


def import_tokenizer(config: TokenizerConfig, *, root: Path, append_source_eos: bool) -> PairTokenizer:
    """Return the SentencePiece models that the recipe names relative to `root`, with special pieces moved to 0 to 3.

    Raises:
        DataError, BundleError, RecipeError: see `import_sentencepiece`.
    """
    assert config.model_file is not None
    source = import_sentencepiece(config, "model_file", root / config.model_file)
    if config.joint:
        return PairTokenizer(source, source, append_source_eos=append_source_eos)
    assert config.target_model_file is not None
    return PairTokenizer(
        source,
        import_sentencepiece(config, "target_model_file", root / config.target_model_file),
        append_source_eos=append_source_eos,
    )


def train_tokenizer(
    sources: Iterable[str],
    targets: Iterable[str],
    config: TokenizerConfig,
    *,
    append_source_eos: bool,
    seed: int,
    notify: NotifyFn = lambda _: None,
) -> PairTokenizer:
    """Train a joint tokenizer on both sides, or one on each side.

    Args:
        sources, targets: lines of text of each side
        config: the tokenizer section of the recipe
        append_source_eos: the encoder reads an end token after each source
        seed: seed of the training
        notify: receives the number of skipped lines

    Raises:
        DataError, RecipeError: see `train_sentencepiece`.
    """

    def iter_both_sides() -> Iterable[str]:
        yield from sources
        yield from targets

    vocab_size, target_vocab_size = config.vocab_size, config.target_vocab_size
    if config.joint:
        shared = train_sentencepiece(iter_both_sides(), config, vocab_size=vocab_size, seed=seed, notify=notify)
        return PairTokenizer(shared, shared, append_source_eos=append_source_eos)
    source = train_sentencepiece(sources, config, vocab_size=vocab_size, seed=seed, notify=notify)
    if target_vocab_size is None:
        target = train_sentencepiece(targets, config, vocab_size=vocab_size, seed=seed, notify=notify)
    else:
        key = "tokenizer.target_vocab_size"
        target = train_sentencepiece(targets, config, vocab_size=target_vocab_size, seed=seed, key=key, notify=notify)
    return PairTokenizer(source, target, append_source_eos=append_source_eos)
