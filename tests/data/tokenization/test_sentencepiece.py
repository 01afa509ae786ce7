"""Tests of SentencePiece tokenizers: subword sampling, model files, import, and overlong training lines."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece as spm
from hypothesis import given
from hypothesis import strategies as st

import dragoman.data.tokenization.sentencepiece
from dragoman.config import TokenizerConfig
from dragoman.data.tokenization.pair_tokenizer import (
    PairTokenizer,
    import_tokenizer,
    read_tokenizer,
    write_tokenizer,
)
from dragoman.data.tokenization.sentencepiece import (
    MAX_TRAINING_LINE_BYTES,
    SentencePieceTokenizer,
    derive_sampling_seed,
    train_sentencepiece,
)
from dragoman.data.tokenization.sentencepiece_proto import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    read_model_type,
    read_pieces,
    renumber_special_pieces,
)
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.data.tokenization.subword_sampling import MAX_CACHED_WORD_LENGTH, BpeDropout, build_sampler
from dragoman.errors import BundleError, DataError, DragomanError, RecipeError
from expected_errors import error_message
from progress_lines import drop_progress
from small_language import WORDS, random_sentences

MODEL_TYPES = ["bpe", "unigram"]
VOCAB_SIZE = 420
OTHER_SCRIPTS = ["Straße und Wörter", "l'été dernier", "我昨天买了三本书", "чудесная погода", "ありがとう"]
LINES = st.text(st.characters(exclude_characters="\r\n▁", exclude_categories=["Cs"]))
TEXTS = st.one_of(LINES, st.lists(st.sampled_from([*WORDS[:20], *OTHER_SCRIPTS, " ", "  ", "<s>", "é", "😀"])).map("".join))


@cache
def get_tokenizer(model_type: str, *, byte_fallback: bool = True) -> SentencePieceTokenizer:
    config = TokenizerConfig.model_validate(
        {"model_type": model_type, "normalization": "identity", "byte_fallback": byte_fallback}
    )
    texts = [*random_sentences(400, 1), *(OTHER_SCRIPTS * 9 if byte_fallback else [])]
    return train_sentencepiece(texts, config, vocab_size=VOCAB_SIZE if byte_fallback else 120, seed=1)


def train_foreign_model(**options: Any) -> bytes:
    """Return a model with SentencePiece's defaults: unknown, begin and end at 0 to 2, and no padding."""
    buffer = io.BytesIO()
    defaults: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": VOCAB_SIZE,
        "byte_fallback": True,
        "minloglevel": 2,
        "num_threads": 1,
    }
    lines = iter([*random_sentences(400, 1), *OTHER_SCRIPTS * 9])
    spm.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=buffer, **(defaults | options))
    return buffer.getvalue()


def load_processor(model: bytes) -> Any:
    return spm.SentencePieceProcessor(model_proto=model)


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@given(text=TEXTS, alpha=st.sampled_from([0.05, 0.3, 0.9, 1.0]), seed=st.integers(0, 2**64 - 1))
def test_sampled_ids_decode_to_the_text(model_type: str, text: str, alpha: float, seed: int) -> None:
    model = get_tokenizer(model_type)
    ids = model.sample_encode(text, alpha=alpha, seed=seed)
    assert model.decode(ids) == model.decode(model.encode(text))
    assert model.sample_encode(text, alpha=alpha, seed=seed) == ids
    assert all(UNKNOWN_ID < index < len(model) for index in ids)


@pytest.mark.parametrize("byte_fallback", [True, False])
@given(text=TEXTS)
def test_bpe_without_dropout_matches_sentencepiece(byte_fallback: bool, text: str) -> None:
    model = get_tokenizer("bpe", byte_fallback=byte_fallback)
    normal = load_processor(model.serialized_model).normalize(text)
    assert build_sampler(model.serialized_model).split(normal, 0.0, Random(1)) == model.encode(text)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_sampling_frequencies_match_sentencepiece(model_type: str, alpha: float) -> None:
    """SentencePiece's sampler has no fixed seed, so each frequency may differ by seven standard deviations."""
    model, count = get_tokenizer(model_type), 3_000
    text = f"{WORDS[0]} {WORDS[7]}"
    own_counts = Counter(tuple(model.sample_encode(text, alpha=alpha, seed=seed)) for seed in range(count))
    reference = load_processor(model.serialized_model)
    reference_counts = Counter(
        tuple(reference.encode(text, enable_sampling=True, alpha=alpha, nbest_size=-1)) for _ in range(count)
    )
    assert len(own_counts) > 4
    for ids in own_counts | reference_counts:
        share = (own_counts[ids] + reference_counts[ids]) / (2 * count)
        assert abs(own_counts[ids] - reference_counts[ids]) <= 7 * (2 * count * share * (1 - share)) ** 0.5 + 7


