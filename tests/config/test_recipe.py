"""Recipes: what is laid over what, and that whatever cannot be is refused in one line with key, value and limit."""

from __future__ import annotations

import ast
import copy
import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import UnionType
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dragoman.config import (
    CorpusConfig,
    DecodingConfig,
    ModelConfig,
    Recipe,
    as_list,
    make_recipe,
    parse_setting,
    parse_toml,
    read_recipe,
    recipe_from_dict,
    update_section,
)
from dragoman.config.paper_settings import find_deviations
from dragoman.config.presets import PRESETS, SIZES
from dragoman.errors import RecipeError

WHERE = "r.toml"
LONGEST_LINE = 400


def refusal(*overrides: str, document: dict[str, Any] | None = None) -> str:
    """The one line with which a recipe is refused."""
    with pytest.raises(RecipeError) as caught:
        make_recipe(document or {}, overrides, where=WHERE)
    return one_line(caught.value)


def one_line(error: Exception) -> str:
    line = str(error)
    assert line
    assert line.isprintable(), line
    assert len(line) < LONGEST_LINE, line
    return line


@dataclass(frozen=True)
class Knob:
    kinds: list[Any]
    sentence: str | None


def knobs(section: type[BaseModel] = Recipe, path: str = "") -> Iterator[tuple[str, Knob]]:
    """Every knob of a section with its dotted key, and what lists and tables hold: `x[0]` in a list, `x.any` in a table."""
    for name, field in section.model_fields.items():
        yield from within(path + name, field.annotation, sentences(section).get(name))


@cache
def sentences(section: type[BaseModel]) -> dict[str, str]:
    """What stands beneath each knob of a section in its source."""
    found = {}
    for kind in reversed(section.__mro__[: section.__mro__.index(BaseModel)]):
        lines = ast.parse(dedent(inspect.getsource(kind))).body[0]
        assert isinstance(lines, ast.ClassDef)
        for knob, beneath in pairwise(lines.body):
            match knob, beneath:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def within(key: str, annotation: Any, sentence: str | None) -> Iterator[tuple[str, Knob]]:
    kinds = plain_types(annotation)
    inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    if inner:
        yield from knobs(inner[0], f"{key}.")
    else:
        yield key, Knob(kinds, sentence)
    for kind in kinds:
        if typing.get_origin(kind) is list:
            yield from within(f"{key}[0]", typing.get_args(kind)[0], sentence)
        if typing.get_origin(kind) is dict:
            yield from within(f"{key}.any", typing.get_args(kind)[1], sentence)


