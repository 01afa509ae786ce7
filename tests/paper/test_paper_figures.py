"""Tests of Figures 3 to 5 for any bundle and any sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from dragoman import Translator, load
from dragoman.errors import DataError, RecipeError
from dragoman.model.attention import attention_weights
from dragoman.model.layers import EncoderLayer
from dragoman.paper.figures import (
    PAPER_SENTENCES,
    PAPER_WORDS,
    EncoderAttention,
    Figure,
    _find_farthest_word,
    _find_sharpest_word,
    _resolve_heads,
    _resolve_layer,
    _resolve_word,
    build_figures,
    record_encoder_attention,
)
from dragoman.viz.paper_figures import FigurePanel, render_paper_figure
from paper_commands import ask, refusal

pytestmark = pytest.mark.usefixtures("one_core")

SENTENCE = "one big red seven small"


@pytest.fixture(scope="module")
def translator(bundle: Path) -> Translator:
    opened: Translator = load(bundle, task="translation")
    return opened


def make_attention(
    words: Sequence[str], weights: dict[tuple[int, int, int], float], *, layers: int = 1, heads: int = 2
) -> EncoderAttention:
    """Return attention of one token a word: (head, query, key) → weight in the first layer, the rest for the end token."""
    length = len(words) + 1
    weights_LHTS = np.zeros((layers, heads, length, length), dtype=np.float32)
    for (head, row, column), weight in weights.items():
        weights_LHTS[0, head, row, column] = weight
    weights_LHTS[..., -1] = 1 - weights_LHTS.sum(axis=-1)
    tokens = (*(f"▁{word}" for word in words), "</s>")
    return EncoderAttention("random", " ".join(words), tokens, tuple(range(length)), weights_LHTS)


# Defaults


def test_default_layer_and_heads_are_the_printed_ones() -> None:
    assert [_resolve_layer(None, layers) + 1 for layers in (1, 2, 4, 6, 12)] == [1, 1, 3, 5, 11]
    assert [_resolve_heads((), count) for count in (2, 4, 5, 6, 8, 16)] == [(0, 1), (2, 3), (3, 4), (4, 5), (4, 5), (4, 5)]
    assert _resolve_heads((8, 2), 8) == (7, 1)


def test_default_word_is_that_of_the_paper() -> None:
    for number, word in PAPER_WORDS.items():
        words = PAPER_SENTENCES[number].split()
        attention = make_attention(words, {})
        assert words[_resolve_word(attention, None, number, attention.weights_LHTS[0])] == word


def test_default_word_has_farthest_or_sharpest_attention() -> None:
    # "a" attends half to "e" at distance 4, "b" fully to "c" at distance 1. The end token does not count.
    attention = make_attention(list("abcde"), {(0, 0, 4): 0.5, (1, 0, 4): 0.5, (0, 1, 2): 1.0, (1, 1, 2): 1.0})
    assert _find_farthest_word(attention, attention.weights_LHTS[0]) == 0
    assert _find_sharpest_word(attention, attention.weights_LHTS[0]) == 1
    # Punctuation is no word, and attention to the word itself does not count.
    attention = make_attention(
        [",", "a", "b"], {(0, 0, 2): 1.0, (1, 0, 2): 1.0, (0, 1, 1): 1.0, (1, 1, 1): 1.0, (0, 2, 1): 0.1}
    )
    assert _find_sharpest_word(attention, attention.weights_LHTS[0]) == 2


def test_word_is_given_as_text_or_number() -> None:
    attention = make_attention(["the", "2", "saw", "the", "dog"], {})
    weights_HTS = attention.weights_LHTS[0]
    assert [_resolve_word(attention, word, 3, weights_HTS) for word in ("saw", "2", "3", "6")] == [2, 1, 2, 5]
    with pytest.raises(DataError, match=r"--word the: occurs 2 times; give its number, 1 or 4$"):
        _resolve_word(attention, "the", 3, weights_HTS)
    with pytest.raises(DataError, match=r"--word 'cat': is not in the sentence; give one of its words, the, 2, saw, the, dog"):
        _resolve_word(attention, "cat", 3, weights_HTS)
    for word in ("0", "7", "-1"):
        with pytest.raises(DataError, match="is not in the sentence"):
            _resolve_word(attention, word, 3, weights_HTS)


# Weights and panels


@torch.no_grad()
def test_weights_are_equation_1_of_the_layer(translator: Translator) -> None:
    """Compare with equation 1 for the projections of the first layer. Its inputs are the normalized embeddings (pre-norm)."""
    attention = record_encoder_attention(translator, SENTENCE)
    model = translator.bundle.model
    ids_BS = torch.tensor([translator.bundle.tokenizer.encode_source(SENTENCE)])
    layer = model.encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    assert translator.recipe.model.norm == "pre"
    query, key_value = layer.attention.project_qkv(layer.attention_residual.norm(model.encoder.embedding(ids_BS)))
    expected = attention_weights(query, key_value.key, None)
    np.testing.assert_allclose(attention.weights_LHTS, expected.numpy(), atol=1e-6)
    assert attention.spell_words() == [*SENTENCE.split(), "</s>"]
    assert attention.tokens == tuple(translator.bundle.tokenizer.source.ids_to_pieces(ids_BS[0].tolist()))


def test_panels_equal_those_of_the_paper(translator: Translator) -> None:
    three, four, five = build_figures(translator, SENTENCE, heads=(2, 1), word="red")
    red = three.attention.token_positions(2)
    assert three.panels == (FigurePanel((0, 1), red),)
    assert four.panels == (FigurePanel((1,)), FigurePanel((1, 0), red))
    assert five.panels == (FigurePanel((1,)), FigurePanel((0,)))
    assert (three.word, four.word, five.word) == (2, 2, None)
    assert three.caption == "encoder self-attention, layer 1 of 1, all heads, from “red”"
    assert [figure.number for figure in build_figures(translator, SENTENCE, numbers=(5, 3, 5))] == [3, 5]


def lines_of(svg: str) -> list[tuple[int, float, int]]:
    """Return head, opacity and number of lines of each path."""
    paths = re.findall(r'class="line h(\d)" stroke-opacity="([0-9.]+)" d="([^"]*)"', svg)
    return [(int(head), float(level), steps.count("M")) for head, level, steps in paths]


def test_lines_are_the_weights_of_the_word() -> None:
    attention = make_attention(["a", "b", "c"], {(0, 0, 2): 1.0, (0, 1, 0): 0.25, (1, 1, 2): 0.5, (1, 1, 0): 0.03})
    weights_HTS = attention.weights_LHTS[0]
    one_word = render_paper_figure(attention.tokens, weights_HTS, [FigurePanel((0, 1), (1,))], title="3", subtitle="r")
    # From "b": head 1 a quarter to "a", the rest to the end; head 2 half to "c", .47 to the end, and an invisible .03.
    assert sorted(lines_of(one_word)) == [(0, 0.25, 1), (0, 0.75, 1), (1, 0.5, 2)]
    boxes = re.findall(r'class="f(\d)" fill-opacity="([0-9.]+)"', one_word)
    assert sorted(boxes) == [("0", "0.25"), ("0", "0.75"), ("1", "0.47"), ("1", "0.5")]
    whole = render_paper_figure(attention.tokens, weights_HTS, [FigurePanel((0,)), FigurePanel((1,))], title="5", subtitle="r")
    # In head 1, "a" attends fully to "c", and "c" and "</s>" to the end. In head 2, all but "b" attend to the end.
    assert sorted(lines_of(whole)) == [(0, 0.25, 1), (0, 0.75, 1), (0, 1.0, 3), (1, 0.5, 2), (1, 1.0, 3)]
    assert "f0" not in re.findall(r'<rect class="(\w+)"', whole)


# Command


@pytest.mark.slow
def test_command_writes_and_describes_three_figures(bundle: Path, tmp_path: Path) -> None:
    result = ask("figures", bundle, SENTENCE, "-o", tmp_path / "f", "--word", "red", "--png")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == [
        f"figure{number}.{suffix}" for number in (3, 4, 5) for suffix in ("png", "svg")
    ]
    assert "Figure 3: encoder self-attention, layer 1 of 1, all heads, from “red”" in result.stdout
    assert (tmp_path / "f" / "figure4.png").read_bytes().startswith(b"\x89PNG")
    ElementTree.parse(tmp_path / "f" / "figure4.svg")
    before = {path: path.read_bytes() for path in (tmp_path / "f").iterdir()}
    assert "figure3.svg: exists already" in refusal("figures", bundle, SENTENCE, "-o", tmp_path / "f")
    assert before == {path: path.read_bytes() for path in (tmp_path / "f").iterdir()}
    assert ask("figures", bundle, SENTENCE, "-o", tmp_path / "f", "--figure", "5", "--overwrite").exit_code == 0


def test_json_output_draws_no_figure(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = ask("figures", bundle, SENTENCE, "--figure", "4", "--heads", "2,1", "--word", "3", "--json")
    assert not list(tmp_path.iterdir())
    (figure,) = json.loads(result.stdout)["figures"]
    assert (figure["figure"], figure["layer"], figure["layers"], figure["word"]) == (4, 1, 1, "red")
    assert [panel["heads"] for panel in figure["panels"]] == [[2], [2, 1]]
    whole, isolated = (np.array(panel["weights"]) for panel in figure["panels"])
    length, positions = len(figure["tokens"]), figure["panels"][1]["query_positions"]
    assert (whole.shape, isolated.shape) == ((1, length, length), (2, len(positions), length))
    np.testing.assert_allclose(whole.sum(-1), 1, atol=1e-3)
    np.testing.assert_array_equal(whole[0][positions], isolated[0])


def test_unknown_layer_head_or_word_is_an_error(
    subtests: pytest.Subtests, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for words, message in [
        (("--layer", 2), "layer 2: the encoder has layers 1 to 1"),
        (("--layer", 0), "layer 0: the encoder has layers 1 to 1"),
        (("--heads", "1,3"), "head 3: a layer has heads 1 to 2"),
        (("--heads", "1"), "--heads 1: Figures 4 and 5 compare two heads"),
        (("--heads", "1,1"), "compare two heads"),
        (("--heads", "one,two"), "--heads one,two: give two heads, counted from 1, such as 5,6"),
        (("--word", "eleven"), "--word 'eleven': is not in the sentence; give one of its words, one, big, red"),
    ]:
        with subtests.test(words=words, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            assert message in refusal("figures", bundle, SENTENCE, "-o", tmp_path / "f", *words)
            assert not (tmp_path / "f").exists()


def test_other_errors_are_one_line(bundle: Path, translator: Translator, tmp_path: Path) -> None:
    assert "the text is empty" in refusal("figures", bundle, " ", "-o", tmp_path / "f")
    assert "2 lines" in refusal("figures", bundle, "one\ntwo", "-o", tmp_path / "f")
    assert "nowhere" in refusal("figures", tmp_path / "nowhere", SENTENCE, "-o", tmp_path / "f")
    assert ask("figures", bundle, SENTENCE, "--figure", "6").exit_code == 2
    with pytest.raises(DataError, match=r"one head a layer.*--figure 3"):
        _resolve_heads((), 1)
    with pytest.raises(RecipeError):
        _resolve_heads((1, 2, 3), 8)
    single_head = make_attention(["a"], {}, heads=1)
    assert isinstance(Figure(3, single_head, 0, (FigurePanel((0,), (0,)),), 0).to_svg(), str)
    # The sentences of the paper are the default.
    assert [figure.attention.sentence for figure in build_figures(translator)] == list(PAPER_SENTENCES.values())
