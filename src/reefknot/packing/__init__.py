"""A state from a checkpoint, without training.

pack.py         files to files, within a budget    models.py       `reefknot.pack`: models, inputs
clustering.py   k-means and pruning, lossless      network.py      one pass at one price of a bit
budget.py       a step for each tensor             suspended.py    a network waits at each weight
quantizer.py    one tensor and a step              calibration.py  products with weights, moments
changes.py      what was changed, and the error    feedback.py     one matrix for its inputs
inputs.py       random inputs                      outputs.py      how much the outputs changed
low_bit.py      finds integers times scales        lookups.py      embeddings, row by row
"""
