"""Runs: from a configuration to a folder with the file, the record and how it came about.

config.py         TOML to one frozen value, all mistakes reported together
parts.py          from there to data, model, method and optimizer; saved, and restored
batches.py        which examples a step trains on
training.py       the one loop
distillation.py   labels softened by trained networks
folder.py         the run's folder and its lock
checkpoint.py     any tree of tensors as one file with a checksum, no pickle
evaluation.py     finished files on test data, when nothing is chosen any more
journal.py        metrics.jsonl, and what else a run remembers
record.py         record.json
run.py            all of it, in order
smallest.py       many of them: the smallest file that keeps the error
"""
