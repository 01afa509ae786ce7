"""Command `init`: what it says about a corpus, and the recipe that it writes."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
from pathlib import Path
from unittest.mock import Mock

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from dragoman import model_packages
from dragoman.cli import init as init_command
from dragoman.cli.init import init
from dragoman.config import parse_toml, read_recipe
from dragoman.data.corpus_survey import survey_pairs
from dragoman.data.data_defaults import CorpusSize
from dragoman.data.new_recipe import read_user_corpus
from dragoman.errors import DataError, OutputError
from dragoman.formats.pair import Pair
from dragoman.formats.stated_languages import find_stated_languages
from dragoman.formats.tmx import format_tmx
from dragoman.runtime.counts import format_minutes
from dragoman.training import time_estimate
from dragoman.training.time_estimate import estimate_minutes

NUM_PAIRS = 200
PAIRS = "".join(f"the number {number}\tdie Zahl {number}\n" for number in range(NUM_PAIRS))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a corpus of two files, and measure the time of one small step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time_estimate, "MAX_TRIAL_TOKENS", 64)
    monkeypatch.setattr(time_estimate, "MAX_TRIALS", 1)
    Path("train.en").write_text("".join(f"the number {number}\n" for number in range(NUM_PAIRS)), encoding="utf-8")
    Path("train.de").write_text("".join(f"die Zahl {number}\n" for number in range(NUM_PAIRS)), encoding="utf-8")


def run_init(*arguments: str) -> Result:
    return CliRunner().invoke(init, arguments)


def test_recipe_can_be_read_and_names_the_files() -> None:
    assert run_init("train.en", "train.de").exit_code == 0
    recipe = read_recipe(Path("own.toml"))
    assert (recipe.task.source_language, recipe.task.target_language) == ("en", "de")
    assert (recipe.name, recipe.run) == ("own", "runs/own")
    assert recipe.data.train is not None
    assert (recipe.data.train.source, recipe.data.train.target) == ("train.en", "train.de")
    assert recipe.data.cleaning.duplicate_pairs
    assert recipe.data.cleaning.eval_overlap
    text = Path("own.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema recipe.schema.json\n")
    assert "# 200 pairs, about " in text
    jsonschema.validate(parse_toml(text, where="own.toml"), json.loads(Path("recipe.schema.json").read_text(encoding="utf-8")))


def test_held_out_pairs_are_different_pairs_of_the_corpus() -> None:
    assert run_init("train.en", "train.de").exit_code == 0
    pairs = {(f"the number {number}", f"die Zahl {number}") for number in range(NUM_PAIRS)}
    sets = []
    for name in ("valid", "test"):
        sides = [Path(f"own.{name}.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de")]
        sets.append(set(zip(*sides, strict=True)))
    assert [len(held_out) for held_out in sets] == [10, 10]  # 5 % of the pairs each
    assert sets[0] | sets[1] <= pairs
    assert not sets[0] & sets[1]


def test_own_validation_set_is_taken_as_it_is() -> None:
    Path("v.en").write_text("one\n", encoding="utf-8")
    Path("v.de").write_text("eins\n", encoding="utf-8")
    assert run_init("train.en", "train.de", "--valid", "v.en", "v.de").exit_code == 0
    recipe = read_recipe(Path("own.toml"))
    assert recipe.data.valid is not None
    assert recipe.data.valid.source == "v.en"
    assert recipe.data.test is None
    assert not list(Path().glob("own.valid*"))


def test_odd_names_of_files_stay_what_they_are() -> None:
    name = 'a "b"\\c.en'
    Path("train.en").rename(name)
    assert run_init(name, "train.de").exit_code == 0
    train = read_recipe(Path("own.toml")).data.train
    assert train is not None
    assert train.source == name


def test_json_has_recipe_size_and_survey() -> None:
    document = json.loads(run_init("train.en", "train.de", "--json").stdout)
    assert (document["recipe"], document["languages"], document["size"]) == ("own.toml", ["en", "de"], "tiny")
    assert document["survey"]["pairs"] == 200
    assert document["minutes"] > 0


def test_estimate_is_proportional_to_the_steps() -> None:
    """The clock counts its readings, so a trial of a batch takes one second, and so does its update."""
    ticks = itertools.count()
    run_init("train.en", "train.de")
    recipe, corpus = read_recipe(Path("own.toml"), ["tokenizer.vocab_size=500", "size=tiny"]), CorpusSize(200, 2000)
    for num_steps, num_batches in ((60, 1), (120, 1), (60, 2)):
        keys = {"max_steps": num_steps, "batches_per_update": num_batches, "batch_tokens": 11}
        training = recipe.training.model_copy(update=keys)
        minutes = estimate_minutes(recipe.model, training, corpus, vocab_size=500, clock=lambda: float(next(ticks)))
        assert minutes == pytest.approx(num_steps * (num_batches + 1) / 60)


def test_times_are_in_words() -> None:
    assert [format_minutes(minutes) for minutes in (0.2, 1.6, 200, 7200)] == ["1 minute", "2 minutes", "3.3 hours", "5 days"]


def test_names_of_files_state_languages(subtests: pytest.Subtests) -> None:
    for files, languages, origin in [
        ("a.en a.de", "en de", "the names of the files"),
        ("a.pt-BR.gz a.zh_Hans.gz", "pt-BR zh_Hans", "the names of the files"),
        ("en.txt de.txt", "en de", "the names of the files"),
        ("set_en.txt set_de.txt", "en de", "the names of the files"),
        ("src.en.sgm ref.de.sgm", "en de", "the names of the files"),
        ("pairs.en-de.tsv", "en de", "the name of the file"),
        ("pairs-en-de.tsv", "en de", "the name of the file"),
        ("data/deu-eng/a.src data/deu-eng/a.trg", "deu eng", "the name of the folder deu-eng"),
        ("en-de/v1/pairs.csv", "en de", "the name of the folder en-de"),
        ("a.src a.tgt", "", ""),
        ("my-to-do.tsv", "", ""),
        ("a.en b.en", "", ""),
    ]:
        with subtests.test(files=files, languages=languages):
            paths = [Path(name) for name in files.split()]
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"")
            *codes, stated_by = find_stated_languages(paths)
            assert (" ".join(codes).strip(), stated_by) == (languages, origin)


def test_columns_of_a_file_state_languages(subtests: pytest.Subtests) -> None:
    row = {"id": "7", "en": "a house", "de": "ein Haus"}
    codes = {"source_lang": "en", "target_lang": "de", "source": "a house", "target": "ein Haus"}
    xliff = (
        '<file source-language="en" target-language="de"><body><trans-unit><source>a house</source></trans-unit></body></file>'
    )
    pq.write_table(pa.table({"translation": [{"en": "a house", "de": "ein Haus"}]}), "rows.parquet")
    for name, text, origin in [
        ("rows.csv", "id,English,German\n7,a house,ein Haus\n", "the names of the columns"),
        ("rows.tsv", "en\tde\na house\tein Haus\n", "the names of the columns"),
        ("more.tsv", "id\ten\tde\n7\ta house\tein Haus\n", "the names of the columns"),
        ("rows.jsonl", json.dumps(row), "the names of the columns"),
        ("inner.jsonl", json.dumps({"translation": row}), "the names of the columns"),
        ("codes.jsonl", json.dumps(codes), "the columns source_lang and target_lang"),
        ("rows.parquet", None, "the names of the columns"),
        ("rows.tmx", "".join(format_tmx([Pair("a house", "ein Haus")], "en", "de")), "the units of the file"),
        ("rows.xlf", f'<xliff version="1.2">{xliff}</xliff>', "the units of the file"),
        ("none.csv", "source,target\na house,ein Haus\n", ""),
    ]:
        with subtests.test(name=name):
            path = Path(name)
            if text is not None:
                path.write_text(text, encoding="utf-8")
            assert find_stated_languages([path]) == (*(("en", "de") if origin else ("", "")), origin)
            pairs = list(read_user_corpus([path]).read(("en", "de")))
            assert [pair.source for pair in pairs] == ["a house"]


def test_languages_of_columns_are_named_and_can_be_swapped() -> None:
    Path("pairs.tsv").write_text(f"en\tde\n{PAIRS}", encoding="utf-8")
    result = run_init("pairs.tsv", "--to", "en")
    assert result.stdout.startswith("pairs.tsv: de to en")
    assert "from the names of the columns" in result.stdout
    pairs = Path("own.valid.en").read_text(encoding="utf-8") + Path("own.test.en").read_text(encoding="utf-8")
    assert set(re.findall("[a-z]+", pairs)) == {"the", "number"}


def test_survey_counts_what_cleaning_looks_at() -> None:
    pairs = [
        Pair("a house", "ein Haus"),
        Pair("a house", "ein Haus"),
        Pair("", "leer"),
        Pair("OK now", "ok NOW"),
        Pair("a b", "c " * 101),
    ]
    survey, held_out = survey_pairs(pairs)
    assert not held_out  # 5 % of one pair
    assert (survey.pairs, survey.empty, survey.equal, survey.repeated, survey.uneven, survey.long) == (5, 1, 1, 1, 1, 1)
    assert (survey.source_words, survey.target_words) == (2, 2)
    assert survey_pairs([])[0].pairs == 0
    chinese = survey_pairs([Pair("a long sentence", "\u4e2d" * 101)])[0]
    assert (chinese.long, chinese.target_words) == (1, 101)  # as the filter counts: each letter is a word


def test_filter_that_would_drop_much_stays_off() -> None:
    rows = [f"a{number}\t{'wort ' * 30}\n" for number in range(100)]
    Path("uneven.en-de.tsv").write_text("".join(rows), encoding="utf-8")
    assert run_init("uneven.en-de.tsv").exit_code == 0
    assert read_recipe(Path("own.toml")).data.cleaning.max_ratio is None


def test_sets_are_no_inputs_and_replace_no_file() -> None:
    Path("train.en").rename("own.valid.en")
    Path("train.de").rename("own.valid.de")
    with pytest.raises(OutputError, match="is an input of this command"):
        CliRunner().invoke(init, ["own.valid.en", "own.valid.de", "--overwrite"], catch_exceptions=False)
    assert len(Path("own.valid.en").read_text(encoding="utf-8").splitlines()) == NUM_PAIRS
    Path("own.valid.en").rename("train.en")
    Path("train.de").write_text(Path("own.valid.de").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(OutputError, match="exists"):
        CliRunner().invoke(init, ["train.en", "train.de"], catch_exceptions=False)


def test_a_full_disk_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file_descriptor: int) -> None:
        if next(count) == 2:  # one side of the validation set is written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    count = itertools.count(1)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="the disk is full"):
        CliRunner().invoke(init, ["train.en", "train.de"], catch_exceptions=False)
    assert sorted(path.name for path in Path().iterdir()) == ["train.de", "train.en"]


def test_an_interrupted_command_can_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(init_command, "_estimate_minutes", Mock(side_effect=KeyboardInterrupt))
        assert run_init("train.en", "train.de").exit_code == 1
    assert not Path("own.toml").exists()
    assert run_init("train.en", "train.de").exit_code == 0


def test_recipe_in_a_folder_names_its_files() -> None:
    Path("sub").mkdir()
    result = run_init("train.en", "train.de", "-o", "sub/e.toml")
    assert "sub/e.valid.*" in result.stdout
    assert "dragoman train sub/e.toml" in Path("sub/e.toml").read_text(encoding="utf-8")
    assert read_recipe(Path("sub/e.toml")).data.valid is not None


def test_bad_input_is_one_line() -> None:
    Path("blank.en").touch()
    Path("blank.de").touch()
    Path("equal.en-de.tsv").write_text("a\ta\n" * 30, encoding="utf-8")
    Path("untranslated.en-de.tsv").write_text("a\t \n" * 30, encoding="utf-8")
    for arguments, message in [
        (["train.en", "train.de", "--valid", "blank.en", "blank.de"], "blank.de: pairs with text on both sides: none of 0; "),
        (["train.en", "train.de", "--valid", "train.en", "blank.de"], "blank.de has 0 lines but train.en has 200"),
        (["untranslated.en-de.tsv"], "pairs with text on both sides: none of 30; give others"),
        (
            ["equal.en-de.tsv"],
            "30, of which 0 have an empty side, 30 equal sides, and 29 came before; add pairs, or give --valid",
        ),
        (["train.en", "train.de", "train.fr"], "give one file that holds both sides"),
        (["train.en", "none.de"], "there is no such file"),
        (["-", "--from", "en", "--to", "de"], "-: cannot be read twice"),
        (["s3://bucket/a.tsv", "--from", "en", "--to", "de"], "give the name of a file"),
    ]:
        with pytest.raises(DataError, match=message):
            CliRunner().invoke(init, arguments, catch_exceptions=False)
    for arguments, message in [
        (["train.en", "train.de", "--to", "en"], "--from and --to are both 'en'"),
        (["train.en", "train.de", "--to", "e n"], "--to 'e n': a language is a code"),
        (["train.en", "train.de", "-o", "none/own.toml"], "in a folder that exists"),
    ]:
        answer = run_init(*arguments)
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert message in answer.stderr
    Path("pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    result = run_init("pairs.tsv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give --from, such as --from en" in result.stderr


def test_files_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FILE is missing" in run_init().output
    monkeypatch.setattr(init_command, "_is_terminal", lambda: True)
    result = CliRunner().invoke(init, [], input="train.en\ntrain.de\n")
    assert result.exit_code == 0, result.output
    assert 'source = "train.en", target = "train.de"' in Path("own.toml").read_text(encoding="utf-8")


def test_file_with_both_sides_is_no_side() -> None:
    with pytest.raises(DataError, match="holds both sides"):
        read_user_corpus([Path("pairs.tsv.gz"), Path("train.de")])


def test_languages_are_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_init("train.en", "train.de", "--from", "englisch")
    assert result.exit_code == 2
    assert "--from 'englisch': a language is a code of two or three letters" in result.output
    Path("pairs.tsv").write_text(PAIRS, encoding="utf-8")
    monkeypatch.setattr(init_command, "_is_terminal", lambda: True)
    asked = CliRunner().invoke(init, ["pairs.tsv"], input="englisch\nen\nde\n")
    assert asked.exit_code == 0, asked.output
    assert asked.output.count("Source language, such as en:") == 2
    assert read_recipe(Path("own.toml")).task.source_language == "en"


@pytest.mark.parametrize("languages", [("zh", "en"), ("en", "zh")])
def test_swapped_languages_are_named(languages: tuple[str, str]) -> None:
    """The letters of both languages differ, so no library is needed."""
    text = "".join(f"this is the number {number}\t这是第{number}个文件\n" for number in range(NUM_PAIRS))
    Path("pairs.tsv").write_text(text, encoding="utf-8")
    result = run_init("pairs.tsv", "--from", languages[0], "--to", languages[1])
    assert result.exit_code == 0
    assert ("most sources are in en: --from and --to may be swapped" in result.stderr) == (languages == ("zh", "en"))


@pytest.mark.parametrize(
    ("languages", "note"),
    [
        (("en", "de"), "most sources are in Cyrillic letters, in which en is not written: check --from"),
        (("ru", "el"), "most targets are in Latin letters, in which el is not written: check --to"),
        (("ru", "de"), ""),
        (("kk", "de"), ""),
    ],
)
def test_wrong_letters_are_named(languages: tuple[str, str], note: str) -> None:
    text = "".join(f"это файл номер {number}\tdas ist die Datei {number}\n" for number in range(NUM_PAIRS))
    Path("pairs.tsv").write_text(text, encoding="utf-8")
    result = run_init("pairs.tsv", "--from", languages[0], "--to", languages[1])
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if "letters" in line] == [note] * bool(note)


def test_a_model_of_the_pair_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pairs.tsv").write_text(PAIRS, encoding="utf-8")
    for models in ([], ["de-en"], ["en-de", "firefox-en-de"]):
        monkeypatch.setattr(model_packages, "list_models", lambda models=models: models)
        result = run_init("pairs.tsv", "--from", "en", "--to", "de", "--overwrite")
        assert ("dragoman adapt en-de pairs.tsv" in result.stdout) == ("en-de" in models)
