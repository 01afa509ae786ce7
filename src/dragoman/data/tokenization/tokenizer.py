"""How both sides of a pair are split: their subword models, learnt, taken, written and read."""

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
"""In the place of the target's model, where trees are the target."""


class PairTokenizer:
    """The subword models of both sides; one and the same where they are joint. Of trees, the target is `labels.Labels`."""

    def __init__(self, source: SentencePieceTokenizer, target: Vocabulary, *, append_source_eos: bool) -> None:
        self.source = source
        self.target = target
        self.append_source_eos = append_source_eos

    @property
    def is_joint(self) -> bool:
        return self.source is self.target

    def encode_source(self, text: str) -> list[int]:
        """Ids as the encoder reads them."""
        return self.source.encode(text) + ([END_ID] if self.append_source_eos else [])

    def encode_target(self, text: str) -> list[int]:
        """Ids without begin and end."""
        return self.target.encode(text)


def write_tokenizer(folder: Path, tokenizer: PairTokenizer) -> None:
    """Put the subword models into a folder, as prepared corpora and bundles hold them: a joint one once."""
    (folder / SOURCE_MODEL_FILE).write_bytes(tokenizer.source.serialized_model)
    if not tokenizer.is_joint:
        name = TARGET_MODEL_FILE if isinstance(tokenizer.target, SentencePieceTokenizer) else LABELS_FILE
        (folder / name).write_bytes(tokenizer.target.serialized_model)


def read_tokenizer(folder: Path, config: TokenizerConfig, *, append_source_eos: bool) -> PairTokenizer:
    """What `write_tokeniser` wrote. Raises BundleError naming the file that is missing or damaged."""

    def read_model_bytes(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise BundleError(f"{folder / name}: cannot be read: {error.strerror}") from None

    def read_sentencepiece(name: str) -> SentencePieceTokenizer:
        return SentencePieceTokenizer(read_model_bytes(name), lowercase=config.lowercase, name=str(folder / name))

    source = read_sentencepiece(SOURCE_MODEL_FILE)
    if (folder / LABELS_FILE).exists():
        from dragoman.data.tokenization.tree_labels import read_labels  # only here, since who translates need not wait for it

        return PairTokenizer(
            source,
            read_labels(read_model_bytes(LABELS_FILE), name=str(folder / LABELS_FILE)),
            append_source_eos=append_source_eos,
        )
    return PairTokenizer(
        source, source if config.joint else read_sentencepiece(TARGET_MODEL_FILE), append_source_eos=append_source_eos
    )


def import_tokenizer(config: TokenizerConfig, *, root: Path, append_source_eos: bool) -> PairTokenizer:
    """The SentencePiece models that the recipe names, with paths from `root` on, renumbered where that is needed.

    Raises what `take_subword` does.
    """
    assert config.model_file is not None
    source = import_sentencepiece(config, "model", root / config.model_file)
    if config.joint:
        return PairTokenizer(source, source, append_source_eos=append_source_eos)
    assert config.target_model_file is not None
    return PairTokenizer(
        source,
        import_sentencepiece(config, "target_model", root / config.target_model_file),
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
    """Learn the joint model from both sides, or one from each. Raises DataError where there is no text."""

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
