"""Tying: the weights of a model in groups, each with a codebook.

Takes     a model; which of its parameters are tied, which of them share values, and how many.
Gives     the groups, the operations of the paper on all of them at once, density, and saved state.
Paper     section 3.1 (soft tying), section 3.2 (hard tying).
Unaware   of optimizers, of step counts, of phases and of files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor, nn

from reefknot.dtypes import significant
from reefknot.errors import ConfigError, TyingError
from reefknot.kernels.kmeans1d import Distance
from reefknot.tying import kmeans, statistics
from reefknot.tying.agreement import fingerprint, require_alike
from reefknot.tying.collectives import Processes, is_dtensor, local, nonzeros, processes_of, reshard
from reefknot.tying.group import Group
from reefknot.tying.kmeans import Start
from reefknot.tying.saved import saved_number
from reefknot.tying.selection import (
    NETWORK,
    Norms,
    Scope,
    original_name,
    replicas_of,
    select,
    unwrapped,
)

NumClusters = int | Mapping[str, int]
Saved = dict[str, Tensor | int | float]


class Tying:
    """A model's weights in groups with a codebook each.

    A group may have no clusters at first. `most_clusters` is the largest K of a group whose K may
    change. With `shards` tensors may be sharded over several processes. `center_bits` is the number
    of significant bits of a center in the file (None: all).
    """

    def __init__(
        self,
        model: nn.Module,
        num_clusters: NumClusters = 17,
        *,
        scope: Scope = NETWORK,
        include: Sequence[str] | str = "*",
        exclude: Sequence[str] | str = (),
        norms: Norms = "separate",
        distance: Distance = "l2",
        zero_cluster: bool = True,
        shards: bool = False,
        most_clusters: int | None = None,
        center_bits: int | None = None,
    ) -> None:
        self.copies = replicas_of(model)  # groups of processes that train the same
        self.model = unwrapped(model)
        selection = select(
            self.model,
            include=_patterns(include),
            exclude=_patterns(exclude),
            scope=scope,
            norms=norms,
        )
        self.skipped = dict(selection.skipped)  # parameters left as they are, and why
        self.center_bits = center_bits
        clusters = _clusters_by_group(num_clusters, list(selection.groups))
        self.groups = [
            Group(
                name,
                members,
                clusters[name],
                distance,
                sparse=zero_cluster and name not in selection.dense,
                most_clusters=most_clusters,
            )
            for name, members in selection.groups.items()
        ]
        self.home = {p: (group, name) for group in self.groups for name, p in group.members.items()}
        self.processes = processes_of((name, p) for p, (_, name) in self.home.items())
        _check_shards(self, shards, distance)
        self.changed: float | None = None  # the fraction of assignments changed by the last refit
        self.version = 0  # grows whenever clusters change, and with them the size of the file
        self._slots = _slots(self.model, self.home)

    # -- clusters ---------------------------------------------------------------------------

    def start(self, how: Start) -> None:
        """Choose first centers for groups that have none."""
        for group in self.groups:
            if not group.assignments:
                kmeans.start(group, how)
                self.version += 1

    def start_distinct(self) -> None:
        """Make each distinct value a cluster, in groups that have no clusters yet, and tie them."""
        for group in self.groups:
            if not group.assignments:
                kmeans.start_distinct(group)
                group.move_to(group.centers)
                self.version += 1

    def cluster(self, how: Start = "kmeans") -> None:
        """Tie the weights as they are: zeros to exactly 0, the others by k-means."""
        for group in self.groups:
            kmeans.start_with_zero(group, how)
            group.move_to(group.centers)
        self.version += 1

    def refit(self) -> None:
        """Run k-means on all groups, from their centers."""
        self.check_copies()
        changed = [kmeans.refit(group) * group.members.num_weights for group in self.groups]
        self.changed = sum(changed) / self.num_weights
        self.version += 1

    def refresh(self) -> None:
        """Set each center to the mean of its cluster."""
        for group in self.groups:
            group.refresh()
        self.version += 1

    def fix_zeros(self) -> None:
        """Set the zero cluster of each group to zero, and keep it there."""
        for group in self.groups:
            group.fix_zeros()

    def hold_zeros(self) -> None:
        """Set the fixed zeros back to zero."""
        for group in self.groups:
            group.hold_zeros()

    def zeros(self) -> dict[str, Tensor]:
        """Masks by parameter name: the elements in a zero cluster."""
        held = [group for group in self.groups if group.zero_cluster is not None]
        return {name: ~group.alive(name) for group in held for name in group.members}

    def freeze(self) -> None:
        """Set each weight to its center for good, and each zero cluster to exactly 0."""
        for group in self.groups:
            group.freeze()
        self.version += 1

    def project(self, trust: float = 1.0) -> None:
        """Set each weight to its center, which moves by `trust` of the way to the mean."""
        for group in self.groups:
            group.project(trust)
        self.version += 1

    # -- reading ----------------------------------------------------------------------------

    @property
    def num_weights(self) -> int:
        """The number of tied weights."""
        return sum(group.members.num_weights for group in self.groups)

    @property
    def has_clusters(self) -> bool:
        """Whether all groups have clusters."""
        return all(group.assignments for group in self.groups)

    def device(self) -> str:
        """Where the tied weights are."""
        return str(local(next(iter(self.home))).device)

    def everyone(self) -> Processes:
        """All processes that train this model, whether they hold parts or copies of it."""
        return Processes((*self.copies, *self.processes.groups), self.device())

    def density(self) -> float:
        """The non-zero fraction of the trainable parameters, as freezing now would leave it."""
        others = [p for p in self.model.parameters() if p.requires_grad and p not in self.home]
        total = self.num_weights + sum(p.numel() for p in others)
        nonzero = sum(nonzeros(p) for p in others)
        for group in self.groups:
            if group.assignments:
                nonzero += int(group.counts[_alive(group)].sum())
            else:
                nonzero += sum(nonzeros(p) for p in group.members.values())
        return nonzero / total

    def kmeans_penalty(self) -> float:
        """The paper's J: half the sum of squared distances to the centers."""
        penalty = 0.0
        for group in self.groups:
            if group.assignments:
                absolute, square = statistics.deviations(group)
                penalty += float(absolute.sum() if group.distance == "l1" else square.sum() / 2)
        return penalty

    def written(self, group: Group) -> np.ndarray:
        """The values of a group's clusters in the file."""
        if self.center_bits is None:
            return group.centers
        return significant(group.centers, self.center_bits)

    def finalize(self) -> None:
        """Leave the weights as the file will have them; they must still be tied."""
        for group in self.groups:
            group.move_to(self.written(group))

    # -- checks -----------------------------------------------------------------------------

    def follow(self) -> None:
        """Notice moved parameters; called before any of them is read or written."""
        for slots, key, parameter in self._slots:
            if slots.get(key) is not parameter:
                raise TyingError(_replaced(self.home[parameter][1]))
        for group in self.groups:
            group.follow()

    def check_members(self) -> None:
        """Check that the model still has the tied parameters, in a layout that can be tied."""
        reshard(self.model)
        present = {original_name(name): p for name, p in self.model.named_parameters()}
        for parameter, (_, name) in self.home.items():
            if present.get(name) is not parameter:
                raise TyingError(_replaced(name))
        self.follow()

    def check_alike(self, facts: Mapping[str, str]) -> None:
        """Check that all processes tie the same model in the same way, these facts included."""
        groups = (*self.copies, *self.processes.groups)
        if not groups:
            return
        found = dict(facts)
        for group in self.groups:
            found[f"num_clusters of group {group.name!r}"] = str(group.num_clusters)
            for name, parameter in group.members.items():
                found[f"the type of {name!r}"] = str(parameter.dtype)
                found[f"the shape of {name!r}"] = str(tuple(parameter.shape))
        require_alike(found, groups, self.device(), "what is tied")
        self.check_copies()

    def check_copies(self) -> None:
        """Check that processes which hold the same weights have not drifted apart."""
        if not self.copies:
            return
        members = {n: group.members.here(n) for group in self.groups for n in group.members}
        prints = {
            f"the sum over the bits of {name!r}": str(row.tolist())
            for name, row in zip(members, fingerprint(members.values()), strict=True)
        }
        require_alike(prints, self.copies, self.device(), "the tied weights")

    # -- saving -----------------------------------------------------------------------------

    def state_dict(self) -> Saved:
        """Centers and assignments of each group, and what the last refit changed."""
        saved: Saved = {"changed": -1.0 if self.changed is None else self.changed}
        for group in self.groups:
            if group.assignments:
                saved.update({f"{group.name}/{key}": v for key, v in group.state_dict().items()})
        return saved

    def load_state_dict(
        self, state: Mapping[str, Tensor | int | float], *, has_zeros: bool = False
    ) -> None:
        """Restore what `state_dict` saved; `has_zeros` if zeros were fixed when it was."""
        changed = saved_number(state, "changed", least=-1.0, most=1.0)
        self.changed = None if changed < 0 else changed
        saved = has_zeros or any("/" in str(key) for key in state)
        for group in self.groups:
            own = saved_of(group, state)
            if not own and saved:
                raise TyingError(
                    f"the saved state has no group {group.name!r}; was the scope another?"
                )
            if own:
                group.load_state_dict(own)
            else:
                group.forget()
            if has_zeros and group.sparse and group.zero_cluster is None:
                raise TyingError(
                    f"the saved state of group {group.name!r} has no zero cluster, and its zeros "
                    "were fixed when it was saved; was it damaged?"
                )
        self.version += 1


