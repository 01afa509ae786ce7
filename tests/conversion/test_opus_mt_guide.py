"""Commands of the guide to OPUS-MT models, run on a folder that the test writes, without a network."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from marian_folders import SOURCE_LETTERS, make_lines, write_folder

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "opus-mt.md"
HUB_NAME = "Helsinki-NLP/opus-mt-en-de"


def read_commands() -> list[str]:
    """Return the lines of all shell blocks of the guide."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for language, block in blocks if not language for line in block.splitlines()]


def test_guide_has_four_commands() -> None:
    assert [command.split()[:2] for command in read_commands()[:4]] == [
        ["pip", "install"], ["dragoman", "convert"], ["dragoman", "info"], ["dragoman", "translate"],
    ]  # fmt: skip


@pytest.mark.slow
def test_commands_translate_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name on the hub stands for the folder of the offline variant, which is the same command."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "opus-mt-en-de")
    lines = make_lines(SOURCE_LETTERS, 3, 2)
    (tmp_path / "article.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    commands = read_commands()
    offline = next(command for command in commands if command.startswith("dragoman convert opus-mt-en-de"))
    assert commands[1].replace(HUB_NAME, "opus-mt-en-de") == offline
    for command in (offline, *commands[2:4]):
        result = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert result.exit_code in (0, 3), result.output  # 3: outputs of random weights may have no end
    assert len((tmp_path / "article.de").read_text(encoding="utf-8").splitlines()) == len(lines)
    repeated = CliRunner().invoke(cli, shlex.split(offline)[1:])
    assert "exists already" in str(repeated.exception)
