"""Searches with real Optuna, real runs, real processes and real kills, on a tiny network."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest
import torch
from click.testing import CliRunner
from optuna.distributions import CategoricalDistribution

import reefknot
from reefknot.cli import main
from reefknot.lab.searching import study as study_module
from reefknot.lab.searching.study import locked
from reefknot.lab.zoo import as_data

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and file locks")

# A user's own module. PAUSE slows training down, so that there is time to hit a moment.
MODULE = """
import os, time
import torch
from torch import nn

def data():
    inputs = torch.randn(2400, 6, generator=torch.Generator().manual_seed(5))
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    return inputs[:2000], labels[:2000], inputs[2000:], labels[2000:]

def pause(module, inputs):
    if module.training:
        time.sleep(float(os.environ.get("PAUSE", 0)))

def mlp():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    model.register_forward_pre_hook(pause)
    return model
"""
RECIPE = """
model = "searched:mlp"
data = "searched:data"
method = "sparse_apt"
seed = {seed}
settings.target_bytes = 320
training = {{ steps = 40, batch_size = 30, evaluate_every = {every}, checkpoint_every = 3 }}
optimizer = {{ name = "adam", lr = 0.02 }}
"""
SIZES = '[search]\n"settings.target_bytes" = [220, 420]\n"optimizer.lr" = [0.01, 0.05]\n'
SEEDS = {"seed": CategoricalDistribution((1, 2))}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    (folder / "searched.py").write_text(MODULE)
    (folder / "sizes.toml").write_text(RECIPE.format(seed=0, every=40) + SIZES)
    (folder / "plain.toml").write_text(RECIPE.format(seed=0, every=40))
    return folder


@pytest.fixture(autouse=True)
def _here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    yield
    sys.modules.pop("searched", None)


def command(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def searched(*args):
    done = command("search", *args)
    assert done.exit_code == 0, done.output
    return done


def refused(done, words, exit_code=2):
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == exit_code, done.output
    assert done.stderr.splitlines()[-1].startswith("reefknot: ")
    assert words in done.stderr


def trials_of(folder, storage=None):
    storage = storage or f"sqlite:///{folder.absolute()}/study.db"
    return optuna.load_study(study_name=folder.name, storage=storage).get_trials()


def results(folder):
    """All that two searches with one recipe must agree in."""
    trials = [(t.number, t.state, t.params, t.values) for t in trials_of(folder)]
    files = {path.name: path.read_bytes() for path in (folder / "front").iterdir()}
    return trials, files, json.loads((folder / "front.json").read_text())


@pytest.fixture(scope="module")
def whole(place):
    """A search that nobody interrupts."""
    before = Path.cwd()
    os.chdir(place)
    sys.path.insert(0, str(place))
    try:
        done = searched("sizes.toml", "--trials", 5, "--out", "whole")
    finally:
        os.chdir(before)
        sys.path.remove(str(place))
    return place / "whole", done


def test_a_search_ends_with_the_front_and_its_files(whole):
    folder, done = whole
    trials = trials_of(folder)
    assert [t.state.name for t in trials] == ["COMPLETE"] * 5
    assert len({tuple(t.params.items()) for t in trials}) == 5
    front = json.loads((folder / "front.json").read_text())
    best = optuna.load_study(
        study_name="whole", storage=f"sqlite:///{folder}/study.db"
    ).best_trials  # Optuna's own idea of it
    assert {one["trial"] for one in front} == {t.number for t in best}
    assert [one["file_bytes"] for one in front] == sorted(one["file_bytes"] for one in front)
    assert len(os.listdir(folder / "front")) == len(front)
    for one in front:
        file = folder / one["file"]
        assert file.stat().st_size == one["file_bytes"] <= one["values"]["settings.target_bytes"]
        assert trials[one["trial"]].values == [one["val_error"], one["file_bytes"]]
        assert f"{one['file_bytes']:,}" in done.stdout
        assert one["file"] in done.stdout
    assert "5 finished" in (folder / "report.html").read_text()


def test_test_data_is_looked_at_for_the_front_alone(whole):
    folder, _ = whole
    for place in sorted((folder / "trials").iterdir()):
        assert json.loads((place / "record.json").read_text())["test_error"] is None
        assert "evaluate_test = false" in (place / "config.toml").read_text()
    front = json.loads((folder / "front.json").read_text())
    import searched  # the module of this test

    inputs, labels = as_data(searched.data(), "mine").test
    for one in front:
        model = searched.mlp()
        model.load_state_dict(reefknot.load(folder / one["file"]))
        with torch.no_grad():
            wrong = (model.double()(inputs.double()).argmax(1) != labels).sum()
        assert one["test_error"] == 100 * int(wrong) / len(labels)


def test_a_search_that_is_done_has_nothing_more_to_do_and_more_trials_go_on(whole, place):
    folder, _ = whole
    before = results(folder)
    done = searched("sizes.toml", "--trials", 5, "--out", "whole")
    assert results(folder) == before
    assert done.stderr == ""  # not a trial was run
    # A search of three that goes on to five draws what one of five does.
    searched("sizes.toml", "--trials", 3, "--out", "begun")
    begun = results(place / "begun")
    assert begun[0] == before[0][:3]
    searched("sizes.toml", "--trials", 5, "--out", "begun")
    assert results(place / "begun") == before


def test_the_smallest_file_that_is_good_enough_is_named(whole):
    folder, _ = whole
    front = json.loads((folder / "front.json").read_text())
    again = ("sizes.toml", "--trials", 5, "--out", "whole", "--max-error")
    for one in front:  # each is the smallest of those that are as good
        told = searched(*again, one["val_error"]).stdout.splitlines()[-1]
        assert told == f"smallest file with at most {one['val_error']:g} %: {one['file']}"
    refused(command("search", *again, 0), "no file has a validation error of at most 0 %", 1)


# -- kills ----------------------------------------------------------------------------------


def _search(args, errors, pause):
    """In another process: the command."""
    os.environ["PAUSE"] = str(pause)
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    main(args, prog_name="reefknot")


def await_(condition, process=None):
    deadline = time.monotonic() + 100
    while not (found := condition()):
        assert process is None or process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@pytest.fixture(scope="module")
def server():
    """Where processes are forked from, with torch and Optuna imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reefknot.lab.searching.search", "torch._dynamo"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGTERM],
    ids=lambda number: number.name,
)
def test_a_search_that_was_killed_goes_on_as_if_nothing_had_happened(whole, place, server, number):
    folder = place / f"killed-{number}"
    args = ["search", "sizes.toml", "--trials", "5", "--out", folder.name]
    process = server.Process(target=_search, args=(args, "errors", 0.03), daemon=True)
    process.start()
    await_((folder / "trials" / "0001" / "checkpoint.safetensors").exists, process)
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == (-9 if number == signal.SIGKILL else 130)
    one = trials_of(folder)[1]
    assert one.state.name == "RUNNING"
    searched("sizes.toml", "--trials", 5, "--out", folder.name)
    assert results(folder) == results(whole[0])
    one = trials_of(folder)[1]
    assert one.user_attrs.get("deaths", 0) == (number == signal.SIGKILL)
    assert os.listdir(folder / "workers") == []


