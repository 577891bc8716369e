"""The command line: parses, calls, prints. Commands import lazily, so that --help is quick."""

import shlex
import traceback
from pathlib import Path
from typing import Any

import click

from reefknot import __version__
from reefknot.cli.display import Display
from reefknot.cli.export import export
from reefknot.cli.export_html import html
from reefknot.cli.files import DEBUG, inspect, pack, unpack, verify
from reefknot.cli.printing import plain
from reefknot.cli.search import search, show_try
from reefknot.cli.shrink import shrink
from reefknot.errors import ReefknotError, UserCodeError
from reefknot.progress import listening


class _Commands(click.Group):
    """Turns our own errors into one sentence on stderr and an exit code."""

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
        command = self.commands.get(ctx.invoked_subcommand or "")
        return command is not None and any(option.name == "debug" for option in command.params)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reefknot")
def main() -> None:
    """Make neural networks small: tied weights, in files that read back bit for bit."""


@main.command(name="demo")
@click.option("--out", type=click.Path(path_type=Path), help="Output folder [reefknot-demo].")
@click.option("--seed", default=0, show_default=True, help="Seed of initialisation and batches.")
def show_demo(out: Path | None, seed: int) -> None:
    """Train, tie, pack and check a small network on embedded data, in under a minute."""
    from reefknot.cli.demo import run_demo

    run_demo(out=out, seed=seed)


@main.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Run folder [runs/CONFIG-seedN].")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an entry.")
@click.option("--resume", is_flag=True, help="Continue from the folder's checkpoint.")
@click.option("--force", is_flag=True, help="Start over; deletes what a run has written there.")
@click.option("--baseline", is_flag=True, help="Also train without compression, to compare with.")
@click.option(
    "--max-error-increase", type=click.FloatRange(min=0), metavar="POINTS",
    help="Find the smallest file whose validation error is at most this much above the dense one.",
)  # fmt: skip
@click.option(
    "--reference-error", type=click.FloatRange(0, 100), metavar="PERCENT",
    help="With --max-error-increase: the validation error to compare with.",
)  # fmt: skip
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def run(
    config: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
    force: bool,
    baseline: bool,
    max_error_increase: float | None,
    reference_error: float | None,
    debug: bool,
) -> None:
    """Train and compress as CONFIG.toml says; the folder holds the file and its record."""
    click.get_current_context().meta[DEBUG] = debug
    if resume and force:
        raise click.UsageError("--resume continues a run, --force starts over: choose one of them.")
    if max_error_increase is None and reference_error is not None:
        raise click.UsageError("--reference-error goes with --max-error-increase.")
    if max_error_increase is not None and baseline:
        raise click.UsageError("--max-error-increase has a reference of its own; omit --baseline.")
    from rich.console import Console

    from reefknot.cli.progress import ProgressBar
    from reefknot.cli.summary import record_table, unknown_loss
    from reefknot.runs.config import read_config
    from reefknot.runs.run import run as run_config
    from reefknot.runs.smallest import smallest

    settings = read_config(config, overrides)
    folder = out or Path("runs") / f"{config.stem}-seed{settings.seed}"
    console = Console(stderr=True)
    with ProgressBar(settings.plan.steps, console) as bar:
        if max_error_increase is None:
            record = run_config(
                settings, folder, resume=resume, force=force, baseline=baseline, display=bar
            )
        else:
            record = smallest(
                settings,
                folder,
                max_error_increase=max_error_increase,
                reference_error=reference_error,
                resume=resume,
                force=force,
                display=bar,
                tell=show_try,
            )
    Console().print(record_table(record))
    if unknown_loss(record):
        click.echo("How much was lost? To train the same network without compression:")
        config_kept = shlex.quote(str(folder / "config.toml"))
        click.echo(
            f"  reefknot run {config_kept} --out {shlex.quote(str(folder))} --resume --baseline"
        )
    click.echo(f"wrote {folder / 'model.reef'}, {folder / 'record.json'}, {folder / 'report.html'}")


@main.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True,
                type=click.Path(path_type=Path))  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), default="comparison.html", show_default=True,
    help="The page that compares several runs.",
)  # fmt: skip
def report(folders: tuple[Path, ...], out: Path) -> None:
    """Write the offline HTML report of a run folder again, or one that compares several."""
    from reefknot.format import open_state
    from reefknot.report import compared, write_comparison, write_report

    for folder in folders:
        try:
            is_run = (folder / "record.json").is_file()
        except OSError as error:
            raise ReefknotError(f"{folder} could not be read: {error.strerror}") from error
        if not is_run:
            raise ReefknotError(f"{folder} holds no finished run: record.json is missing")
    if len(folders) == 1:
        (folder,) = folders
        click.echo(f"wrote {write_report(folder, open_state(folder / 'model.reef'))}")
    else:
        runs = [compared(folder, str(folder)) for folder in folders]
        lead = "Errors are on validation data, and comparable only between runs with the same data."
        click.echo(f"wrote {write_comparison(out, f'{len(runs)} runs', lead, runs)}")


@main.command()
def methods() -> None:
    """List the methods and their settings, each with its default."""
    from dataclasses import MISSING
    from inspect import getdoc
    from shutil import get_terminal_size

    from reefknot.methods.settings import settings_of
    from reefknot.public import METHODS

    width = get_terminal_size().columns
    for name, method in METHODS.items():
        summary = (getdoc(method) or "").splitlines()[0]
        click.echo(click.wrap_text(f"{name}: {summary}", width, subsequent_indent=4 * " "))
        for setting in settings_of(method):
            title = setting.name
            if setting.default is MISSING:
                title += " (needed)"
            elif setting.default is not None:  # the description says what None means
                title += f" = {setting.default!r}"
            line = f"{title}: {setting.metadata['doc']}"
            click.echo(click.wrap_text(line, width, 4 * " ", 8 * " "))


export.add_command(html)
for command in (pack, unpack, inspect, verify, shrink, export, search):
    main.add_command(command)
