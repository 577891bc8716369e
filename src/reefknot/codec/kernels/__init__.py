"""The compiled loops of the codec: each model is written once and runs both ways.

    tables.py         the integer tables of the model
    range_coder.py    bits from probabilities
    prediction.py     probabilities from contexts: counts, and how several are mixed
    numbers.py        numbers and flags of a header
    names.py          names
    planes.py         kept tensors
    tied.py           tied tensors, one after the other:
    tied_model.py       how loops see a matrix, and where its contexts are
    tied_maps.py        which rows and columns hold anything but the pivot
    tied_elements.py    which elements of those are not the pivot
    tied_values.py      which value these have
    rans.py           fast streams

Every loop is all integers, allocates nothing, and stays inside its arrays whatever a stream says:
values that are decoded index an array only where their range is limited by construction. A loop
takes functions and constants only from this folder and from `reefknot.kernels`, because its machine
code is cached under a hash of their files (`reefknot.kernels.disk`). docs/format.md describes every
step.
"""
