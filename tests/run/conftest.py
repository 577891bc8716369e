"""Finished runs, which the tests in this folder share, and modules of a user."""

import sys
from pathlib import Path
from typing import Any

import pytest
from digits_runs import digits_config, finished


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of sparse APT."""
    folder = tmp_path_factory.mktemp("tied")
    return finished(digits_config(folder), folder / "deep" / "out", "--set", "seed=3")


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that trains a parent."""
    folder = tmp_path_factory.mktemp("dense")
    return finished(digits_config(folder, "dense"), folder / "out")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module into a current folder of its own, and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"blind", "mine"}:
            del sys.modules[name]
