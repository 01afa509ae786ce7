"""Every parser of texts from outside takes time in proportion to their length, in runs of any character and nested."""

from __future__ import annotations

import re
import signal
from functools import cache, partial

import pytest

from dragoman.documents.formats import SUFFIXES, get_parser, parse_document
from long_texts import QUICK_TEXTS, TEXTS, check_time_is_linear, choose_length, limit_processor_time
from outside_parsers import (
    EQUAL_SUFFIXES,
    INSIDE,
    Parse,
    find_corpus_parsers,
    find_file_parsers,
    find_parsers,
    find_request_parsers,
    find_translations,
    read,
)

NUM_PARTS = 32
"""Parts of the slow test, for several processes."""


@cache
def find_all_parsers() -> dict[str, Parse]:
    """Return every parser, but not the readers of formats, each of which the reading of its files contains."""
    readers = [get_parser(f"a{suffix}") for suffix in INSIDE]
    readers = [reader.args[0] if isinstance(reader, partial) else reader for reader in readers]  # what reads one of XML
    names = {f"{reader.__module__}.{reader.__qualname__}".removeprefix("dragoman.") for reader in readers}
    parsers = {name: parse for name, parse in find_parsers().items() if name not in names}
    return parsers | find_file_parsers() | find_translations() | find_request_parsers() | find_corpus_parsers()


def copy_each_time(text: str) -> None:
    copies: list[str] = []
    for character in text:
        copies = [*copies, character]


FAULTS: dict[str, Parse] = {"a loop that copies": copy_each_time, "an expression that tries again": re.compile(r"\.+\s").search}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match=r"times as long as"):
        check_time_is_linear(name, FAULTS[name], TEXTS["run of '.'"], 1024)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timer of the processor time")
def test_planted_exponential_expression_is_ended() -> None:
    with pytest.raises(AssertionError, match="a call took more"), limit_processor_time(0.2):
        re.search(r"(\.+)+\s", "." * 64)


def test_every_format_has_a_file() -> None:
    assert set(SUFFIXES) == INSIDE.keys() | EQUAL_SUFFIXES.keys()


def test_wrapped_text_is_read(subtests: pytest.Subtests) -> None:
    for suffix in INSIDE:
        with subtests.test(suffix=suffix):
            for number, wrap in enumerate(INSIDE[suffix]):
                if (suffix, number) not in ((".json", 1), (".json5", 1)):  # syntax
                    assert parse_document(*read(suffix, wrap, "word one two")).units, number


def test_time_is_linear_in_common_runs(subtests: pytest.Subtests) -> None:
    for name, parse in find_parsers().items():
        if name.endswith((".make_language_filter", ".Glossary")):  # take long to load
            continue
        with subtests.test(name=name):
            for kind, make in QUICK_TEXTS.items():
                check_time_is_linear(f"{name}, {kind}", parse, make, 512)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_time_is_linear_in_all_texts(subtests: pytest.Subtests, part: int) -> None:
    for name, parse in list(find_all_parsers().items())[part::NUM_PARTS]:
        with subtests.test(name=name):
            length = choose_length(parse)
            for kind, make in TEXTS.items():
                check_time_is_linear(f"{name}, {kind}", parse, make, length)
