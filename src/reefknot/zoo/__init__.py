"""Data sets and the paper's networks: what a run starts from.

Takes     a name ("mnist", "lenet-300-100"), or a user's own "package.module:function".
Gives     `Data` and freshly initialised networks.
Unaware   of methods, of training and of files in our format.

    data.py        what a data set is: `Data`, `split`     readers.py     IDX and CIFAR-10 files
    datasets.py    the data sets by name                   sources.py     where their files are
    networks.py    the networks by name                    download.py    bring a file here
    reference.py   from a name to the function it means
"""

from reefknot.zoo.data import Data, Split, as_data, split
from reefknot.zoo.datasets import DATASETS
from reefknot.zoo.networks import INPUTS, NETWORKS, Input
from reefknot.zoo.reference import resolve

__all__ = [
    "DATASETS", "INPUTS", "NETWORKS", "Data", "Input", "Split", "as_data", "resolve", "split",
]  # fmt: skip
