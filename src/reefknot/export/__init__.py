"""Export: C for firmware, an HTML page, ONNX and safetensors.

Takes     a `.reef` file or a state, a torch module, and an example of its input.
Gives     files that need neither Python nor torch; a network that cannot be expressed is refused in
          one sentence.
Unaware   of methods and of training.

    shrunk.py        a module with the values of a file, without dead units; safetensors
    layers.py        a module to operations, by torch.fx
    program.py       operations with numpy values, no torch; functions of an element as text
    stages.py        operations fused, their values in one arena
    weight_bits.py   weights as a bit stream: steps between non-zeros, and their values
    page.py          one HTML file: web/page.js around web/reef.js, a decoder
    c_source.py      net.c and net.h: tables, then engine.c
    onnx_file.py     ONNX: weights as indices with a codebook
    onnx_nodes.py    operations as operators of ONNX
    hardware.py      sizes by compilers and times by simulators of chips
"""

from reefknot.export.c_source import Bytes, c
from reefknot.export.onnx_file import onnx
from reefknot.export.page import Pixels, html
from reefknot.export.shrunk import safetensors

__all__ = ["Bytes", "Pixels", "c", "html", "onnx", "safetensors"]