@pytest.mark.slow
def test_what_a_killed_worker_leaves_another_one_takes(place, monkeypatch):
    """Two workers at a time, on a journal; one of them is killed in a trial."""
    folder, journal = place / "two", place / "journal.log"
    monkeypatch.setenv("PAUSE", "0.06")

    def trials():
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        return trials_of(folder, optuna.storages.JournalStorage(backend))

    def strike():
        await_(lambda: len(list(folder.glob("trials/*/checkpoint.safetensors"))) == 2)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    done = command(
        "search", "sizes.toml", "--trials", 4, "--jobs", 2, "--out", folder, "--storage", journal
    )
    thread.join()
    if done.exit_code == 1:  # it was the last one that worked
        assert "a worker was killed in trial" in done.stderr
        done = command("search", "sizes.toml", "--trials", 4, "--out", folder, "--storage", journal)
    assert done.exit_code == 0, done.output
    assert [t.state.name for t in trials()] == ["COMPLETE"] * 4
    assert [t.user_attrs["deaths"] for t in trials() if t.user_attrs["deaths"]] == [1]
    assert not (folder / "study.db").exists()
    for trial in trials():
        record = json.loads((folder / "trials" / f"{trial.number:04}" / "record.json").read_text())
        assert trial.values == [record["val_error"], record["file_bytes"]]
        assert record["threads"] == 1


def a_study(folder):
    folder.mkdir()
    return study_module.Study(folder, SEEDS, "recipe", storage=None, seed=0)