def plain_types(annotation: Any) -> list[Any]:
    """int for `Annotated[int, …] | None`, and so on."""
    if typing.get_origin(annotation) is Annotated:
        return plain_types(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        return [kind for part in typing.get_args(annotation) for kind in plain_types(part)]
    return [annotation]


def takes_a_list(key: str) -> bool:
    return any(typing.get_origin(kind) is list for kind in KNOBS[key].kinds)


def holding(key: str, value: Any) -> dict[str, Any]:
    """The document that has this value, or what is written so, at a key such as data.curriculum[0].weights.any."""
    document = parse_setting(f"value={value}")[1] if isinstance(value, str) else value
    for part in reversed(key.split(".")):
        name, _, place = part.partition("[")
        document = {name: [document] if place else document}
    return typing.cast(dict[str, Any], document)


KNOBS = dict(knobs())
NUMBERS = [key for key, knob in KNOBS.items() if {int, float} & {kind for kind in knob.kinds if isinstance(kind, type)}]
WHOLE_NUMBERS = [key for key, knob in KNOBS.items() if int in knob.kinds]
SWITCHES = [key for key, knob in KNOBS.items() if bool in knob.kinds]
TEXTS = [key for key, knob in KNOBS.items() if str in knob.kinds and key not in ("preset", "size")]


# Each is (overrides, what the line must hold): the key, what was given, and what is allowed.
REFUSALS: dict[str, tuple[list[str], list[str]]] = {
    # misspelt keys, at each depth
    "misspelt section": (["trainin.max_steps=3"], ["trainin is not a key", "did you mean training?"]),
    "misspelt knob": (["training.max_step=3"], ["training.max_step is not a key", "did you mean max_steps?"]),
    "misspelt inner section": (["data.trian.tsv='a'"], ["data.trian is not a key", "did you mean train?"]),
    "misspelt inner knob": (["data.train.sorce='a'"], ["data.train.sorce is not a key", "did you mean source?"]),
    "a key like no other": (
        ["xyzzy=3"],
        ["xyzzy is not a key", "one of: name, run, preset, size, task, data, tokenizer, model"],
    ),
    "misspelt knob of a corpus": (
        ["data.corpora.weight.wieght=3"],
        ["data.corpora.weight.wieght is not", "did you mean weight?"],
    ),
    "misspelt rule": (["data.cleaning.max_word=3"], ["data.cleaning.max_word is not a key", "did you mean max_words?"]),
    "misspelt modifier": (["data.noise.typo=0.1"], ["data.noise.typo is not a key", "did you mean typos?"]),
    "misspelt knob of a stage": (
        ["data.curriculum=[{}, {wieghts={}}]"],
        ["data.curriculum[1].wieghts is not", "did you mean weights?"],
    ),
    "a place in a list": (
        ["data.curriculum[0].temperature=3"],
        ["data.curriculum[0] is not a key", "did you mean curriculum?"],
    ),
    "dash for underscore": (["decoding.max-source=1"], ["decoding.max-source is not a key", "did you mean max_source_tokens?"]),
    # wrong types
    "word for number": (["training.max_steps=many"], ["training.max_steps = 'many'", "whole number"]),
    "part of a whole": (["training.max_steps=2.5"], ["training.max_steps = 2.5", "whole number"]),
    "true for number": (["training.max_steps=true"], ["training.max_steps = true", "whole number"]),
    "quoted number": (["training.max_steps='5'"], ["training.max_steps = '5'", "whole number"]),
    "list for number": (["model.d_model=[512]"], ["model.d_model = [512]", "whole number"]),
    "true for float": (["training.lr_factor=true"], ["training.lr_factor = true", "a number"]),
    "word for float": (["training.max_minutes=none"], ["training.max_minutes = 'none'", "a number"]),
    "word for switch": (["tokenizer.joint=yes"], ["tokenizer.joint = 'yes'", "true or false"]),
    "number for switch": (["tokenizer.joint=1"], ["tokenizer.joint = 1", "true or false"]),
    "number for text": (["name=3"], ["name = 3", "text, in quotes"]),
    "date for number": (["model.d_ff=2017-06-12"], ["model.d_ff = datetime.date(2017, 6, 12)", "whole number"]),
    "value for section": (["model=3"], ["model = 3", "section"]),
    "text for inner section": (["data.train='a.txt'"], ["data.train = 'a.txt'", "section"]),
    "number for a file's name": (["data.train.source=3"], ["data.train.source = 3: ", "text, in quotes, or a list of them"]),
    "number among files' names": (["data.train.file=['a', 3]"], ["data.train.file[1] = 3: ", "text, in quotes"]),
    "table for a file's name": (
        ["data.train.file={a=1}"],
        ["data.train.file = {'a': 1}", "text, in quotes, or a list of them"],
    ),
    "no file's name": (["data.train.file=[]"], ["data.train.file = []: ", "at least 1 item"]),
    "a name of nothing": (["data.train.file=['']"], ["data.train.file[0] = ''", "at least 1 character"]),
    "one field": (["data.train.columns=['1']"], ["data.train.columns = ['1']: ", "at least 2 items"]),
    "three fields": (["data.train.columns=['1', '2', '3']"], ["data.train.columns = ['1', '2', '3']: ", "at most 2 items"]),
    "fields as a text": (["data.train.columns='1,2'"], ["data.train.columns = '1,2': ", "should be a list"]),
    "fields as numbers": (["data.train.columns=[1, 2]"], ["data.train.columns[0] = 1: ", "text, in quotes"]),
    "table for a list": (["data.curriculum={}"], ["data.curriculum = {}: ", "should be a list"]),
    "number for a stage": (["data.curriculum=[3]"], ["data.curriculum[0] = 3: ", "section of key = value"]),
    "list for a table": (["data.corpora=[{file='a'}]"], ["data.corpora = [{'file': 'a'}]: ", "section of key = value"]),
    "corpora without names": (["data.corpora.file='a'"], ["data.corpora.file = 'a': ", "section of key = value"]),
    "section for value": (["training.max_steps={a=1}"], ["training.max_steps = {'a': 1}", "whole number"]),
    "key below a value": (["name.x=3"], ["name = {'x': 3}", "text"]),
    # out of range
    "nothing of a count": (["training.max_steps=0"], ["training.max_steps = 0", "1"]),
    "negative": (["training.seed=-1"], ["training.seed = -1", "0"]),
    "certain dropout": (["model.residual_dropout=1.0"], ["model.residual_dropout = 1.0", "less than 1"]),
    "zero rate": (["training.lr_factor=0"], ["training.lr_factor = 0", "greater than 0"]),
    "room for no token": (["data.max_length=1"], ["data.max_length = 1", "2"]),
    "fewer pieces than special ones": (["tokenizer.vocab_size=4"], ["tokenizer.vocab_size = 4", "5"]),
    "more pieces than can be learnt": (["tokenizer.vocab_size=2e9"], ["tokenizer.vocab_size = 2000000000.0", "16777216"]),
    "not a number": (["training.lr_factor=nan"], ["training.lr_factor = nan", "finite"]),
    "not a whole number": (["training.warmup_steps=nan"], ["training.warmup_steps = nan", "whole number"]),
    "endless": (["training.weight_decay=inf"], ["training.weight_decay = inf", "finite"]),
    "endless steps": (["training.max_steps=inf"], ["training.max_steps = inf", "whole number"]),
    "beyond 32 bits": (["training.seed=2147483648"], ["training.seed = 2147483648", "less than 2147483648"]),
    "beyond 64 bits": (["model.d_model=99999999999999999999"], ["model.d_model = 99999999999999999999", "1048576"]),
    "5,000 digits": ([f"model.d_model=1{'0' * 5000}"], ["model.d_model = '1000", "whole number"]),
    "vanishes as a float": (["training.adam_epsilon=1e-400"], ["training.adam_epsilon = 0.0", "greater than 0"]),
    "drawn backwards": (["data.curriculum=[{weights={a=-1}}]"], ["data.curriculum[0].weights.a = -1", "0"]),
    "never drawn": (["data.corpora={a={file='a', weight=0}}"], ["data.corpora.a.weight = 0", "greater than 0"]),
    "a weight beyond all": (["data.curriculum=[{weights={a=1e300}}]"], ["data.curriculum[0].weights.a = 1e+300", "1000000000"]),
    "a size beyond all": (["data.temperature=1e-3"], ["data.temperature = 0.001", "0.1"]),
    "ratio of nothing": (["data.cleaning.max_ratio=1"], ["data.cleaning.max_ratio = 1", "greater than 1"]),
    "more than all": (["data.noise.typos=1.01"], ["data.noise.typos = 1.01", "1"]),
    # a value of no known name
    "a name with a space": (
        ["data.corpora={'my corpus'={file='a'}}"],
        ["data.corpora: 'my corpus' is not a name", "letters", "digits"],
    ),
    "a name that is taken": (["data.corpora={valid={file='a'}}"], ["data.corpora: 'valid' is not a name", "data.valid"]),
    "unknown rule": (
        ["data.train={file='a', skip_filters=['ratio', 'lenght']}"],
        ["data.train.skip_filters[1] = 'lenght'", "'length', 'ratio', ", "or 'eval-overlap'", "did you mean length?"],
    ),
    "unknown choice": (["model.norm=Post"], ["model.norm = 'Post'", "'post' or 'pre'"]),
    "unknown preset": (["preset=papr"], ["preset = 'papr'", "one of: paper, t2t-2017, modern", "did you mean paper?"]),
    "unknown size": (["size=bigg"], ["size = 'bigg'", "one of: tiny, base, big, A-h1", "did you mean big?"]),
    "number for preset": (["preset=3"], ["preset = 3", "one of: paper"]),
    "section for size": (["size={a=1}"], ["size = {'a': 1}", "one of: tiny"]),
    # each possible, together not
    "heads do not divide": (["model.num_heads=7"], ["d_model = 512", "num_heads = 7", "d_k"]),
    "odd with sinusoids": (["model.d_model=513", "model.num_heads=3"], ["d_model = 513", "odd", "learn"]),
    "one width given": (["model.num_heads=7", "model.d_k=8"], ["d_model = 512", "num_heads = 7", "d_v"]),
    "one matrix for two vocabularies": (["tokenizer.joint=false"], ["model.tie_embeddings = 'all'", "tokenizer.joint = true"]),
    "second size for one vocabulary": (["tokenizer.target_vocab_size=900"], ["target_vocab_size", "tokenizer.joint"]),
    "pair longer than a batch": (
        ["data.max_length=300", "training.batch_tokens=299"],
        ["data.max_length = 300", "training.batch_tokens = 299"],
    ),
    "too few positions": (
        ["size=E", "model.max_positions=99", "data.max_length=100"],
        ["data.max_length = 100", "99", "model.max_positions"],
    ),
    "more than the beam": (["decoding.nbest=5"], ["nbest = 5", "beam_size = 4"]),
    "several of a greedy search": (["decoding.method=greedy", "decoding.nbest=2"], ["nbest = 2", "greedy"]),
    "mean of more than are kept": (["training.num_averaged_checkpoints=6"], ["num_averaged_checkpoints = 6", "keep_last = 5"]),
    "mean of more than the best": (["training.checkpoint_averaging='best'"], ["num_averaged_checkpoints = 5", "keep_best = 1"]),
    "a corpus twice": (["data.train={tsv='a', source='b'}"], ["data.train", "or all three", "given: source and file"]),
    "half a corpus": (["data.valid={source='b'}"], ["data.valid", "give source and target, or file", "given: source"]),
    "no corpus": (["data.test={}"], ["data.test", "given: none of them"]),
    "tsv twice": (["data.train={tsv='a', file='b'}"], ["data.train", "tsv", "file", "drop one"]),
    "tsv that is none": (["data.train={tsv='a', format='jsonl'}"], ["data.train", "tsv", "format = 'jsonl'"]),
    "unequal lists": (["data.train={source=['a', 'b'], target='c'}"], ["data.train: ", "source names 2", "target 1"]),
    "one side in one file": (
        ["data.train={file='a', format='lines'}"],
        ["data.train: format = 'lines'", "give source and target"],
    ),
    "both sides in two files": (
        ["data.train={source='a', target='b', format='tmx'}"],
        ["data.train: format = 'tmx'", "give file, not source and target"],
    ),
    **{
        f"fields in {kind}": (
            [f"data.train={{file='a', format='{kind}', columns=['1', '2']}}"],
            ["data.train: columns", f"'{kind}'"],
        )
        for kind in ("tmx", "xliff", "po", "brackets")
    },
    "fields of two files": (["data.train={source='a', target='b', columns=['1', '2']}"], ["data.train: columns", "both sides"]),
    "column 0": (["data.train={tsv='a', columns=['0', '1']}"], ["data.train: columns = ['0', '1']", "number"]),
    "columns by name": (["data.train={tsv='a', columns=['en', 'de']}"], ["data.train: columns = ['en', 'de']", "number"]),
    "standard input of some format": (["data.train={file='-'}"], ["data.train: file = '-' needs format"]),
    "standard input among files": (["data.train={file=['a', '-'], format='tsv'}"], ["data.train: standard input (-)", "alone"]),
    "standard input for a side": (["data.train={source='-', target='a'}"], ["data.train: standard input (-)", "both sides"]),
    "standard input to validate on": (["data.valid={tsv='-'}"], ["data.valid: file = '-'", "learn from"]),
    "standard input to test on": (["data.test={tsv='-'}"], ["data.test: file = '-'", "learn from"]),
    "standard input twice": (["data.corpora={a={tsv='-'}, b={tsv='-'}}"], ["corpora.a and corpora.b", "once"]),
    "weight of the only corpus": (["data.train={tsv='a', weight=1}"], ["data.train: weight", "data.corpora"]),
    "weight in validation": (["data.valid={tsv='a', weight=1}"], ["data.valid: weight", "data.corpora"]),
    "exempt in validation": (["data.valid={tsv='a', skip_filters=['urls']}"], ["data.valid: skip_filters", "learn from"]),
    "exempt in the test": (["data.test={tsv='a', skip_filters=['urls']}"], ["data.test: skip_filters", "learn from"]),
    "corpora in train": (["data.train.tatoeba={tsv='a'}"], ["data.train: 'tatoeba'", "name several in data.corpora"]),
    "corpora beside keys in train": (
        ["data.train.format='tsv'", "data.train.tatoeba.file='a'"],
        ["data.train: 'tatoeba'", "name several in data.corpora"],
    ),
    "list of corpora": (["data.train=[{tsv='a'}]"], ["data.train: ", "not a list", "name several in data.corpora"]),
    "several to validate on": (["data.valid.new={tsv='a'}"], ["data.valid: 'new'", "several files as a list"]),
    "train and corpora": (["data.train={tsv='a'}", "data.corpora={a={tsv='a'}}"], ["data: train and corpora"]),
    "weight for some": (["data.corpora={a={tsv='a', weight=1}, b={tsv='b'}}"], ["corpora.b has no weight", "corpora.a has"]),
    "weight and temperature": (
        ["data.corpora={a={tsv='a', weight=1}}", "data.temperature=5"],
        ["data: weights and temperature are given", "one of them"],
    ),
    "temperature and curriculum": (
        ["data.corpora={a={tsv='a'}}", "data.temperature=5", "data.curriculum=[{}]"],
        ["temperature and curriculum"],
    ),
    "temperature of no mixture": (["data.temperature=5"], ["data: temperature", "data.corpora"]),
    "temperature of one corpus": (["data.temperature=5", "data.train={tsv='a'}"], ["data: temperature", "data.corpora"]),
    "stages of no mixture": (["data.curriculum=[{}]"], ["data: curriculum", "data.corpora"]),
    "stages of an empty mixture": (["data.curriculum=[{}]", "data.corpora={}"], ["data: curriculum", "data.corpora"]),
    "two ways in a stage": (
        ["data.curriculum=[{weights={a=1}, temperature=5}]"],
        ["data.curriculum[0]: weights and temperature"],
    ),
    "a stage of nothing": (
        ["data.curriculum=[{weights={a=0}}]"],
        ["data.curriculum[0]: weights draws from no corpus", "above 0"],
    ),
    "a stage of no corpus at all": (
        ["data.curriculum=[{weights={}}]"],
        ["data.curriculum[0]: weights draws from no corpus", "above 0"],
    ),
    "a stage of an unknown corpus": (
        ["data.corpora={news={tsv='a'}}", "data.curriculum=[{weights={new=1}}]"],
        ["curriculum[0].weights.new is not in corpora", "did you mean news?"],
    ),
    "stages that go back": (
        ["data.corpora={a={tsv='a'}}", "data.curriculum=[{end_epoch=3}, {end_epoch=3}, {}]"],
        ["data: curriculum[1].end_epoch = 3", "more than 3"],
    ),
    "a stage without end": (
        ["data.corpora={a={tsv='a'}}", "data.curriculum=[{}, {}]"],
        ["data: curriculum[0] needs end_epoch"],
    ),
    "an end without a stage": (
        ["data.corpora={a={tsv='a'}}", "data.curriculum=[{end_epoch=3}]"],
        ["curriculum[0].end_epoch = 3", "drop"],
    ),
    "script of no language": (
        ["data.cleaning.min_script_ratio=0.5"],
        ["data.cleaning.min_script_ratio needs task.source_language and task.target"],
    ),
    "one language": (
        ["data.cleaning.min_language_probability=0.5", "task.source_language=de"],
        ["data.cleaning.min_language_probability", "task.target_language"],
    ),
    "overlap with nothing": (["data.cleaning.eval_overlap=true"], ["data.cleaning.eval_overlap", "data.valid", "data.test"]),
    "no model for the target": (
        ["tokenizer.joint=false", "model.tie_embeddings=none", "tokenizer.model_file=a"],
        ["tokenizer.model_file", "tokenizer.target_model_file"],
    ),
    "second model for one vocabulary": (
        ["tokenizer.model_file=a", "tokenizer.target_model_file=b"],
        ["tokenizer.target_model_file", "joint = false"],
    ),
    "a target model alone": (
        ["tokenizer.joint=false", "model.tie_embeddings=none", "tokenizer.target_model_file=b"],
        ["tokenizer.target_model_file"],
    ),
    "sampling that loses characters": (
        ["tokenizer.sampling_alpha=0.1", "tokenizer.byte_fallback=false"],
        ["tokenizer.sampling_alpha", "byte_fallback"],
    ),
    "modifiers that lose characters": (
        ["data.noise.typos=0.1", "tokenizer.byte_fallback=false"],
        ["data.noise.typos", "tokenizer.byte_fallback = true"],
    ),
    "capitals that are made small again": (
        ["tokenizer.lowercase=true", "data.noise.upper_case=0.1"],
        ["data.noise.upper_case and title_case", "tokenizer.lowercase = true", "drop them"],
    ),
    "capital initials that are made small again": (
        ["tokenizer.lowercase=true", "data.noise.title_case=0.1"],
        ["data.noise.upper_case and title_case", "tokenizer.lowercase = true", "drop them"],
    ),
    # what is no setting at all
    "no equals sign": (["training.max_steps"], ["'training.max_steps'", "write key=value"]),
    "no key": (["=3"], ["'=3'", "write key=value"]),
    "no section": ([".x=3"], ["'.x=3'", "write key=value"]),
    "no knob": (["training.=3"], ["'training.=3'", "write key=value"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_the_impossible_is_refused_in_one_line(case: str) -> None:
    overrides, parts = REFUSALS[case]
    line = refusal(*overrides)
    for part in parts:
        assert part in line
    assert line.startswith((f"{WHERE}: ", repr(overrides[0])))


def test_a_run_without_checkpoints_is_refused() -> None:
    line = refusal(document={"training": {"checkpoint_every_steps": 0}})
    assert "checkpoint_every_steps, checkpoint_every_minutes or both" in line


def test_a_value_of_the_file_is_no_section() -> None:
    line = refusal("name.x=3", document={"name": "n"})
    assert line == "'name.x=3': name is a value, not a section"


def test_a_long_value_is_shown_cut() -> None:
    assert len(refusal("model.norm=" + "x" * 5000)) < LONGEST_LINE


@pytest.mark.parametrize("key", KNOBS)
def test_every_knob_has_one_sentence_and_refuses_a_list_of_lists(key: str) -> None:
    described = KNOBS[key].sentence
    assert described is not None
    assert described.strip().endswith((".", "?"))
    assert "\n\n" not in described
    shown = f"{key}[0] = []" if takes_a_list(key) else f"{key} = [[]]"
    assert f"{WHERE}: {shown}" in refusal(document=holding(key, [[]]))


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", ["true", "false", "'5'", "abc", "nan", "inf", "-inf"])
def test_a_number_is_a_finite_number(key: str, value: str) -> None:
    shown = value if value in ("true", "false", "nan", "inf", "-inf") else repr(value.strip("'"))
    assert f"{key} = {shown}: " in refusal(document=holding(key, value))


@pytest.mark.parametrize("key", WHOLE_NUMBERS)
def test_a_whole_number_ends_where_32_bits_do(key: str) -> None:
    assert f"{key} = 2147483648: " in refusal(document=holding(key, 2**31))
    assert f"{key} = 0.5: " in refusal(document=holding(key, 0.5))


@pytest.mark.parametrize("key", SWITCHES)
@pytest.mark.parametrize("value", ["0", "1", "yes", "True", "'true'"])
def test_a_switch_is_true_or_false(key: str, value: str) -> None:
    line = refusal(document=holding(key, value))
    assert f"{key} = " in line
    assert "true or false" in line


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("value", ["3", "true", "2017-06-12"])
def test_a_text_is_no_number(key: str, value: str) -> None:
    line = refusal(document=holding(key, value))
    assert f"{key} = " in line
    assert "in quotes" in line
    assert ("or a list of them" in line) == takes_a_list(key)


@pytest.mark.parametrize("table", ["data.corpora", "data.curriculum[0].weights"])
def test_what_cannot_be_part_of_a_key_names_no_corpus(table: str) -> None:
    for name in ("", "a b", "a.b", "-a", "_a", "ä", "a/b", "a\n", "\ud800", "a" * 65, "valid", "test", "[key]"):
        line = refusal(document=holding(table, {name: 3}))
        assert line.startswith(f"{WHERE}: {table}: ")
        assert " is not a name: " in line


def test_the_kinds_of_knobs_were_all_found() -> None:
    # One that is known of each kind, so that the tests above have not been run over nothing.
    assert {"model.d_k", "training.seed", "data.curriculum[0].end_epoch"} <= set(WHOLE_NUMBERS) <= set(NUMBERS)
    assert {"training.max_minutes", "data.corpora.any.weight", "data.curriculum[0].weights.any"} <= set(NUMBERS) - set(
        WHOLE_NUMBERS
    )
    assert {"model.final_norm", "tokenizer.joint", "data.cleaning.mojibake"} <= set(SWITCHES)
    assert {"name", "data.root", "data.train.file", "data.valid.source[0]", "data.corpora.any.columns[0]"} <= set(TEXTS)
    assert {"data.corpora", "data.curriculum", "data.test.skip_filters", "data.test.skip_filters[0]"} <= set(KNOBS)


# --- what is laid over what -------------------------------------------------------------------------------------------


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    recipe = make_recipe({}, ["training.max_steps=1e5", "training.max_minutes=3"])
    assert (recipe.training.max_steps, type(recipe.training.max_steps)) == (100_000, int)
    assert (recipe.training.max_minutes, type(recipe.training.max_minutes)) == (3.0, float)


@pytest.mark.parametrize(
    ("setting", "parsed"),
    [
        ("a=3", ("a", 3)),
        ("a.b = 2.5 ", ("a.b", 2.5)),
        ("a=true", ("a", True)),
        ("a='3'", ("a", "3")),
        ('a="x y"', ("a", "x y")),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a={ b = 1 }", ("a", {"b": 1})),
        ("a=bare", ("a", "bare")),
        ("a=/some/path.txt", ("a", "/some/path.txt")),
        (r"a=C:\corpora", ("a", r"C:\corpora")),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
        ("a=1\nb=2", ("a", "1\nb=2")),
        ("a=1\n[b]", ("a", "1\n[b]")),
        (f"a={'9' * 5000}", ("a", "9" * 5000)),
        ("a=" + "[" * 5000, ("a", "[" * 5000)),
    ],
)
def test_a_setting_is_toml_and_what_is_not_is_text(setting: str, parsed: tuple[str, Any]) -> None:
    assert parse_setting(setting) == parsed


def test_the_later_wins() -> None:
    """Preset under size under document under overrides; a knob that a layer leaves alone stays as the layer below had it."""
    assert make_recipe({}).model_dump() == make_recipe({"preset": "paper", "size": "base"}).model_dump()
    modern = make_recipe({"preset": "modern", "size": "big"})
    assert (modern.training.warmup_steps, modern.training.max_steps, modern.model.d_model) == (8000, 300_000, 1024)
    assert make_recipe({"preset": "paper", "size": "E"}).model.position_encoding == "learned"  # the preset says interleaved
    document = {"preset": "modern", "size": "big", "training": {"warmup_steps": 5, "max_steps": 6}, "model": {"d_ff": 7}}
    recipe = make_recipe(document, ["training.max_steps=8", "model.d_ff=9", "model.d_ff=10"])
    assert (recipe.training.warmup_steps, recipe.training.max_steps, recipe.model.d_ff) == (5, 8, 10)
    assert (recipe.training.lr_factor, recipe.model.num_heads) == (2.0, 16)


def test_an_override_may_choose_preset_and_size() -> None:
    recipe = make_recipe({"preset": "paper", "size": "big"}, ["preset=modern", "size=tiny"])
    assert (recipe.preset, recipe.size, recipe.model.norm, recipe.model.d_model) == ("modern", "tiny", "pre", 128)


def test_an_override_reaches_inside_a_table_or_replaces_it() -> None:
    document = {"data": {"train": {"source": "a", "target": "b"}}, "model": {"d_ff": 64, "num_heads": 2}}
    inside = make_recipe(document, ["data.train.source=c", "model.d_ff=65"])
    assert inside.data.train == CorpusConfig(source="c", target="b")
    assert (inside.model.d_ff, inside.model.num_heads) == (65, 2)
    whole = make_recipe(document, ["data.train={tsv='c'}", "model={d_ff=66}"])
    assert whole.data.train == CorpusConfig(file="c", format="tsv")
    assert (whole.model.d_ff, whole.model.num_heads) == (66, 8)  # as `base` has it


def test_nothing_is_laid_into_what_was_given() -> None:
    document = {"model": {"d_ff": 64}, "data": {"train": {"tsv": "a"}}}
    before = copy.deepcopy((document, PRESETS, SIZES))
    make_recipe(document, ["model.d_ff=3", "data.train.tsv=b", "training.warmup_steps=9"])
    assert (document, PRESETS, SIZES) == before


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", SIZES)
def test_every_preset_has_every_size_and_comes_back_from_json(preset: str, size: str) -> None:
    recipe = make_recipe({"preset": preset, "size": size, "data": {"train": {"tsv": "a.tsv"}}})
    assert recipe_from_dict(recipe.model_dump(mode="json"), where="x") == recipe


def test_the_defaults_stand_for_themselves() -> None:
    assert recipe_from_dict({}, where="x") == Recipe()


@pytest.mark.parametrize("document", [None, 3, [], "x"])
def test_what_is_no_table_is_no_recipe(document: Any) -> None:
    with pytest.raises(RecipeError, match=r"^config\.json: the whole = .*section"):
        recipe_from_dict(document, where="config.json")


def test_a_section_changes_as_a_recipe_is_read() -> None:
    decoding = DecodingConfig()
    assert update_section(decoding, {"beam_size": 9}, where="decoding") == DecodingConfig(beam_size=9)
    with pytest.raises(RecipeError, match=r"^decoding: beam is not a key; did you mean beam_size\?"):
        update_section(decoding, {"beam": 9}, where="decoding")
    with pytest.raises(RecipeError, match=r"^decoding: nbest = 9 is more than beam_size = 4"):
        update_section(decoding, {"nbest": 9}, where="decoding")


@pytest.mark.parametrize(
    ("given", "widths"),
    [({}, (64, 64)), ({"d_k": 16}, (16, 64)), ({"num_heads": 3, "d_k": 5, "d_v": 6}, (5, 6)), ({"num_heads": 32}, (16, 16))],
)
def test_head_widths_are_those_given_or_a_share_of_d_model(given: dict[str, int], widths: tuple[int, int]) -> None:
    model = ModelConfig(**given)  # type: ignore[arg-type]
    assert (model.key_width, model.value_width) == widths


# --- the file ---------------------------------------------------------------------------------------------------------


def file_refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(path, overrides)
    assert str(path) in str(caught.value)
    return one_line(caught.value).replace(str(path), "FILE")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    for start, end in (("", "\n"), ("\ufeff", "\r\n")):
        path.write_bytes(f"{start}name = 'ä'{end}[model]{end}d_ff = 8{end}".encode())
        recipe = read_recipe(path, ["model.num_heads=4"])
        assert (recipe.name, recipe.model.d_ff, recipe.model.num_heads) == ("ä", 8, 4)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"a = 1\nb = = 2\n", "FILE: not TOML: Invalid value (at line 2, column 5)"),
        (b"name = 'a'\nname = 'b'\n", "FILE: not TOML: Cannot overwrite a value (at line 2, column 11)"),
        (b"# ok\n\nname = '\xff'\n", "FILE, line 3: not UTF-8 (byte 0xff)"),
        (b"\xff\xfen\x00a\x00", "FILE, line 1: not UTF-8 (byte 0xff)"),
        (b"a = " + b"9" * 5000, "FILE: not a recipe: a number too long to read, or values nested too deep"),
        (b"a = " + b"[" * 5000, "FILE: not a recipe: a number too long to read, or values nested too deep"),
        (b"[model]\nd_mdel = 3\n", "FILE: model.d_mdel is not a key; did you mean d_model?"),
        (b"[[model]]\nd_model = 3\n", "FILE: model = [{'d_model': 3}]: Input should be a section of key = value"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_place(tmp_path: Path, written: bytes, told: str) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(written)
    assert file_refusal(path) == told


def test_a_file_that_is_none(tmp_path: Path) -> None:
    assert file_refusal(tmp_path / "none.toml") == "FILE: there is no such recipe"
    assert file_refusal(tmp_path) == "FILE: cannot be read: Is a directory"
    (tmp_path / "file").touch()
    assert file_refusal(tmp_path / "file" / "r.toml") == "FILE: cannot be read: Not a directory"


@pytest.mark.parametrize("key", ["run", "name", "data.root"])
def test_a_name_that_is_no_text(key: str) -> None:
    """What Python makes of the byte 0xff on a command line."""
    with pytest.raises(RecipeError) as caught:
        make_recipe({}, [f"{key}=r\udcff"])
    assert f"{key}: is not UTF-8; give another name" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("recipes/*.toml")), ids=lambda path: path.stem)
def test_the_recipes_that_we_ship_are_recipes(path: Path) -> None:
    """The one for cleaning is for any language and corpus, so it needs to be told."""
    told = ["task.source_language=en", "task.target_language=fi", "data.train.tsv=a.tsv"] if path.stem == "cleaning" else []
    assert read_recipe(path, told).data.training_corpora()


# --- corpora and mixtures ---------------------------------------------------------------------------------------------


def test_what_the_refusals_stop_at_can_be_had() -> None:
    """A mixture with everything in it: each of the refused combinations is one change away from this."""
    recipe = make_recipe(
        {
            "task": {"source_language": "de", "target_language": "en"},
            "data": {
                "corpora": {
                    "Europarl-v7": {
                        "source": ["a.de", "b.de"],
                        "target": ["a.en", "b.en"],
                        "skip_filters": ["length", "eval-overlap"],
                    },
                    "2014_wmt": {"source": "a.de.sgm", "target": "a.en.sgm", "format": "sgm"},
                    "piped": {"file": "-", "format": "jsonl", "columns": ["translation.de", "translation.en"]},
                    "t": {"tsv": ["a.tsv", "*.txt"]},
                    "columns": {"file": "c.tsv", "format": "tsv", "columns": ["3", "12"]},
                    "memory": {"file": "*.tmx"},
                },
                "curriculum": [
                    {"end_epoch": 1, "weights": {"t": 0, "memory": 1e9}},
                    {"end_epoch": 3, "temperature": 5},
                    {},
                ],
                "valid": {"file": ["a.po", "b.po"]},
                "cleaning": {"min_script_ratio": 0.5, "min_language_probability": 0.9, "eval_overlap": True, "max_ratio": 1.5},
                "noise": {"typos": 1, "concat_next": 0.1},
            },
            "model": {"tie_embeddings": "none"},
            "tokenizer": {"joint": False, "model_file": "a.model", "target_model_file": "b.model", "sampling_alpha": 0.1},
        }
    )
    assert recipe_from_dict(recipe.model_dump(mode="json"), where="x") == recipe
    assert list(recipe.data.training_corpora()) == ["Europarl-v7", "2014_wmt", "piped", "t", "columns", "memory"]  # in order
    corpora = recipe.data.corpora
    assert corpora["t"] == CorpusConfig(file=["a.tsv", "*.txt"], format="tsv")
    assert [name for name, corpus in corpora.items() if corpus.reads_standard_input] == ["piped"]
    assert as_list(corpora["Europarl-v7"].target) == ["a.en", "b.en"]
    assert (as_list(corpora["memory"].file), as_list(corpora["memory"].source)) == (["*.tmx"], [])


@pytest.mark.parametrize(
    "data",
    [
        {"corpora": {"a": {"tsv": "a", "weight": 2}, "b": {"tsv": "b", "weight": 0.5}}},
        {"corpora": {"a": {"tsv": "a", "weight": 2}}},
        {"corpora": {"a": {"tsv": "a"}, "b": {"tsv": "b"}}, "temperature": 5},
        {"corpora": {"a": {"tsv": "a"}}, "curriculum": [{}]},
        {"corpora": {}},
        {"train": {"tsv": "a", "format": "tsv", "skip_filters": ["ratio"]}, "corpora": {}, "curriculum": []},
        {"train": {"file": "-", "format": "tsv"}},
        {"train": {"file": "a.jsonl", "columns": ["de", "en"]}},
    ],
)
def test_other_ways_to_say_what_to_learn_from(data: dict[str, Any]) -> None:
    recipe = make_recipe({"data": data})
    assert recipe_from_dict(recipe.model_dump(mode="json"), where="x") == recipe


def test_overrides_reach_a_corpus_of_a_mixture() -> None:
    document = {"data": {"corpora": {"a": {"tsv": "a"}, "b": {"tsv": "b"}}}}
    recipe = make_recipe(document, ["data.corpora.a.weight=2", "data.corpora.b.weight=1", "data.corpora.c={tsv='c', weight=3}"])
    assert [(name, corpus.weight) for name, corpus in recipe.data.corpora.items()] == [("a", 2.0), ("b", 1.0), ("c", 3.0)]


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"source": "a.en", "target": "a.de", "tsv": None}, CorpusConfig(source="a.en", target="a.de")),
        ({"source": None, "target": None, "tsv": "a.tsv"}, CorpusConfig(file="a.tsv", format="tsv")),
    ],
)
def test_a_recipe_that_version_0_1_stored_reads_back(stored: dict[str, Any], read: CorpusConfig) -> None:
    # The data and subword sections as 0.1.0 wrote them into a bundle, whole.
    document = {
        "data": {"root": "text", "train": stored, "valid": stored, "test": None, "max_length": 256, "overlong_pairs": "drop"},
        "tokenizer": {
            "model_type": "bpe",
            "joint": True,
            "vocab_size": 1000,
            "target_vocab_size": None,
            "byte_fallback": True,
            "character_coverage": 1.0,
            "normalization": "identity",
            "split_digits": True,
            "lowercase": False,
        },
    }
    recipe = recipe_from_dict(document, where="config.json")
    assert (recipe.data.train, recipe.data.valid, recipe.data.test) == (read, read, None)
    assert recipe.data.training_corpora() == {"train": read}
    assert recipe_from_dict(recipe.model_dump(mode="json"), where="x") == recipe


