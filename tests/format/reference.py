"""The decoder of docs/, as a module."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "reference_decoder", Path(__file__).parents[2] / "docs" / "reference_decoder.py"
)
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)
TAGS = list(reference.TYPES)
