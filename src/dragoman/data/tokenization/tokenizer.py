"""How both sides of a pair are split: their subword models, learnt, taken, written and read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.sentencepiece import Notice, Subword, Vocabulary, learn_subword, take_subword
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import BundleError

SOURCE_MODEL, TARGET_MODEL = "source.model", "target.model"
LABELS = "labels.json"
"""In the place of the target's model, where trees are the target."""


class Tokeniser:
    """The subword models of both sides; one and the same where they are joint. Of trees, the target is `labels.Labels`."""

    def __init__(self, source: Subword, target: Vocabulary, *, append_source_eos: bool) -> None:
        self.source = source
        self.target = target
        self.append_source_eos = append_source_eos

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def encode_source(self, text: str) -> list[int]:
        """Ids as the encoder reads them."""
        return self.source.encode(text) + ([END_ID] if self.append_source_eos else [])

    def encode_target(self, text: str) -> list[int]:
        """Ids without begin and end."""
        return self.target.encode(text)


def write_tokeniser(folder: Path, tokeniser: Tokeniser) -> None:
    """Put the subword models into a folder, as prepared corpora and bundles hold them: a joint one once."""
    (folder / SOURCE_MODEL).write_bytes(tokeniser.source.model)
    if not tokeniser.joint:
        name = TARGET_MODEL if isinstance(tokeniser.target, Subword) else LABELS
        (folder / name).write_bytes(tokeniser.target.model)


def read_tokeniser(folder: Path, config: TokenizerConfig, *, append_source_eos: bool) -> Tokeniser:
    """What `write_tokeniser` wrote. Raises BundleError naming the file that is missing or damaged."""

    def model(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise BundleError(f"{folder / name}: cannot be read: {error.strerror}") from None

    def read(name: str) -> Subword:
        return Subword(model(name), lowercase=config.lowercase, name=str(folder / name))

    source = read(SOURCE_MODEL)
    if (folder / LABELS).exists():
        from dragoman.data.tokenization.tree_labels import read_labels  # only here, since who translates need not wait for it

        return Tokeniser(source, read_labels(model(LABELS), name=str(folder / LABELS)), append_source_eos=append_source_eos)
    return Tokeniser(source, source if config.joint else read(TARGET_MODEL), append_source_eos=append_source_eos)


def take_tokeniser(config: TokenizerConfig, *, root: Path, append_source_eos: bool) -> Tokeniser:
    """The SentencePiece models that the recipe names, with paths from `root` on, renumbered where that is needed.

    Raises what `take_subword` does.
    """
    assert config.model_file is not None
    source = take_subword(config, "model", root / config.model_file)
    if config.joint:
        return Tokeniser(source, source, append_source_eos=append_source_eos)
    assert config.target_model_file is not None
    return Tokeniser(
        source, take_subword(config, "target_model", root / config.target_model_file), append_source_eos=append_source_eos
    )


def learn_tokeniser(
    sources: Iterable[str],
    targets: Iterable[str],
    config: TokenizerConfig,
    *,
    append_source_eos: bool,
    seed: int,
    notice: Notice = lambda _: None,
) -> Tokeniser:
    """Learn the joint model from both sides, or one from each. Raises DataError where there is no text."""

    def both() -> Iterable[str]:
        yield from sources
        yield from targets

    size, target_size = config.vocab_size, config.target_vocab_size
    if config.joint:
        joint = learn_subword(both(), config, vocab_size=size, seed=seed, notice=notice)
        return Tokeniser(joint, joint, append_source_eos=append_source_eos)
    source = learn_subword(sources, config, vocab_size=size, seed=seed, notice=notice)
    if target_size is None:
        target = learn_subword(targets, config, vocab_size=size, seed=seed, notice=notice)
    else:
        key = "tokenizer.target_vocab_size"
        target = learn_subword(targets, config, vocab_size=target_size, seed=seed, key=key, notice=notice)
    return Tokeniser(source, target, append_source_eos=append_source_eos)