def test_a_recipe_does_not_change() -> None:
    recipe = make_recipe({"data": {"train": {"tsv": "a"}}})
    assert recipe.data.train is not None
    for section, knob in ((recipe, "name"), (recipe.data, "root"), (recipe.data.train, "file"), (recipe.data.cleaning, "urls")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, knob, "x")
    recipe.data.train.skip_filters.append("urls")
    assert CorpusConfig(file="a").skip_filters == []  # what is a default is nobody else's


# --- whatever is written ----------------------------------------------------------------------------------------------


def complaint(make: Callable[[], Recipe]) -> str:
    """What is said against a recipe; nothing where it is taken, and then it comes back from what is stored of it."""
    try:
        recipe = make()
    except RecipeError as error:
        return str(error)
    assert recipe_from_dict(recipe.model_dump(mode="json"), where="x") == recipe
    return ""


WORDS = st.sampled_from([*KNOBS, "model", "data.train", "", ".", "a.b.c", "preset", "size"])
VALUES = st.one_of(
    st.text(),
    st.sampled_from(["{", "[", "{a=1}", "1e999", "-0", "0x10", "'''", '"""', "1979-05-27", "[[1]]", "{}", "\x00", "\ud800"]),
    st.integers().map(str),
    st.floats().map(str),
)


