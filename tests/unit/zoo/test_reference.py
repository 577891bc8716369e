"""From a name in a configuration to the function it means."""

import sys
from pathlib import Path

import pytest

from reefknot.errors import ConfigError
from reefknot.lab.zoo import DATASETS, NETWORKS
from reefknot.reference import resolve


@pytest.fixture(autouse=True)
def _folder_with_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo_test_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text("def build():\n    return 'mine'\n\nnumber = 3\n")
    (package / "needy.py").write_text("import zoo_test_absent_library\n")
    (package / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in [name for name in sys.modules if name.startswith("zoo_test_package")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_known_name() -> None:
    assert resolve("lenet-300-100", NETWORKS, "network") is NETWORKS["lenet-300-100"]
    assert resolve("digits", DATASETS, "data set") is DATASETS["digits"]


def test_a_function_in_the_current_folder() -> None:
    build = resolve("zoo_test_package.mine:build", NETWORKS, "network")
    assert build() == "mine"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("lenet-300-10", r"unknown network 'lenet-300-10' \(did you mean 'lenet-300-100'\?\)"),
        ("LeNet_5_Caffe", r"did you mean 'lenet-5-caffe'\?"),
        ("zzz", r"unknown network 'zzz'; known are lenet-300-100, .*'package.module:function'"),
        ("", "unknown network ''"),
        ("folder/file.py:build", "not of the form.*folder.file:function"),
        ("zoo_test_package.mine:", "not of the form"),
        (":build", "not of the form"),
        ("zoo_test_package.absent:build", "no module 'zoo_test_package.absent' in"),
        ("zoo_test_absent.mine:build", "no module 'zoo_test_absent.mine' in"),
        ("zoo_test_package.needy:build", "needs 'zoo_test_absent_library'"),
        ("zoo_test_package.broken:build", "failed with ZeroDivisionError: division by zero"),
        ("zoo_test_package.mine:built", r"mine\.py\) has no 'built' \(did you mean 'build'\?\)"),
        ("zoo_test_package.mine:number", "expected a function without arguments, found a int"),
    ],
)
def test_mistakes_are_explained(reference: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(reference, NETWORKS, "network")
