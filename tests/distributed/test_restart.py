"""A process is killed, and torchrun starts the job again: the file is the same."""

import subprocess
import sys
from pathlib import Path

import process_jobs
import pytest
import torch


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_was_killed_and_started_again_writes_the_same_file(tmp_path):
    script = Path(__file__).with_name("restarted.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--max-restarts", "1", "--monitor-interval", "0.5", str(script), str(tmp_path)],
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"resumed-{rank}").read_text() for rank in range(2)] == ["4", "4"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = process_jobs.budget_run(process_jobs.network())
    torch.set_num_threads(threads)
    assert (tmp_path / "model.reef").read_bytes().hex() == alone["bytes"]
