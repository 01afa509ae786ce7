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
from dragoman.data.counter_rng import hash64
from dragoman.data.tokenization.sentencepiece_proto import BYTE, read_pieces, renumber_special_pieces
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.subword_sampling import METASPACE, BpeDropout, UnigramSampling, build_sampler
from dragoman.errors import BundleError, DataError, RecipeError

# Longer lines are left out of what the subword model learns from, never out of the corpus.
MAX_TRAINING_LINE_BYTES = 65_536
# Sets the draws for sampling apart from all others that are made with the same seed.
_SAMPLING_STREAM = 1000

NotifyFn = Callable[[str], None]


class Vocabulary(Protocol):
    """What a side's text is split into: a subword model's pieces, or a closed list of labels.

    model: what is kept of it on disk. The methods are those of `Subword`.
    """

    @property
    def serialized_model(self) -> bytes: ...
    def __len__(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...
    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def piece_to_id(self, piece: str) -> int | None: ...
    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]: ...


class SentencePieceTokenizer:
    """A subword model. `encode` and `decode` know nothing of begin and end tokens.

    With byte fallback and identity normalisation, `decode(encode(text))` is the text itself, save that a run of spaces becomes
    one, spaces at the ends go, and a line break becomes a space, as does ▁ (U+2581), by which SentencePiece marks spaces.
    """

    def __init__(self, serialized_model: bytes, *, lowercase: bool = False, name: str = "subword model") -> None:
        self.serialized_model = serialized_model
        self.lowercase = lowercase
        self._processor = _load_processor(serialized_model, name=name)
        self._piece_cache: dict[int, str] = {}  # the pieces that were asked for; to ask again costs a microsecond each
        if (ids := _get_special_ids(self._processor)) != SPECIAL_IDS:
            raise BundleError(f"{name}: padding, unknown, begin and end stand at {ids}; dragoman expects {SPECIAL_IDS}")

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process, which makes a sampler of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_sampler"}

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """The ids of a line. Raises DataError for half a surrogate pair, which no UTF-8 text can hold."""
        ids: list[int] = self._processor.encode(_encode_utf8(text, lowercase=self.lowercase))
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, of many lines at once."""
        texts = [text.lower() for text in texts] if self.lowercase else list(texts)
        try:
            # One thread: whoever has many texts spreads them over processes, and threads of each would be in their way.
            ids: list[list[int]] = self._processor.encode(texts, num_threads=1)
        except TypeError:  # half a surrogate pair is no text to it, either; `encode` tells where
            ids = [self.encode(text) for text in texts]
        return ids

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """As `encode`, split in one of many ways: a pure function of its arguments, whatever the process, thread and order.

        A BPE model leaves out each merge with probability `alpha`; a unigram model draws from all ways to split, each as likely
        as its probability to the power of `alpha`. With 0, either encodes. Raises ValueError where a model knows one way only.
        """
        if alpha == 0:
            return self.encode(text)
        normalized: bytes = self._processor.normalize(_encode_utf8(text, lowercase=self.lowercase))
        return self._sampler.split(normalized.decode(), alpha, Random(seed))

    @cached_property
    def _sampler(self) -> BpeDropout | UnigramSampling:
        return build_sampler(self.serialized_model)

    def decode(self, ids: Sequence[int]) -> str:
        """One line of text: a line break that the model spelled out in bytes becomes a space."""
        text: str = self._processor.decode(list(ids))
        return re.sub(r"[\r\n]", " ", text)

    def piece_to_id(self, piece: str) -> int | None:
        """The id of a piece, if it is one; `<unk>` is."""
        piece_id = self._processor.piece_to_id(piece)
        return piece_id if self._processor.id_to_piece(piece_id) == piece else None

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        for index in ids:
            if index not in self._piece_cache:
                self._piece_cache[index] = str(self._processor.id_to_piece(index))
        return [self._piece_cache[index] for index in ids]

    @cached_property
    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        """Of each id, whether its piece begins a word."""
        return np.array([piece.startswith(METASPACE) for piece in self.ids_to_pieces(range(len(self)))])


def _load_processor(serialized_model: bytes, *, name: str) -> spm.SentencePieceProcessor:
    processor = spm.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(serialized_model)
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except (RuntimeError, UnicodeDecodeError):
        raise BundleError(f"{name}: not a SentencePiece model, or a damaged one") from None
    return processor


def _get_special_ids(processor: spm.SentencePieceProcessor) -> list[int]:
    return [getattr(processor, f"{piece_name}_id")() for piece_name in ("pad", "unk", "bos", "eos")]


def derive_sampling_seed(seed: int, epoch: int, index: int, side: int) -> int:
    """The seed to sample one side of a pair with, source (0) or target (1): 64 bits from the numbers given and nothing else."""
    return int(hash64(seed, epoch, _SAMPLING_STREAM + side, index))


def _encode_utf8(text: str, *, lowercase: bool) -> bytes:
    try:
        return (text.lower() if lowercase else text).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{text[:40]!a}: character {error.start + 1} is half of a surrogate pair, and no text; "
            "decode the bytes that it came from as UTF-8"
        ) from None


def train_sentencepiece(
    texts: Iterable[str],
    config: TokenizerConfig,
    *,
    vocab_size: int,
    seed: int,
    key: str = "tokenizer.vocab_size",
    notify: NotifyFn = lambda _: None,
) -> SentencePieceTokenizer:
    """Learn a model from lines of text; `key` names the vocabulary size in a complaint, `notice` is told what was left out.

    Raises RecipeError where the text is too small or too rich for the vocabulary, DataError where there is no text, and
    whatever reading the text raises.
    """
    buffer = io.BytesIO()
    reader_errors: list[BaseException] = []
    num_overlong = 0

    def iter_lines() -> Iterator[bytes]:
        nonlocal num_overlong
        try:
            for text in texts:
                line = _encode_utf8(text, lowercase=config.lowercase)
                if len(line) > MAX_TRAINING_LINE_BYTES:
                    num_overlong += 1
                elif text.strip():
                    yield line
        except BaseException as reason:  # SentencePiece would make a RuntimeError of it, and lose what it says
            reader_errors.append(reason)
            raise

    spm.set_random_generator_seed(seed)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter_lines(),
            model_writer=buffer,
            model_type=config.model_type,
            vocab_size=vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name={"nfkc": "nmt_nfkc", "identity": "identity"}[config.normalization],
            split_digits=config.split_digits,
            max_sentence_length=MAX_TRAINING_LINE_BYTES,
            pad_id=PADDING_ID,
            unk_id=UNKNOWN_ID,
            bos_id=BEGIN_ID,
            eos_id=END_ID,
            num_threads=4,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise (reader_errors[0] if reader_errors else _to_training_error(str(error), key, vocab_size)) from None
    if num_overlong:
        noun, verb = ("line", "takes") if num_overlong == 1 else ("lines", "take")
        notify(f"{num_overlong:,} {noun} of more than {MAX_TRAINING_LINE_BYTES:,} bytes {verb} no part in learning the pieces")
    return SentencePieceTokenizer(buffer.getvalue(), lowercase=config.lowercase)


def _to_training_error(message: str, key: str, vocab_size: int) -> DataError | RecipeError:
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError(f"the training corpus is empty: no line of up to {MAX_TRAINING_LINE_BYTES} bytes holds any text")
    if (upper_limit := re.search(r"value <= (\d+)", message)) is not None:
        return RecipeError(f"{key} = {vocab_size} is more than this text gives pieces for; set it to {upper_limit[1]} or less")
    if (lower_limit := re.search(r"\d+ vs (\d+)", message)) is not None:
        return RecipeError(
            f"{key} = {vocab_size} is too small for the characters of this text; set it to {lower_limit[1]} or more, "
            "or lower tokenizer.character_coverage"
        )
    return RecipeError(f"no subword model could be learnt from this text: {' '.join(message.split())}")


def import_sentencepiece(config: TokenizerConfig, key: str, path: Path) -> SentencePieceTokenizer:
    """The SentencePiece model in a file that the recipe's `key` names.

    Raises DataError for a missing file, BundleError for one that is no such model or has no place for the four special pieces,
    and RecipeError where the recipe asks for what the model cannot do; each names file and key.
    """
    try:
        serialized_model = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror} (tokenizer.{key})") from None
    location = f"{path} (tokenizer.{key})"
    ids = _get_special_ids(_load_processor(serialized_model, name=location))
    try:
        serialized_model = serialized_model if ids == SPECIAL_IDS else renumber_special_pieces(serialized_model)
        has_byte_pieces = any(piece.piece_type == BYTE for piece in read_pieces(serialized_model))
    except ValueError as reason:
        raise BundleError(
            f"{location}: cannot be taken: {reason}; train one with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
        ) from None
    tokenizer = SentencePieceTokenizer(serialized_model, lowercase=config.lowercase, name=location)
    if config.byte_fallback and not has_byte_pieces:
        raise RecipeError(
            f"{location}: this model cannot spell unknown characters as bytes; set tokenizer.byte_fallback = false, or train "
            "one with --byte_fallback"
        )
    check_sampling(tokenizer, config, location)
    return tokenizer


def check_sampling(vocabulary: Vocabulary, config: TokenizerConfig, location: str) -> None:
    """Raise RecipeError where the recipe asks for sampling of a model that knows one way to split only."""
    if config.sampling_alpha:
        try:
            vocabulary.sample_encode("", alpha=config.sampling_alpha, seed=0)
        except ValueError as reason:
            raise RecipeError(
                f"{location}: tokenizer.sampling_alpha = {config.sampling_alpha}, but {reason}; set it to 0"
            ) from None
