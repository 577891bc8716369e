"""What the documents tell people to type works."""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from experiments import tables
from experiments.studies import STUDIES, driver
from safetensors.torch import save_file

import reefknot
from reefknot.cli import main
from reefknot.lab.runs.config import make_config
from reefknot.lab.searching.space import space_of
from reefknot.methods.settings import settings_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Commands that would take long get these; everything else of them is run as it stands.
SHORTER = {
    "run": ["--set", "training.steps=60"],
    "search": ["--set", "training.steps=60", "--trials", "2", "--jobs", "1"],
    "--max-error": ["--max-error", "100"],  # after so few steps
}
# Trainings with frameworks get fewer steps; at length they are slow.
FEWER = {
    "max_steps=150": "max_steps=40",
    "max_epochs=8": "max_epochs=2",
    "STEPS = 400": "STEPS = 80",
}


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


def python_runs(codes, folder):
    """Each as a script, in this process, where frameworks are imported already."""
    for code in codes:
        script = folder / "mine.py"
        script.write_text(code)
        runpy.run_path(str(script), run_name="__main__")
        within_target(code, folder)


def within_target(code, folder):
    for target in re.findall(r"target_bytes=([\d_]+)", code):
        assert (folder / "model.reef").stat().st_size <= int(target)


@pytest.mark.filterwarnings("ignore")  # frameworks have many
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_documents_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = blocks(document, "python")
    if document.name == "frameworks.md":
        assert all(steps in code for steps, code in zip(FEWER, codes, strict=True))
        codes = [code.replace(*steps) for code, steps in zip(codes, FEWER.items(), strict=True)]
    python_runs(codes, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trainings_with_frameworks_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python_runs(blocks(ROOT / "docs" / "frameworks.md", "python"), tmp_path)


@pytest.mark.slow
def test_the_first_example_runs_in_a_process_of_its_own(tmp_path):
    [code] = blocks(ROOT / "README.md", "python")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    within_target(code, tmp_path)


def test_reefknot_commands_in_documents_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    weights = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    save_file({"weight": weights, "bias": torch.zeros(30)}, tmp_path / "model.safetensors")
    (tmp_path / "mine.py").write_text(blocks(ROOT / "docs" / "pack.md", "python")[0])
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setitem(sys.modules, "mine", None)
    del sys.modules["mine"]  # imported here, and gone afterwards
    ours = [c for c in commands() if c.startswith("reefknot")]
    assert ours
    for command in ours:
        words = shlex.split(command)[1:]
        more = [option for key, options in SHORTER.items() if key in words for option in options]
        result = CliRunner().invoke(main, words + more)
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
        config = make_config(tomllib.loads(text))
        if config.search:
            assert space_of(config)


def test_every_experiment_is_a_valid_configuration_that_opens_with_its_command():
    for path in (ROOT / "experiments").glob("*/*.toml"):
        make_config(tomllib.loads(path.read_text()))
        first = path.read_text().splitlines()[0]
        assert first == f"# reefknot run {path.relative_to(ROOT)}"


def test_links_between_documents_lead_somewhere():
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_links_to_headings_lead_to_one():
    for document in DOCUMENTS:
        for link, heading in re.findall(r"\]\(([^):]*)#([^)]+)\)", document.read_text()):
            text = (document.parent / link if link else document).read_text()
            titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            known = [re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles]
            assert heading in known, f"{document.name}: {link}#{heading}"


@pytest.mark.parametrize("document", tables.DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_of_results_are_those_of_the_records(document):
    assert tables.written(document.read_text()) == document.read_text()


def test_every_setting_of_sparse_apt_is_in_the_table_of_the_method():
    text = (ROOT / "docs" / "method.md").read_text()
    section = text.partition("<!-- settings -->")[2].partition("<!-- /settings -->")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert told == [f.name for f in settings_of(reefknot.SparseAPT)]


def test_the_method_tells_the_phases_and_their_shares_as_they_are():
    phases = {"steps": 1_000, "target_bytes": 900}
    tie = reefknot.SparseAPT(torch.nn.Linear(30, 30), **phases)
    told = re.findall(
        r"^\| \*(\w+)\* \| (\d+) %", (ROOT / "docs" / "method.md").read_text(), re.MULTILINE
    )
    assert told == [(phase.name, f"{phase.steps / 10:.0f}") for phase in tie.phases]
    trained = reefknot.SparseAPT(torch.nn.Linear(30, 30), **phases, begin="trained")
    first, *others = (f"{phase.steps / 10:.0f}" for phase in trained.phases)
    words = f"({first} % of the steps, then {others[0]}, {others[1]} and {others[2]})"
    assert words in (ROOT / "docs" / "method.md").read_text()


def test_what_stats_tell_is_in_the_table_of_the_method():
    model = torch.nn.Linear(30, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tie = reefknot.SparseAPT(model, target_bytes=900, steps=100).attach(optimizer)
    text = (ROOT / "docs" / "method.md").read_text()
    section = text.partition("## What `stats()` shows")[2].partition("\n## ")[0]
    for _ in range(95):
        optimizer.zero_grad()
        model(torch.ones(1, 30)).square().sum().backward()
        optimizer.step()
        assert {key for key in tie.stats() if f"`{key}`" not in section} == set()


@pytest.mark.parametrize("name", [name for name in STUDIES if hasattr(STUDIES[name], "MARK")])
def test_the_tables_of_studies_are_those_of_their_records(name):
    text = driver.document_of(STUDIES[name]).read_text()
    assert driver.written(STUDIES[name], text) == text


# -- tables from records ---------------------------------------------------------------------


def committed(folder, recipe, seed, **facts):
    """A record of a recipe for LeNet-300-100, as far as tables look at it."""
    place = folder / f"2026-11-17_lenet-300-100_{recipe}_seed{seed}"
    place.mkdir()
    shutil.copy(ROOT / "experiments" / "lenet-300-100" / f"{recipe}.toml", place / "config.toml")
    config = tomllib.loads((place / "config.toml").read_text())
    record = {"network": "lenet-300-100", "data": config["data"], "method": config["method"]}
    record |= {"seed": seed, "settings": config.get("settings", {}), "dense_test_error": None}
    record |= {"val_error": 1.5, "test_error": 1.5, "density": 0.02, "num_clusters": 7}
    record |= {
        "file_bytes": 3_300,
        "rate_file": 323.0,
        "rate_paper": 220.0,
    } | facts
    (place / "record.json").write_text(json.dumps(record))


def cells(text):
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


def test_a_row_appears_when_its_records_do(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    assert tables.small() == tables.budgets() == tables.dead() == "(no records yet)"
    committed(tmp_path, "dense", 0, num_clusters=0)
    committed(tmp_path, "sparse_apt-3300", 0, test_error=1.6, val_error=1.6)
    committed(tmp_path, "sparse_apt-3300", 1, test_error=1.7, val_error=1.6, num_clusters=8)
    [row] = cells(tables.small())
    assert row == ["lenet-300-100", "3,300", "323", "1.65", "no", "3", "1.50", "2 of 3"]
    committed(tmp_path, "sparse_apt-3300", 2, test_error=1.65, val_error=1.6)
    assert cells(tables.small())[0][-1] == "3"
    [row] = cells(tables.budgets())
    assert row[2:7] == ["3,300", "3,300, 3,300, 3,300", "7–8", "1.60, 1.70, 1.65", "1.65"]
    assert row[8:] == ["3,303", "1.65", "+0.00", "3"]


def test_the_error_over_all_unseen_images_has_its_standard_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    for seed in range(3):
        committed(tmp_path, "sparse_apt-3300", seed, test_error=1.52, val_error=1.8)
    [row] = cells(tables.table())
    # (6,000 · 1.8 + 10,000 · 1.52) / 16,000, and the root of p (1 - p) / 48,000
    assert row[6] == "1.62 ± 0.06"


def test_budget_recipes_of_the_tables_exist_and_tell_nothing_but_the_size():
    for network, recipe in tables.BUDGETS:
        path = ROOT / "experiments" / network / f"{recipe}.toml"
        settings = tomllib.loads(path.read_text())["settings"]
        assert settings == {"target_bytes": int(recipe.split("-")[1])}


def test_records_were_trained_as_the_recipes_say():
    assert list(tables.strays()) == []
