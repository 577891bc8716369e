"""The errors that reefknot raises on purpose.

Each message says what was expected, what was found, where, and what to try. The command line
prints the message as one sentence and exits with `exit_code`; anything that is not a
`ReefknotError` is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ReefknotError(Exception):
    """Something a user can fix; `exit_code` is the exit code of the command line."""

    exit_code = 2


class FormatError(ReefknotError):
    """A `.reef` file (or another file we read) is not what it should be."""


class ConfigError(ReefknotError):
    """A configuration or a setting is wrong; holds all the mistakes found, not only the first."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = mistakes
        many = "".join(f"\n  - {mistake}" for mistake in mistakes)
        super().__init__(mistakes[0] if len(mistakes) == 1 else f"{len(mistakes)} mistakes:{many}")


class TyingError(ReefknotError):
    """A model, an optimizer or a call that tying cannot work with."""


class DataError(ReefknotError):
    """A data set that is missing, damaged or of the wrong shape."""


class UserCodeError(ReefknotError):
    """The user's own network or function has raised an error, which is the cause."""


class DivergedError(ReefknotError):
    """Training has diverged: a loss or a value is not finite, or far too large."""

    exit_code = 1


class CheckError(ReefknotError):
    """A check that was asked for has failed."""

    exit_code = 1


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Around a user's own code: turn what it raises into a one-sentence error."""
    try:
        yield
    except ReefknotError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserCodeError(f"{what} failed with {type(error).__name__}: {reason}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that suggests the most similar known name; empty if none is similar.

    >>> did_you_mean("LeNet_5", ["lenet-5", "vgg-16"])
    "did you mean 'lenet-5'?"
    """
    plain = {_plain(choice): choice for choice in known}
    close = difflib.get_close_matches(_plain(name), plain, 1)
    return f"did you mean {plain[close[0]]!r}?" if close else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