def test_a_trial_that_kills_three_workers_is_failed(place):
    study = a_study(place / "deadly")
    for _ in range(study_module.MAX_DEATHS):
        with pytest.raises(ZeroDivisionError), study.take(1) as task:
            assert task is not None and task.number == 0
            assert locked(place / "deadly" / "workers" / "0000") is None
            raise ZeroDivisionError
    with study.take(1) as task:
        assert task is None
    [trial] = study.trials()
    assert (trial.state, trial.reason) == ("failed", "its worker was killed 3 times")
    assert os.listdir(place / "deadly" / "workers") == []


def test_a_worker_that_is_alive_keeps_its_trial(place):
    study = a_study(place / "alive")
    with study.take(1) as task:
        with study.take(1) as other:
            assert other is None
        study.release(task)
    for _ in range(study_module.MAX_DEATHS):  # to be stopped is no death
        with study.take(1) as again:
            assert again == task
            study.release(again)


def test_folders_that_are_not_shared_have_their_own_files(place):
    """Two machines, one journal: the front is that of both, and says which files are not here."""
    storage = ("--storage", "far.log")
    searched("sizes.toml", "--trials", 2, "--out", "here/far", *storage)
    done = searched("sizes.toml", "--trials", 3, "--out", "there/far", *storage)
    assert done.stderr.startswith("trial 2: ")
    assert os.listdir("there/far/trials") == ["0002"]
    front = json.loads(Path("there/far/front.json").read_text())
    assert {one["trial"]: one["file"] is None for one in front}.items() <= {
        0: True,
        1: True,
        2: False,
    }.items()
    assert ("on another machine" in done.stdout) == any(one["file"] is None for one in front)
    assert len(os.listdir("there/far/front")) == sum(one["file"] is not None for one in front)


# -- failing --------------------------------------------------------------------


def test_a_size_that_cannot_be_had_is_a_failed_trial(place):
    sizes = ("--set", 'search={"settings.target_bytes"=[1, 2, 300, 301]}')
    searched("plain.toml", "--trials", 4, "--out", "failed", *sizes)
    trials = trials_of(place / "failed")
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    assert failed
    for trial in failed:
        assert trial.params["settings.target_bytes"] in (1, 2)
        assert "target_bytes is" in trial.user_attrs["reason"]
    assert {t.params["settings.target_bytes"] for t in trials if t.values} <= {300, 301}


def test_a_search_without_any_result_says_why(place):
    hopeless = ("--set", 'search={"settings.target_bytes"=[1, 2]}')
    done = command("search", "plain.toml", "--trials", 2, "--out", "hopeless", *hopeless)
    refused(done, "no trial has a result; the last one: ", exit_code=1)


# -- bad input ------------------------------------------------------------------------------


def test_another_configuration_is_refused(whole):
    done = command("search", "sizes.toml", "--out", "whole", "--set", "seed=7")
    refused(done, "whole was started with another configuration")
    done = command(
        "search", "sizes.toml", "--out", "elsewhere/whole", "--set", "seed=7",
        "--storage", f"sqlite:///{whole[0]}/study.db",
    )  # fmt: skip
    refused(done, "the study 'whole' in")


def test_a_folder_of_something_else_is_refused(place):
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("mine")
    refused(command("search", "plain.toml", "--out", "mine"), "holds no search; choose another")
    refused(
        command("search", "plain.toml", "--out", "plain.toml"),
        "plain.toml could not be read: Not a dir",
    )
    assert os.listdir(place / "mine") == ["notes.txt"]


@pytest.mark.parametrize(
    "storage",
    ["sqlite:////no/such/folder/x.db", "nosuch://me:secret@host/x", "no/such/journal.log", "."],
)
def test_a_storage_that_cannot_be_opened_is_one_sentence(place, storage):
    done = command("search", "plain.toml", "--out", "unopened", "--storage", storage)
    refused(done, "could not be opened: ")
    assert "secret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_name_makes_no_folder(place):
    done = command("search", "plain.toml", "--out", "none", "--set", "model=searched:mpl")
    refused(done, "did you mean 'mlp'?")
    done = command("search", "plain.toml", "--out", "none", "--set", 'search={"optimizer.l"=[1,2]}')
    refused(done, "unknown key 'optimizer.l'")
    assert not (place / "none").exists()


def test_without_optuna_the_command_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("reefknot.lab.searching.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused(
        command("search", "plain.toml"), 'a search needs Optuna: pip install "reefknot[search]"'
    )