@settings(max_examples=300, deadline=None)
@given(key=st.one_of(WORDS, st.text()), value=VALUES, equals=st.sampled_from(["=", " = ", ""]))
def test_any_setting_is_taken_or_refused_in_one_line(key: str, value: str, equals: str) -> None:
    assert "\n" not in complaint(lambda: make_recipe({}, [key + equals + value], where=WHERE))


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="[]{}=.'\"\n#a1, ")))
def test_any_text_is_a_document_or_refused_in_one_line(text: str) -> None:
    assert "\n" not in complaint(lambda: make_recipe(parse_toml(text, where=WHERE), where=WHERE))


# --- traps between the paper's text and its code ----------------------------------------------------------------------


def departed(preset: str, size: str = "base", **sections: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The knobs that depart, each with ours and the text's."""
    recipe = make_recipe({"preset": preset, "size": size, **sections})
    return {one.key: (one.recipe_value, one.paper_value) for one in find_deviations(recipe.model_dump(mode="json"))}


@pytest.mark.parametrize("size", SIZES)
def test_the_paper_preset_departs_from_nothing(size: str) -> None:
    # Table 3 prints its rows' own dropout, smoothing and positions; tiny is not in the text.
    dropout = {"model.residual_dropout": (0.3, 0.1), "model.embedding_dropout": (0.3, 0.1)}
    assert departed("paper", size) == (dropout if size == "tiny" else {})


def test_rows_and_languages_have_what_the_text_prints_of_them() -> None:
    """Section 6.1: big for English to French with a dropout of 0.1 instead of 0.3. Table 3: the rows D and E."""
    french = {"task": {"source_language": "en", "target_language": "fr"}}
    knobs = ("model.residual_dropout", "model.embedding_dropout")
    assert departed("paper", "big", **french) == dict.fromkeys(knobs, (0.3, 0.1))
    lower = {"model": {"residual_dropout": 0.1, "embedding_dropout": 0.1}}
    assert departed("paper", "big", **french, **lower) == {}
    assert departed("paper", "big", **lower) == dict.fromkeys(knobs, (0.1, 0.3))
    assert departed("paper", "D-p0", **lower) == dict.fromkeys(knobs, (0.1, 0.0))
    assert departed("paper", "D-ls0", training={"label_smoothing": 0.1}) == {"training.label_smoothing": (0.1, 0.0)}
    assert departed("paper", "E", model={"position_encoding": "interleaved"}) == {
        "model.position_encoding": ("interleaved", "learned")
    }


def test_the_preset_of_the_code_departs_where_the_code_did() -> None:
    # tensor2tensor 1.0.3 had biases on the attention projections and [sin …, cos …]. Its target-space embedding is not in the
    # preset: Table 3's parameter counts do not hold it.
    assert departed("t2t-2017") == {
        "model.attention_bias": (True, False),
        "model.position_encoding": ("concatenated", "interleaved"),
        "model.target_space_embedding": (False, False),
    }
    recipe = make_recipe({"preset": "t2t-2017"}).model_dump(mode="json")
    assert [one.key for one in find_deviations(recipe) if one.recipe_value != one.code_value] == [
        "model.target_space_embedding"
    ]


def test_the_modern_preset_departs_where_the_field_did() -> None:
    assert departed("modern") == {
        "model.norm": ("pre", "post"),
        "model.final_norm": (True, False),
        "model.attention_dropout": (0.1, 0.0),
        "model.activation_dropout": (0.1, 0.0),
        "model.decoder_start_token": ("bos", None),
        "training.lr_factor": (2.0, 1.0),
        "training.warmup_steps": (8000, 4000),
        "training.adam_beta2": (0.997, 0.98),
        "training.label_smoothing_mode": ("uniform", None),
        "decoding.early_stopping": ("best", None),
    }


def test_every_trap_is_a_knob_and_a_departure_reads_as_a_sentence() -> None:
    strange: dict[str, dict[str, Any]] = {
        "model": {"final_norm": True, "attention_window": 3, "target_space_embedding": True, "append_source_eos": False},
        "training": {"clip_norm": 1.0, "weight_decay": 0.1},
    }
    recipe = make_recipe({"preset": "paper", **strange}).model_dump(mode="json")
    told = [one.describe() for one in find_deviations(recipe)]
    assert len(told) == sum(len(section) for section in strange.values())
    for section, values in strange.items():
        for knob in values:
            [sentence] = [one for one in told if one.startswith(f"{section}.{knob} = ")]
            assert "the text" in sentence
            assert "None" not in sentence
            assert "nowhere" not in sentence


# --- instant rooms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "dragoman",
        "dragoman.config",
        "dragoman.config.validation",
        "dragoman.errors",
        "dragoman.evaluation.metrics",
        "dragoman.viz",
        "dragoman.cli.main",
    ],
)
def test_importing_it_leaves_torch_alone(module: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; print('torch' in sys.modules, {module!r} in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "False True\n"
