"""Tests of corpora of many languages: language tokens in the prepared pairs, both directions, sampling of pairs, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.config import Recipe
from dragoman.data.dataloader import DataPosition, TrainingBatches
from dragoman.data.mixture import Mixture
from dragoman.data.prepare import PreparedData, prepare
from dragoman.data.tokenization.language_tokens import LanguageTokens
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID
from expected_errors import raises_code
from multilingual import SPLITS, make_corpus, make_multilingual_recipe, write_corpus

CC_ID, RR_ID, XX_ID = 7, 8, 9  # the last three of the six reserved ids from 4 on, in the order of their codes


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    write_corpus(folder)
    return folder


def prepare_letters(letters: Path, folder: Path, *settings: str, **data: Any) -> tuple[Recipe, PreparedData]:
    recipe = make_multilingual_recipe(letters, folder / "run", *settings, **data)
    return recipe, prepare(recipe, folder / "data")


def read_line(letters: Path, name: str, number: int) -> str:
    return (letters / name).read_text(encoding="utf-8").splitlines()[number]


# --- prepared pairs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "source_ids", "target_ids"),
    [
        ("source", {"copy": CC_ID, "reverse": RR_ID, "reverse.reversed": XX_ID}, {}),
        (
            "both",
            {"copy": XX_ID, "reverse": XX_ID, "reverse.reversed": RR_ID},
            {"copy": CC_ID, "reverse": RR_ID, "reverse.reversed": XX_ID},
        ),
    ],
)
def test_pairs_begin_with_language_tokens(
    letters: Path, tmp_path: Path, placement: str, source_ids: dict[str, int], target_ids: dict[str, int]
) -> None:
    """Johnson et al. (2017) write the target language before the source; M2M-100 writes each language before its side."""
    corpora = {"copy": make_corpus("train", "cc"), "reverse": make_corpus("train", "rr", both_directions=True)}
    setting = f"tokenizer.language_token_placement={placement}"
    _, prepared = prepare_letters(letters, tmp_path, setting, corpora=corpora)
    assert {name: stats.kept for name, stats in prepared.pair_counts.items()} == dict.fromkeys(source_ids, SPLITS["train"])
    tokenizer = prepared.tokenizer
    for name, first_id in source_ids.items():
        corpus = prepared.corpus(name)
        source, target = corpus.source(5).tolist(), corpus.target(5).tolist()
        sides = ["train.xx", "train.cc" if name == "copy" else "train.rr"]
        source_file, target_file = reversed(sides) if name == "reverse.reversed" else sides
        assert source == [first_id, *tokenizer.source.encode(read_line(letters, source_file, 5)), END_ID]
        prefix = [target_ids[name]] if target_ids else []
        assert target == prefix + tokenizer.target.encode(read_line(letters, target_file, 5))


@pytest.mark.parametrize("overlong_pairs", ["drop", "truncate"])
def test_language_tokens_count_in_max_length(letters: Path, tmp_path: Path, overlong_pairs: str) -> None:
    """A source of four letters has six tokens: its language token and its end token count."""
    settings = ["data.max_length=5", f"data.overlong_pairs={overlong_pairs}", "tokenizer.language_token_placement=both"]
    _, prepared = prepare_letters(letters, tmp_path, *settings)
    long_lines = sum(len(line.split()) == 4 for line in (letters / "train.xx").read_text().splitlines())
    stats, corpus = prepared.pair_counts["copy"], prepared.corpus("copy")
    assert stats.overlong_pairs == long_lines
    assert stats.kept == SPLITS["train"] - (long_lines if overlong_pairs == "drop" else 0)
    assert max(int(lengths.max()) for lengths in corpus.lengths()) == 5
    assert {int(corpus.target(index)[0]) for index in range(len(corpus))} == {CC_ID}


def test_noise_keeps_language_tokens(letters: Path, tmp_path: Path) -> None:
    """Noise decodes the text and encodes it again; the tokens of the languages are not a part of it."""
    settings = ["data.noise.concat_next=1", "tokenizer.model_type=char", "tokenizer.byte_fallback=true"]
    settings += ["tokenizer.vocab_size=300", "tokenizer.language_token_placement=both"]
    recipe, prepared = prepare_letters(letters, tmp_path, *settings)
    batches = TrainingBatches(recipe, prepared.folder, start_id=BEGIN_ID)
    parts = [part for number in range(3) for part in batches[DataPosition(0, number)]]
    assert {int(row[0]) for part in parts for row in part.source_BS} == {XX_ID}
    assert {int(row[0]) for part in parts for row in part.targets_BT} == {CC_ID, RR_ID}
    longest = max(part.source_BS.shape[1] for part in parts)
    assert longest > 2 + 7  # longer than a line of four letters and three spaces with its two tokens


def test_validation_corpora_are_prepared_together(letters: Path, tmp_path: Path) -> None:
    valid = {"copy": make_corpus("valid", "cc"), "reverse": make_corpus("valid", "rr", both_directions=True)}
    _, prepared = prepare_letters(letters, tmp_path, valid_corpora=valid)
    names = ["copy", "reverse", "valid.copy", "valid.reverse", "valid.reverse.reversed"]
    assert list(prepared.pair_counts) == names
    assert len(prepared.corpus("valid")) == 3 * SPLITS["valid"]
    assert prepare(make_multilingual_recipe(letters, tmp_path / "run", valid_corpora=valid), prepared.folder).is_new is False


# --- sampling -----------------------------------------------------------------------------------------------------------


def test_pair_temperature_weighs_pairs_of_languages(letters: Path, tmp_path: Path) -> None:
    """p ∝ n^(1/T): with T = 2, pairs of 400 and 100 sentences are drawn 20 : 10, that is 1000/3 and 500/3 of 500."""
    corpora = {"a": make_corpus("train", "cc"), "b": make_corpus("train", "cc"), "c": make_corpus("train", "rr")}
    recipe = make_multilingual_recipe(letters, tmp_path, "data.pair_temperature=2", corpora=corpora)
    mixture = Mixture.from_config(recipe.data, {"a": 300, "b": 100, "c": 100}, recipe.training_directions)
    assert mixture.count_passes_before(1) == pytest.approx([1000 / 3 / 400, 1000 / 3 / 400, 500 / 3 / 100])
    assert mixture.count_passes_before(6) == pytest.approx([6 * passes for passes in mixture.count_passes_before(1)])


def test_directions_share_the_weight_of_their_corpus(letters: Path, tmp_path: Path) -> None:
    """Weights 3 and 1 give 1.5 : 1.5 : 1 of 300 pairs: 112.5, 112.5 and 75."""
    corpora = {"a": make_corpus("train", "rr", both_directions=True, weight=3.0), "b": make_corpus("train", "cc", weight=1.0)}
    recipe = make_multilingual_recipe(letters, tmp_path, corpora=corpora)
    mixture = Mixture.from_config(recipe.data, {"a": 100, "a.reversed": 100, "b": 100}, recipe.training_directions)
    assert mixture.count_passes_before(1) == pytest.approx([1.125, 1.125, 0.75])


# --- refusals -----------------------------------------------------------------------------------------------------------


def corpora_of(*targets: str, **keys: Any) -> dict[str, Any]:
    return {target: make_corpus("train", target, **keys) for target in targets}


def test_recipes_that_do_not_fit_are_refused(
    subtests: pytest.Subtests, letters: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases: list[tuple[list[str], dict[str, Any], list[str]]] = [
        ([], {"language_token": None}, ["2 pairs", "xx → cc", "tokenizer.language_token"]),
        (["tokenizer.joint=false", "model.tie_embeddings=decoder"], {}, ["tokenizer.joint = true"]),
        ([], {"corpora": corpora_of("cc", target_language="")}, ["data.corpora.cc", "target_language"]),
        (
            ["tokenizer.language_token_placement=both"],
            {"corpora": corpora_of("cc", source_language="")},
            ["data.corpora.cc", "source_language"],
        ),
        ([], {"corpora": corpora_of("cc", both_directions=True, source_language="cc")}, ["both_directions", "two languages"]),
        (["data.pair_temperature=5"], {"corpora": corpora_of("cc")}, ["data.pair_temperature", "several pairs"]),
        (["data.pair_temperature=5", "data.temperature=2"], {}, ["temperature and pair_temperature"]),
        (["task.source_language=cc", "task.target_language=rr"], {}, ["task.source_language", "cc → rr"]),
        ([], {"valid_corpora": {"x": make_corpus("valid", "zz")}}, ["data.valid", "'zz'", "cc, rr, xx"]),
        ([], {"valid": make_corpus("valid", "cc"), "valid_corpora": {"x": make_corpus("valid", "cc")}}, ["valid_corpora"]),
        ([], {"test_corpora": {"x": make_corpus("test", "cc", weight=1.0)}}, ["x.weight"]),
        (
            ["training.guided_alignment_weight=0.05"],
            {"corpora": corpora_of("cc", "rr", alignments="x.align")},
            ["alignments", "drop"],
        ),
    ]
    for settings, data, names in cases:
        with subtests.test(settings=settings, data=data, names=names):
            tmp_path = tmp_path_factory.mktemp("case")
            with raises_code("invalid-recipe", *names):
                make_multilingual_recipe(letters, tmp_path, *settings, **data)


class Pieces(list[str]):
    """Vocabulary of these pieces."""

    def piece_to_id(self, piece: str) -> int | None:
        return self.index(piece) if piece in self else None

    def ids_to_pieces(self, ids: Any) -> list[str]:
        return [self[index] for index in ids]


PIECES = Pieces(["<de>", "<en>", "<fr>"])
PAIRS = (("en", "de"), ("en", "fr"), ("de", "en"))


def test_only_fitting_pair_is_chosen(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, tuple[Any, Any], tuple[str, str]]] = [
        ("source", ("en", "de"), ("en", "de")),
        ("source", (None, "fr"), ("en", "fr")),
        ("source", (None, "en"), ("de", "en")),
        ("source", ("de", None), ("de", "en")),
        ("both", (None, "de"), ("en", "de")),
    ]
    for placement, languages, expected in cases:
        with subtests.test(placement=placement, languages=languages, expected=expected):
            tokens = LanguageTokens("<{}>", placement, pairs=PAIRS).select(PIECES, *languages)
            assert (tokens.source_language, tokens.target_language) == expected


def test_default_pair_gives_way_to_the_named_language() -> None:
    tokens = LanguageTokens("<{}>", "both", "en", "de", pairs=PAIRS)
    chosen = tokens.select(PIECES, None, "en")
    assert (chosen.source_language, chosen.target_language) == ("de", "en")


def test_source_language_may_stay_open_if_the_model_does_not_read_it() -> None:
    pairs = (*PAIRS, ("fr", "de"))
    tokens = LanguageTokens("<{}>", "source", pairs=pairs).select(PIECES, None, "de")
    assert (tokens.source_language, tokens.get_source_token(PIECES)) == ("", "<de>")
    with raises_code("unsupported-pair", "source_language", "en → de, fr → de"):
        LanguageTokens("<{}>", "both", pairs=pairs).select(PIECES, None, "de")


def test_untrained_pairs_need_zero_shot() -> None:
    tokens = LanguageTokens("<{}>", "both", pairs=PAIRS)
    with raises_code("unsupported-pair", "de → fr", "zero_shot", "en → de, en → fr, de → en"):
        tokens.select(PIECES, "de", "fr")
    chosen = tokens.select(PIECES, "de", "fr", zero_shot=True)
    assert (chosen.get_source_token(PIECES), chosen.get_decoder_prompt(PIECES)) == ("<de>", (2,))
    with raises_code("invalid-option", "'it'", "de, en, fr"):
        tokens.select(PIECES, "de", "it", zero_shot=True)
