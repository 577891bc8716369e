"""The table at the end of a run."""

from io import StringIO

import pytest
from rich.console import Console

from reefknot.lab.display import record_table


def shown(record):
    console = Console(file=StringIO(), width=100)
    console.print(record_table(record))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("facts", "called"),
    [({}, "dense"), ({"start_is_tied": False}, "dense"), ({"start_is_tied": True}, "before")],
)
def test_the_network_that_a_run_starts_from_is_dense_unless_it_was_tied_already(facts, called):
    rows = shown(facts | {"dense_test_error": 13.8, "test_error": 13.26})
    assert rows == [
        f"test error, {called} 13.80 %",
        "test error, final 13.26 %",
        "test error, lost to compression -0.54 points",
    ]
