"""A state from a checkpoint, without training.

pack.py         files to files, within a budget    models.py       `reefknot.pack`: models, inputs
clustering.py   k-means and pruning, lossless      network.py      one pass at one price of a bit
budget.py       a step for each tensor             calibration.py  which weight meets which inputs
quantiser.py    one tensor and a step              feedback.py     one matrix for its inputs
changes.py      what was done, and lost            norms.py        BatchNorm of a packed network
inputs.py       random ones                        outputs.py      what became of the outputs
low_bit.py      integers times scales, found
"""
