"""A whole network through NNCodec, for `packing_peers.py`: run by the Python of an environment that has it.

    python nncodec_file.py TENSORS.npz DECODED.npz QP|STEPrms

As its `encode` does by default: dependent quantization, optimised parameters, row skipping, and a quantization
parameter (QP; four of them are a factor of two) of -75 for everything that is not a matrix. Matrices have one QP,
or, with `0.5rms`, each the QP whose step is nearest to half of its root mean square. Prints the bytes of the
bitstream; the tensors that it decodes to are written to DECODED.npz.
"""

import contextlib
import io
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

# Its examples import torchvision, which has no CPU build here; the coder does not need them.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
    sys.modules[name] = MagicMock()

from nncodec import nn  # noqa: E402

tensors, decoded, how = sys.argv[1:]
with np.load(tensors) as file:
    given = {name: file[name] for name in file.files}
settings = {"results": str(Path(decoded).parent), "verbose": False}
if how.endswith("rms"):
    sizes = {n: float(how[:-3]) * np.sqrt(np.mean(t**2)) for n, t in given.items() if t.ndim > 1}
    others = {n: -75 for n in given if n not in sizes}
    settings["qp_per_tensor"] = {n: round(4 * np.log2(s)) for n, s in sizes.items()} | others
else:
    settings["qp"] = int(how)
with contextlib.redirect_stdout(io.StringIO()):
    stream = nn.encode(dict(given), settings)
    found = nn.decode(stream)
np.savez(decoded, **found)
print(len(stream))
