"""The command search, and the tries of `run --max-error-increase`. Imports are inside."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reefknot.cli.printing import plain, print_table, table_of

if TYPE_CHECKING:
    from reefknot.lab.runs.smallest import Try
    from reefknot.lab.searching.front import Found
    from reefknot.lab.searching.study import Trial


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
def search(
    config: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    trials: int,
    jobs: int,
    storage: str | None,
) -> None:
    """Search error against bytes; ends with the Pareto front and its files.

    The table [search] of CONFIG.toml says what is searched; without one, sizes from a fourth to
    four times settings.target_bytes. The same command continues a search that was stopped.
    """
    from reefknot.lab.runs.config import read_config
    from reefknot.lab.searching.search import search as search_config

    settings = read_config(config, overrides)
    folder = out or Path("runs") / f"{config.stem}-search"
    found = search_config(
        settings, folder, trials=trials, jobs=jobs, storage=storage, tell=_show_trial
    )
    _show_front(found.front)
    if found.running:
        click.echo(f"trials still running in other commands: {found.running}; no test error yet")
    click.echo(f"wrote {folder / 'front'}, {folder / 'front.json'}, {folder / 'report.html'}")


def _show_trial(trial: "Trial") -> None:
    values = ", ".join(f"{key}={_value(value)}" for key, value in trial.values.items())
    if trial.state == "finished":
        came = f"{trial.file_bytes:,} bytes, validation error {trial.val_error:.2f} %"
    elif trial.curve:
        share, error = trial.curve[-1]
        came = f"given up after {share:.0%} of its steps, validation error {error:.2f} %"
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
        cells = [one.file or "on another machine", str(one.trial), f"{one.file_bytes:,}"]
        cells.append(f"{one.val_error:.2f} %")
        if with_test:
            cells.append("" if one.test_error is None else f"{one.test_error:.2f} %")
        table.add_row(*cells, *(plain(_value(one.values.get(key))) for key in keys))
    print_table(table)


def show_try(one: "Try") -> None:
    """One line about a size that was tried."""
    if one.file_bytes is None or one.val_error is None:
        came = f"cannot be met: {one.reason}"
    else:
        came = f"{one.file_bytes:,} bytes, validation error {one.val_error:.2f} %: "
        came += "kept" if one.keeps else "too much"
    click.echo(plain(f"target {one.target_bytes:,}: {came}"))
