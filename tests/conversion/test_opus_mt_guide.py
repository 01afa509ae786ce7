"""Commands of the guide to OPUS-MT models, run on a folder that the test writes, without a network."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from marian_folders import write_folder

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "opus-mt.md"
HUB_NAME = "Helsinki-NLP/opus-mt-en-de"


def read_commands() -> list[str]:
    """Return the lines of all shell blocks of the guide."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for language, block in blocks if not language for line in block.splitlines()]


@pytest.mark.slow
def test_commands_convert_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name on the hub stands for the folder of the offline variant, which is the same command."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "opus-mt-en-de")
    online, offline = (command for command in read_commands() if command.startswith("dragoman convert "))
    assert online.replace(HUB_NAME, "opus-mt-en-de") == offline
    for command in (offline, "dragoman info opus-en-de"):
        assert command in read_commands()
        result = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    repeated = CliRunner().invoke(cli, shlex.split(offline)[1:])
    assert "exists already" in str(repeated.exception)
