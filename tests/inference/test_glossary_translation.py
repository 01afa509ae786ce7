"""Glossaries in the translation of texts: which translation is taken, and what a segment reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman
from dragoman.cli.main import cli
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TranslatedSegment, translate_texts
from dragoman.text.glossary import Glossary, GlossaryEntry
from dragoman.text.inline_codes import Markup

GLOSSARY = Glossary(
    [GlossaryEntry("dog", ("Hund", "Hunde")), GlossaryEntry("cat", ("Katze",)), GlossaryEntry("Linux", do_not_translate=True)]
)


class CostlyTerms:
    """Translator that writes capital letters, and required terms behind them. cost: mean log-probability that they cost"""

    def __init__(self, cost: float) -> None:
        self.cost = cost
        self.requests: list[LineRequest] = []

    def __call__(self, request: LineRequest) -> Sequence[Translation]:
        self.requests.append(request)
        return [self.translate(part) for part in request.split()]

    def translate(self, request: LineRequest) -> Translation:
        phrases = [group[0] for group in request.terms[0]] if request.terms else []
        (line,) = request.lines
        words = [word if word == "Linux" else word.upper() for word in line.split()]
        return Translation(" ".join([*words, *phrases]), token_log_probs=(-1.0 - self.cost * bool(phrases), -1.0))


def translate(text: str, cost: float, **options: Any) -> tuple[TranslatedSegment, CostlyTerms]:
    translator = CostlyTerms(cost)
    (result,) = translate_texts([text], TextOptions(glossary=GLOSSARY, **options), translator)
    (segment,) = result.segments
    return segment, translator


@pytest.mark.parametrize(
    ("cost", "options", "has_term"),
    [
        (1.0, {}, True),  # 0.5 nats for each of two tokens
        (1.1, {}, False),
        (1.1, {"strict_terms": True}, True),
        (0.0, {"retry": False}, False),
        (9.0, {"retry": False, "strict_terms": True}, True),
    ],
)
def test_required_term_is_taken_up_to_its_cost(cost: float, options: dict[str, bool], has_term: bool) -> None:
    segment, translator = translate("a dog", cost, **options)
    assert segment.text == ("A DOG Hund" if has_term else "A DOG")
    assert segment.checks == (() if has_term else ("terminology",))
    assert [use.form for use in segment.terms] == ["Hund" if has_term else None]
    assert [request.terms for request in translator.requests][1:] in ([], [((("Hund", "Hunde"),),)])


def test_segments_with_their_terms_are_translated_once() -> None:
    segment, translator = translate("on Linux", 0.0)
    assert ([use.form for use in segment.terms], len(translator.requests)) == (["Linux"], 1)


def test_terms_that_stay_are_placeholders() -> None:
    options = TextOptions("html", glossary=Glossary([GlossaryEntry("red hat", do_not_translate=True)]))
    (result,) = translate_texts(["<p>Use <b>Red Hat</b> &amp; more, red hat.</p>"], options, CostlyTerms(0.0))
    assert result.text.count("Red Hat") == result.text.count("red hat") == 1
    assert result.segments[0].checks == ()


@pytest.mark.parametrize(("text", "markup"), [("a hot\u00a0dog", "none"), ("a hot&nbsp;dog", "html")])
def test_terms_with_a_no_break_space_are_missed(text: str, markup: Markup) -> None:
    options = TextOptions(markup, glossary=Glossary([GlossaryEntry("hot dog", ("Wurst",))]), retry=False)
    (result,) = translate_texts([text], options, CostlyTerms(0.0))
    assert [[use.form for use in segment.terms] for segment in result.segments] == [[None]]
    assert result.segments[0].checks == ("terminology",)


@pytest.mark.parametrize(("markup", "space"), [("none", "\u00a0"), ("html", "&nbsp;"), ("none", "\u202f")])
def test_terms_that_stay_may_have_no_break_spaces(markup: Markup, space: str) -> None:
    entries = [GlossaryEntry("hot dog", do_not_translate=True), GlossaryEntry("old man sea", do_not_translate=True)]
    (result,) = translate_texts(
        [f"10{space}km a hot{space}dog, an old{space}man{space}sea."],
        TextOptions(markup, glossary=Glossary(entries)),
        CostlyTerms(0.0),
    )
    assert result.text == f"10{space}KM A hot{space}dog, AN old{space}man{space}sea."
    assert result.segments[0].checks == ()


def test_annotated_terms_are_read_by_models_that_know_them() -> None:
    segment, translator = translate("a dog on Linux", 0.0, annotate_terms=True)
    assert translator.requests[0].lines == ("a⟦t⟧ dog⟦=⟧ Hund⟦/t⟧ on Linux",)
    assert translator.requests[0].keep_marks
    assert segment.source == "a dog on Linux"


def test_command_reports_terms(bundle: Path, tmp_path: Path, one_core: None) -> None:
    """A model of numbers and colors cannot use a term unless it is required."""
    (tmp_path / "terms.tsv").write_text("one\tgrün\n", encoding="utf-8")
    (tmp_path / "in.txt").write_text("one two\n", encoding="utf-8")
    command = ["translate", str(bundle), str(tmp_path / "in.txt"), "--glossary", str(tmp_path / "terms.tsv"), "--device", "cpu"]
    strict = CliRunner().invoke(cli, [*command, "--strict-terms", "--json"])
    assert strict.exit_code == 0, strict.output
    assert '"terms": [{"source": "one", "targets": ["grün"], "form": "grün"}]' in strict.stdout
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    assert "grün" in translator.translate_text("one two", glossary=tmp_path / "terms.tsv", strict_terms=True).text
    usage = CliRunner().invoke(cli, [*command[:3], "--strict-terms"])
    assert (usage.exit_code, "--glossary; give both" in usage.output) == (2, True)
