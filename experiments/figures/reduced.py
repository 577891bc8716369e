"""What our studies have less of than the paper's experiments, and by how much.

Takes     the settings in a study's data file, and the paper's lengths below.
Gives     a phrase for each reduction; no phrase if there is none.
Unaware   of what was found.
"""

from typing import Any

from experiments.studies import generalisation as networks
from experiments.studies import refits
from experiments.studies.training import ROW

_KS = [2, 4, 8, 16, 32]
_ALL = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
_WIDE = [2, 4, 8, 16, 64, 256, 25_570]  # "log scale" up to the filters of the convolutions
# What the paper does not give is not here; its searches are taken to be at full length.
PAPER: dict[str, dict[str, Any]] = {
    "behaviour": {"soft_steps": 20_000, "hard_steps": 20_000},
    "generalisation": {
        "soft_steps": 20_000,
        "hard_steps": 10_000,
        "search_shorter": 1,
        "bf16": False,
        "seeds": {networks.CNN: 3, networks.LOCAL: 3, networks.FULL: 3},
        "ks": {networks.LOCAL: _WIDE, networks.FULL: _WIDE},
    },
    "num_clusters": {
        "soft_steps": 30_000,
        "hard_steps": 20_000,
        "search_shorter": 1,
        "search_seeds": 5,
        "seeds": 5,
        "ks": _KS,
        "strengths": _ALL,
    },
    "refits": {
        "soft_steps": 20_000,
        "hard_steps": 20_000,
        "ks": _KS,
        "intervals": [1, 1_000, 5_000, 10_000, 15_000, 20_000],
        "strengths": _ALL,
    },
    "pareto": {"soft_steps": 60_000, "hard_steps": 10_000, "retrained": False},
    "first_layer": {"soft_steps": 60_000, "hard_steps": 10_000, "row": ROW},
}
WORDS = {
    "soft_steps": "soft steps",
    "hard_steps": "hard steps",
    "seeds": "seeds",
    "search_seeds": "seeds in the search",
    "ks": "values of K",
    "intervals": "values of t",
    "strengths": "strengths",
}
SHORT = {networks.CNN: "CNN", networks.LOCAL: "LCN", networks.FULL: "MLP"}


def reductions(study: str, data: dict[str, Any]) -> list[str]:
    """The phrases for one study."""
    own = data["settings"]
    found = [_phrase(key, own[key], wanted) for key, wanted in PAPER[study].items()]
    if study == "generalisation":
        found += _missing_penalties(data["runs"])
    if study == "behaviour" and "mixture" not in data["runs"]:
        found.append("no mixture of Gaussians")
    return [phrase for phrase in found if phrase]


def _phrase(key: str, own: Any, wanted: Any) -> str:
    """How `own` falls short of `wanted`; empty if it does not."""
    if own == wanted:
        return ""
    if isinstance(wanted, dict):
        parts = [_phrase(key, own[network], part) for network, part in wanted.items()]
        pairs = zip(wanted, parts, strict=True)
        return ", ".join(f"{part} ({SHORT[network]})" for network, part in pairs if part)
    if key == "search_shorter":
        return f"searches in {100 / own:.0f} % of the steps"
    if key == "bf16":
        return "bfloat16"
    if key == "retrained":
        return "L1 with a threshold is retrained and tied"
    if key == "row":
        return "sparse APT is not the network of the table's row"
    if isinstance(wanted, list):
        own, wanted = len(set(own) & set(wanted)), len(wanted)
    if own >= wanted:
        return ""
    share = f" ({100 * own / wanted:.0f} %)" if key.endswith("steps") else ""
    return f"{own:,} instead of {wanted:,} {WORDS[key]}{share}"


def _missing_penalties(runs: list[dict[str, Any]]) -> list[str]:
    there = {(row["network"], row["title"]) for row in runs if row["test"]}
    return [
        f"no {kind.upper()} ({SHORT[network]})"
        for network in SHORT
        for kind in ("l1", "l2")
        if (network, kind) not in there
    ]


def told(study: str, data: dict[str, Any]) -> str:
    """What the study ran, and what is reduced."""
    own = data["settings"]
    less = reductions(study, data)
    steps = f"{own['soft_steps']:,} soft and {own['hard_steps']:,} hard steps"
    if own.get("flat"):
        steps = f"at most {steps}, each part until its validation loss is flat"
    optimizer = own.get("optimizer")
    by = f" of {_optimizer(optimizer)}" if optimizer else ""
    reduced = f"Reduced: {'; '.join(less)}." if less else "Nothing is reduced."
    which = ", for t" if study == name_of(refits) else ""
    return f"Ours{which}: {steps}{by}. {reduced}"


def name_of(study: Any) -> str:
    """The name of a study."""
    return str(study.__name__.rpartition(".")[2])


def _optimizer(table: dict[str, Any]) -> str:
    names = {"sgd": "SGD", "adadelta": "Adadelta"}
    momentum = table.get("options", {}).get("momentum")
    return (
        names.get(table["name"], table["name"])
        + (f" with momentum {momentum:g}" if momentum else "")
        + f" at {table['lr']:g} ({table.get('decay', 'constant')})"
    )
