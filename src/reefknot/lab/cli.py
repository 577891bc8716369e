"""The commands of the laboratory, which entry points add to `reefknot`. Imports are lazy."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reefknot.cli.printing import DEBUG, in_a_row, plain, print_table, table_of
from reefknot.errors import CheckError

if TYPE_CHECKING:
    from reefknot.lab.searching.search import Found
    from reefknot.lab.searching.study import Trial


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Output folder [reefknot-demo].")
@click.option("--seed", default=0, show_default=True, help="Seed of initialisation and batches.")
def demo(out: Path | None, seed: int) -> None:
    """Train, tie, pack and check a small network on embedded data, in under a minute."""
    from reefknot.lab.demo import run_demo

    run_demo(out=out, seed=seed)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Run folder [runs/CONFIG-seedN].")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an entry.")
@click.option("--resume", is_flag=True, help="Continue from the folder's checkpoint.")
@click.option("--force", is_flag=True, help="Start over; deletes what a run has written there.")
@click.option("--baseline", is_flag=True, help="Also train without compression, to compare with.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def run(
    config: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
    force: bool,
    baseline: bool,
    debug: bool,
) -> None:
    """Train and compress as CONFIG.toml says; the folder holds the file and its record."""
    click.get_current_context().meta[DEBUG] = debug
    if resume and force:
        raise click.UsageError("--resume continues a run, --force starts over: choose one of them.")
    from rich.console import Console

    from reefknot.lab.display import progress_bar, record_table, unknown_loss
    from reefknot.lab.runs.config import read_config
    from reefknot.lab.runs.run import run as run_config

    settings = read_config(config, overrides)
    folder = out or Path("runs") / f"{config.stem}-seed{settings.seed}"
    console = Console(stderr=True)
    with progress_bar(settings.plan.steps, console) as bar:
        record = run_config(
            settings, folder, resume=resume, force=force, baseline=baseline, display=bar
        )
    Console().print(record_table(record))
    if unknown_loss(record):
        click.echo("How much was lost? To train the same network without compression:")
        config_kept = shlex.quote(str(folder / "config.toml"))
        click.echo(
            f"  reefknot run {config_kept} --out {shlex.quote(str(folder))} --resume --baseline"
        )
    click.echo(f"wrote {folder / 'model.reef'}, {folder / 'record.json'}, {folder / 'report.html'}")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Its folder [runs/CONFIG-search].")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an entry.")
@click.option(
    "--trials", default=20, show_default=True, type=click.IntRange(min=1),
    help="Number of trials in all, those of earlier and other commands included.",
)  # fmt: skip
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1, 1_024),
    help="How many trials run at a time, each in a process of one thread.",
)  # fmt: skip
@click.option(
    "--storage", metavar="URL|FILE",
    help="A database, or a journal file, for workers on many machines [SQLite in the folder].",
)  # fmt: skip
@click.option(
    "--max-error", type=click.FloatRange(0, 100), metavar="PERCENT",
    help="Name the smallest file on the front whose validation error is at most this.",
)  # fmt: skip
def search(
    config: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    trials: int,
    jobs: int,
    storage: str | None,
    max_error: float | None,
) -> None:
    """Search error against bytes; ends with the Pareto front and its files.

    The table [search] of CONFIG.toml says what is searched; without one, sizes from a fourth to
    four times settings.target_bytes. The same command continues a search that was stopped.
    """
    from reefknot.lab.runs.config import read_config
    from reefknot.lab.searching.search import search as search_config

    settings = read_config(config, overrides)
    folder = out or Path("runs") / f"{config.stem}-search"
    front, running = search_config(
        settings, folder, trials=trials, jobs=jobs, storage=storage, tell=_show_trial
    )
    _show_front(front)
    if running:
        click.echo(f"trials still running in other commands: {running}; no test error yet")
    click.echo(f"wrote {folder / 'front'}, {folder / 'front.json'}, {folder / 'report.html'}")
    if max_error is not None:  # the front begins with the smallest
        enough = [one.file or _AWAY for one in front if one.val_error <= max_error]
        if not enough:
            raise CheckError(f"no file has a validation error of at most {max_error:g} %")
        click.echo(f"smallest file with at most {max_error:g} %: {enough[0]}")


_AWAY = "on another machine"


def _show_trial(trial: "Trial") -> None:
    values = ", ".join(f"{key}={_value(value)}" for key, value in trial.values.items())
    if trial.state == "finished":
        came = f"{trial.file_bytes:,} bytes, validation error {trial.val_error:.2f} %"
    else:
        came = f"{trial.state}: {trial.reason}"
    click.echo(plain(f"trial {trial.number}: {values}: {came}"), err=True)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_front(front: "list[Found]") -> None:
    with_test = any(one.test_error is not None for one in front)
    keys = list(front[0].values) if front else []
    titles = ["file", "trial", "bytes", "validation error"]
    titles += ["test error"] if with_test else []
    table = table_of(*titles, *(key.rpartition(".")[2] for key in keys))
    for one in front:
        cells = [one.file or _AWAY, str(one.trial), f"{one.file_bytes:,}"]
        cells.append(f"{one.val_error:.2f} %")
        if with_test:
            cells.append("" if one.test_error is None else f"{one.test_error:.2f} %")
        table.add_row(*cells, *(in_a_row(_value(one.values.get(key))) for key in keys))
    print_table(table)


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True,
                type=click.Path(path_type=Path))  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), default="comparison.html", show_default=True,
    help="The page that compares several runs.",
)  # fmt: skip
def report(folders: tuple[Path, ...], out: Path) -> None:
    """Write the offline HTML report of a run folder again, or one that compares several."""
    from reefknot.format import open_state
    from reefknot.lab.report import compared, read_record, write_comparison, write_report

    for folder in folders:
        read_record(folder)  # every one is that of a finished run
    if len(folders) == 1:
        (folder,) = folders
        click.echo(f"wrote {write_report(folder, open_state(folder / 'model.reef'))}")
    else:
        runs = [compared(folder, str(folder)) for folder in folders]
        lead = "Errors are on validation data, and comparable only between runs with the same data."
        click.echo(f"wrote {write_comparison(out, f'{len(runs)} runs', lead, runs)}")


@click.command()
def methods() -> None:
    """List the methods and their settings, each with its default."""
    from dataclasses import MISSING
    from inspect import getdoc
    from shutil import get_terminal_size

    from reefknot.lab.baselines import METHODS
    from reefknot.methods.settings import settings_of

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
