"""What the documents tell people to type works."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from experiments import tables
from safetensors.torch import save_file

from reefknot.cli import main
from reefknot.runs.config import make_config

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# Commands that would take long get these; everything else of them is run as it stands.
SHORTER = ["--set", "training.soft_steps=40", "--set", "training.hard_steps=10"]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def commands():
    return [
        line.strip()
        for document in DOCUMENTS
        for block in blocks(document, "sh")
        for line in block.splitlines()
        if line.strip()
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_documents_runs(document, tmp_path):
    for code in blocks(document, "python"):
        script = tmp_path / "mine.py"
        script.write_text(code)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True)


def test_reefknot_commands_in_documents_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    weights = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    save_file({"weight": weights, "bias": torch.zeros(30)}, tmp_path / "model.safetensors")
    ours = [c for c in commands() if c.startswith("reefknot")]
    assert ours
    for command in ours:
        words = shlex.split(command)[1:]
        result = CliRunner().invoke(main, words + (SHORTER if words[0] == "run" else []))
        assert result.exit_code == 0, f"{command}: {result.output}"


def test_make_targets_in_documents_exist():
    targets = [c.split()[1] for c in commands() if c.startswith("make")]
    targets += re.findall(r"`make (\w+)`", "".join(d.read_text() for d in DOCUMENTS))
    assert {"demo", "test"} <= set(targets)
    for target in set(targets):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_toml_in_documents_is_a_valid_configuration():
    found = [t for document in DOCUMENTS for t in blocks(document, "toml")]
    assert found
    for text in found:
        make_config(tomllib.loads(text))


def test_every_experiment_is_a_valid_configuration_that_opens_with_its_command():
    for path in (ROOT / "experiments").glob("*/*.toml"):
        make_config(tomllib.loads(path.read_text()))
        first = path.read_text().splitlines()[0]
        assert first == f"# reefknot run {path.relative_to(ROOT)}"


def test_links_between_documents_lead_somewhere():
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


@pytest.mark.parametrize(
    ("error", "expected"), [(0.9, "over 4,000"), (1.5, "2,000"), (2.1, "under 1,000")]
)
def test_bytes_at_an_error_are_read_off_between_the_sizes_of_a_recipe(error, expected):
    assert tables._bytes_at(error, {2.0: 1000.0, 1.0: 4000.0}) == expected


@pytest.mark.parametrize("document", tables.DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_of_results_are_those_of_the_records(document):
    assert tables.written(document.read_text()) == document.read_text()


def test_what_the_method_says_its_parts_buy_is_what_the_records_say():
    section = (ROOT / "docs" / "method.md").read_text().partition("## Small files")[2]
    said = set(re.findall(r"\d\.\d\d(?= %)", section.partition("\n## ")[0]))
    assert said
    assert said <= set(re.findall(r"\d\.\d\d", tables.ablations()))


def test_records_were_trained_as_the_recipes_say():
    assert list(tables.strays()) == []
