"""The C of docs/ship.md compiles and does what it says; its table is what compilers say."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import reefknot
from reefknot import export
from reefknot.export.hardware import CHIPS
from reefknot.lab.zoo import INPUTS, NETWORKS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "ship.md"
FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
_SPEC = importlib.util.spec_from_file_location("chips", ROOT / "benchmarks" / "chips.py")
chips = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(chips)


def block(function):
    found = re.findall(r"^```c\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return next(text for text in found if function in text)


def words_of(folder, main, *sources, given=b""):
    """What a program prints, word by word."""
    (folder / "main.c").write_text(main)
    include = f"-I{ROOT / 'src' / 'reefknot' / 'export'}"
    command = ["gcc", *FLAGS, include, "main.c", *sources, "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run(["./main"], cwd=folder, input=given, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_function_that_reads_a_digit_does(tmp_path):
    record = ROOT / "experiments/records/2026-11-17_lenet-300-100_sparse_apt-1770_seed0"
    model, shape = NETWORKS["lenet-300-100"](), INPUTS["lenet-300-100"].shape
    export.c(record / "model.reef", model, tmp_path, torch.zeros(1, *shape))
    call = 'int main(void)\n{\n    static float zeros[NET_INPUTS];\n    return !printf("%d\\n", '
    main = f"#include <stdio.h>\n{block('read_digit')}\n{call}read_digit(zeros));\n}}\n"
    model.load_state_dict(reefknot.load(record / "model.reef"))
    label = int(model.eval()(torch.zeros(1, *shape)).argmax())
    assert words_of(tmp_path, main, "net.c") == [str(label)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_function_that_prints_tensors_does(tmp_path):
    main = block("print_tensors") + (
        "int main(void)\n{\n    static char data[4096];\n"
        "    size_t size = fread(data, 1, sizeof data, stdin);\n"
        "    return print_tensors(data, size);\n}\n"
    )
    golden = ROOT / "tests" / "format" / "golden" / "v1-lenet-auto.reef"
    names = [f"fc{n}.{kind}" for n in (1, 2, 3) for kind in ("weight", "bias")]
    assert words_of(tmp_path, main, given=golden.read_bytes()) == names


def rows_told():
    section = DOCUMENT.read_text().partition(chips.MARKS[0])[2].partition(chips.MARKS[1])[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines()[2:]]


def number(text):
    return int(text.split()[0].replace(",", ""))


@pytest.mark.parametrize("told", rows_told(), ids=lambda row: f"{row[0].strip('`')} {row[4]}")
def test_the_table_of_chips_is_what_compilers_and_simulators_say(told):
    name, chip = next((name, chip) for name, chip in CHIPS.items() if chip.name == told[4])
    if tool := chip.missing():
        pytest.skip(f"{tool} is not installed: nothing runs on a simulated {chip.name}")
    found = chips.row(chips.RECORDS / told[0].strip("`"), name)
    assert found[:5] == told[:5]
    assert found[7] == told[7]
    for column in (5, 6, 8):  # another release of a compiler may differ a little
        assert number(found[column]) == pytest.approx(number(told[column]), rel=0.05)
