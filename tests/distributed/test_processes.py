"""Two and four processes give what one gives: real processes, on gloo.

They are started once and do all jobs of `process_jobs.py` in turn; meanwhile this process does the
same alone.
"""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import process_jobs
import pytest

import reefknot
from reefknot.format import encode

HERE = Path(__file__).parent
WORLD = 4


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each process says to each job, and the folder with what they wrote."""
    return done(sorted(process_jobs.JOBS), tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def told_at_length(tmp_path_factory):
    """The same of long jobs."""
    others = sorted(process_jobs.LONG_JOBS.keys() - {"saved_by_four"})
    return done(["saved_by_four", *others], tmp_path_factory.mktemp("processes"))


def done(names, folder):
    """Run jobs: what each process says to each of them, and the folder."""
    command = [sys.executable, str(HERE / "process_jobs.py"), str(WORLD), str(folder), *names]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as started:
        try:
            output = started.communicate(timeout=800)[0]
        except BaseException:
            os.killpg(started.pid, signal.SIGKILL)
            raise
    assert started.returncode == 0, output
    results = {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(WORLD)]
        for name in names
    }
    for name, found in results.items():
        for result in found:
            assert "traceback" not in (result or {}), f"{name}: {result['traceback']}"
    return results, folder


ALONE = {
    "paper": lambda: process_jobs.paper_run(process_jobs.network()),
    "paper_small": lambda: process_jobs.paper_run(process_jobs.small()),
    "budget": lambda: process_jobs.budget_run(process_jobs.network()),
    "later": lambda: process_jobs.later_run(process_jobs.small()),
    "real": lambda: process_jobs.real_run(process_jobs.network()),
}


@functools.cache
def alone(name):
    """What one process gives."""
    return ALONE[name]()


pytestmark = pytest.mark.timeout(900)  # of the slowest machine; a quiet one needs half a minute


@pytest.mark.parametrize(
    ("name", "like", "processes"),
    [
        ("paper_2", "paper", 2),
        ("paper_4", "paper", 4),
        ("paper_small_4", "paper_small", 4),
        ("real_4", "real", 4),
        ("real_ddp", "real", 4),
    ],
)
def test_every_process_has_the_centers_counts_and_file_of_one_alone(told, name, like, processes):
    for result in told[0][name][:processes]:
        assert result == alone(like)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("paper_copies", "paper"),
        ("budget_4", "budget"),
        ("budget_copies", "budget"),
        ("later_4", "later"),
    ],
)
def test_every_process_has_at_length_what_one_alone_has(told_at_length, name, like):
    for result in told_at_length[0][name]:
        assert result == alone(like)


def test_copies_steer_alike_although_their_statistics_differ(told):
    first, *others = told[0]["ddp_statistics"]
    assert first["bytes"] <= 1_500
    for other in others:
        assert other["statistics"] != first["statistics"]
        assert other["weights"] == others[0]["weights"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("other_clusters", "num_clusters is 9 in process 1 and 5 in process 2"),
        ("other_clusters_of_copies", "num_clusters is 9 in process 1 and 5 in process 2"),
        ("other_type", "the type of '0.weight' is torch.float32 in process 0 and torch.float64 in"),
        ("other_shape", "the shape of '0.weight' is (40, 40) in process 2 and (36, 40) in"),
        ("drifting", "the tied weights must be the same in all processes"),
        ("wrapped_late", "the model has another parameter '0.weight' than when it was tied"),
        ("not_finite", "weights of '3.weight' are not finite"),
        ("unreachable", "target_bytes is 10, but with all tied weights at zero"),
        ("whole_tensors_only", "'0.weight' is sharded, and this method needs whole tensors"),
        ("medians", 'distance = "l1" needs all weights of a cluster in one process'),
    ],
)
def test_a_mistake_is_told_in_one_sentence_by_every_process(told, name, sentence):
    found = {result.get("error") for result in told[0][name]}
    assert len(found) == 1
    assert sentence in found.pop()


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_and_writes_the_same_file(told_at_length):
    results, folder = told_at_length
    data = (folder / "two.reef").read_bytes()
    assert data.hex() == alone("budget")["bytes"]
    assert [result["size"] for result in results["resumed_by_two"][:2]] == [len(data)] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # as is meant here
def test_one_process_goes_on_with_what_four_have_saved(told_at_length):
    tie = process_jobs.resumed(process_jobs.network(), told_at_length[1] / "checkpoint")
    assert encode(tie.finish()).hex() == alone("budget")["bytes"]


def test_a_file_written_from_shards_has_the_bytes_of_one_written_whole(told, monkeypatch):
    results, folder = told
    tie, _ = process_jobs.trained(process_jobs.network(), process_jobs.paper, 3)
    tie.harden()
    state = tie.finish()
    monkeypatch.setattr("reefknot.format.write.SOLID_ELEMENTS", 0)
    assert (folder / "parts.reef").read_bytes() == encode(state)
    for result in results["written_in_parts"]:
        # One, and the next one while the variable that held the first is not yet overwritten.
        assert result == {"size": len(encode(state)), "tensors": 6, "held at once": 2}
    assert reefknot.load(folder / "parts.reef").keys() == tie.model.state_dict().keys()


def test_a_step_sends_a_sum_for_each_value_and_a_refit_its_histogram(told):
    """K = 9: sums and a flag, 8 bytes each; 2·21·1,024 bins with a count and a sum of places."""
    sent = told[0]["wire"][0]
    steps = " ".join(map(str, sent)).split("step")
    first, counted, soft, refit = (text.split() for text in steps[1:5])
    assert first == []  # the centers are those of the start
    assert counted == ["72", "80"]  # after a refit the weights of each cluster are counted, too
    assert soft == ["80"]
    assert refit == ["80", "8", str(2 * 21 * 1024 * 2 * 8), "8"]
    assert sent[-3:] == [8, 80, 80]  # the largest gradient; shared gradients; means
