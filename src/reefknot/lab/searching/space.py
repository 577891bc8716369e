"""What is searched: ranges and choices for entries of a recipe.

Takes     the `[search]` table of a `Config`: two numbers are a range, other lists are choices.
Gives     for each key Optuna's distribution of its values, and the configuration of a trial.
Unaware   of runs and of folders.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reefknot.errors import ConfigError, ReefknotError
from reefknot.lab.runs.config import Config, with_entries

try:
    from optuna import distributions
except ImportError as error:
    raise ReefknotError('a search needs Optuna: pip install "reefknot[search]"') from error

# Entries that cannot be searched: errors on different data are not comparable, test data is not
# used, a worker has one thread, and paths in a list would have no folder to be relative to.
FIXED = ("data", "evaluate_test", "start", "training.threads")
SPREAD = 4  # without a table: sizes from a fourth of the recipe's to four times it

Value = bool | int | float | str
Distribution = (
    distributions.IntDistribution
    | distributions.FloatDistribution
    | distributions.CategoricalDistribution
)
Space = dict[str, Distribution]


def space_of(config: Config) -> Space:
    """What is searched; raises one error with everything that is wrong in the table."""
    if not config.search:
        return _sizes(config)
    space: Space = {}
    mistakes: list[str] = []
    for key, value in _flat(config.search):
        try:
            space[key] = _dimension(key, value)
        except ConfigError as error:
            mistakes += error.mistakes
    if not mistakes:
        mistakes = _unfit(config, space)
    if mistakes:
        raise ConfigError(*mistakes)
    return space


def trial_config(config: Config, values: Mapping[str, Value]) -> Config:
    """The configuration of one trial: its values, one thread, and no test data."""
    tried = with_entries(replace(config, search={}), values)
    return replace(tried, evaluate_test=False, training=replace(tried.training, threads=1))


def _sizes(config: Config) -> Space:
    size = config.settings.get("target_bytes")
    if not isinstance(size, int):
        raise ConfigError(
            "there is neither a [search] table nor settings.target_bytes, so nothing to search; "
            'add for instance [search] and "optimizer.lr" = [0.1, 1.0]'
        )
    return {"settings.target_bytes": _range(max(1, size // SPREAD), SPREAD * size)}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All entries under dotted keys, whether those were quoted or are tables in tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _dimension(key: str, value: Any) -> Distribution:
    where = f"[search] {key}"
    if key in FIXED:
        raise ConfigError(f"{where}: this entry is the same in all trials, and cannot be searched")
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        raise ConfigError(
            f"{where} must be two numbers, a range, or a list of at least two choices, "
            f"found {value!r}"
        )
    if not all(isinstance(item, bool | int | float | str) for item in value):
        raise ConfigError(f"{where}: choices are numbers, texts, true or false, found {value!r}")
    if len(value) == 2 and all(_is_number(item) for item in value):
        low, high = value
        if not low < high:
            raise ConfigError(f"{where} must go from the lower number to the higher, found {value}")
        return _range(low, high)
    return distributions.CategoricalDistribution(tuple(dict.fromkeys(value)))


def _range(low: int | float, high: int | float) -> Distribution:
    """All numbers between: whole ones if both are, log-uniform if both are above 0."""
    if isinstance(low, int) and isinstance(high, int):
        return distributions.IntDistribution(low, high, log=low > 0)
    return distributions.FloatDistribution(low, high, log=low > 0)


def _is_number(value: Any) -> bool:
    finite = isinstance(value, int | float) and abs(value) < float("inf")
    return finite and not isinstance(value, bool)


def _unfit(config: Config, space: Space) -> list[str]:
    """Errors of the configuration with the ends of each range, or each choice, tried one by one."""
    mistakes: dict[str, None] = {}
    tried = {key: _ends(one) for key, one in space.items()}
    for number in range(max(map(len, tried.values()))):
        values = {key: ends[min(number, len(ends) - 1)] for key, ends in tried.items()}
        try:
            with_entries(replace(config, search={}), values)
        except ConfigError as error:
            mistakes |= dict.fromkeys(f"[search] {mistake}" for mistake in error.mistakes)
    return list(mistakes)


def _ends(one: Distribution) -> tuple[Any, ...]:
    if isinstance(one, distributions.CategoricalDistribution):
        return tuple(one.choices)
    return one.low, one.high
