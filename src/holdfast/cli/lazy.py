"""Groups of commands that are named without being imported. Runs in the command line only."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

import click

from holdfast.lab import PACKAGE as LAB
from holdfast.lab import lab_module


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps, and imports a command when it is called."""

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: object) -> None:
        """Take `lazy`: command name -> ("module:attribute", one-line help)."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order they were given."""
        return [*self.lazy, *sorted(self.commands)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is asked for; one that is not there is refused with the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that is asked for."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        package, _, inside = module.partition(".")
        if package == LAB:
            found = lab_module(inside, needed_by=f"{ctx.command_path} {cmd_name}")
        else:
            found = import_module(module)
        command: click.Command = getattr(found, attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        rows = [(name, text) for name, (_, text) in self.lazy.items()]
        for name in sorted(self.commands):
            rows.append((name, self.commands[name].get_short_help_str(limit=100)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def lazy_group(name: str, text: str, commands: dict[str, tuple[str, str]]) -> LazyGroup:
    """Return a group of commands that are imported when they run."""
    return LazyGroup(name=name, help=text, lazy=commands, no_args_is_help=True)