def samples() -> list[list[int]]:
    return [
        get_tokenizer(model_type).sample_encode(text, alpha=0.3, seed=derive_sampling_seed(1, 2, index, 0))
        for model_type in MODEL_TYPES
        for index, text in enumerate([*random_sentences(100, 5), *OTHER_SCRIPTS])
    ]


def test_threads_and_order_change_no_sample() -> None:
    expected = samples()
    spm.set_random_generator_seed(7)
    with ThreadPoolExecutor(4) as pool:
        assert all(sampled == expected for sampled in pool.map(lambda _: samples(), range(4)))
    model, text = get_tokenizer("bpe"), " ".join(WORDS[:40])
    sampled = [model.sample_encode(text, alpha=0.3, seed=seed) for seed in range(50)]
    assert [model.sample_encode(text, alpha=0.3, seed=seed) for seed in reversed(range(50))] == sampled[::-1]
    assert len(set(map(tuple, sampled))) == 50


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_only_short_words_are_cached(model_type: str) -> None:
    """A text of 10,000 letters leaves no cache entry; 200 texts of the same ten words leave ten."""
    model = SentencePieceTokenizer(get_tokenizer(model_type).serialized_model)
    sampler = model._sampler
    cache_info = (sampler._cached_merge if isinstance(sampler, BpeDropout) else sampler._cached_lattice).cache_info
    letters = "".join(Random(0).choices("我昨天买了三本书", k=10_000))
    assert model.decode(model.sample_encode(letters, alpha=0.3, seed=0)) == letters
    assert cache_info().currsize == 0
    longest = "b" * (MAX_CACHED_WORD_LENGTH - 1)  # plus the space before it
    for seed in range(200):
        model.sample_encode(" ".join(Random(seed).sample([*WORDS[:9], longest], 10)), alpha=0.3, seed=seed)
    model.sample_encode(f"{longest}b", alpha=0.3, seed=1)
    assert (cache_info().currsize, cache_info().hits) == (10, 1_990)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"user_defined_symbols": ["<ph>", "bala", "b c"]},
    {"split_by_whitespace": False},
    {"treat_whitespace_as_suffix": True},
    {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    {"byte_fallback": False, "vocab_size": 150},
    {"normalization_rule_name": "identity", "split_digits": True, "control_symbols": ["<a>", "<b>"]},
]


@pytest.mark.slow
def test_models_of_other_settings_are_supported(subtests: pytest.Subtests) -> None:
    for options in OPTIONS:
        for model_type in MODEL_TYPES:
            with subtests.test(model_type=model_type, options=options):
                foreign = train_foreign_model(model_type=model_type, **options)
                model, reference = SentencePieceTokenizer(renumber_special_pieces(foreign)), load_processor(foreign)
                texts = [
                    *random_sentences(30, 4),
                    *OTHER_SCRIPTS,
                    "a <ph> bala b c, <a>  <s> 12",
                    "  é  é",
                    "",
                    "nothing<ph><ph>",
                    "éé éü 😀😀",
                ]
                for seed, text in enumerate(texts):
                    assert model.ids_to_pieces(model.encode(text)) == reference.encode(text, out_type=str, emit_unk_piece=True)
                    normal = reference.normalize(text)
                    if model_type == "bpe":
                        assert build_sampler(model.serialized_model).split(normal, 0.0, Random(1)) == model.encode(text)
                    sampled = model.sample_encode(text, alpha=0.3, seed=seed)
                    if UNKNOWN_ID not in sampled:
                        assert (
                            model.decode(sampled)
                            == model.decode(model.encode(text))
                            == reference.decode(reference.encode(text))
                        )
                    if options.get("user_defined_symbols"):
                        assert model.ids_to_pieces(sampled).count("<ph>") == text.count("<ph>")


