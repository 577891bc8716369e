"""The pseudocode of docs/format.md is run: it decodes what the reference decoder decodes.

Pseudocode becomes Python by a few rewritings, and what stands in angle brackets by a table. It
replaces the functions of the reference decoder that have the same names.
"""

import ast
import copy
import math
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest
from reef_examples import random_file

from format.reference import reference
from reefknot.codec.kernels import tied_model

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "format.md").read_text()

PHRASES = {
    "sum of weights[first + 1 + i] * votes[i] for all i": (
        "sum(weights[first + 1 + i] * votes[i] for i in range(len(votes)))"
    ),
    "slot of contexts[i]": "contexts[i][0]",
    "a table of one slot, for this kind and context": (
        "d.flags.setdefault((kind, context), Table())"
    ),
    "the table of this kind": "d.numbers.setdefault(kind, Table())",
    "the largest power of 2 below size": "1 << ((size - 1).bit_length() - 1)",
    "no bytes": 'b""',
    "the byte node & 0xFF": "bytes([node & 0xFF])",
    "the last five bytes read, zeros included, the last one lowest": (
        "int.from_bytes((before + name)[-5:], 'big')"
    ),
    "for each codebook 128 contexts": "defaultdict(lambda: [(0, 0)] * 128)",
    "all 0: nothing is stored, and nothing changes": "[[0] * columns] * rows",
    "rows * columns elements, all pivot": "[[pivot] * columns for _ in range(rows)]",
    "three tables of contexts": "Table(), Table(), Table()",
    "number of elements of row != pivot": "sum(i != pivot for i in row)",
    "one more of the elements that section 1 limits": "d.spend(1)",
    "number * predicted more of the elements that section 1 limits": "d.spend(number * predicted)",
    "those of this type": "planes[type]",
}


class Table(dict):
    """Contexts that have seen nothing at first."""

    def __missing__(self, slot):
        return 0, 0


REWRITINGS = [
    (r"\s+# .*", ""),
    (r"<refuse if (.*?)>$", r"require(not (\1), '')"),
    (r"2\^(\w+)", r"(1 << \1)"),
    (r"for (\w+) = (\S+) \.\.\. (.*?):", r"for \1 in range(\2, \3 + 1):"),
    (r"for (\w+) = (.*) down to 0:", r"for \1 in range(\2, -1, -1):"),
    (r"for each (\w+|\(.*?\)) of ([^\]]*)\]", r"for \1 in (\2)]"),
    (r"^(\w+)\((.*)\):$", r"def \1(\2):"),
    (r"^d\.(\w+)\((.*)\):$", r"def \1(d, \2):"),
]


def python_of(number):
    """The pseudocode of a section, as Python."""
    text = re.search(rf"^## {number}\. .*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL).group()
    lines = []
    for line in re.findall(r"^    (.*)", text, re.MULTILINE):
        for phrase, code in PHRASES.items():
            line = line.replace(f"<{phrase}>", code)
        for pattern, code in REWRITINGS:
            line = re.sub(pattern, code, line)
        lines.append(line)
    return "\n".join(lines)


def run(source, **names):
    """Run it; what `tied` assigns is seen by the functions after it."""
    tree = ast.parse(source)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name == "tied":
            arguments = {argument.arg for argument in function.args.args}
            assigned = {
                node.id
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            function.body.insert(0, ast.Global(sorted(assigned - arguments)))
    names |= {
        "stretch": lambda p: reference.STRETCH[p >> 4],
        "squash": lambda x: reference.SQUASH[x + 1775],
        "reciprocal": lambda n: min((1 << 32) // n, (1 << 32) - 1),
        "limited": lambda x, low, high: min(max(x, low), high),
        "bits": int.bit_length,
        "product": math.prod,
        "root": math.isqrt,
        "require": reference.require,
        "Table": Table,
        "defaultdict": defaultdict,
        "LINE": -1,
    }
    exec(compile(ast.fix_missing_locations(tree), "format.md", "exec"), names)
    return names


BITS = run(python_of(4) + "\n" + python_of(5))
PREDICTION = {name: BITS[name] for name in ("count", "shrunk")}


class Names:
    """`Names` of the reference decoder, from section 5."""

    def __init__(self):
        self.state = {"table": Table(), "weights": [65536] + [20000] * 5, "before": bytes(5)}
        told = (byte >> shift & 1 for byte in reference.PRIME for shift in range(7, -1, -1))
        primer = reference.Decoder(b"", told)
        for _ in range(reference.PRIME.count(0)):
            self.read(primer)

    def read(self, d):
        BITS.update(self.state)
        name = BITS["read"](d)
        self.state["before"] += name + bytes(1)
        return name


class Content:
    """`Content` of the reference decoder, from sections 7 and 8."""

    def __init__(self):
        self.of_tied = run(python_of(7), **PREDICTION)
        planes = defaultdict(lambda: (Table(), [65536, 26000, 26000, 0] * 8))
        self.of_kept = run(python_of(8), planes=planes, **PREDICTION)

    def tied(self, d, shape, codebook, size, zero):
        reference.require(size or not math.prod(shape), "elements of an empty codebook")
        self.of_tied.update(d=d, size=size, zero=zero)
        return [index for row in self.of_tied["tied"](d, shape, codebook) for index in row]

    def kept(self, d, number, size, tag):
        return self.of_kept["kept"](d, number, size, tag)


@pytest.fixture
def by_the_page(monkeypatch):
    """The reference decoder, with all of sections 4, 5, 7, 8 and 10 replaced by the page."""
    for name in ("adaptive", "mixed", "flag", "number", "uniform", "ascending"):
        monkeypatch.setattr(reference.Decoder, name, BITS[name])
    primed = Names()
    monkeypatch.setattr(reference, "Names", lambda: copy.deepcopy(primed))
    monkeypatch.setattr(reference, "Content", Content)
    monkeypatch.setattr(reference, "scaled", run(python_of(10))["scaled"])
    return reference.read


@pytest.mark.parametrize("number", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_the_pseudocode_decodes_what_the_reference_decoder_decodes(
    by_the_page, monkeypatch, number
):
    rng = random.Random(16)
    files = [random_file(rng) for _ in range(number)]
    files += [random_file(rng, version=2) for _ in range(number // 4)]
    files += [path.read_bytes() for path in sorted((HERE / "golden").glob("*-auto.reef"))]
    found = [by_the_page(data) for data in files]
    monkeypatch.undo()
    assert found == [reference.read(data) for data in files]


def test_the_page_the_reference_decoder_and_the_loops_have_the_same_constants():
    page = run(python_of(7).partition("def ")[0])
    constants = {name: value for name, value in page.items() if name.isupper() and name != "LINE"}
    assert len(constants) == 14
    for name, value in constants.items():
        assert value == getattr(reference, name) == getattr(tied_model, name), name