@contextmanager
def at_zero(tying: Tying) -> Iterator[None]:
    """While this lasts, the weights of zero clusters are zero."""
    zeros = {name: mask for name, mask in tying.zeros().items() if mask.any()}
    before = [
        (parameter.detach(), parameter.detach().clone(), zeros[name])
        for parameter, (_, name) in tying.home.items()
        if name in zeros
    ]
    for weights, _, mask in before:
        weights.masked_fill_(mask, 0.0)
    try:
        yield
    finally:
        for weights, values, _ in before:
            weights.copy_(values)


def adopt(tying: Tying) -> None:
    """Take the values that the weights have now, perhaps loaded since the last step.

    All weights of a cluster must have the same one, and fixed zeros must be zero.
    """
    changed = [name for group in tying.groups for name in statistics.untied(group)]
    if not changed:
        return
    for group in tying.groups:
        group.adopt()
    if any(any(statistics.untied(group)) for group in tying.groups):
        raise TyingError(
            f"{changed[0]!r} is no longer tied to its centers; weights were loaded or changed "
            "after the last optimizer step, from before clusters were final: load such a state "
            "together with tie.load_state_dict(), or keep the best one only while "
            'tie.stats()["is_last"]'
        )
    tying.version += 1


def saved_of(group: Group, state: Mapping[str, Tensor | int | float]) -> Saved:
    """The entries of one group in a saved state, without the group's prefix."""
    prefix = f"{group.name}/"
    return {k.removeprefix(prefix): v for k, v in state.items() if str(k).startswith(prefix)}