# --- model files ------------------------------------------------------------------------------------------------------


def test_read_pieces_matches_sentencepiece() -> None:
    model = train_foreign_model(user_defined_symbols=["<ph>"], control_symbols=["<a>"])
    reference, pieces = load_processor(model), read_pieces(model)
    predicates = {CONTROL: "is_control", UNKNOWN: "is_unknown", BYTE: "is_byte"}
    assert [piece.text for piece in pieces] == reference.id_to_piece(list(range(len(reference))))
    assert [piece.score for piece in pieces] == [reference.get_score(index) for index in range(len(reference))]
    for piece_type, predicate in predicates.items():
        assert [piece.piece_type == piece_type for piece in pieces] == [
            getattr(reference, predicate)(index) for index in range(len(reference))
        ]
    assert [piece.text for piece in pieces if piece.piece_type == USER_DEFINED] == ["<ph>"]
    assert read_model_type(model) == "bpe"
    assert {model_type: read_model_type(get_tokenizer(model_type).serialized_model) for model_type in MODEL_TYPES} == {
        model_type: model_type for model_type in MODEL_TYPES
    }


NUMBERS: list[dict[str, Any]] = [
    {},  # unknown 0, begin 1, end 2: the default
    {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},  # T5
    {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},  # Gemma
    {"pad_id": 3, "pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"},
    {"bos_id": -1, "eos_id": -1},
    {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
    {"pad_id": VOCAB_SIZE - 1},
]


def test_special_pieces_are_renumbered(subtests: pytest.Subtests) -> None:
    for numbers in NUMBERS:
        for model_type in MODEL_TYPES:
            with subtests.test(model_type=model_type, numbers=numbers):
                model = train_foreign_model(model_type=model_type, **numbers)
                before, after = load_processor(model), load_processor(renumber_special_pieces(model))
                assert [after.pad_id(), after.unk_id(), after.bos_id(), after.eos_id()] == [0, 1, 2, 3]
                missing = sum(getattr(before, f"{name}_id")() < 0 for name in ("pad", "bos", "eos"))
                assert len(after) == len(before) + missing
                for text in [*random_sentences(50, 6), *OTHER_SCRIPTS, "<s> <pad> [PAD] é😀"]:
                    pieces = before.encode(text, out_type=str)
                    assert after.encode(text, out_type=str) == pieces
                    assert after.decode(after.encode(text)) == before.decode(before.encode(text))
                assert renumber_special_pieces(renumber_special_pieces(model)) == renumber_special_pieces(model)


# --- import -----------------------------------------------------------------------------------------------------------


def import_models(root: Path, **settings: Any) -> Any:
    return import_tokenizer(TokenizerConfig(**settings), root=root, append_source_eos=True)


def test_models_are_imported_relative_to_root(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ours.model").write_bytes(get_tokenizer("bpe").serialized_model)
    (tmp_path / "theirs.model").write_bytes(train_foreign_model(model_type="unigram"))
    joint = import_models(tmp_path, model_file="models/ours.model")
    assert joint.is_joint
    assert joint.source.serialized_model == get_tokenizer("bpe").serialized_model  # no special piece has to move
    assert joint.append_source_eos
    separate = import_models(
        tmp_path,
        joint=False,
        model_file="models/ours.model",
        target_model_file="theirs.model",
        sampling_alpha=0.1,
        lowercase=True,
    )
    assert not separate.is_joint
    assert separate.target.encode("BALA") == separate.target.encode("bala")
    assert separate.target.ids_to_pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert separate.target.ids_to_pieces(separate.target.encode("bala mara")) == load_processor(
        train_foreign_model(model_type="unigram")
    ).encode("bala mara", out_type=str)
    write_tokenizer(tmp_path, separate)
    again = read_tokenizer(tmp_path, TokenizerConfig(joint=False, lowercase=True), append_source_eos=True)
    assert again.target.encode_batch(random_sentences(9, 1)) == separate.target.encode_batch(random_sentences(9, 1))


@pytest.mark.parametrize("key", ["model_file", "target_model_file"])
def test_import_error_names_file_and_key(tmp_path: Path, key: str) -> None:
    (tmp_path / "good").write_bytes(get_tokenizer("bpe").serialized_model)

    def import_error(name: str, error_type: type[DragomanError], **settings: Any) -> str:
        files = {"model_file": "good", "target_model_file": "good", key: name}
        message = error_message(lambda: import_models(tmp_path, joint=False, **files, **settings), error_type)
        assert str(tmp_path / name) in message
        assert f"(tokenizer.{key})" in message
        return message

    assert "cannot be read: No such file" in import_error("none", DataError)
    assert "cannot be read: Is a directory" in import_error(".", DataError)
    for name, model in {
        "empty": b"",
        "text": b"no model",
        "cut": train_foreign_model()[:-100],
        "noise": Random(1).randbytes(999),
    }.items():
        (tmp_path / name).write_bytes(model)
        assert "is not a SentencePiece model, or is damaged" in import_error(name, BundleError)
    (tmp_path / "marked").write_bytes(train_foreign_model(user_defined_symbols=["<pad>"]))
    message = import_error("marked", BundleError)
    assert "its piece <pad> is an ordinary piece" in message
    assert "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3" in message
    (tmp_path / "bytes").write_bytes(train_foreign_model(byte_fallback=False, vocab_size=150))
    assert "set tokenizer.byte_fallback = false" in import_error("bytes", RecipeError)
    (tmp_path / "words").write_bytes(train_foreign_model(byte_fallback=False, vocab_size=40, model_type="word"))
    assert "set tokenizer.byte_fallback = false" in import_error("words", RecipeError)
    (tmp_path / "good").write_bytes(train_foreign_model(byte_fallback=False, vocab_size=150))
    assert "sampling_alpha = 0.1, but sampling needs" in import_error(
        "words", RecipeError, byte_fallback=False, sampling_alpha=0.1
    )


# --- overlong lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_long", "expected"),
    [
        (0, []),
        (1, ["1 line of more than 65,536 bytes does not train the tokenizer"]),
        (3, ["3 lines of more than 65,536 bytes do not train the tokenizer"]),
    ],
)
def test_overlong_lines_are_counted(num_long: int, expected: list[str]) -> None:
    """A line of exactly the limit trains the tokenizer: only this line contains x."""
    notices: list[str] = []
    longest = ("é" + "x " * MAX_TRAINING_LINE_BYTES)[: MAX_TRAINING_LINE_BYTES - 1]
    assert len(longest.encode()) == MAX_TRAINING_LINE_BYTES
    texts = [*random_sentences(400, 1), longest, *[longest.replace("x", "ww") + "q"] * num_long]
    model = train_sentencepiece(texts, TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1, notify=notices.append)
    assert drop_progress(notices) == expected
    letters = {piece.text for piece in read_pieces(model.serialized_model) if piece.piece_type == NORMAL}
    assert "x" in letters
    assert not {"w", "q"} & letters


def test_long_training_reports_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.data.tokenization.sentencepiece, "LINE_INTERVAL_SECONDS", 0.01)
    notices: list[str] = []

    def slow_lines() -> Iterator[str]:
        time.sleep(0.1)
        yield from random_sentences(400, 1)

    model = train_sentencepiece(slow_lines(), TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1, notify=notices.append)
    expected = train_sentencepiece(random_sentences(400, 1), TokenizerConfig(), vocab_size=VOCAB_SIZE, seed=1)
    assert model.serialized_model == expected.serialized_model
    assert set(notices) >= {"training the tokenizer: 0 s so far"}


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_reads_tells_texts_with_bytes_or_unknown_characters(byte_fallback: bool) -> None:
    """Ligatures, wide forms and Chinese marks without pieces are read as usual letters and marks, with spaces as those have."""
    side = get_tokenizer("bpe", byte_fallback=byte_fallback)
    tokenizer = PairTokenizer(side, side, append_source_eos=True)
    assert [tokenizer.reads(text) for text in ("bala", "\u2082", "ba\u2082la", "\uff42", "\ufb01", "我")] == [
        True, False, False, True, False, byte_fallback,
    ]  # fmt: skip
    assert tokenizer.fold("\ufb01x \uff22\uff0cb\uff08a\uff09b「b」。A。 我") == 'fix B, b (a) b"b". A. 我'
    assert tokenizer.fold("é, ₂") == "é, ₂"
