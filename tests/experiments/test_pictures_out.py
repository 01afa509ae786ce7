"""Pictures of digits as text: what is measured on them, their corpora, and the scores of written ones."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.config import read_recipe
from dragoman.errors import DragomanError
from dragoman.experiments.pictures_out.digits import (
    FULL_SIDE,
    LEVELS,
    SIDE,
    WORDS,
    Picture,
    describe,
    list_properties,
    measure,
    read_digits,
    read_text,
    write_text,
)
from dragoman.experiments.pictures_out.samples import find_nearest, score_pictures
from dragoman.formats.pair import Pair
from dragoman.formats.tsv import read_tsv


def draw_stroke(*, slant: float = 0.0, width: int = 1) -> Picture:
    """Return a stroke of ten rows, whose top is to the right by `slant` columns for each row."""
    picture_HW = np.zeros((SIDE, SIDE), np.uint8)
    for row in range(2, 12):
        column = 6 + round((7 - row) * slant)
        picture_HW[row, column : column + width] = 3
    return picture_HW


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with three random pictures of each digit, and a fourth one of the digit 0."""
    folder, rng = tmp_path_factory.mktemp("digits"), np.random.default_rng(1)
    for digit in range(10):
        pixels = rng.random((4 if digit == 0 else 3) * FULL_SIDE**2).round(2)
        (folder / f"{digit}.json").write_text(json.dumps({"data": pixels.tolist()}))
    return folder


def test_properties_are_measured_on_the_picture() -> None:
    assert list_properties(draw_stroke()) == ["upright", "thin", "narrow"]
    assert list_properties(draw_stroke(slant=1.0)) == ["slanted", "thin", "wide"]
    assert list_properties(draw_stroke(slant=-1.0)) == ["slanted", "thin", "wide"]
    assert list_properties(draw_stroke(width=4)) == ["upright", "thick", "narrow"]
    assert describe(8, draw_stroke(width=4)) == "an eight, upright, thick, narrow"
    assert measure(np.zeros((SIDE, SIDE), np.uint8)) == (0.0, 0.0, 0.0)
    slant, _, ratio = measure(draw_stroke(slant=1.0))
    assert slant == pytest.approx(1.0)  # one column for each row
    assert ratio == pytest.approx(1.0)  # ten columns and ten rows


