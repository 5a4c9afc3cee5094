# `make demo` and `make test` are all a newcomer needs; both set up .venv first, the tests with what they need besides.
# Everything that pip installs, also for building, has the version of constraints.txt.

PYTHON ?= python3
# An index of PyTorch's own, where PyPI's wheel is not the one: https://download.pytorch.org/whl/cpu is without CUDA.
TORCH_INDEX ?=
# Processes that run tests, by default one a core, eight at most: each has a PyTorch of its own in memory.
WORKERS ?= auto

BIN := .venv/bin
# Python compiles modules when they are first imported; most of what is installed never is.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Toy federations are too small for threads: with several processes on few cores they only wait for each other.
PYTEST := OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 $(BIN)/python -m pytest
IN_PROCESSES := --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal
# Scikit-learn's digits, shared out at random; a client has a label for one image in twenty.
DEMO := --dataset digits --clients 5 --partition random --split 5/20/75 --rounds 50

.PHONY: setup demo test test-all lint docs wheel bench bench-gpu clean

setup: .venv/ready-to-test

.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Graft needs Python 3.11 or newer.")'
	$(PYTHON) -m venv .venv

.venv/ready: .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP) --editable .
	touch .venv/ready

.venv/ready-to-test: .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch .venv/ready .venv/ready-to-test

demo: .venv/ready
	@echo; echo "Five clients, one architecture: averaging against training alone and against all data in one place."
	$(BIN)/graft run --method fedavg --against local,centralised $(DEMO) --out runs/demo-one-model --overwrite
	@echo; echo "Five clients, five architectures: a small copilot travels between models that cannot be averaged."
	$(BIN)/graft run --method fedgkc --against local --models architectures $(DEMO) --out runs/demo-five-models --overwrite

# A Ray cluster has many processes of its own: tests that need one share it, and come last.
test: setup lint
	$(PYTEST) $(IN_PROCESSES) -m 'not slow and not ray'
	$(PYTEST) -m 'ray and not slow'

test-all: setup lint
	$(PYTEST) $(IN_PROCESSES) -m 'not ray'
	$(PYTEST) -m ray

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/mkdocs build --strict

wheel: setup
	$(BIN)/python -m build --no-isolation --outdir dist

bench: setup
	$(BIN)/python benchmarks/table.py --device cpu

bench-gpu: setup
	$(BIN)/python benchmarks/table.py --device cuda

clean:
	rm -rf .venv runs build dist
