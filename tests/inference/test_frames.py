"""Columns of tables of pandas, Polars and Hugging Face are translated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

import dragoman
from capital_letters import CapitalTranslator
from dragoman.inference import whole_texts
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translator import Translator
from expected_errors import raises_code

BUILDERS = {"pandas": "DataFrame", "polars": "DataFrame", "datasets": "Dataset.from_dict"}


class TextCapitals(CapitalTranslator):
    def translate_texts(self, texts: Sequence[str]) -> list[whole_texts.TextTranslation]:
        """Return the texts in capital letters."""
        return whole_texts.translate_texts(texts, TextOptions(), lambda request: self.translate(request.lines))


TRANSLATOR = cast(Translator, TextCapitals())


@pytest.mark.parametrize("library", BUILDERS)
def test_missing_texts_stay_missing_and_the_table_stays_as_it_is(library: str) -> None:
    build: Any = pytest.importorskip(library)
    for name in BUILDERS[library].split("."):
        build = getattr(build, name)
    frame = build({"id": [1, 2, 3], "text": ["a b\nd", None, "c"]})
    translated = dragoman.translate_frame(TRANSLATOR, frame, "text", into="capitals", status="status")
    again = dragoman.translate_frame(TRANSLATOR, translated, "text", into="capitals")
    for table in (translated, again):
        values = list(table["capitals"])
        assert (values[0], values[2]) == ("A B\nD", "C")
        assert values[1] is None or values[1] != values[1]
        assert list(table["id"]) == [1, 2, 3]
    assert [status for status in translated["status"] if isinstance(status, str)] == ["ok", "ok"]
    assert "capitals" not in list(getattr(frame, "column_names", None) or frame.columns)


def test_wrong_tables_and_columns_are_refused() -> None:
    with raises_code("invalid-argument", "a table of type dict is not known"):
        dragoman.translate_frame(TRANSLATOR, {"text": ["a"]}, "text")
    pandas = pytest.importorskip("pandas")
    for column, columns, message in (("x", ["text"], "x: is the name of 0 columns"), ("x", ["x", "x"], "x: is the name of 2")):
        with raises_code("invalid-argument", message):
            dragoman.translate_frame(TRANSLATOR, pandas.DataFrame([["a"] * len(columns)], columns=columns), column)
    with raises_code("invalid-argument", "a table of type Series is not known"):
        dragoman.translate_frame(TRANSLATOR, pandas.Series(["a"]), "x")