def test_pixels_are_means_of_four(digits_dir: Path) -> None:
    pictures = read_digits(digits_dir)
    assert [digit for digit, _ in pictures] == [*range(10), *range(10), *range(10), 0]
    pixels = np.array(json.loads((digits_dir / "7.json").read_text())["data"]).reshape(3, FULL_SIDE, FULL_SIDE)
    picture_HW = pictures[17][1]
    for row, column in ((0, 0), (5, 9), (13, 13)):
        mean = pixels[1, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean()
        assert picture_HW[row, column] == round(3 * mean)
    assert np.array_equal(read_text(write_text(picture_HW)), picture_HW)
    assert set(write_text(picture_HW)) <= set(LEVELS)


def test_broken_texts_are_pictures() -> None:
    picture_HW = read_text("#?")
    assert picture_HW[0, 0] == 3
    assert picture_HW.sum() == 3
    assert read_text("-" * 1000).sum() == SIDE**2


def test_nearest_picture_equals_search_by_hand() -> None:
    rng = np.random.default_rng(0)
    pictures, training = (rng.integers(0, 4, (count, SIDE, SIDE)).astype(np.uint8) for count in (5, 300))
    nearest_Q, distance_Q = find_nearest(list(training[:290]) + list(pictures), list(training))
    assert nearest_Q[:290].tolist() == list(range(290))
    assert distance_Q[:290].max() < 0.05
    for picture_HW, near, distance in zip(pictures, nearest_Q[290:], distance_Q[290:], strict=True):
        distances = [np.linalg.norm(picture_HW.astype(float) - other) for other in training]
        assert near == np.argmin(distances)
        assert distance == pytest.approx(min(distances), rel=1e-4)


def test_scores_count_digits_properties_and_invalid_texts() -> None:
    upright, slanted, thick = (write_text(picture) for picture in (draw_stroke(), draw_stroke(slant=1.0), draw_stroke(width=4)))
    training = [Pair("a one", upright), Pair("a seven", slanted), Pair("an eight", thick)]
    pairs = [Pair("a one, upright, thin", ""), Pair("an eight, slanted", ""), Pair("an eight, thin", ""), Pair("a six", "")]
    scores = score_pictures(training, pairs, [upright, slanted, thick, upright + "x"])
    assert scores.digits == 2 / 4
    assert scores.properties == 3 / 4
    assert scores.distance == pytest.approx(0)
    assert scores.invalid == 1


def test_corpora_and_picture_from_files(digits_dir: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = CliRunner().invoke(cli, ["write-digits", str(digits_dir), "-o", str(data), "--held-out", "8", "--json"])
    assert json.loads(result.output) == {"output": str(data), "train": 15, "valid": 8, "test": 8}
    pairs = {name: list(read_tsv(data / f"{name}.tsv")) for name in ("train", "valid", "test")}
    assert [pair.source.split(",")[0] for pair in pairs["test"]] == [f"a{'n' * (word == 'eight')} {word}" for word in WORDS[:8]]
    assert len({pair.target for name in pairs for pair in pairs[name]}) == 31  # no picture is in two corpora
    limits = read_recipe(Path("digits-out"))
    longest = max(max(len(pair.source), len(pair.target)) for name in pairs for pair in pairs[name])
    assert longest < limits.data.max_length
    assert limits.decoding.max_extra_tokens >= SIDE**2

    outputs, svg = tmp_path / "outputs", tmp_path / "samples.svg"
    outputs.write_text("".join(f"{pair.target}\n" for pair in pairs["test"]))
    files = [str(data / "train.tsv"), str(data / "test.tsv"), str(outputs)]
    scores = json.loads(CliRunner().invoke(cli, ["show-digits", *files, "-o", str(svg), "--json"]).output)
    assert scores["real"] == scores["written"]
    assert scores["real"]["properties"] == 1.0
    labels = [element.text for element in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert labels[2:] == [pair.source for pair in pairs["test"]]


def test_bad_files_give_one_line(digits_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text('{"data": [1, 2]}')
    (tmp_path / "nan").mkdir()
    (tmp_path / "nan" / "0.json").write_text(json.dumps({"data": [math.nan] * FULL_SIDE**2}))
    (tmp_path / "one.tsv").write_text("a cat\t....\n")
    (tmp_path / "two.txt").write_text("....\n....\n")
    (tmp_path / "one.txt").write_text("....\n")
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "empty.txt").write_text("")
    for arguments, problem in (
        (["write-digits", str(tmp_path), "-o", str(tmp_path / "data")], "0.json: has no data of 28 · 28 numbers"),
        (["write-digits", str(tmp_path / "nan"), "-o", str(tmp_path / "data")], "0.json: has no data of 28 · 28 numbers"),
        (["write-digits", str(tmp_path / "none"), "-o", str(tmp_path / "data")], "0.json: No such file"),
        (["write-digits", str(digits_dir), "-o", str(tmp_path / "data")], "too few to hold out"),
        (["write-digits", str(digits_dir), "-o", str(tmp_path / "one.tsv" / "data"), "--held-out", "8"], "one.tsv"),
        (["show-digits", *(str(tmp_path / name) for name in ("one.tsv", "one.tsv", "two.txt"))], "has 2 lines but"),
        (["show-digits", *(str(tmp_path / name) for name in ("one.tsv", "one.tsv", "one.txt"))], "'a cat' names no digit"),
        (["show-digits", *(str(tmp_path / name) for name in ("empty.tsv", "empty.tsv", "empty.txt"))], "have no pictures"),
    ):
        error = CliRunner().invoke(cli, arguments).exception
        assert isinstance(error, DragomanError)
        assert problem in str(error)
        assert "\n" not in str(error)
