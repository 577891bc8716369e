"""What training does when: the phases of a method, and what they share.

A method is a list of phases over one `Tying`, of which the last is `Frozen`. `Phase` is what each
of them is; `Step` is what a phase is told about a step of an optimizer. A budget's phases begin in
one of three ways: `FROM_SCRATCH`, `TRAINED`, `TIED`.
"""

from reefknot.phases.budget import FROM_SCRATCH, TIED, TRAINED
from reefknot.phases.commit import Commit
from reefknot.phases.frozen import Frozen
from reefknot.phases.hooks import Step, dense_grad, unshare_grad_
from reefknot.phases.phase import Phase
from reefknot.phases.recover import Recover
from reefknot.phases.sparsify import L1Step, Sparsify

__all__ = [
    "FROM_SCRATCH",
    "TIED",
    "TRAINED",
    "Commit",
    "Frozen",
    "L1Step",
    "Phase",
    "Recover",
    "Sparsify",
    "Step",
    "dense_grad",
    "unshare_grad_",
]