def _check_shards(tying: Tying, shards: bool, distance: Distance) -> None:
    if tying.processes.is_distributed and not shards:
        first = next(iter(tying.groups[0].members))
        raise TyingError(
            f"{first!r} is sharded, and this method needs whole tensors; train it with "
            "DistributedDataParallel, or take SparseAPT or APT"
        )
    if tying.processes.is_distributed and distance == "l1":
        raise TyingError(
            'distance = "l1" needs all weights of a cluster in one process, and they are '
            'sharded; use "l2", or DistributedDataParallel'
        )


def _alive(group: Group) -> np.ndarray:
    """Which clusters of a group are not zero, or will not be."""
    alive = group.centers != 0
    if group.sparse:
        alive[group.smallest_center()] = False
    return alive


def _replaced(name: str) -> str:
    return (
        f"the model has another parameter {name!r} than when it was tied; make the method after "
        "the last change of the model (to() with a new type, FSDP), and the optimizer after the "
        "method"
    )


_NAMED = 4  # parameters that a warning names for each reason; `skipped` has all


def by_reason(skipped: Mapping[str, str]) -> Iterator[str]:
    """What is not tied, one part of a sentence for each reason."""
    for reason in dict.fromkeys(skipped.values()):
        names = [name for name, why in skipped.items() if why == reason]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{', '.join(names[:_NAMED])}{more} ({reason})"


def _patterns(patterns: Sequence[str] | str) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _clusters_by_group(num_clusters: NumClusters, names: list[str]) -> dict[str, int]:
    if isinstance(num_clusters, int):
        return dict.fromkeys(names, num_clusters)
    unknown = [name for name in num_clusters if name not in names]
    missing = [name for name in names if name not in num_clusters]
    mistakes = [f"num_clusters names a group {name!r}; groups are {names}" for name in unknown]
    mistakes += [f"num_clusters has no entry for the group {name!r}" for name in missing]
    if mistakes:
        raise ConfigError(*mistakes)
    return dict(num_clusters)


def _slots(
    model: nn.Module, tied: Iterable[Tensor]
) -> list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]]:
    """Where modules hold these parameters, but for those that FSDP takes out and puts back."""
    wanted = {parameter for parameter in tied if not is_dtensor(parameter)}
    return [
        (module._parameters, key, parameter)
        for module in model.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None and parameter in wanted
    ]
