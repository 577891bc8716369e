"""A state from a checkpoint, without training.

pack.py         files to files, within a budget    models.py       `reefknot.pack`: models, inputs
clustering.py   k-means and pruning, lossless      network.py      one pass at one price of a bit
budget.py       a step for each tensor             walking.py      a network waits at each weight
quantizer.py    one tensor and a step              calibration.py  products with weights, moments
changes.py      what was changed, and the error    feedback.py     one matrix for its inputs
inputs.py       random inputs                      norms.py        BatchNorm of a packed network
low_bit.py      finds integers times scales        outputs.py      how much the outputs changed
lookups.py      embeddings, row by row             harm.py         what errors do to the outputs
"""
