"""Runs: from a configuration to a folder with the file, its record and its metrics.

config.py         TOML to one frozen value, all mistakes reported together
parts.py          makes data, model, method and optimizer from it; saves and restores them
batches.py        which examples and labels a step trains on
training.py       the training loop
precision.py      a forward pass in bfloat16
folder.py         the run's folder and its lock
journal.py        metrics.jsonl, record.json, and what else a run must remember
run.py            all of it, in order; and finished files on test data
"""
