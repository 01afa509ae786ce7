"""Each command of the tutorials runs as it is printed, in one folder, in the order of the pages.

Small corpora of the same layout answer downloads, and each training has a smaller budget.
For this, programs named `git`, `pip` and `dragoman` stand before the real ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dragoman

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = ("quickstart", "multi30k", "parsing", "domain-adaptation", "reproduce-the-paper")
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEFT_OUT = ("python3 -m venv", "wmt14-ende-base")
"""Blocks that are left out: the installation, which `make quickstart` does, and a training on eight GPUs."""

SMALL_TRAINING = "training.max_steps=2 training.warmup_steps=1 training.validate_every_steps=2 training.batch_tokens=400"
SMALL_MODEL = "model.d_model=16 model.d_ff=32 model.num_heads=2 model.encoder_layers=2 model.decoder_layers=2"
BUDGETS = {
    "quickstart": f"{SMALL_TRAINING} training.num_validation_translations=5 decoding.method=greedy decoding.max_extra_tokens=2",
    "prepare multi30k-ende": f"{SMALL_MODEL} tokenizer.vocab_size=300",
    "train multi30k-ende": f"{SMALL_TRAINING} {SMALL_MODEL} tokenizer.vocab_size=300",
    "train parsing-craft": f"{SMALL_TRAINING} {SMALL_MODEL} tokenizer.vocab_size=290",
    "adapt en-de": SMALL_TRAINING,
    "paper table2 --run": f"--flops 1e9 --seeds 1 --processes 1 tokenizer.vocab_size=300 {SMALL_MODEL}",
    "paper table3": "--budget 1 --seeds 1 --processes 1 tokenizer.vocab_size=300",
}
"""Beginning of a command line, and what the test adds to its end."""

NOUNS = [("man", "Mann"), ("dog", "Hund"), ("shop", "Laden"), ("street", "Weg"), ("house", "Haus"), ("ball", "Ball")]
VERBS = [("sees", "sieht"), ("likes", "mag"), ("finds", "findet")]
PAIRS = [
    (f"the {subject[0]} {verb[0]} a {object_[0]} .", f"der {subject[1]} {verb[1]} ein {object_[1]} .")
    for subject in NOUNS
    for verb in VERBS
    for object_ in NOUNS
]
DJANGO_APPS = (
    "conf",
    *(f"contrib/{name}" for name in ("admin", "admindocs", "auth", "contenttypes", "flatpages", "gis", "humanize", "postgres")),
    *(f"contrib/{name}" for name in ("redirects", "sessions", "sites")),
)
TREE = "( (S (NP (DT the) (NN {0})) (VP (VBZ {1}) (NP (DT a)\n  (NN {2}))) (. .)) )\n"


def write_multi30k(folder: Path) -> None:
    """Write the layout of the repository multi30k/dataset."""
    (folder / "data" / "task1" / "tok").mkdir(parents=True)
    for part, pairs in (("train", PAIRS), ("val", PAIRS[:9]), ("test_2016_flickr", PAIRS[9:20])):
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / "data" / "task1" / "tok" / f"{part}.lc.norm.tok.{language}").write_text(text, encoding="utf-8")


def write_craft(folder: Path) -> None:
    """Write the layout of the repository UCDenver-ccp/CRAFT: trees of several lines, one file for each article."""
    penn = folder / "structural-annotation" / "treebank" / "penn"
    penn.mkdir(parents=True)
    trees = [TREE.format(*(source.split()[index] for index in (1, 2, 4))) for source, _ in PAIRS]
    for number, part in (("11319941", trees[:50]), ("16787536", trees[50:90]), ("17020410", trees[90:])):
        (penn / f"{number}.tree").write_text("".join(part), encoding="utf-8")


def write_django(wheel: Path) -> None:
    """Write the catalogs of Django's wheel."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for index, app in enumerate(DJANGO_APPS):
            pairs = PAIRS[index * 8 : index * 8 + 8]
            for language in ("en", "de"):
                header = f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: {language}\\n"\n'
                entries = [f'msgid "{source}"\nmsgstr "{target if language == "de" else ""}"\n' for source, target in pairs]
                archive.writestr(f"django/{app}/locale/{language}/LC_MESSAGES/django.po", "\n".join([header, *entries]))


def write_programs(folder: Path, downloads: Path) -> None:
    """Write `git`, `pip`, `python` and `dragoman`, whose status 3 means lines that a model of two steps does not end."""
    cases = "\n".join(f'  "{start}"*) set -- "$@" {added} ;;' for start, added in BUDGETS.items())
    programs = {
        "git": f'for name; do :; done\nexec cp -r "{downloads}/$(basename "$name")" .',
        "pip": f'test "$1" = download\nexec cp "{downloads}"/*.whl .',
        "dragoman": f'case "$*" in\n{cases}\nesac\n"{sys.executable}" -m dragoman "$@" || test $? = 3',
        "python": f'exec "{sys.executable}" "$@"',
    }
    folder.mkdir()
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\nset -e\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize("name", ["quickstart", "reproduce-the-paper"])
def test_chinese_tutorials_have_the_same_commands(name: str) -> None:
    english, chinese = (
        SHELL_BLOCK.findall((TUTORIALS / f"{file}.md").read_text(encoding="utf-8")) for file in (name, f"{name}-zh")
    )
    assert english == chinese != []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the tutorials are written for a POSIX shell")
def test_commands_run_as_printed(subtests: pytest.Subtests, tmp_path: Path) -> None:
    downloads, work = tmp_path / "downloads", tmp_path / "work"
    write_multi30k(downloads / "dataset")
    write_craft(downloads / "CRAFT")
    write_django(downloads / "django-5.2.8-py3-none-any.whl")
    write_programs(tmp_path / "programs", downloads)
    work.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(dragoman.__file__).parents[1]),
    }
    for page in PAGES:
        for block in SHELL_BLOCK.findall((TUTORIALS / f"{page}.md").read_text(encoding="utf-8")):
            if any(words in block for words in LEFT_OUT):
                continue
            with subtests.test(page=page, block=block):
                command = ["bash", "-euo", "pipefail", "-c", block]
                result = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=600)
                assert result.returncode == 0, result.stdout[-2_000:] + result.stderr[-2_000:]
    assert (work / "after" / "admin.po").read_text(encoding="utf-8").count("msgstr") == 9
