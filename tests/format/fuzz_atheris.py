"""A target for atheris, which follows coverage.

    python tests/format/fuzz_atheris.py tests/format/golden

Needs `pip install atheris`, and PYTHONPATH=src:tests. Checksums are repaired, so that inputs get
past them.
"""

import contextlib
import sys

import atheris

# Compiled loops are not Python that could be instrumented.
from reefknot.codec import kept, static, tied  # noqa: F401

with atheris.instrument_imports():
    from format.mutate import repaired
    from reefknot.errors import FormatError
    from reefknot.format import decode


def one_input(data):
    with contextlib.suppress(FormatError):
        decode(repaired(data), max_bytes=1 << 20)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
