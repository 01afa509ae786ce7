"""SentencePiece tokenizer: training, import, encoding, subword sampling and decoding."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece as spm

from dragoman.config import Normalization, TokenizerConfig
from dragoman.data.counter_rng import hash64
from dragoman.data.tokenization.normalization import normalize, serialize_rule
from dragoman.data.tokenization.reserved_tokens import MARKS
from dragoman.data.tokenization.sentencepiece_proto import (
    BYTE,
    define_control_pieces,
    insert_control_pieces,
    read_pieces,
    remove_dummy_prefix,
    renumber_special_pieces,
    replace_normalization,
)
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, METASPACE, PADDING_ID, SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.subword_sampling import BpeDropout, UnigramSampling, build_sampler
from dragoman.data.tokenization.vocabulary import NotifyFn, Vocabulary
from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.runtime.progress import LINE_INTERVAL_SECONDS, format_duration

# Longer lines do not train the tokenizer, but they stay in the corpus.
MAX_TRAINING_LINE_BYTES = 65_536
# Stream of random numbers for subword sampling, distinct from all other streams of the same seed.
_SAMPLING_STREAM = 1000
# SentencePiece's names of the rules of normalization; it has none for NFC.
_RULE_NAMES: dict[Normalization, str] = {"nfkc": "nmt_nfkc", "nfc": "nfc", "identity": "identity"}


class SentencePieceTokenizer:
    """SentencePiece model. `encode` and `decode` add and expect no begin and end tokens.

    With byte fallback and identity normalization, `decode(encode(text))` equals the text except for spaces. A run of spaces
    becomes one space, spaces at the ends are removed, and line breaks and ▁ (U+2581, SentencePiece's mark of a space) become
    spaces.

    name: the file that error messages name

    Raises BundleError: the bytes are not a model, or its special pieces do not have the ids 0 to 3.
    """

    def __init__(self, serialized_model: bytes, *, lowercase: bool = False, name: str = "tokenizer") -> None:
        self.serialized_model = serialized_model
        self.lowercase = lowercase
        self._processor = load_processor(serialized_model, name=name)
        self._piece_cache: dict[int, str] = {}  # a lookup in the processor takes a microsecond
        if (ids := _get_special_ids(self._processor)) != SPECIAL_IDS:
            raise BundleError(
                f"{name}: padding, unknown, begin and end have the ids {ids}, but dragoman needs {SPECIAL_IDS}; import the "
                "model with tokenizer.model_file",
                code="tokenizer-damaged",
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the sampler and the second processor, which another process builds itself."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_sampler", "_continuing_processor")}

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a line. Raise DataError for half of a surrogate pair, which UTF-8 cannot encode."""
        ids: list[int] = self._processor.encode(encode_utf8(text, lowercase=self.lowercase))
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of a text that follows other text without a space between them."""
        ids: list[int] = self._continuing_processor.encode(encode_utf8(text, lowercase=self.lowercase))
        return ids

    @cached_property
    def _continuing_processor(self) -> spm.SentencePieceProcessor:
        return load_processor(remove_dummy_prefix(self.serialized_model), name="tokenizer")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several lines, as `encode` does."""
        texts = [text.lower() for text in texts] if self.lowercase else list(texts)
        try:
            # One thread, because the callers spread many texts over processes.
            ids: list[list[int]] = self._processor.encode(texts, num_threads=1)
        except TypeError:  # half of a surrogate pair; `encode` raises the error that names it
            ids = [self.encode(text) for text in texts]
        return ids

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return the ids of a random segmentation, as a pure function of the arguments in any process, thread and order.

        A BPE model skips each merge with probability `alpha`. A unigram model draws a segmentation with its probability to the
        power of `alpha`. With 0, both return `encode(text)`. Raise ValueError if the model is neither.
        """
        if alpha == 0:
            return self.encode(text)
        normalized: bytes = self._processor.normalize(encode_utf8(text, lowercase=self.lowercase))
        return self._sampler.split(normalized.decode(), alpha, Random(seed))

    @cached_property
    def _sampler(self) -> BpeDropout | UnigramSampling:
        return build_sampler(self.serialized_model)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids as one line; line breaks from byte pieces become spaces."""
        text: str = self._processor.decode(list(ids))
        return text.replace("\n", " ").replace("\r", " ")

    def piece_to_id(self, piece: str) -> int | None:
        """Return the id of a piece, including `<unk>`; None if there is no such piece."""
        piece_id = self._processor.piece_to_id(piece)
        return piece_id if self._processor.id_to_piece(piece_id) == piece else None

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        try:
            return [self._piece_cache[index] for index in ids]
        except KeyError:
            self._piece_cache |= {index: str(self._processor.id_to_piece(index)) for index in ids}
            return [self._piece_cache[index] for index in ids]

    @cached_property
    def reserved_ids(self) -> tuple[int, ...]:
        """Ids that no text is encoded to, apart from the special ids: those of placeholders and language tokens."""
        return tuple(takewhile(self._processor.is_control, range(len(SPECIAL_IDS), len(self))))

    def reserve(self, tokens: Sequence[str]) -> SentencePieceTokenizer:
        """Return a tokenizer with these reserved tokens after the special ones. Raise ValueError if one is a piece already."""
        return SentencePieceTokenizer(insert_control_pieces(self.serialized_model, tokens), lowercase=self.lowercase)

    def with_normalization(self, normalization: Normalization) -> SentencePieceTokenizer:
        rule = replace_normalization(self.serialized_model, _RULE_NAMES[normalization], serialize_rule(normalization))
        return SentencePieceTokenizer(rule, lowercase=self.lowercase)

    def define_marks(self) -> SentencePieceTokenizer | None:
        """Return a tokenizer with the same ids that encodes marks to reserved tokens, and decodes these to marks.

        Return None if it lacks the reserved token of a mark.
        """
        if any(self.piece_to_id(token) is None for token in MARKS):
            return None
        return SentencePieceTokenizer(define_control_pieces(self.serialized_model, MARKS), lowercase=self.lowercase)

    @cached_property
    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        """Mask of the ids whose piece starts a word. (V,)"""
        return np.array([piece.startswith(METASPACE) for piece in self.ids_to_pieces(range(len(self)))])


def load_processor(serialized_model: bytes, *, name: str) -> spm.SentencePieceProcessor:
    """Return the SentencePiece model of these bytes. Raise BundleError, which names `name`, if they are not a model."""
    processor = spm.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(serialized_model)
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except (RuntimeError, UnicodeDecodeError):
        raise BundleError(
            f"{name}: is not a SentencePiece model, or is damaged; copy the file again", code="tokenizer-damaged"
        ) from None
    return processor


def _get_special_ids(processor: spm.SentencePieceProcessor) -> list[int]:
    return [getattr(processor, f"{piece_name}_id")() for piece_name in ("pad", "unk", "bos", "eos")]


def derive_sampling_seed(seed: int, epoch: int, index: int, side: int) -> int:
    """Return the 64-bit seed of subword sampling for one side of a pair: source (0) or target (1)."""
    return int(hash64(seed, epoch, _SAMPLING_STREAM + side, index))


def encode_utf8(text: str, *, lowercase: bool) -> bytes:
    """Return the text as bytes. Raise DataError for half of a surrogate pair."""
    try:
        return (text.lower() if lowercase else text).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{text[:40]!a}: character {error.start + 1} is half of a surrogate pair; decode the original bytes as UTF-8",
            code="invalid-encoding",
        ) from None


