"""Subword models beyond learning one: other ways to split a text, and models that were learnt elsewhere."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece as spm
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import TokenizerConfig
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
from dragoman.data.tokenization.tokenizer import import_tokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from dragoman.errors import BundleError, DataError, DragomanError, RecipeError

KINDS = ["bpe", "unigram"]
WORDS = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]
VOCABULARY = 420
OTHER_SCRIPTS = ["Straße und Wörter", "l'été dernier", "我昨天买了三本书", "чудесная погода", "ありがとう"]
LINES = st.text(st.characters(exclude_characters="\r\n▁", exclude_categories=["Cs"]))
TEXTS = st.one_of(LINES, st.lists(st.sampled_from([*WORDS[:20], *OTHER_SCRIPTS, " ", "  ", "<s>", "é", "😀"])).map("".join))


def sentences(count: int, seed: int) -> list[str]:
    draw = Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


@cache
def subword(kind: str, *, byte_fallback: bool = True) -> SentencePieceTokenizer:
    config = TokenizerConfig.model_validate({"model_type": kind, "normalization": "identity", "byte_fallback": byte_fallback})
    texts = [*sentences(400, 1), *(OTHER_SCRIPTS * 9 if byte_fallback else [])]
    return train_sentencepiece(texts, config, vocab_size=VOCABULARY if byte_fallback else 120, seed=1)


def trained(**options: Any) -> bytes:
    """A model as SentencePiece itself makes it, with unknown, begin and end at 0 to 2 and no padding unless told otherwise."""
    written = io.BytesIO()
    usual: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": VOCABULARY,
        "byte_fallback": True,
        "minloglevel": 2,
        "num_threads": 1,
    }
    lines = iter([*sentences(400, 1), *OTHER_SCRIPTS * 9])
    spm.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=written, **(usual | options))
    return written.getvalue()


def processor(model: bytes) -> Any:
    return spm.SentencePieceProcessor(model_proto=model)


def told(reading: Callable[[], object], kind: type[DragomanError]) -> str:
    """The one line with which something is refused."""
    with pytest.raises(kind) as caught:
        reading()
    line = str(caught.value)
    assert line.isprintable(), line
    return line


# --- sampling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS, alpha=st.sampled_from([0.05, 0.3, 0.9, 1.0]), seed=st.integers(0, 2**64 - 1))
def test_however_it_is_split_the_text_is_the_same(kind: str, text: str, alpha: float, seed: int) -> None:
    model = subword(kind)
    ids = model.sample_encode(text, alpha=alpha, seed=seed)
    assert model.decode(ids) == model.decode(model.encode(text))
    assert model.sample_encode(text, alpha=alpha, seed=seed) == ids
    assert all(UNKNOWN_ID < index < len(model) for index in ids)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_drawn_at_0(kind: str) -> None:
    model = subword(kind)
    for seed, text in enumerate([*sentences(20, 3), *OTHER_SCRIPTS, "", " "]):
        assert model.sample_encode(text, alpha=0.0, seed=seed) == model.encode(text)


@pytest.mark.parametrize("byte_fallback", [True, False])
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_with_no_merge_left_out_bpe_is_as_sentencepiece_has_it(byte_fallback: bool, text: str) -> None:
    model = subword("bpe", byte_fallback=byte_fallback)
    normal = processor(model.serialized_model).normalize(text)
    assert build_sampler(model.serialized_model).split(normal, 0.0, Random(1)) == model.encode(text)


def test_merges_of_a_run_of_one_letter_do_not_overlap() -> None:
    draw, written = Random(1), io.BytesIO()
    lines = iter(["".join(draw.choices("aaab ", k=40)) for _ in range(300)])
    options: dict[str, Any] = {"model_type": "bpe", "vocab_size": 40, "minloglevel": 2}
    spm.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=written, **options)
    runs, sampler = processor(written.getvalue()), build_sampler(written.getvalue())
    for _ in range(500):
        text = "".join(draw.choices("aab ", k=draw.randint(1, 30)))
        assert sampler.split(runs.normalize(text), 0.0, Random(1)) == runs.encode(text)


@pytest.mark.parametrize("byte_fallback", [True, False])
@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.sampled_from([*WORDS[:40], " ", " ", "é", "😀"])).map("".join))
def test_with_a_large_alpha_the_likeliest_way_to_split_is_drawn(byte_fallback: bool, text: str) -> None:
    model = subword("unigram", byte_fallback=byte_fallback)
    normal = processor(model.serialized_model).normalize(text)
    scores = [piece.score for piece in read_pieces(model.serialized_model)]

    def total(ids: Sequence[int]) -> float:
        return sum(scores[index] for index in ids)

    drawn, likeliest = build_sampler(model.serialized_model).split(normal, 1e4, Random(1)), model.encode(text)
    assert total(drawn) == pytest.approx(total(likeliest), abs=1e-2)  # there may be equals


def test_with_every_merge_left_out_bpe_spells_letters() -> None:
    model = subword("bpe")
    text = f"{WORDS[3]} {WORDS[4]}"
    assert model.ids_to_pieces(model.sample_encode(text, alpha=1.0, seed=1)) == list(f"▁{text}".replace(" ", "▁"))
    assert len(model.encode(text)) < 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_ways_to_split_come_as_often_as_from_sentencepiece(kind: str, alpha: float) -> None:
    """Its own sampler draws by chance that cannot be repeated; so each frequency is within seven standard deviations of it."""
    model, count = subword(kind), 6_000
    text = f"{WORDS[0]} {WORDS[7]}"
    ours = Counter(tuple(model.sample_encode(text, alpha=alpha, seed=seed)) for seed in range(count))
    reference = processor(model.serialized_model)
    theirs = Counter(tuple(reference.encode(text, enable_sampling=True, alpha=alpha, nbest_size=-1)) for _ in range(count))
    assert len(ours) > 4
    for way in ours | theirs:
        share = (ours[way] + theirs[way]) / (2 * count)
        assert abs(ours[way] - theirs[way]) <= 7 * (2 * count * share * (1 - share)) ** 0.5 + 7


def test_unigram_draws_by_probability() -> None:
    """All ways to split a word, with the sum of their scores, are a closed form: each comes as exp(α · sum), normalised."""
    model, count, alpha = subword("unigram"), 20_000, 0.4
    scores = {piece.text: piece.score for piece in read_pieces(model.serialized_model) if piece.piece_type == NORMAL}

    def ways(text: str) -> list[tuple[str, ...]]:
        if not text:
            return [()]
        return [(text[:n], *rest) for n in range(1, len(text) + 1) if text[:n] in scores for rest in ways(text[n:])]

    weights = {way: 2.718281828459045 ** (alpha * sum(scores[piece] for piece in way)) for way in ways(f"▁{WORDS[0]}")}
    drawn = Counter(tuple(model.ids_to_pieces(model.sample_encode(WORDS[0], alpha=alpha, seed=seed))) for seed in range(count))
    assert drawn.keys() <= weights.keys()
    assert len(weights) > 3
    for way, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(drawn[way] - count * share) <= 5 * (count * share * (1 - share)) ** 0.5


def samples() -> list[list[int]]:
    return [
        subword(kind).sample_encode(text, alpha=0.3, seed=derive_sampling_seed(1, 2, index, 0))
        for kind in KINDS
        for index, text in enumerate([*sentences(100, 5), *OTHER_SCRIPTS])
    ]


def digest() -> str:
    return hashlib.sha256(repr(samples()).encode()).hexdigest()


def test_another_process_draws_the_same() -> None:
    command = "import sys; sys.path.insert(0, sys.argv[1]); import test_subword; print(test_subword.digest())"
    done = subprocess.run(
        [sys.executable, "-c", command, os.path.dirname(__file__)],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest()


def test_threads_and_what_was_drawn_before_change_nothing() -> None:
    alone = samples()
    spm.set_random_generator_seed(7)
    with ThreadPoolExecutor(4) as pool:
        assert all(drawn == alone for drawn in pool.map(lambda _: samples(), range(4)))
    model, text = subword("bpe"), " ".join(WORDS[:40])
    drawn = [model.sample_encode(text, alpha=0.3, seed=seed) for seed in range(50)]
    assert [model.sample_encode(text, alpha=0.3, seed=seed) for seed in reversed(range(50))] == drawn[::-1]
    assert len(set(map(tuple, drawn))) == 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_may_be_sent_to_another_process_though_it_has_drawn(kind: str) -> None:
    model, text = subword(kind), " ".join(WORDS[:9])
    drawn = [model.sample_encode(text, alpha=0.3, seed=seed) for seed in range(9)]
    sent = pickle.loads(pickle.dumps(model))
    assert [sent.sample(text, alpha=0.3, seed=seed) for seed in range(9)] == drawn
    assert sent.encode(text) == model.encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_kept_to_serve_again_and_texts_without_spaces_are_not(kind: str) -> None:
    """Of a text of 10,000 letters nothing stays in memory; of 900 texts of ten words, those ten do."""
    model = SentencePieceTokenizer(subword(kind).serialized_model)
    sampler = model._sampler
    kept = (sampler._cached_merge if isinstance(sampler, BpeDropout) else sampler._cached_lattice).cache_info
    for seed in range(3):
        letters = "".join(Random(seed).choices("我昨天买了三本书", k=10_000))
        assert model.decode(model.sample_encode(letters, alpha=0.3, seed=seed)) == letters
    assert kept().currsize == 0
    longest = "b" * (MAX_CACHED_WORD_LENGTH - 1)  # and the space before it
    for seed in range(900):
        model.sample_encode(" ".join(Random(seed).sample([*WORDS[:9], longest], 10)), alpha=0.3, seed=seed)
    model.sample_encode(f"{longest}b", alpha=0.3, seed=1)
    assert (kept().currsize, kept().hits) == (10, 8_990)


def test_every_place_has_a_seed_of_its_own() -> None:
    places = [
        (seed, epoch, index, side) for seed in (0, 1) for epoch in (0, 1) for index in (*range(99), 2**41) for side in (0, 1)
    ]
    assert len({derive_sampling_seed(*place) for place in places}) == len(places)
    assert all(0 <= derive_sampling_seed(*place) < 2**64 for place in places)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"user_defined_symbols": ["<ph>", "bala", "b c"]},
    {"split_by_whitespace": False},
    {"treat_whitespace_as_suffix": True},
    {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    {"byte_fallback": False, "vocab_size": 150},
    {"normalization_rule_name": "identity", "split_digits": True, "control_symbols": ["<a>", "<b>"]},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_models_of_other_settings_are_sampled_and_renumbered(kind: str, options: dict[str, Any]) -> None:
    given = trained(model_type=kind, **options)
    model, reference = SentencePieceTokenizer(renumber_special_pieces(given)), processor(given)
    texts = [*sentences(30, 4), *OTHER_SCRIPTS, "a <ph> bala b c, <a>  <s> 12", "  é  é", "", "nothing<ph><ph>", "éé éü 😀😀"]
    for seed, text in enumerate(texts):
        assert model.ids_to_pieces(model.encode(text)) == reference.encode(text, out_type=str, emit_unk_piece=True)
        normal = reference.normalize(text)
        if kind == "bpe":
            assert build_sampler(model.serialized_model).split(normal, 0.0, Random(1)) == model.encode(text)
        drawn = model.sample_encode(text, alpha=0.3, seed=seed)
        if UNKNOWN_ID not in drawn:
            assert model.decode(drawn) == model.decode(model.encode(text)) == reference.decode(reference.encode(text))
        if options.get("user_defined_symbols"):
            assert model.ids_to_pieces(drawn).count("<ph>") == text.count("<ph>")


@pytest.mark.parametrize("kind", ["word", "char"])
def test_a_model_that_has_one_way_only_is_not_sampled(kind: str) -> None:
    model = SentencePieceTokenizer(renumber_special_pieces(trained(model_type=kind, byte_fallback=False, vocab_size=40)))
    assert model.sample_encode("bala", alpha=0.0, seed=1) == model.encode("bala")
    with pytest.raises(ValueError, match=f"needs a BPE or unigram model, and this one is of the kind {kind}"):
        model.sample_encode("bala", alpha=0.1, seed=1)


# --- what stands in a model ---------------------------------------------------------------------------------------------


def test_pieces_are_read_as_sentencepiece_reads_them() -> None:
    model = trained(user_defined_symbols=["<ph>"], control_symbols=["<a>"])
    reference, pieces = processor(model), read_pieces(model)
    kinds = {CONTROL: "is_control", UNKNOWN: "is_unknown", BYTE: "is_byte"}
    assert [piece.text for piece in pieces] == reference.id_to_piece(list(range(len(reference))))
    assert [piece.score for piece in pieces] == [reference.get_score(index) for index in range(len(reference))]
    for kind, asked in kinds.items():
        assert [piece.piece_type == kind for piece in pieces] == [
            getattr(reference, asked)(index) for index in range(len(reference))
        ]
    assert [piece.text for piece in pieces if piece.piece_type == USER_DEFINED] == ["<ph>"]
    assert read_model_type(model) == "bpe"
    assert {kind: read_model_type(subword(kind).serialized_model) for kind in KINDS} == {kind: kind for kind in KINDS}


NUMBERS: list[dict[str, Any]] = [
    {},  # unknown 0, begin 1, end 2: most models
    {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},  # T5
    {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},  # Gemma
    {"pad_id": 3, "pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"},
    {"bos_id": -1, "eos_id": -1},
    {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
    {"pad_id": VOCABULARY - 1},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_special_pieces_are_put_in_their_places_and_nothing_else_changes(kind: str, numbers: dict[str, Any]) -> None:
    model = trained(model_type=kind, **numbers)
    before, after = processor(model), processor(renumber_special_pieces(model))
    assert [after.pad_id(), after.unk_id(), after.bos_id(), after.eos_id()] == [0, 1, 2, 3]
    missing = sum(getattr(before, f"{name}_id")() < 0 for name in ("pad", "bos", "eos"))
    assert len(after) == len(before) + missing
    for text in [*sentences(50, 6), *OTHER_SCRIPTS, "<s> <pad> [PAD] é😀"]:
        pieces = before.encode(text, out_type=str)
        assert after.encode(text, out_type=str) == pieces
        assert after.decode(after.encode(text)) == before.decode(before.encode(text))
    assert renumber_special_pieces(renumber_special_pieces(model)) == renumber_special_pieces(model)


# --- taking a model -----------------------------------------------------------------------------------------------------


def take(root: Path, **settings: Any) -> Any:
    return import_tokenizer(TokenizerConfig(**settings), root=root, append_source_eos=True)


def test_models_are_taken_from_files_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ours.model").write_bytes(subword("bpe").serialized_model)
    (tmp_path / "theirs.model").write_bytes(trained(model_type="unigram"))
    joint = take(tmp_path, model="models/ours.model")
    assert joint.joint
    assert joint.source.model == subword("bpe").serialized_model  # which need not be renumbered
    assert joint.append_source_eos
    apart = take(tmp_path, joint=False, model="models/ours.model", target_model="theirs.model", sampling=0.1, lowercase=True)
    assert not apart.joint
    assert apart.target.encode("BALA") == apart.target.encode("bala")
    assert apart.target.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert apart.target.pieces(apart.target.encode("bala mara")) == processor(trained(model_type="unigram")).encode(
        "bala mara", out_type=str
    )
    write_tokenizer(tmp_path, apart)
    again = read_tokenizer(tmp_path, TokenizerConfig(joint=False, lowercase=True), append_source_eos=True)
    assert again.target.encode_batch(sentences(9, 1)) == apart.target.encode_many(sentences(9, 1))


@pytest.mark.parametrize("key", ["model", "target_model"])
def test_what_cannot_be_taken_is_refused_with_file_and_key(tmp_path: Path, key: str) -> None:
    (tmp_path / "good").write_bytes(subword("bpe").serialized_model)

    def refusal(name: str, kind: type[DragomanError], **settings: Any) -> str:
        named = {"model": "good", "target_model": "good", key: name}
        line = told(lambda: take(tmp_path, joint=False, **named, **settings), kind)
        assert str(tmp_path / name) in line
        assert f"(subword.{key})" in line
        return line

    assert "cannot be read: No such file" in refusal("none", DataError)
    assert "cannot be read: Is a directory" in refusal(".", DataError)
    for name, model in {"empty": b"", "text": b"no model", "cut": trained()[:-100], "noise": Random(1).randbytes(999)}.items():
        (tmp_path / name).write_bytes(model)
        assert "not a SentencePiece model, or a damaged one" in refusal(name, BundleError)
    (tmp_path / "marked").write_bytes(trained(user_defined_symbols=["<pad>"]))
    line = refusal("marked", BundleError)
    assert "its piece <pad> is part of the text, not a mark" in line
    assert "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3" in line
    (tmp_path / "bytes").write_bytes(trained(byte_fallback=False, vocab_size=150))
    assert "set tokenizer.byte_fallback = false" in refusal("bytes", RecipeError)
    (tmp_path / "words").write_bytes(trained(byte_fallback=False, vocab_size=40, model_type="word"))
    assert "set tokenizer.byte_fallback = false" in refusal("words", RecipeError)
    (tmp_path / "good").write_bytes(trained(byte_fallback=False, vocab_size=150))
    assert "sampling = 0.1, but sampling needs" in refusal("words", RecipeError, byte_fallback=False, sampling=0.1)


def test_a_damaged_model_from_elsewhere_is_refused_or_works(tmp_path: Path) -> None:
    whole, draw = trained(), random.Random(1)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] = draw.randrange(256)
        (tmp_path / "a.model").write_bytes(damaged)
        try:
            taken = take(tmp_path, model="a.model", sampling=0.1).source
        except (BundleError, RecipeError):
            refused += 1
        else:
            taken.sample("bala mara", alpha=0.1, seed=1)
    assert refused


# --- lines that are too long ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("long", "line"),
    [
        (0, []),
        (1, ["1 line of more than 65,536 bytes takes no part in learning the pieces"]),
        (3, ["3 lines of more than 65,536 bytes take no part in learning the pieces"]),
    ],
)
def test_lines_that_take_no_part_are_counted(long: int, line: list[str]) -> None:
    """A line of exactly as many bytes still takes part: x stands nowhere else."""
    notices: list[str] = []
    longest = ("é" + "x " * MAX_TRAINING_LINE_BYTES)[: MAX_TRAINING_LINE_BYTES - 1]
    assert len(longest.encode()) == MAX_TRAINING_LINE_BYTES
    texts = [*sentences(400, 1), longest, *[longest.replace("x", "ww") + "q"] * long]
    model = train_sentencepiece(texts, TokenizerConfig(), vocab_size=VOCABULARY, seed=1, notify=notices.append)
    assert notices == line
    letters = {piece.text for piece in read_pieces(model.serialized_model) if piece.piece_type == NORMAL}
    assert "x" in letters
    assert not {"w", "q"} & letters


def test_the_tokeniser_tells_of_both_sides() -> None:
    texts, long = sentences(400, 1), ["a" * (MAX_TRAINING_LINE_BYTES + 1)]
    for joint, expected in ((True, ["2 lines"]), (False, ["1 line", "1 line"])):
        notices: list[str] = []
        config = TokenizerConfig(joint=joint, vocab_size=VOCABULARY)
        train_tokenizer(texts + long, texts + long, config, append_source_eos=True, seed=1, notify=notices.append)
        assert [re.match(r"\d+ lines?", notice)[0] for notice in notices] == expected  # type: ignore[index]
