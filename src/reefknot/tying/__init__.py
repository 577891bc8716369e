"""Tying weights to shared values: which weights, in which groups, and the operations on them.

`Tying` is a model's weights in `Group`s with a codebook each. It knows no optimizer, no step and no
phase; those are in `reefknot.phases`.
"""

from reefknot.tying.group import Group
from reefknot.tying.tying import Tying

__all__ = ["Group", "Tying"]
