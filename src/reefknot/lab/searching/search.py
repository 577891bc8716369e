"""A search from beginning to end.

Takes     a recipe with a `[search]` table or a size, a folder, and the number of trials.
Gives     the folder: search.toml, study.db (unless trials are kept elsewhere), trials/, and what
          `front.py` makes of them.
Unaware   of how results are shown.

Selection is on validation data. Test data is read once no trial is left, for the files on the
front alone.
"""

from dataclasses import dataclass
from pathlib import Path

from reefknot.errors import CheckError, ConfigError, ReefknotError
from reefknot.files import read_bytes, write_atomically
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.folder import config_text, names_in
from reefknot.lab.runs.parts import network_and_data
from reefknot.lab.searching.front import Found, conclude
from reefknot.lab.searching.locks import mutex
from reefknot.lab.searching.processes import Tell, work_together
from reefknot.lab.searching.space import space_of, trial_config
from reefknot.lab.searching.worker import Job, work
from reefknot.progress import doing

RECIPE = "search.toml"


@dataclass(frozen=True)
class Result:
    """What a search has found so far; `running` are trials of other commands."""

    front: list[Found]
    running: int


@doing("searching")
def search(
    config: Config,
    folder: Path,
    *,
    trials: int,
    jobs: int = 1,
    storage: str | None = None,
    tell: Tell = lambda _: None,
) -> Result:
    """Run trials until there are `trials` of them, those of earlier and other commands included.

    Args:
        config: the recipe; its `search` says what is searched.
        folder: a new one, or that of a search with this recipe, which continues.
        trials: how many trials in all.
        jobs: how many processes of one thread run them.
        storage: None for SQLite in the folder, a URL of a database, or a journal file.
        tell: called with every result of this command.
    """
    space_of(config)
    _, data = network_and_data(trial_config(config, {}))  # wrong names make no folder
    _claim(folder, config)
    job = Job(config, folder, storage, trials, len(data.validation.labels))
    study = job.open()
    killed = 0
    if jobs == 1:
        work(job, tell)
    else:
        killed = work_together(job, jobs, tell)
    found = study.trials()
    running = [trial.number for trial in found if trial.state == "running"]
    with mutex(folder):
        front = conclude(config, folder, found, job.place, test=not running)
    if killed and (running or not front):
        where = f" in trial {running[0]}" if running else ""
        raise CheckError(f"a worker was killed{where}; the same command continues")
    reasons = [trial.reason for trial in found if trial.reason]
    if not front and not running:
        raise CheckError(f"no trial has a result; the last one: {reasons[-1] if reasons else '-'}")
    return Result(front, len(running))


def _claim(folder: Path, config: Config) -> None:
    """Make the folder this search's own, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} is a file; --out names a folder") from error
    except OSError as error:
        raise ReefknotError(f"{folder} could not be made: {error.strerror}") from error
    names = {name for name in names_in(folder) if not name.startswith((".", "turn"))}
    if names and RECIPE not in names:
        raise ConfigError(
            f"{folder} exists already and holds no search; choose another --out, or delete it"
        )
    text = config_text(folder, config).encode()
    with mutex(folder):
        if not (folder / RECIPE).exists():
            write_atomically(folder / RECIPE, text)
        elif read_bytes(folder / RECIPE) != text:
            raise ConfigError(
                f"{folder} was started with another configuration; continue with that one, or "
                "choose another --out"
            )
