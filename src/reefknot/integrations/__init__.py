"""Tying inside the frameworks that people train with, and on many machines.

session.py        what all of them share: a method in a framework's training, from start to file
transformers.py   `TyingCallback` for Hugging Face's `Trainer`
lightning.py      `TyingCallback` for Lightning's `Trainer`
distributed.py    many processes: a file from shards, and a checkpoint for any number of them

Accelerate needs none: `tie.attach(optimizer)` takes what `accelerator.prepare` gives, and
`accelerator.register_for_checkpointing(tie)` saves it.
"""
