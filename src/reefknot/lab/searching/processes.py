"""Several workers at a time, each a process of one thread.

Takes     a `Job` and a number.
Gives     the results of all as they come; the first error, once all have stopped.
Unaware   of what a worker does.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from reefknot.errors import ReefknotError
from reefknot.lab.runs.run import InterruptedRunError
from reefknot.lab.searching.study import Trial
from reefknot.lab.searching.worker import Job, work

Tell = Callable[[Trial], None]


def work_together(job: Job, jobs: int, tell: Tell) -> int:
    """Run trials in `jobs` processes until there are none left; gives how many were killed.

    Another worker takes over the trial of a killed one. After an error all others stop, too, and
    write a checkpoint first.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    errors: list[ReefknotError] = []
    killed = 0
    with _stopping(workers, errors):
        for _ in range(jobs):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_worker, args=(job, there))
            process.start()
            there.close()
            workers[here] = process
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                try:
                    said = ready.recv()
                except EOFError:  # it has ended
                    ended = workers.pop(ready)
                    ended.join()
                    killed += ended.exitcode != 0
                    continue
                if isinstance(said, Trial):
                    tell(said)
                else:
                    errors.append(_error(*said))
                    _stop(workers)
    if errors:
        raise errors[0]
    return killed


def _worker(job: Job, to_parent: Connection) -> None:
    """The body of a worker's process; it handles Ctrl-C during a run, the parent otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(job, to_parent.send)
    except ReefknotError as error:
        with suppress(OSError):
            to_parent.send((str(error), error.exit_code))
    except BrokenPipeError:
        pass  # the parent has ended


def _error(text: str, exit_code: int) -> ReefknotError:
    """The error of a worker, with what the command line needs: message and exit code."""
    error = InterruptedRunError(text) if exit_code == 130 else ReefknotError(text)
    error.exit_code = exit_code
    return error


@contextmanager
def _stopping(workers: dict[Any, BaseProcess], errors: list[ReefknotError]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, let the workers write a checkpoint and stop."""

    def stop(*_: Any) -> None:
        errors.append(InterruptedRunError("stopped; the same command continues"))
        _stop(workers)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(workers: dict[Any, BaseProcess]) -> None:
    for process in workers.values():
        process.terminate()