def train_sentencepiece(
    texts: Iterable[str],
    config: TokenizerConfig,
    *,
    normalization: Normalization | None = None,
    vocab_size: int,
    seed: int,
    key: str = "tokenizer.vocab_size",
    notify: NotifyFn = lambda _: None,
) -> SentencePieceTokenizer:
    """Train a SentencePiece model.

    normalization: Unicode normalization of the model, by default that of the target
    vocab_size: number of pieces with the special pieces
    key: recipe key of the vocabulary size, for error messages
    notify: receives the number of skipped lines, and the time so far every 20 seconds

    Raises RecipeError: the vocabulary size does not fit the text.
    Raises DataError: there is no text.
    Raises BaseException: an exception of the iterator over the text.
    """
    buffer = io.BytesIO()
    normalization = normalization or config.get_normalization("target")
    lines = _TrainingLines(texts, normalization, lowercase=config.lowercase)
    spm.set_random_generator_seed(seed)
    try:
        _call_with_heartbeat(
            spm.SentencePieceTrainer.train,
            lambda seconds: notify(f"training the tokenizer: {format_duration(seconds)} so far"),
            sentence_iterator=iter(lines),
            model_writer=buffer,
            model_type=config.model_type,
            vocab_size=vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
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
        raise (lines.error or _to_training_error(str(error), key, vocab_size)) from None
    if lines.num_overlong:
        noun, verb = ("line", "does") if lines.num_overlong == 1 else ("lines", "do")
        notify(f"{lines.num_overlong:,} {noun} of more than {MAX_TRAINING_LINE_BYTES:,} bytes {verb} not train the tokenizer")
    tokenizer = SentencePieceTokenizer(buffer.getvalue(), lowercase=config.lowercase)
    return tokenizer if normalization == "identity" else tokenizer.with_normalization(normalization)


class _TrainingLines:
    """Lines of text in UTF-8, without empty and overlong ones.

    num_overlong: lines that are too long
    error: what the reader of the text has raised; SentencePiece would replace it by a RuntimeError without its message
    """

    def __init__(self, texts: Iterable[str], normalization: Normalization, *, lowercase: bool) -> None:
        self.texts, self.normalization, self.lowercase = texts, normalization, lowercase
        self.num_overlong = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for text in self.texts:
                line = encode_utf8(normalize(text, self.normalization), lowercase=self.lowercase)
                if len(line) > MAX_TRAINING_LINE_BYTES:
                    self.num_overlong += 1
                elif text.strip():
                    yield line
        except BaseException as error:
            self.error = error
            raise


def _call_with_heartbeat(function: Callable[..., None], beat: Callable[[float], None], **arguments: object) -> None:
    """Call a function in a second thread, and call `beat` with the seconds so far every 20 seconds in this one."""
    start_time = time.monotonic()
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(function, **arguments)
        while not wait([future], timeout=LINE_INTERVAL_SECONDS).done:
            beat(time.monotonic() - start_time)
        future.result()


def _to_training_error(message: str, key: str, vocab_size: int) -> DataError | RecipeError:
    """Return the error of a user for a message of SentencePiece."""
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError(
            f"training corpus: is empty, no line of up to {MAX_TRAINING_LINE_BYTES} bytes holds text; check data.train",
            code="empty-data",
        )
    if (upper_limit := re.search(r"value <= (\d+)", message)) is not None:
        return RecipeError(
            f"{key} = {vocab_size}: is more than the text has pieces; set it to {upper_limit[1]} or less",
            code="tokenizer-mismatch",
        )
    if (lower_limit := re.search(r"\d+ vs (\d+)", message)) is not None:
        return RecipeError(
            f"{key} = {vocab_size}: is too small for the characters of the text; set it to {lower_limit[1]} or more, "
            "or lower tokenizer.character_coverage",
            code="tokenizer-mismatch",
        )
    return RecipeError(
        f"{key} = {vocab_size}: SentencePiece cannot train on this text ({' '.join(message.split())}); change the recipe",
        code="tokenizer-mismatch",
    )


def import_sentencepiece(config: TokenizerConfig, key: str, path: Path) -> SentencePieceTokenizer:
    """Return the SentencePiece model in a file of the user, with its special pieces moved to the ids 0 to 3.

    key: the key of that section which names the file, for error messages

    Raises DataError: the file cannot be read.
    Raises BundleError: the file is no SentencePiece model, or its special pieces cannot be moved.
    Raises RecipeError: the recipe asks for something that the model cannot do.
    """
    try:
        serialized_model = path.read_bytes()
    except OSError as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "file-unreadable"
        raise DataError(f"{path}: cannot be read: {error.strerror} (tokenizer.{key})", code=code) from None
    location = f"{path} (tokenizer.{key})"
    ids = _get_special_ids(load_processor(serialized_model, name=location))
    try:
        serialized_model = serialized_model if ids == SPECIAL_IDS else renumber_special_pieces(serialized_model)
        has_byte_pieces = any(piece.piece_type == BYTE for piece in read_pieces(serialized_model))
    except ValueError as error:
        raise BundleError(
            f"{location}: cannot be imported: {error}; train one with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3",
            code="tokenizer-damaged",
        ) from None
    tokenizer = SentencePieceTokenizer(serialized_model, lowercase=config.lowercase, name=location)
    if config.byte_fallback and not has_byte_pieces:
        raise RecipeError(
            f"{location}: has no byte pieces; set tokenizer.byte_fallback = false, or train one with --byte_fallback",
            code="tokenizer-mismatch",
        )
    check_sampling(tokenizer, config, location)
    return tokenizer


def check_sampling(vocabulary: Vocabulary, config: TokenizerConfig, location: str) -> None:
    """Raise RecipeError if the recipe asks for subword sampling and the model does not support it."""
    if config.sampling_alpha:
        try:
            vocabulary.sample_encode("", alpha=config.sampling_alpha, seed=0)
        except ValueError as error:
            raise RecipeError(
                f"{location}: tokenizer.sampling_alpha = {config.sampling_alpha}, but {error}; set it to 0",
                code="tokenizer-mismatch",
            ) from None
