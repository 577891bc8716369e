"""Everything in under a minute: train, tie, pack, read back, check. Needs no download.

Takes     scikit-learn's embedded digits.
Gives     a folder with two runs, `dense` and `tied`, each with its file and its report; a table of
          the sizes, and commands to try next.
"""

import math
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from reefknot.errors import ReefknotError
from reefknot.inspection import inspect
from reefknot.lab.display import facts_table, progress_bar
from reefknot.lab.runs.config import make_config
from reefknot.lab.runs.journal import Record
from reefknot.lab.runs.run import InterruptedRunError, run
from reefknot.lab.zoo import DATASETS

FOLDER = Path("reefknot-demo")

_NETWORK = {"model": "digits-mlp", "data": "digits"}
# A network this small is slower on two threads.
_TRAINING = {"threads": 1, "evaluate_every": 500, "checkpoint_every": 1_000_000}
DENSE: dict[str, Any] = _NETWORK | {
    "method": "dense",
    "training": _TRAINING | {"soft_steps": 1_000, "hard_steps": 0},
    "optimizer": {"name": "adam", "lr": 1e-3, "decay": "cosine"},
}
TIED: dict[str, Any] = _NETWORK | {
    "method": "sparse_apt",
    "settings": {"target_bytes": 800},
    "training": _TRAINING | {"steps": 4_000},
    "optimizer": {"name": "adam", "lr": 2e-3},
}


def run_demo(*, out: Path | None = None, seed: int = 0) -> None:
    """Train a dense network on the digits, tie it, and show the size of the tied one.

    Args:
        out: a new or empty folder; without it, the demo's own, whose old runs are replaced.
        seed: of initialisation and batches.
    """
    began = time.monotonic()
    folder = out or FOLDER
    _check_free(folder, may_replace=out is None)
    print("Handwritten digits, 8x8 pixels; a 64-300-100-10 network, trained and then tied.")
    _run(DENSE, folder / "dense", seed)
    start = {"start": str((folder / "dense" / "model.reef").absolute())}
    record = _run(TIED | start, folder / "tied", seed)
    file = folder / "tied" / "model.reef"
    sizes = inspect(file)
    rows = [
        ("test error, dense network", f"{record['dense_test_error']:.2f} %"),
        ("test error, tied network", f"{record['test_error']:.2f} %"),
        ("density", f"{record['density']:.4f}"),
        ("shared values", f"{record['num_clusters']}"),
        ("bytes, fp32", f"{sizes.original_bytes:,}"),
        ("bytes, tied and gzip", f"{sizes.gzip_bytes:,}"),
        ("bytes, tied and xz", f"{sizes.xz_bytes:,}"),
        ("bytes, .reef", f"{sizes.file_bytes:,}"),
        ("rate, fp32 / .reef", f"{sizes.rate_file:.0f}x"),
        ("seconds", f"{time.monotonic() - began:.0f}"),
    ]
    Console().print(facts_table(rows))
    test = DATASETS["digits"]().test
    assert test is not None
    print(what_it_means(record["dense_test_error"], record["test_error"], len(test.labels)))
    print("The file was read back bit for bit; the error is that of the network in it.")
    print(f"\nLook at it:\n{_next_steps(file)}")


def what_it_means(dense_error: float, tied_error: float, images: int) -> str:
    """Both errors as images, and whether they differ by more than chance.

    >>> what_it_means(2.0, 2.5, 400)
    'Of 400 test images the dense network gets 8 wrong and the tied one 10: within chance.'
    """
    dense, tied = (round(error * images / 100) for error in (dense_error, tied_error))
    # Two Poisson counts of the same rate differ by more than this in one case of twenty.
    if abs(tied - dense) <= 2 * math.sqrt(dense + tied):
        verdict = "within chance"
    elif tied > dense:
        verdict = f"tying costs {tied - dense}"
    else:
        verdict = f"tying saves {dense - tied}"
    counts = f"the dense network gets {dense} wrong and the tied one {tied}"
    return f"Of {images} test images {counts}: {verdict}."


def _run(table: dict[str, Any], folder: Path, seed: int) -> Record:
    config = make_config(table | {"seed": seed})
    try:
        with progress_bar(config.plan.steps, Console(stderr=True)) as bar:
            return run(config, folder, force=True, display=bar)
    except InterruptedRunError:  # a demo takes a minute: the next one replaces it
        raise KeyboardInterrupt from None


def _check_free(folder: Path, *, may_replace: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ReefknotError(f"{folder} is a file; expected a folder, or a new name for one")
    if not may_replace and folder.is_dir() and any(folder.iterdir()):
        raise ReefknotError(f"{folder} is not empty; choose another --out")


def _next_steps(file: Path) -> str:
    """Commands to copy and run, each with its purpose."""
    page = (file.parent / "report.html").resolve().as_uri()
    path = shlex.quote(str(file))
    steps = (
        (f"{_program('python')} -m webbrowser {shlex.quote(page)}", "the report of the run"),
        (f"{_program('reefknot')} inspect {path}", "where every byte went"),
        (f"{_program('reefknot')} unpack {path} digits.safetensors", "for any other program"),
    )
    return "\n".join(f"  # {purpose}\n  {command}" for command, purpose in steps)


def _program(name: str) -> str:
    """How to call a program of this environment: by name if it is on the PATH, or by path."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not beside.exists() or (found and Path(found) == beside):
        return name
    return shlex.quote(min(str(beside), os.path.relpath(beside), key=len))
