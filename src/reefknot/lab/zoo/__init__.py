"""Data sets and the paper's networks: what a run starts from.

Takes     a name ("mnist", "lenet-300-100").
Gives     `Data` and freshly initialised networks.
Unaware   of methods, of training and of files in our format.

    data.py        what a data set is: `Data`, `split`     readers.py     IDX and CIFAR-10 files
    datasets.py    the data sets by name                   sources.py     where their files are,
    networks.py    the networks by name                                   and their download
    local.py       a locally connected layer
"""

from reefknot.lab.zoo.data import Data, Split, as_data, split
from reefknot.lab.zoo.datasets import DATASETS
from reefknot.lab.zoo.networks import INPUTS, NETWORKS

__all__ = [
    "DATASETS", "INPUTS", "NETWORKS", "Data", "Split", "as_data", "split",
]  # fmt: skip
