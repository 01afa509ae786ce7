"""PosUnk: a vocabulary of words without the names of the text, whose translations are copies or stand in a dictionary."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

import dragoman
from conftest import MakeRecipe
from dragoman.cli.main import cli
from dragoman.word_aligner import build_dictionary
from tiny_runs import NO_DROPOUT, WORDS

COLORS = {"red": "rot", "blue": "blau", "green": "grün"}


def test_dictionary_has_the_most_frequent_translation() -> None:
    sources, targets = [["a", "b"], ["a"], ["a"]], [["x", "y"], ["x"], ["z"]]
    links = [[(0, 0), (1, 1)], [(0, 0)], [(0, 0)]]
    assert build_dictionary(sources, targets, links) == {"a": "x", "b": "y"}
    assert build_dictionary(sources, targets, links, min_count=2) == {"a": "x"}


def test_align_command_writes_a_dictionary(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [rng.sample(list(COLORS), k=2) for _ in range(30)]
    (tmp_path / "a.en").write_text("".join(f"{' '.join(line)}\n" for line in lines), encoding="utf-8")
    (tmp_path / "a.de").write_text("".join(f"{' '.join(COLORS[word] for word in line)}\n" for line in lines), encoding="utf-8")
    arguments = ["align", str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    result = CliRunner().invoke(cli, [*arguments, "--dictionary", "--min-links", "3"])
    assert result.exit_code == 0, result.output
    assert dict(line.split("\t") for line in result.stdout.splitlines()) == COLORS
    for options, message in ((["--dictionary", "--json"], "--json"), (["--min-links", "3"], "--dictionary")):
        refused = CliRunner().invoke(cli, [*arguments, *options])
        assert refused.exit_code == 2
        assert message in refused.output


@pytest.mark.slow
def test_unknown_words_are_learned_and_replaced(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Each line has one name out of 400, which the vocabulary lacks. The model outputs `<unk>` for it, as in training."""
    rng = random.Random(1)
    names = [f"N{number}" for number in range(400)]
    for split, size in (("train", 400), ("valid", 10), ("test", 20)):
        with (
            (tmp_path / f"{split}.en").open("w", encoding="utf-8") as source,
            (tmp_path / f"{split}.de").open("w", encoding="utf-8") as target,
        ):
            for _ in range(size):
                words = rng.choices(list(WORDS), k=rng.randint(1, 4))
                place, name = rng.randint(0, len(words)), rng.choice(names)
                source.write(" ".join([*words[:place], name, *words[place:]]) + "\n")
                target.write(
                    " ".join([*(WORDS[word] for word in words[:place]), name, *(WORDS[word] for word in words[place:])]) + "\n"
                )
    settings = [
        f"data.root={tmp_path}", "tokenizer.model_type=word", "tokenizer.byte_fallback=false",
        f"tokenizer.vocab_size={4 + 2 * len(WORDS)}", *NO_DROPOUT, "training.max_steps=250", "training.batch_tokens=600",
        "training.guided_alignment_weight=0.3", "training.num_validation_translations=0",
    ]  # fmt: skip
    dragoman.train(tiny(tmp_path / "run", *settings))
    translator = dragoman.load(tmp_path / "run" / "bundle", task="translation", precision="float32")
    assert len(translator.bundle.tokenizer.target) == 4 + 2 * len(WORDS)
    sources, targets = ((tmp_path / f"test.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de"))
    plain = [translation.text for translation in translator.translate(sources)]
    assert sum(text.count("⁇") == 1 for text in plain) >= 0.9 * len(plain)
    copied = [translation.text for translation in translator.translate(sources, replace_unknowns=True)]
    assert sum(text == target for text, target in zip(copied, targets, strict=True)) >= 0.8 * len(targets)
    dictionary = tmp_path / "dictionary.tsv"
    dictionary.write_text("".join(f"{name}\t{name}-de\n" for name in names), encoding="utf-8")
    with_dictionary = translator.translate(sources, replace_unknowns=True, unknown_dictionary=str(dictionary))
    translated = [translation.text for translation in with_dictionary]
    assert translated == [" ".join(f"{word}-de" if word in names else word for word in text.split()) for text in copied]
