"""Text to ids and back: a SentencePiece model, and the four ids that every vocabulary begins with."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

import sentencepiece as spm

from dragoman.config import SubwordConfig
from dragoman.errors import BundleError, DataError, RecipeError

PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID = 0, 1, 2, 3
# Longer lines are cut from what the subword model learns from, never from the corpus.
LONGEST_LINE_BYTES = 65_536


class Subword:
    """A subword model. `encode` and `decode` know nothing of begin and end tokens."""

    def __init__(self, model: bytes, *, lowercase: bool = False, name: str = "subword model") -> None:
        self.model = model
        self.lowercase = lowercase
        self._processor = spm.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise BundleError(f"{name}: not a SentencePiece model: {error}") from None
        ids = [getattr(self._processor, f"{kind}_id")() for kind in ("pad", "unk", "bos", "eos")]
        if ids != [PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID]:
            raise BundleError(f"{name}: padding, unknown, begin and end stand at {ids}; dragoman expects [0, 1, 2, 3]")

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text.lower() if self.lowercase else text)
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode([text.lower() for text in texts] if self.lowercase else list(texts))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """One line of text: a line break that the model spelled out in bytes becomes a space."""
        text: str = self._processor.decode(list(ids))
        return re.sub(r"[\r\n]", " ", text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(index)) for index in ids]


def learn_subword(texts: Iterable[str], config: SubwordConfig, *, vocabulary_size: int, seed: int) -> Subword:
    """Learn a model from lines of text. Raises RecipeError where the text is too small or too rich for the vocabulary."""
    written = io.BytesIO()
    lines = (line.lower() if config.lowercase else line for line in texts if line.strip())
    spm.set_random_generator_seed(seed)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=written,
            model_type=config.kind,
            vocab_size=vocabulary_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name={"nfkc": "nmt_nfkc", "identity": "identity"}[config.normalisation],
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
        raise RecipeError(_why_not_learnt(str(error), vocabulary_size)) from None
    return Subword(written.getvalue(), lowercase=config.lowercase)


def _why_not_learnt(message: str, vocabulary_size: int) -> str:
    if (most := re.search(r"value <= (\d+)", message)) is not None:
        return (
            f"subword.vocabulary_size = {vocabulary_size} is more than this text gives pieces for; set it to {most[1]} or less"
        )
    if "required_chars" in message or "smaller than" in message:
        return (
            f"subword.vocabulary_size = {vocabulary_size} is too small for the characters of this text; raise it, "
            "or lower subword.character_coverage"
        )
    return f"no subword model could be learnt from this text: {message.strip().splitlines()[-1]}"


class Tokeniser:
    """The subword models of both sides; one and the same where they are joint."""

    def __init__(self, source: Subword, target: Subword, *, source_eos: bool) -> None:
        self.source = source
        self.target = target
        self.source_eos = source_eos

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def encode_source(self, text: str) -> list[int]:
        """Ids as the encoder reads them."""
        return self.source.encode(text) + ([END_ID] if self.source_eos else [])

    def encode_target(self, text: str) -> list[int]:
        """Ids without begin and end."""
        return self.target.encode(text)


def learn_tokeniser(
    sources: Iterable[str], targets: Iterable[str], config: SubwordConfig, *, source_eos: bool, seed: int
) -> Tokeniser:
    """Learn the joint model from both sides, or one from each. Raises DataError where there is no text."""

    def both() -> Iterable[str]:
        yield from sources
        yield from targets

    if config.joint:
        joint = learn_subword(_some(both()), config, vocabulary_size=config.vocabulary_size, seed=seed)
        return Tokeniser(joint, joint, source_eos=source_eos)
    target_size = config.target_vocabulary_size or config.vocabulary_size
    return Tokeniser(
        learn_subword(_some(sources), config, vocabulary_size=config.vocabulary_size, seed=seed),
        learn_subword(_some(targets), config, vocabulary_size=target_size, seed=seed),
        source_eos=source_eos,
    )


def _some(texts: Iterable[str]) -> Iterable[str]:
    """Pass the texts on; raise DataError if not one of them holds anything."""
    found = False
    for text in texts:
        found = found or bool(text.strip())
        yield text
    if not found:
        raise DataError("the training corpus is empty: no line holds any text")
