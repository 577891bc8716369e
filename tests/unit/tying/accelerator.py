"""A device that is not there: tensors that torch says are elsewhere, and a record of what leaves.

Every operation on them is intercepted and done on the host. One that mixes them with tensors of the
host, as a real device would not allow, is refused; one that would bring something to the host, or
make it wait, is noted.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device(
    "meta"
)  # of all types of torch that are not the CPU, the one that is always there
aten = torch.ops.aten
# Their result has a size that depends on what is in the tensor, so that the host must wait for it.
WAITING = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.bincount.default,
}


class Away(torch.Tensor):
    """A tensor on the device; `inner` is where its elements really are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=DEVICE, requires_grad=False,
        )  # fmt: skip

    def __init__(self, inner):
        self.inner = inner

    def data_ptr(self):
        return self.inner.data_ptr()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} outside of the accelerator")


class Accelerator(TorchDispatchMode):
    """While this is entered the device exists. `left` is what came to the host, in bytes."""

    def __init__(self):
        super().__init__()
        self.left = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        away = [leaf for leaf in leaves if isinstance(leaf, Away)]
        device = kwargs.get("device")
        if not away and device != DEVICE:
            return function(*args, **kwargs)
        if function is aten._to_copy.default and away and device is not None and device != DEVICE:
            self.left.append(args[0].inner.nbytes)
            return function(args[0].inner, **kwargs)
        if function is aten.copy_.default and not isinstance(args[0], Away):
            self.left.append(args[1].inner.nbytes)
            return function(args[0], args[1].inner, *args[2:], **kwargs)
        if function is aten._local_scalar_dense.default:
            self.left.append(args[0].inner.nbytes)
        if function in WAITING or _has_mask(function, args):
            self.left.append("wait")
        copies = function in (aten._to_copy.default, aten.copy_.default)
        for leaf in leaves:
            stranger = isinstance(leaf, torch.Tensor) and not isinstance(leaf, Away) and leaf.ndim
            assert not stranger or copies, f"{function} of the device and of the host"
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        known = {id(tensor.inner): tensor for tensor in away}
        plain = tree_map(_inner, (args, kwargs))
        found = function(*plain[0], **plain[1])
        return tree_map(lambda leaf: _outer(leaf, known), found)


def _has_mask(function, args):
    """Whether something is taken out by a mask of booleans."""
    if function is not aten.index.Tensor:
        return False
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def _inner(leaf):
    return leaf.inner if isinstance(leaf, Away) else leaf


def _outer(leaf, known):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return known.get(id(leaf)) if id(leaf) in known else Away(leaf)


def moved(model):
    """The same model, its parameters on the device."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            module._parameters[name] = torch.nn.Parameter(Away(parameter.detach().clone()))
    return model


@contextlib.contextmanager
def accelerator():
    with Accelerator() as entered:
        yield entered
