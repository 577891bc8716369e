"""Between torch tensors and the numpy arrays of a state, bit for bit."""

import numpy as np
import torch
from torch import Tensor

from reefknot.dtypes import DTYPES, DType
from reefknot.errors import ReefknotError

TORCH_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
}
TAGS = {dtype: tag for tag, dtype in TORCH_DTYPES.items()}
_RAW = {1: torch.uint8, 2: torch.int16}  # views of types that numpy does not know


def dtype_for(dtype: torch.dtype) -> DType:
    """The element type of a state for a torch dtype."""
    if dtype not in TAGS:
        raise ReefknotError(f"tensors of {dtype} cannot be stored; known are {', '.join(DTYPES)}")
    return DTYPES[TAGS[dtype]]


def to_array(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor's elements in its storage type."""
    dtype = dtype_for(tensor.dtype)
    tensor = tensor.detach().to("cpu", copy=True).contiguous()
    if dtype.is_raw:
        return tensor.view(_RAW[dtype.item_bytes]).numpy().view(dtype.storage)
    return tensor.numpy()


def to_tensor(array: np.ndarray, dtype: DType) -> Tensor:
    """The tensor whose elements, in storage type, are `array`."""
    array = np.array(array, order="C", copy=True)
    if dtype.is_raw:
        raw = _RAW[dtype.item_bytes]
        signed = array.view(np.int16) if raw is torch.int16 else array
        return torch.from_numpy(signed).view(TORCH_DTYPES[dtype.tag])
    return torch.from_numpy(array)
