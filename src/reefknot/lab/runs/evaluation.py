"""What a finished file gets wrong on test data; looked at once, when nothing is chosen any more.

Takes     a configuration, and `.reef` files of its network.
Gives     the error of each on the test set; None where there is no test set or it is not wanted.
Unaware   of how the files came about.
"""

from collections.abc import Sequence
from pathlib import Path

from reefknot.errors import FormatError
from reefknot.lab.runs.config import Config
from reefknot.lab.runs.parts import network_and_data
from reefknot.lab.runs.training import error_percent
from reefknot.loading import load


def errors_on_test(config: Config, files: Sequence[Path | None]) -> list[float | None]:
    """The test error of each file, in percent.

    None among the files is the network that a run begins with.
    """
    if not config.evaluate_test or not files:
        return [None] * len(files)
    model, data = network_and_data(config)
    if data.test is None:
        return [None] * len(files)
    found: list[float | None] = []
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    for file in files:
        try:
            model.load_state_dict(begin if file is None else load(file))
        except RuntimeError as error:
            raise FormatError(f"{file} does not fit {config.model}") from error
        found.append(error_percent(model, *data.test, exact=True))
    return found
