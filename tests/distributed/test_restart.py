"""What torchrun starts: a job of which a process is killed, and the scripts of docs/scaling.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import process_jobs
import pytest
import torch

import reefknot

DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Each attempt has a store of its own. In the one that torchrun shares among them, processes of the
# second attempt may find the addresses of the first, whose ports are closed.
OWN_STORE = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_was_killed_and_started_again_writes_the_same_file(tmp_path):
    script = Path(__file__).with_name("restarted.py")
    done = subprocess.run(
        [*TORCHRUN, "--max-restarts", "3", str(script), str(tmp_path)],
        env=OWN_STORE, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Now and then torch itself aborts while a restarted job goes down: there are more attempts.
    for rank in range(2):
        assert (tmp_path / f"began-{rank}").read_text().split()[:2] == ["0", "4"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = process_jobs.budget_run(process_jobs.network())
    torch.set_num_threads(threads)
    assert (tmp_path / "model.reef").read_bytes().hex() == alone["bytes"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [0, 1])
def test_a_script_of_the_document_writes_a_file_of_its_size(number, tmp_path):
    scripts = re.findall(r"^```py\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(scripts) == 2
    script = tmp_path / "train.py"
    script.write_text(scripts[number])
    done = subprocess.run(
        [*TORCHRUN, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=800
    )
    # One process in eight aborts while it ends, in torch's own threads, after the file is written.
    aborted = "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or aborted, done.stderr
    assert (tmp_path / "model.reef").stat().st_size <= 1_500
    assert reefknot.load(tmp_path / "model.reef")["0.weight"].shape == (200, 64)
