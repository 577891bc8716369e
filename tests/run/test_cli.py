"""The command line: what it prints, what it exits with, and what it does not import."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import reefknot
from reefknot.cli import main
from reefknot.lab.baselines import METHODS
from reefknot.methods.settings import settings_of

TINY = """
model = "digits-mlp"
data = "digits"
method = "sparse_apt"
[training]
soft_steps = 2
hard_steps = 1
threads = 1
[optimizer]
name = "sgd"
lr = 0.1
"""


def command(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def refused(done: Result, words: str) -> None:
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2
    assert done.stderr.startswith("reefknot: ")
    assert words in done.stderr


def test_help_names_every_command() -> None:
    done = command("--help")
    assert done.exit_code == 0
    for name in main.commands:
        assert f"  {name} " in done.stdout
    assert command("-h").stdout == done.stdout


@pytest.mark.parametrize("name", main.commands)
def test_every_command_has_help_that_says_what_it_does(name: str) -> None:
    done = command(name, "--help")
    assert done.exit_code == 0
    assert (main.commands[name].help or "").splitlines()[0] in " ".join(done.stdout.split())


def test_the_version_is_the_packages_own() -> None:
    assert command("--version").stdout == f"reefknot, version {reefknot.__version__}\n"


@pytest.mark.parametrize(
    "args", [["rnu"], ["run"], ["run", "--resum", "x.toml"], ["demo", "--seed", "x"]]
)
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    done = command(*args)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_methods_lists_every_method_with_its_settings_and_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # no name of a method wraps there
    done = command("methods")
    assert done.exit_code == 0
    unwrapped = done.stdout.replace("\n        ", " ").replace("\n    ", "|")
    blocks = {block.split(":")[0]: block.split("|")[1:] for block in unwrapped.splitlines()}
    assert blocks.keys() == METHODS.keys()
    for name, method in METHODS.items():
        told = [line.split(":")[0].split(" ")[0] for line in blocks[name]]
        assert told == [field.name for field in settings_of(method)]
    assert blocks["apt"][0] == "num_clusters = 16: K, or a table from group names to K"
    assert "num_examples (needed): " in "|".join(blocks["sparse_vd"])
    [target] = [line for line in blocks["sparse_apt"] if line.startswith("target_bytes")]
    assert target == "target_bytes: the most that the file may take up; needs `steps`"
    [average] = blocks["dense"]
    assert average.startswith("average_steps = 0: weights end as their running average")


@pytest.mark.parametrize("columns", [50, 80, 160])
def test_methods_are_wrapped_at_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(map(len, command("methods").stdout.splitlines()))
    assert columns - 15 < widest <= columns


def test_a_missing_configuration_is_said_in_one_sentence(tmp_path: Path) -> None:
    refused(command("run", tmp_path / "no.toml"), "no.toml could not be read: No such file")


def test_all_mistakes_of_a_configuration_are_printed(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('model = "digits-mlp"\nmethod = "sparse_ap"\nsede = 1\n')
    done = command("run", tmp_path / "a.toml", "--out", tmp_path / "out")
    refused(done, "3 mistakes:")
    assert "did you mean 'seed'?" in done.stderr
    assert "data is missing" in done.stderr
    assert "did you mean 'sparse_apt'?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_options_that_the_optimizer_refuses_are_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TINY)
    bad = ("--set", "optimizer.options.momentum=-1.0")
    refused(command("run", tmp_path / "a.toml", "--out", tmp_path / "out", *bad), "momentum")


# -- report ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cli")
    (place / "a.toml").write_text(TINY)
    assert command("run", place / "a.toml", "--out", place / "out").exit_code == 0
    return place / "out"


def test_report_writes_the_page_again(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    page = (copy / "report.html").read_bytes()
    (copy / "report.html").unlink()
    done = command("report", copy)
    assert done.exit_code == 0
    assert done.stdout == f"wrote {copy / 'report.html'}\n"
    assert (copy / "report.html").read_bytes() == page


def test_report_refuses_what_is_no_finished_run(folder: Path, tmp_path: Path) -> None:
    refused(command("report", tmp_path / "no"), "record.json could not be read: No such file")
    refused(command("report", tmp_path), "record.json could not be read: No such file")
    refused(command("report", tmp_path / ("x" * 300)), "could not be read: File name too long")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "record.json").write_text("{")
    refused(command("report", copy), "record.json is not valid JSON")
    shutil.copy(folder / "record.json", copy)
    (copy / "model.reef").write_bytes((folder / "model.reef").read_bytes()[:-1])
    refused(command("report", copy), "model.reef is damaged: its checksum does not match")
    (copy / "model.reef").unlink()
    refused(command("report", copy), "model.reef could not be read")


def test_report_that_cannot_be_written_is_said_in_one_sentence(
    folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "report.html").unlink()
    (copy / "report.html").mkdir()
    refused(command("report", copy), "report.html")


# -- the real executable --------------------------------------------------------------------


def test_the_executable_exits_with_the_code_and_one_sentence(tmp_path: Path) -> None:
    executable = shutil.which("reefknot", path=str(Path(sys.executable).parent))
    assert executable is not None
    done = subprocess.run(
        [executable, "report", tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    why = "could not be read: No such file or directory"
    assert done.stderr == f"reefknot: {tmp_path}/record.json {why}\n"


def test_every_public_name_can_be_had() -> None:
    for name in reefknot.__all__:
        assert getattr(reefknot, name) is not None
    assert set(reefknot.__all__) <= set(dir(reefknot))
    with pytest.raises(AttributeError, match="module 'reefknot' has no attribute 'Sparse'"):
        _ = reefknot.Sparse  # type: ignore[attr-defined]
