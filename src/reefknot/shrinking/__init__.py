"""Dead units: found, and removed from the network.

Takes     a model and an example of its inputs.
Gives     which elements of which parameters are dead; a smaller network with the same outputs.
Unaware   of methods, of files and of what made the zeros.

    trace.py      a model as a graph of operations and their values
    masks.py      masks of elements, and kinds of operations
    rules.py      what each operation does to masks
    graph.py      which elements are dead: `analyse`, `Analysis`
    kept.py       which units stay, so that the remaining shapes fit
    cut.py        tensors made smaller, inputs selected
    network.py    the smaller network: `shrink`, `Shrunk`
    narrow.py     the same while training: parameters stay whole, steps get cheaper
    folding.py    BatchNorm folded into the layer before it
"""

from reefknot.shrinking.graph import dead_elements
from reefknot.shrinking.narrow import Narrowed

__all__ = ["Narrowed", "dead_elements"]
