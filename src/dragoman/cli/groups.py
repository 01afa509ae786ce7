"""Group of commands that suggests the nearest name for a misspelt command."""

from __future__ import annotations

from difflib import get_close_matches

import click


class SuggestingGroup(click.Group):
    """Group whose error for an unknown command suggests the nearest command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, and the other arguments. Raises UsageError for an unknown name."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            matches = get_close_matches(args[0], names, n=1)
            ctx.fail(f"No such command {args[0]!r}; " + (f"did you mean {matches[0]}?" if matches else "choose a command"))
        return super().resolve_command(ctx, args)
