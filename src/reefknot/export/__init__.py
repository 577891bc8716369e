"""Export: C for firmware, an HTML page, ONNX and safetensors.

Takes     a `.reef` file or a state, a torch module, and an example of its input.
Gives     files that need neither Python nor torch; a network that cannot be expressed is refused in
          one sentence.
Unaware   of methods and of training.

    source.py        a module with the values of a file, as a program
    chain.py         a module to layers, by torch.fx
    layers.py        what each layer of torch becomes
    program.py       layers with numpy values, no torch
    activations.py   functions of an element in numpy, C and JavaScript
    stages.py        layers fused, their buffers in one arena
    weight_bits.py   weights as a bit stream: steps between non-zeros, and their values
    prefix_code.py   canonical Huffman codes
    page.py          one HTML file: web/page.js around web/reef.js, a decoder
    c_source.py      net.c and net.h: tables, then engine.c
    c_tables.py      those tables
    shrunk_file.py   safetensors of the shrunk network
    onnx_file.py     ONNX: weights as indices with a codebook
    onnx_nodes.py    operations as operators of ONNX
    hardware.py      sizes by compilers and times by simulators of chips
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reefknot.export.c_source import Bytes, c
    from reefknot.export.onnx_file import onnx
    from reefknot.export.page import Pixels, html
    from reefknot.export.shrunk_file import safetensors

_HOME = {
    "c": "c_source",
    "Bytes": "c_source",
    "Pixels": "page",
    "html": "page",
    "onnx": "onnx_file",
    "safetensors": "shrunk_file",
}

__all__ = ["Bytes", "Pixels", "c", "html", "onnx", "safetensors"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reefknot.export' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"reefknot.export.{_HOME[name]}"), name)
    globals()[name] = value
    return value
