"""Text to ids and back: a SentencePiece model, and the four ids that every vocabulary begins with."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import sentencepiece as spm

from dragoman.config import TokenizerConfig
from dragoman.data.counter_rng import mixed
from dragoman.data.tokenization.sentencepiece_proto import BYTE, read_pieces, renumbered
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.subword_sampling import SPACE, BpeDropout, UnigramSampling, sampler_of
from dragoman.errors import BundleError, DataError, RecipeError

# Longer lines are left out of what the subword model learns from, never out of the corpus.
LONGEST_LINE_BYTES = 65_536
# Sets the draws for sampling apart from all others that are made with the same seed.
_SPLIT = 1000

Notice = Callable[[str], None]


class Vocabulary(Protocol):
    """What a side's text is split into: a subword model's pieces, or a closed list of labels.

    model: what is kept of it on disk. The methods are those of `Subword`.
    """

    @property
    def model(self) -> bytes: ...
    def __len__(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_many(self, texts: Sequence[str]) -> list[list[int]]: ...
    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def id_of(self, piece: str) -> int | None: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class Subword:
    """A subword model. `encode` and `decode` know nothing of begin and end tokens.

    With byte fallback and identity normalisation, `decode(encode(text))` is the text itself, save that a run of spaces becomes
    one, spaces at the ends go, and a line break becomes a space, as does ▁ (U+2581), by which SentencePiece marks spaces.
    """

    def __init__(self, model: bytes, *, lowercase: bool = False, name: str = "subword model") -> None:
        self.model = model
        self.lowercase = lowercase
        self._processor = _processor_of(model, name=name)
        self._spelt: dict[int, str] = {}  # the pieces that were asked for; to ask again costs a microsecond each
        if (ids := _special_ids(self._processor)) != SPECIAL_IDS:
            raise BundleError(f"{name}: padding, unknown, begin and end stand at {ids}; dragoman expects {SPECIAL_IDS}")

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process, which makes a sampler of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_sampler"}

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """The ids of a line. Raises DataError for half a surrogate pair, which no UTF-8 text can hold."""
        ids: list[int] = self._processor.encode(_utf8(text, lowercase=self.lowercase))
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, of many lines at once."""
        texts = [text.lower() for text in texts] if self.lowercase else list(texts)
        try:
            # One thread: whoever has many texts spreads them over processes, and threads of each would be in their way.
            ids: list[list[int]] = self._processor.encode(texts, num_threads=1)
        except TypeError:  # half a surrogate pair is no text to it, either; `encode` tells where
            ids = [self.encode(text) for text in texts]
        return ids

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """As `encode`, split in one of many ways: a pure function of its arguments, whatever the process, thread and order.

        A BPE model leaves out each merge with probability `alpha`; a unigram model draws from all ways to split, each as likely
        as its probability to the power of `alpha`. With 0, either encodes. Raises ValueError where a model knows one way only.
        """
        if alpha == 0:
            return self.encode(text)
        normal: bytes = self._processor.normalize(_utf8(text, lowercase=self.lowercase))
        return self._sampler.split(normal.decode(), alpha, Random(seed))

    @cached_property
    def _sampler(self) -> BpeDropout | UnigramSampling:
        return sampler_of(self.model)

    def decode(self, ids: Sequence[int]) -> str:
        """One line of text: a line break that the model spelled out in bytes becomes a space."""
        text: str = self._processor.decode(list(ids))
        return re.sub(r"[\r\n]", " ", text)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, if it is one; `<unk>` is."""
        found = self._processor.piece_to_id(piece)
        return found if self._processor.id_to_piece(found) == piece else None

    def pieces(self, ids: Sequence[int]) -> list[str]:
        for index in ids:
            if index not in self._spelt:
                self._spelt[index] = str(self._processor.id_to_piece(index))
        return [self._spelt[index] for index in ids]

    @cached_property
    def begins(self) -> npt.NDArray[np.bool_]:
        """Of each id, whether its piece begins a word."""
        return np.array([piece.startswith(SPACE) for piece in self.pieces(range(len(self)))])


def _processor_of(model: bytes, *, name: str) -> spm.SentencePieceProcessor:
    processor = spm.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except (RuntimeError, UnicodeDecodeError):
        raise BundleError(f"{name}: not a SentencePiece model, or a damaged one") from None
    return processor


def _special_ids(processor: spm.SentencePieceProcessor) -> list[int]:
    return [getattr(processor, f"{kind}_id")() for kind in ("pad", "unk", "bos", "eos")]


def sampling_seed(seed: int, epoch: int, index: int, side: int) -> int:
    """The seed to sample one side of a pair with, source (0) or target (1): 64 bits from the numbers given and nothing else."""
    return int(mixed(seed, epoch, _SPLIT + side, index))


def _utf8(text: str, *, lowercase: bool) -> bytes:
    try:
        return (text.lower() if lowercase else text).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{text[:40]!a}: character {error.start + 1} is half of a surrogate pair, and no text; "
            "decode the bytes that it came from as UTF-8"
        ) from None


def learn_subword(
    texts: Iterable[str],
    config: TokenizerConfig,
    *,
    vocab_size: int,
    seed: int,
    key: str = "tokenizer.vocab_size",
    notice: Notice = lambda _: None,
) -> Subword:
    """Learn a model from lines of text; `key` names the vocabulary size in a complaint, `notice` is told what was left out.

    Raises RecipeError where the text is too small or too rich for the vocabulary, DataError where there is no text, and
    whatever reading the text raises.
    """
    written = io.BytesIO()
    stopped: list[BaseException] = []
    too_long = 0

    def lines() -> Iterator[bytes]:
        nonlocal too_long
        try:
            for text in texts:
                line = _utf8(text, lowercase=config.lowercase)
                if len(line) > LONGEST_LINE_BYTES:
                    too_long += 1
                elif text.strip():
                    yield line
        except BaseException as reason:  # SentencePiece would make a RuntimeError of it, and lose what it says
            stopped.append(reason)
            raise

    spm.set_random_generator_seed(seed)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=written,
            model_type=config.model_type,
            vocab_size=vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name={"nfkc": "nmt_nfkc", "identity": "identity"}[config.normalization],
            split_digits=config.split_digits,
            max_sentence_length=LONGEST_LINE_BYTES,
            pad_id=PADDING_ID,
            unk_id=UNKNOWN_ID,
            bos_id=BEGIN_ID,
            eos_id=END_ID,
            num_threads=4,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise (stopped[0] if stopped else _why_not_learnt(str(error), key, vocab_size)) from None
    if too_long:
        what, take = ("line", "takes") if too_long == 1 else ("lines", "take")
        notice(f"{too_long:,} {what} of more than {LONGEST_LINE_BYTES:,} bytes {take} no part in learning the pieces")
    return Subword(written.getvalue(), lowercase=config.lowercase)


def _why_not_learnt(message: str, key: str, vocab_size: int) -> DataError | RecipeError:
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError(f"the training corpus is empty: no line of up to {LONGEST_LINE_BYTES} bytes holds any text")
    if (most := re.search(r"value <= (\d+)", message)) is not None:
        return RecipeError(f"{key} = {vocab_size} is more than this text gives pieces for; set it to {most[1]} or less")
    if (least := re.search(r"\d+ vs (\d+)", message)) is not None:
        return RecipeError(
            f"{key} = {vocab_size} is too small for the characters of this text; set it to {least[1]} or more, "
            "or lower tokenizer.character_coverage"
        )
    return RecipeError(f"no subword model could be learnt from this text: {' '.join(message.split())}")


def take_subword(config: TokenizerConfig, key: str, path: Path) -> Subword:
    """The SentencePiece model in a file that the recipe's `key` names.

    Raises DataError for a missing file, BundleError for one that is no such model or has no place for the four special pieces,
    and RecipeError where the recipe asks for what the model cannot do; each names file and key.
    """
    try:
        model = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror} (tokenizer.{key})") from None
    where = f"{path} (tokenizer.{key})"
    ids = _special_ids(_processor_of(model, name=where))
    try:
        model = model if ids == SPECIAL_IDS else renumbered(model)
        spells_bytes = any(piece.kind == BYTE for piece in read_pieces(model))
    except ValueError as reason:
        raise BundleError(
            f"{where}: cannot be taken: {reason}; train one with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
        ) from None
    taken = Subword(model, lowercase=config.lowercase, name=where)
    if config.byte_fallback and not spells_bytes:
        raise RecipeError(
            f"{where}: this model cannot spell unknown characters as bytes; set tokenizer.byte_fallback = false, or train "
            "one with --byte_fallback"
        )
    refuse_sampling(taken, config, where)
    return taken


def refuse_sampling(subword: Vocabulary, config: TokenizerConfig, where: str) -> None:
    """Raise RecipeError where the recipe asks for sampling of a model that knows one way to split only."""
    if config.sampling_alpha:
        try:
            subword.sample("", alpha=config.sampling_alpha, seed=0)
        except ValueError as reason:
            raise RecipeError(
                f"{where}: tokenizer.sampling_alpha = {config.sampling_alpha}, but {reason}; set it to 0"
            ) from None
