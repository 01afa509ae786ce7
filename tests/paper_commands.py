"""Calls of `dragoman paper`, and the one line of each error."""

from __future__ import annotations

from click.testing import CliRunner, Result

from dragoman.cli.main import cli
from dragoman.errors import DragomanError


def ask(*words: object) -> Result:
    return CliRunner().invoke(cli, ["paper", *map(str, words)], terminal_width=300)


def refusal(*words: object) -> str:
    """Return the one line of an error, or the text of a usage error."""
    result = ask(*words)
    if isinstance(result.exception, DragomanError):
        assert "\n" not in str(result.exception)
        return str(result.exception)
    assert result.exit_code == 2, result.output
    return result.stderr
