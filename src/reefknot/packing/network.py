"""A network packed for its inputs, without training: layer by layer, in the order they are used.

Takes     a model, batches of unlabelled inputs, and the price of a bit.
Gives     a copy of the model whose weights have few values, and what was done to each tensor.
Unaware   of files and of budgets: one price for the whole network is the allocation.

Each weight is packed for its inputs in the network packed so far, and fitted to the outputs that it
has in the original network, so that a layer compensates for the errors of those before it.
BatchNorm statistics are adjusted on the way, and biases correct the mean of the outputs. A tensor
that is never multiplied (an embedding), or only by zeros, is packed by its own values at the same
price.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reefknot.dtypes import DTYPES
from reefknot.packing.calibration import Moments, Network, Site
from reefknot.packing.changes import Change, Loss
from reefknot.packing.clustering import Settings
from reefknot.packing.feedback import compensating, feedback
from reefknot.packing.norms import Statistics, make_canonical, renew
from reefknot.packing.quantizer import BIT_WORTH, COARSEST, FINEST, Histogram, entropy, quantize
from reefknot.tensors import dtype_for, to_array, to_tensor

POSITIONS = 16_000  # inputs of a weight that are sampled at most


@dataclass
class Packer:
    """Packs one model, at any price, as often as asked."""

    model: nn.Module
    batches: Sequence[Any]
    settings: Settings
    damping: float
    for_inference: bool = False
    positions: int = POSITIONS
    on_site: Callable[[int, int], None] = lambda done, total: None
    _statistics: dict[str, Statistics] = field(default_factory=dict)
    _sites: list[Site] = field(default_factory=list)

    @torch.no_grad()
    def at(self, price: float) -> tuple[nn.Module, dict[str, Change]]:
        """A packed copy of the model, and what was done to its weights."""
        if not self._sites:
            self._look()
        packed = copy.deepcopy(self.model).float().eval()
        network = Network(packed, list(self.batches))
        original = Network(_ready(self.model), list(self.batches))
        for either in (network, original):
            either.generator.manual_seed(0)  # the same positions are sampled in both
        sites, twins = network.sites(), original.sites()
        changes: dict[str, Change] = {}
        for number, site in enumerate(sites):
            if site.norm is not None:
                if site.name in self._statistics:
                    found = Statistics.of(network.inputs(site, sites, self.positions))
                    renew(site.norm, self._statistics[site.name], found)
            elif self._is_packed(site.name):
                moments = self._moments(site, network, sites, original, twins)
                weight = self.model.get_parameter(site.name)
                whole = site.rows_of(weight).numel() == weight.numel()
                if moments.second.any() or not whole:  # zeros do not tell which errors matter
                    change = self._pack_site(network.model, site, moments, price)
                    changes[site.name] = _joined(changes.get(site.name), change)
            self.on_site(number + 1, len(sites))
        if self.for_inference:
            for site in sites:
                if site.norm is not None:
                    make_canonical(site.norm, _bias_of(packed, site.after))
        for name, weight in packed.named_parameters():
            if name not in changes and self._is_packed(name):
                changes[name] = self._pack_alone(name, weight, price)
        return packed, changes

    def _look(self) -> None:
        """Measure the inputs of the original network's norm layers."""
        network = Network(_ready(self.model), list(self.batches))
        self._sites = network.sites()
        for site in self._sites:
            if site.norm is not None:
                inputs = network.inputs(site, self._sites, self.positions)
                self._statistics[site.name] = Statistics.of(inputs)

    def _is_packed(self, name: str) -> bool:
        weight = self.model.get_parameter(name)
        return not self.settings.why_kept(name, dtype_for(weight.dtype), to_array(weight))

    def _moments(
        self, site: Site, network: Network, sites: list[Site], original: Network, twins: list[Site]
    ) -> Moments:
        """The moments of a site's inputs, in the packed and in the original network."""
        twin = twins[sites.index(site)]
        found: Moments | None = None
        for inputs, originals in zip(
            network.inputs(site, sites, self.positions),
            original.inputs(twin, twins, self.positions),
            strict=True,
        ):
            found = found or Moments(*inputs.shape[1:])
            found.add(inputs, originals)
        assert found is not None
        found.finish()
        return found

    def _pack_site(self, model: nn.Module, site: Site, moments: Moments, price: float) -> Change:
        weight = model.get_parameter(site.name)
        place = site.rows_of(weight)
        rows = place.flatten(1)
        second, mean = moments.second, moments.first
        parts = rows.unflatten(0, (site.groups, -1))  # (groups, out, in)
        centered = second - mean[:, :, None] * mean[:, None, :]
        variance = float((torch.bmm(parts, centered) * parts).sum().clamp(min=1e-30))
        loss = Loss(rows.contiguous().numpy(), DTYPES["F32"])
        counts = np.zeros(1, np.int64)
        aims, result = compensating(parts, second, moments.cross), torch.empty_like(parts)
        for group in range(site.groups):
            matrix = feedback(aims[group].numpy(), second[group], variance, price, self.damping)
            result[group] = torch.from_numpy(matrix.values())
            counts = counts + matrix.counts()
        bias = _bias_of(model, site.name)
        if bias is not None and len(bias) == (site.rows if site.transposed else len(weight)):
            wanted = torch.bmm(parts, moments.original_first[:, :, None]).flatten()
            got = torch.bmm(result, mean[:, :, None]).flatten()
            bias[site.first_row : site.first_row + site.rows] += wanted - got
        before = rows.double().numpy().ravel().copy()
        kind = self.model.get_parameter(site.name).dtype
        place.copy_(result.view_as(place).to(kind).float())
        loss.add(before, result.double().numpy().ravel())
        change = loss.change(site.name, f"tied to {int((counts > 0).sum()):,} values")
        return replace(change, bits=entropy(counts))

    def _pack_alone(self, name: str, weight: Tensor, price: float) -> Change:
        original = self.model.get_parameter(name)
        values, dtype = to_array(original), dtype_for(original.dtype)
        histogram = Histogram.of(values, dtype)
        step = math.sqrt(price * values.size / BIT_WORTH)  # the whole tensor's error counts as 1
        book, indices, loss = quantize(values, dtype, histogram, min(max(step, FINEST), COARSEST))
        weight.copy_(to_tensor(book.values[indices], dtype))
        change = loss.change(name, f"tied to {len(book):,} values")
        return replace(change, bits=entropy(np.bincount(indices.ravel())))


def _ready(model: nn.Module) -> nn.Module:
    """The model in float32 and evaluation mode: a copy, unless it is so already."""
    if model.training or any(p.dtype != torch.float32 for p in model.parameters()):
        return copy.deepcopy(model).float().eval()
    return model


def _bias_of(model: nn.Module, weight: str) -> nn.Parameter | None:
    """The bias that belongs to a weight: of the same module, under the name that torch gives it."""
    owner, _, name = weight.rpartition(".")
    bias = getattr(model.get_submodule(owner), name.replace("weight", "bias"), None)
    return bias if weight and isinstance(bias, nn.Parameter) and bias.dim() == 1 else None


def _joined(one: Change | None, other: Change) -> Change:
    """The change of a tensor whose parts were packed one after the other."""
    if one is None:
        return other
    norm = math.hypot(one.norm, other.norm) or 1.0
    lost = math.hypot(one.relative_error * one.norm, other.relative_error * other.norm)
    return replace(
        other,
        relative_error=lost / norm,
        largest_error=max(one.largest_error, other.largest_error),
        norm=norm,
        bits=((one.bits or 0.0) + (other.bits or 0.0)) / 2,
    )
