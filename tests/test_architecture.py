"""The rules of docs/architecture.md, read from the code; a broken one is named with its line."""

import ast
import functools
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import reefknot
from reefknot.lab.baselines import METHODS
from reefknot.phases import Commit, Frozen, Recover, Sparsify

SOURCE = Path(reefknot.__file__).parent

# What each part may import of the others. Every part stands here; what is not listed is refused.
COMMON = {"errors"}
DATA = {"dtypes", "errors", "scales", "state"}
MAY_IMPORT: dict[str, set[str]] = {
    # The waist, and what is below it.
    "errors": set(),
    "bits": set(),
    "dtypes": COMMON,
    "scales": {"dtypes", "errors"},
    "state": {"dtypes", "errors", "scales"},
    "files": COMMON,
    "kernels": COMMON,
    "progress": set(),
    # Right of the waist: uses a state. No torch.
    "codec": {*DATA, "kernels"},
    "format": {*DATA, "codec", "files", "progress"},
    "rates": {"bits", "state"},
    "inspection": {*DATA, "format", "progress", "rates", "tensorfile"},
    # Between torch and numpy.
    "tensors": {"dtypes", "errors"},
    "tensorfile": {*DATA, "files", "format", "tensors"},
    "loading": {"errors", "format", "state", "tensors"},
    # Left of the waist: makes a state. No bytes.
    "tying": {*DATA, "kernels", "tensors"},
    "phases": {"bits", "errors", "kernels", "tying"},
    "methods": {*DATA, "batchnorm", "format", "kernels", "phases", "shrinking", "tying"},
    "batchnorm": {"dtypes"},
    "shrinking": {"errors", "progress"},
    "packing": {
        *(*DATA, "batchnorm", "bits", "files", "format", "kernels", "progress", "tensorfile"),
        *("tensors", "tying"),
    },
    # Other languages: a module and a state, as a list of layers.
    "export": {
        *("batchnorm", "bits", "errors", "files", "format", "loading", "progress", "rates"),
        *("shrinking", "state"),
    },
    # On top.
    "checkpoint": {"errors", "files"},
    "reference": COMMON,
    # Inside the loops of others.
    "integrations": {*("checkpoint", "errors", "files", "format", "methods", "state", "tying")},
    "cli": {
        *("errors", "export", "format", "inspection", "packing", "progress", "reference"),
        *("shrinking", "tensorfile", ""),
    },
    # The laboratory.
    "lab": set(),
    "lab.demo": {"errors", "inspection", "lab.display", "lab.runs", "lab.zoo"},
    "lab.display": {"lab.runs", "progress"},
    "lab.zoo": {"errors", "reference"},
    "lab.baselines": {
        *("errors", "methods", "phases", "shrinking", "state", "tying"),
    },
    "lab.report": {*DATA, "files", "inspection", "rates"},
    "lab.runs": {
        *("batchnorm", "checkpoint", "errors", "files", "format", "lab.baselines", "lab.report"),
        *(
            "lab.zoo",
            "loading",
            "methods",
            "phases",
            "rates",
            "reference",
            "shrinking",
            "state",
            "",
        ),
    },
    "lab.searching": {"errors", "files", "lab.report", "lab.runs", "progress"},
    "lab.cli": {
        *("cli", "errors", "format", "inspection", "lab.baselines", "lab.report", "lab.runs"),
        *("lab.demo", "lab.display", "lab.searching", "methods"),
    },
    "": {
        *(*DATA, "batchnorm", "format", "inspection", "kernels", "loading", "methods", "packing"),
        "shrinking",
    },
}
WITHOUT_TORCH = {
    *(
        "errors",
        "bits",
        "dtypes",
        "scales",
        "state",
        "files",
        "kernels",
        "codec",
        "format",
        "rates",
        "inspection",
    ),
    *("progress", "lab.report"),
}
SHARED = {"by_name", "mixture", "noisy", "pruned"}  # what several compared methods are made of
MAP = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
# What others may build on, the laboratory among them.
PUBLIC = set(
    re.findall(
        r"`(reefknot[a-z_.]*)`", MAP.partition("## What others may build on")[2].split("\n\n")[1]
    )
)
WITHOUT_A_METHOD = {"lab.runs", "lab.searching"}  # never asks which method it has


