"""What training does when: the phases of a method, and what they share.

A method is a list of phases over one `Tying`, of which the last is `Frozen`. `Phase` is what each
of them is; `Step` is what a phase is told about a step of an optimizer.
"""

from reefknot.phases.commit import Commit
from reefknot.phases.frozen import Frozen
from reefknot.phases.hooks import Step
from reefknot.phases.phase import Phase
from reefknot.phases.recover import Recover
from reefknot.phases.sparsify import Sparsify

__all__ = ["Commit", "Frozen", "Phase", "Recover", "Sparsify", "Step"]
