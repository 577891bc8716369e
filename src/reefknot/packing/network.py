"""A network packed for its inputs, without training: layer by layer, in the order they are used.

Takes     a model, batches of unlabelled inputs, and the price of a bit.
Gives     a copy of the model whose weights have few values, and what was done to each tensor.
Unaware   of files and of budgets: one price for the whole network is the allocation.

Each weight is packed for its inputs in the network packed so far, and fitted to the outputs that it
has in the original network, so that a layer compensates for the errors of those before it.
BatchNorm statistics are adjusted on the way, and biases correct the mean of the outputs. A tensor
that is never multiplied is packed before all others, by its own values at the same price; the rows
of an embedding by how often they are read. One that is multiplied only by zeros follows at the end.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from reefknot.batchnorm import Statistics, make_canonical, renew
from reefknot.bits import entropy
from reefknot.dtypes import DTYPES
from reefknot.errors import UserCodeError
from reefknot.packing.calibration import Moments, Site
from reefknot.packing.changes import UNSEEN, Change, change_of
from reefknot.packing.clustering import Settings
from reefknot.packing.feedback import compensating, feedback
from reefknot.packing.lookups import (
    have_own_steps,
    quantize_rows,
    reads_of,
    row_weights,
    weighted_error,
    weights_as_read,
)
from reefknot.packing.outputs import Sensitivity
from reefknot.packing.quantizer import BIT_WORTH, COARSEST, FINEST, Histogram, quantize
from reefknot.packing.suspended import Network, can_suspend
from reefknot.progress import doing, each
from reefknot.tensors import dtype_for, to_array, to_tensor

POSITIONS = 16_000  # inputs of a weight that are sampled at most
# Of the inputs' second moments, at least, relative to their mean: of real inputs, of random ones.
DAMPING, RANDOM_DAMPING = 0.05, 0.02
LEAST_VARIANCE = 0.02  # of a layer's outputs, relative to their square in the original network
LEAST_WORTH = 1e-6  # of an error, relative to the weight where it does the most harm


@dataclass(frozen=True)
class _Quantized:
    values: Tensor  # (groups, out, in)
    counts: np.ndarray  # of each multiple
    error: float  # squared error of the products, over their variance


@dataclass
class Packer:
    """Packs one model, at any price, as often as asked."""

    model: nn.Module
    batches: Sequence[Any]
    settings: Settings
    for_inference: bool = False
    random: bool = False  # whether the batches are random inputs
    positions: int = POSITIONS
    _worths: dict[tuple[str, int], float] = field(default_factory=dict)
    _seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @torch.no_grad()
    def at(self, price: float) -> tuple[nn.Module, dict[str, Change]]:
        """A packed copy of the model, and what was done to its weights."""
        packed = copy.deepcopy(self.model).float().eval()
        changes: dict[str, Change] = {}
        with (
            self._network(packed) as network,
            self._network(_ready(self.model)) as original,
        ):
            for either in (network, original):
                either.generator.manual_seed(0)  # the same positions are sampled in both
            sites = network.sites
            multiplied = {site.name for site in sites if site.norm is None}
            self._pack_others(packed, multiplied, price, changes)
            for site in each("quantizing", sites, before=self._seconds["quantizing"]):
                if site.norm is not None:
                    if (wanted := self._norm_statistics.get(site.name)) is not None:
                        renew(site.norm, wanted, self._statistics_of(site, network))
                elif self._is_packed(site.name):
                    moments = self._moments(site, network, original)
                    weight = self.model.get_parameter(site.name)
                    whole = site.rows_of(weight).numel() == weight.numel()
                    if moments.second.any() or not whole:  # zeros do not tell which errors matter
                        change = self._pack_site(packed, site, moments, price)
                        changes[site.name] = _joined(changes.get(site.name), change)
        if self.for_inference:
            for site in sites:
                if site.norm is not None:
                    make_canonical(site.norm, _bias_of(packed, site.after)[1])
        self._pack_others(packed, set(), price, changes)
        return packed, changes

    def _pack_others(
        self, packed: nn.Module, but: set[str], price: float, changes: dict[str, Change]
    ) -> None:
        """Pack all weights that are not packed yet, but for some, each by its own values."""
        for name, weight in packed.named_parameters():
            if name in changes or name in but or not self._is_packed(name):
                continue
            change = self._pack_alone(name, weight, price)
            owner = packed.get_submodule(name.rpartition(".")[0])
            transposed = isinstance(owner, _ConvTransposeNd)  # seen, but not watched
            if weight.dim() > 1 and not transposed and name not in self._reads:
                change = replace(change, done=change.done + UNSEEN)
            changes[name] = change

    @doing("measuring what errors do")
    @torch.no_grad()
    def measure_sensitivity(self, price: float) -> None:
        """Measure what an error is worth in each weight: pack one at a time at this price.

        The harm to the outputs of the network, over the relative error of the products. Without it
        the same relative error is worth the same everywhere.
        """
        model = _ready(self.model)
        sensitivity = Sensitivity(model, self.batches)
        found: dict[tuple[str, int], tuple[float, int]] = {}  # worth, elements
        self._worths = {}
        with self._network(model) as network:
            for site in each("in", network.sites, before=self._seconds["in"]):
                if site.norm is None and self._is_packed(site.name):
                    moments = self._moments(site, network)
                    if moments.second.any():
                        tensors, error = self._packed_alone_at(site, model, moments, price)
                        worth = sensitivity.of(tensors) / max(error, 1e-12)
                        found[site.key[:2]] = worth, site.rows_of(tensors[site.name]).numel()
        for name, weight in model.named_parameters():
            if (name, 0) not in found and weight.dim() > 1 and self._is_packed(name):
                changed = weight.detach().clone()
                error = self._pack_alone(name, changed, price).relative_error ** 2
                if (reads := self._reads.get(name)) is not None:
                    error = weighted_error(weight, changed, weights_as_read(reads))
                if (lost := sensitivity.of({name: changed})) > 0:  # else it is not known
                    found[name, 0] = lost / max(error, 1e-12), weight.numel()
        known = {key: pair for key, pair in found.items() if math.isfinite(pair[0])}
        least = LEAST_WORTH * max((worth for worth, _ in known.values()), default=0.0)
        if not least:  # no weight changes the outputs, or they are not finite
            return
        known = {key: (max(worth, least), n) for key, (worth, n) in known.items()}
        logs = sum(n * math.log(worth) for worth, n in known.values())
        mean = math.exp(logs / sum(n for _, n in known.values()))
        self._worths = {key: worth / mean for key, (worth, _) in known.items()}

    def _packed_alone_at(
        self, site: Site, model: nn.Module, moments: Moments, price: float
    ) -> tuple[dict[str, Tensor], float]:
        """The tensors of a site if nothing else is packed, and the error of its products."""
        changed = model.get_parameter(site.name).detach().clone()
        rows = site.rows_of(changed)
        aims = rows.flatten(1).unflatten(0, (site.groups, -1))
        matrix = self._quantized(site, aims, moments, price)
        tensors = {site.name: changed} | self._corrected(model, site, aims, matrix, moments)
        rows.copy_(matrix.values.view_as(rows))
        return tensors, matrix.error

    def _network(self, model: nn.Module) -> Network:
        return Network(model, self.batches, suspends=self._can_suspend)

    @cached_property
    def _can_suspend(self) -> bool:
        """Whether batches may be inside the model at the same time."""
        with doing("trying the model on its inputs"):
            return can_suspend(_ready(self.model), self.batches)

    @cached_property
    def _norm_statistics(self) -> dict[str, Statistics]:
        """Of the inputs of the original network's norm layers."""
        with self._network(_ready(self.model)) as network:
            norms = [site for site in network.sites if site.norm is not None]
            return {site.name: self._statistics_of(site, network) for site in norms}

    def _statistics_of(self, site: Site, network: Network) -> Statistics:
        inputs = network.inputs(site, self.positions)
        return Statistics.of(batch for batch in inputs if batch is not None)

    @cached_property
    def _reads(self) -> dict[str, np.ndarray]:
        """How often the inputs read each row of each look-up table."""
        return reads_of(_ready(self.model), self.batches)

    def _is_packed(self, name: str) -> bool:
        weight = self.model.get_parameter(name)
        return not self.settings.why_kept(name, dtype_for(weight.dtype), to_array(weight))

    def _moments(self, site: Site, network: Network, original: Network | None = None) -> Moments:
        """The moments of a site's inputs, in a packed and in the original network."""
        weights = site.rows_of(self.model.get_parameter(site.name).detach().float())
        found = Moments(weights.flatten(1).unflatten(0, (site.groups, -1)))
        own = network.inputs(site, self.positions)
        others = repeat(None) if original is None else original.inputs(site, self.positions)
        for inputs, originals in zip(own, others, strict=False):
            if inputs is not None:
                # A batch may take another way in the original network.
                if originals is None or originals.shape != inputs.shape:
                    originals = inputs
                found.add(inputs, originals)
        found.finish()
        if not bool(torch.isfinite(found.second).all() and torch.isfinite(found.cross).all()):
            raise UserCodeError(
                f"what the model multiplies {site.name} by is NaN or infinite: the inputs or the "
                "weights hold such values; mend them, or pack without inputs"
            )
        return found

    def _pack_site(self, model: nn.Module, site: Site, moments: Moments, price: float) -> Change:
        weight = model.get_parameter(site.name)
        place = site.rows_of(weight)
        rows = place.flatten(1)
        parts = rows.unflatten(0, (site.groups, -1))  # (groups, out, in)
        aims = compensating(parts, moments.second, moments.cross, moments.damping())
        matrix = self._quantized(site, aims, moments, price)
        for name, bias in self._corrected(model, site, parts, matrix, moments).items():
            model.get_parameter(name).copy_(bias)
        done = f"tied to {int((matrix.counts > 0).sum()):,} values"
        stored = matrix.values.numpy()
        change = change_of(site.name, done, rows.numpy(), stored, DTYPES["F32"])
        kind = self.model.get_parameter(site.name).dtype
        place.copy_(matrix.values.view_as(place).to(kind).float())
        return replace(change, bits=entropy(matrix.counts))

    def _quantized(self, site: Site, aims: Tensor, moments: Moments, price: float) -> _Quantized:
        """The matrices of a site's groups, (groups, out, in), at a price."""
        mean = moments.first
        centered = moments.second - mean[:, :, None] * mean[:, None, :]
        variance = float((torch.bmm(aims, centered) * aims).sum())
        variance = max(variance, LEAST_VARIANCE * float(moments.output_square), 1e-30)
        worth = self._worths.get(site.key[:2], 1.0)
        values, counts, error = torch.empty_like(aims), np.zeros(1, np.int64), 0.0
        for group, lacking in enumerate(moments.damping().tolist()):
            matrix = feedback(
                aims[group].numpy(),
                moments.second[group].clone(),
                worth / variance,
                price,
                max(RANDOM_DAMPING if self.random else DAMPING, lacking),
            )
            values[group] = torch.from_numpy(matrix.values())
            counts = counts + matrix.counts()
            error += matrix.error / worth
        return _Quantized(values, counts, error)

    def _corrected(
        self, model: nn.Module, site: Site, parts: Tensor, matrix: _Quantized, moments: Moments
    ) -> dict[str, Tensor]:
        """The bias of a site, if it has one, so that the mean of the outputs is as it was."""
        name, found = _bias_of(model, site.name)
        weight = model.get_parameter(site.name)
        if found is None or len(found) != (site.rows if site.transposed else len(weight)):
            return {}
        bias = found.detach().clone()
        wanted = torch.bmm(parts, moments.original_first[:, :, None]).flatten()
        got = torch.bmm(matrix.values, moments.first[:, :, None]).flatten()
        bias[site.first_row : site.first_row + site.rows] += wanted - got
        return {name: bias}

    def _pack_alone(self, name: str, weight: Tensor, price: float) -> Change:
        original = self.model.get_parameter(name)
        values, dtype = to_array(original), dtype_for(original.dtype)
        histogram = Histogram.of(values, dtype)
        # The relative error of the whole tensor counts as that of the products of a layer.
        worth = self._worths.get((name, 0), 1.0)
        step = math.sqrt(price * values.size / (BIT_WORTH * worth))
        weights = row_weights(self._reads.get(name, np.zeros(1)))
        if self.random or not have_own_steps(weights):  # what random inputs read says nothing
            step = min(max(step, FINEST), COARSEST)
            book, indices = quantize(values, dtype, histogram, step)
            stored, counts = book.values[indices], np.bincount(indices.ravel())
        else:
            stored, counts = quantize_rows(values, dtype, weights, step)
        weight.copy_(to_tensor(stored, dtype))
        done = f"tied to {np.count_nonzero(counts):,} values"
        change = change_of(name, done, values, stored, dtype)
        return replace(change, bits=entropy(counts))


def _ready(model: nn.Module) -> nn.Module:
    """The model in float32 and evaluation mode: a copy, unless it is so already."""
    if model.training or any(p.dtype != torch.float32 for p in model.parameters()):
        return copy.deepcopy(model).float().eval()
    return model


def _bias_of(model: nn.Module, weight: str) -> tuple[str, nn.Parameter | None]:
    """The bias that belongs to a weight: of the same module, under the name that torch gives it."""
    owner, dot, name = weight.rpartition(".")
    name = name.replace("weight", "bias")
    bias = getattr(model.get_submodule(owner), name, None)
    fits = weight and isinstance(bias, nn.Parameter) and bias.dim() == 1
    return owner + dot + name, bias if fits else None


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
        worst_row=max(one.worst_row, other.worst_row),
        norm=norm,
        bits=((one.bits or 0.0) + (other.bits or 0.0)) / 2,
    )
