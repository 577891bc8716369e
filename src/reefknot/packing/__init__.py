"""A state from a checkpoint, without training.

pack.py         files to files, within a budget    models.py       `reefknot.pack`: models, inputs
clustering.py   k-means and pruning, lossless      network.py      one pass at one price of a bit
budget.py       a step for each tensor             calibration.py  the inputs of each weight
quantizer.py    one tensor and a step              feedback.py     one matrix for its inputs
changes.py      what was changed, and the error    norms.py        BatchNorm of a packed network
inputs.py       random inputs                      outputs.py      how much the outputs changed
low_bit.py      finds integers times scales        harm.py         what errors do to the outputs
"""