@dataclass(frozen=True)
class Import:
    """One imported thing: `reefknot.x` where it is ours, the top package where it is not."""

    source: str
    target: str
    name: str  # what is taken from the target, if anything
    place: str  # file:line
    runs: bool  # False inside `if TYPE_CHECKING`

    @property
    def home(self) -> str:
        return component(self.source)

    @property
    def away(self) -> str:
        return component(self.target)


def component(module: str) -> str:
    """The part of a module: "methods" for reefknot.methods.apt, "lab.zoo" for reefknot.lab.zoo."""
    top, *names = module.split(".")
    if top != "reefknot":
        return module
    return ".".join(names[: 2 if names[:1] == ["lab"] else 1])


def modules_of(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = ("reefknot", *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def import_nodes(text: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import statement of a file, wherever it stands, and whether it ever runs."""
    tree = _tree(text)
    checked_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [(node, id(node) not in checked_only) for node in found]


def imports_of(module: str, path: Path, root: Path, known: dict[str, Path]) -> Iterator[Import]:
    for node, runs in import_nodes(path.read_text()):
        place = f"{path.relative_to(root)}:{node.lineno}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                ours = alias.name.partition(".")[0] == "reefknot"
                target = alias.name if ours else alias.name.partition(".")[0]
                yield Import(module, target, "", place, runs)
                if "torch" in alias.name.split(".")[1:]:  # safetensors.torch
                    yield Import(module, "torch", "", place, runs)
        else:
            base = node.module or ""
            if node.level:
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in known:
                    yield Import(module, whole, "", place, runs)
                elif base.partition(".")[0] == "reefknot":
                    yield Import(module, base, alias.name, place, runs)
                else:
                    torch = "torch" in whole.split(".")
                    yield Import(
                        module, "torch" if torch else base.partition(".")[0], "", place, runs
                    )


def violations(root: Path) -> list[str]:
    """Every line below `root` that breaks a rule of the design, as "file:line: the rule"."""
    known = modules_of(root)
    every = [i for module, path in known.items() for i in imports_of(module, path, root, known)]
    found = [f"{i.place}: {rule}" for i in every for rule in _broken_by(i)]
    found += _methods_named(known, root)
    found += _phases_named(known, root)
    found += [f"cycle: {' -> '.join(cycle)}" for cycle in _cycles(every)]
    found += _maps_that_lie(known, root)
    return found


def _broken_by(i: Import) -> Iterator[str]:
    ours = i.target.partition(".")[0] == "reefknot"
    if i.target == "torch" and i.home in WITHOUT_TORCH:
        yield f"{i.source} imports torch, which {i.home} may not"
    if i.away.startswith("lab") and not i.home.startswith("lab"):
        yield f"{i.source} imports {i.target}: the core knows nothing of the laboratory"
    elif ours and i.runs and i.home != i.away and i.away not in MAY_IMPORT.get(i.home, set()):
        yield f"{i.source} imports {i.target}, which {i.home or 'reefknot'} may not"
    foreign = ours and i.home.startswith("lab") and not i.away.startswith("lab")
    if foreign and i.target not in PUBLIC and f"{i.target}.{i.name}" not in PUBLIC:
        inside = i.target.rpartition(".")[0]  # `from reefknot.tying import ops` is a public name
        if not (inside in PUBLIC and i.target.rpartition(".")[2] in _names_of(inside)):
            yield f"{i.source} imports {i.target}, which is not public"
    contract = i.target == "reefknot.methods.method" or i.name == "Method"
    of_methods = i.away in ("methods", "lab.baselines")
    if i.source.endswith("runs.training") and of_methods and not contract:
        yield f"training sees the contract of methods only, and imports {i.target} {i.name}"
    if i.home == "lab.baselines" == i.away and i.source.count(".") > 2:
        own, other = i.source.split(".")[3], [*i.target.split("."), "", ""][3]
        if other not in {own, *SHARED}:
            yield f"{i.source} imports {i.target}: methods never see each other"
    if i.target in ("experiments", "tests", "benchmarks"):
        yield f"{i.source} imports {i.target}, which nothing may"


@functools.cache
def _names_of(module: str) -> frozenset[str]:
    """What a package says that it has."""
    return frozenset(getattr(importlib.import_module(module), "__all__", ()))


def _phases_named(known: dict[str, Path], root: Path) -> Iterator[str]:
    """Code outside of `phases` that matches the name of a phase."""
    names = {kind.name for kind in (Sparsify, Recover, Commit, Frozen)}
    for module, path in known.items():
        if component(module) == "phases":
            continue
        for node in ast.walk(_tree(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in names:
                place = f"{path.relative_to(root)}:{node.lineno}"
                yield f"{place}: {module} names the phase {node.value!r}"


def _methods_named(known: dict[str, Path], root: Path) -> Iterator[str]:
    """Code that must work with any method, and names one."""
    classes = {method.__name__ for method in METHODS.values()}
    for module, path in known.items():
        if component(module) not in WITHOUT_A_METHOD:
            continue
        for node in ast.walk(_tree(path.read_text())):
            said, names = {
                ast.Name: (getattr(node, "id", None), classes),
                ast.Attribute: (getattr(node, "attr", None), classes),
                ast.Constant: (getattr(node, "value", None), METHODS.keys()),
                ast.alias: (getattr(node, "name", None), classes),
            }.get(type(node), (None, ()))
            if isinstance(said, str) and said in names:
                line = node.lineno  # type: ignore[attr-defined]
                yield f"{path.relative_to(root)}:{line}: {module} names the method {said!r}"


def _cycles(imports: list[Import]) -> Iterator[list[str]]:
    """Cycles between files, and between the parts that the design names."""
    running = [i for i in imports if i.runs and i.target.startswith("reefknot")]
    files: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    for i in running:
        files.setdefault(i.source, set()).add(i.target)
        if i.home != i.away:
            parts.setdefault(i.home, set()).add(i.away)
    for graph in (files, parts):
        if (cycle := _cycle(graph)) is not None:
            yield cycle


def _cycle(graph: dict[str, set[str]]) -> list[str] | None:
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for following in sorted(graph.get(node, ())):
            if (cycle := visit(following, [*path, node])) is not None:
                return cycle
        done.add(node)
        return None

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), None)


def _maps_that_lie(known: dict[str, Path], root: Path) -> Iterator[str]:
    """Packages whose docstring names their files, but not those that are there."""
    for path in known.values():
        if path.name == "__init__.py":
            named = set(
                re.findall(r"\b(\w+)\.py\b", ast.get_docstring(_tree(path.read_text())) or "")
            )
            there = {file.stem for file in path.parent.glob("*.py")} - {"__init__"}
            for stem in sorted(named ^ there if named else ()):
                what = "names a file that is not there" if stem in named else "leaves out"
                yield f"{path.relative_to(root)}:1: the map {what}: {stem}.py"


@functools.cache
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


# -- the rules hold -------------------------------------------------------------------------


def test_no_line_breaks_a_direction_of_the_design() -> None:
    found = violations(SOURCE)
    assert not found, "\n".join(found)


def test_every_part_has_its_rule() -> None:
    assert {component(module) for module in modules_of(SOURCE)} == set(MAY_IMPORT)


# -- and the test sees when they do not -----------------------------------------------------


@pytest.mark.parametrize(
    ("file", "line", "rule"),
    [
        ("state.py", "import torch", "reefknot.state imports torch"),
        ("files.py", "from torch import nn", "imports torch"),
        ("rates.py", "from safetensors.torch import save", "imports torch"),
        ("codec/static.py", "import torch.nn", "imports torch"),
        ("lab/report/page.py", "def f():\n    import torch", "imports torch"),
        ("dtypes.py", "from reefknot.tensors import to_array", "imports reefknot.tensors"),
        ("kernels/loops.py", "from ..tying import ops", "imports reefknot.tying.ops"),
        ("format/version0.py", "from reefknot import SparseAPT", "imports reefknot, which"),
        ("tying/ops.py", "from reefknot.rates import rate_file", "imports reefknot.rates"),
        ("inspection.py", "from reefknot.packing import pack", "imports reefknot.packing"),
        ("lab/runs/training.py", "from reefknot.methods.apt import APT", "sees the contract"),
        ("lab/runs/training.py", "from reefknot.lab.baselines import METHODS", "sees the contract"),
        ("lab/runs/training.py", "kind = 'sparse_apt'", "training names the method 'sparse_apt'"),
        ("lab/runs/run.py", "from reefknot.methods import SparseAPT", "names the method"),
        ("lab/baselines/dense.py", "from reefknot.lab.baselines.simple import L2", "never see"),
        ("lab/baselines/simple.py", "from reefknot.lab.baselines import METHODS", "never see"),
        ("methods/apt.py", "from reefknot.lab.baselines import L2", "nothing of the laboratory"),
        ("methods/apt.py", "from reefknot.rates import rate_file", "imports reefknot.rates"),
        ("lab/report/page.py", "from reefknot.lab.zoo import Data", "imports reefknot.lab.zoo"),
        ("lab/runs/run.py", "import reefknot.cli", "imports reefknot.cli, which lab.runs may not"),
        ("lab/runs/run.py", "from reefknot.phases.hooks import Step", "which is not public"),
        ("lab/report/page.py", "name = 'commit'", "page names the phase 'commit'"),
        ("lab/runs/run.py", "import experiments.tables", "imports experiments, which nothing may"),
    ],
)
def test_a_broken_rule_is_named_with_its_file_and_line(
    tmp_path: Path, file: str, line: str, rule: str
) -> None:
    root = shutil.copytree(SOURCE, tmp_path / "reefknot", ignore=_only_python)
    with (root / file).open("a") as copy:
        copy.write(f"\n{line}\n")
    number = len((root / file).read_text().splitlines())
    found = violations(root)
    assert any(f.startswith(f"{file}:{number}: ") and rule in f for f in found), found


@pytest.mark.parametrize(
    ("file", "line", "cycle"),
    [
        ("dtypes.py", "import reefknot.state", "reefknot.dtypes -> reefknot.state"),
        ("lab/zoo/data.py", "from reefknot.lab.zoo import datasets", "reefknot.lab.zoo.data"),
        ("errors.py", "from reefknot.files import read_bytes", "errors -> "),
    ],
)
def test_a_cycle_is_named(tmp_path: Path, file: str, line: str, cycle: str) -> None:
    root = shutil.copytree(SOURCE, tmp_path / "reefknot", ignore=_only_python)
    with (root / file).open("a") as copy:
        copy.write(f"\n{line}\n")
    assert any(f.startswith("cycle: ") and cycle in f for f in violations(root))


def test_a_map_that_names_a_missing_file_or_leaves_one_out_is_named(tmp_path: Path) -> None:
    root = shutil.copytree(SOURCE, tmp_path / "reefknot", ignore=_only_python)
    (root / "lab" / "zoo" / "readers.py").rename(root / "lab" / "zoo" / "parsers.py")
    assert [f for f in violations(root) if "the map" in f] == [
        "lab/zoo/__init__.py:1: the map leaves out: parsers.py",
        "lab/zoo/__init__.py:1: the map names a file that is not there: readers.py",
    ]


def _only_python(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if not n.endswith(".py") and not (Path(folder) / n).is_dir()]


# -- what is really loaded ------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    """The top packages that are loaded in a fresh process after this statement."""
    ending = "import json, sys; print(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{ending}"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_reefknot_imports_neither_torch_nor_numba() -> None:
    assert not loaded_by("import reefknot") & {"torch", "numba", "numpy", "click", "rich", "pooch"}


def test_help_imports_neither_torch_nor_numba() -> None:
    statement = "from reefknot.cli import main\nmain(['run', '--help'], standalone_mode=False)"
    loaded = loaded_by(statement)
    assert "click" in loaded
    assert not loaded & {"torch", "numba", "numpy", "rich", "pooch"}


def test_all_that_is_right_of_the_waist_loads_without_torch() -> None:
    right = [module for module in modules_of(SOURCE) if component(module) in WITHOUT_TORCH]
    assert len(right) > len(WITHOUT_TORCH)
    statement = f"import {', '.join(right)}\nreefknot.TiedState, reefknot.save, reefknot.kmeans1d"
    loaded = loaded_by(statement)
    assert {"numpy", "numba"} <= loaded
    assert "torch" not in loaded


# -- and nothing grows too large ------------------------------------------------------------

MOST_METHODS, MOST_LINES = 25, 60  # of a class, of a function


def test_no_class_and_no_function_is_too_long_to_be_read() -> None:
    found = []
    for path in modules_of(SOURCE).values():
        kernels = (SOURCE / "codec" / "kernels") in path.parents  # loops that are one by nature
        for node in ast.walk(_tree(path.read_text())):
            place = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(part, ast.FunctionDef) for part in node.body)
                found += [f"{place}: {methods} methods"] if methods > MOST_METHODS else []
            elif isinstance(node, ast.FunctionDef) and not kernels:
                lines = (node.end_lineno or 0) - node.lineno + 1
                found += [f"{place}: {lines} lines"] if lines > MOST_LINES else []
    assert not found, "\n".join(found)
