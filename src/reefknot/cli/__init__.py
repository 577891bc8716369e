"""The command line: parses, calls, prints. Commands import lazily, so that --help is quick."""

import traceback
from importlib.metadata import entry_points
from typing import Any

import click

from reefknot import __version__
from reefknot.cli.display import Display
from reefknot.cli.export import export, shrink
from reefknot.cli.files import inspect, pack, unpack, verify
from reefknot.cli.printing import DEBUG, plain
from reefknot.errors import ReefknotError, UserCodeError
from reefknot.progress import listening

_ADDED = "reefknot.commands"  # the group of entry points


class _Commands(click.Group):
    """The commands, with those that other packages add by entry points (the laboratory's are such).

    Turns our own errors into one sentence on stderr and an exit code.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=_ADDED).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        added = entry_points(group=_ADDED, name=cmd_name)
        return super().get_command(ctx, cmd_name) or next((one.load() for one in added), None)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with listening(Display()):
                return super().invoke(ctx)
        except ReefknotError as error:
            lines = "\n".join(plain(line) for line in str(error).splitlines())
            if ctx.meta.get(DEBUG):
                traceback.print_exc()
            elif isinstance(error, UserCodeError) and self._shows_tracebacks(ctx):
                lines += "; add --debug to see where"
            click.echo(f"reefknot: {lines}", err=True)
            ctx.exit(error.exit_code)
        except MemoryError as error:
            reason = f" ({error})" if str(error) else ""
            click.echo(f"reefknot: there is not enough memory for this{plain(reason)}", err=True)
            ctx.exit(ReefknotError.exit_code)
        except KeyboardInterrupt:
            click.echo("reefknot: stopped", err=True)
            ctx.exit(130)

    def _shows_tracebacks(self, ctx: click.Context) -> bool:
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        return command is not None and any(option.name == "debug" for option in command.params)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reefknot")
def main() -> None:
    """Make neural networks small: tied weights, in files that read back bit for bit."""


for command in (pack, unpack, inspect, verify, shrink, export):
    main.add_command(command)
