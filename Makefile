# `make demo` and `make test` are all a newcomer needs; both set up .venv first, the tests with what they need besides.

PYTHON ?= python3
BIN := .venv/bin
# Scikit-learn's digits, shared out at random; a client has a label for one image in twenty.
DEMO := --dataset digits --clients 5 --partition random --split 5/20/75 --rounds 50

.PHONY: setup demo test test-all lint bench bench-gpu clean

setup: .venv/ready-to-test

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Graft needs Python 3.11 or newer.")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch .venv/ready

.venv/ready-to-test: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/ready-to-test

demo: .venv/ready
	@echo; echo "Five clients, one architecture: averaging against training alone and against all data in one place."
	$(BIN)/graft run --method fedavg --against local,centralised $(DEMO) --out runs/demo-one-model --overwrite
	@echo; echo "Five clients, five architectures: a small copilot travels between models that cannot be averaged."
	$(BIN)/graft run --method fedgkc --against local --models architectures $(DEMO) --out runs/demo-five-models --overwrite

test: setup lint
	$(BIN)/python -m pytest -m 'not slow'

test-all: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/table.py --device cpu

bench-gpu: setup
	$(BIN)/python benchmarks/table.py --device cuda

clean:
	rm -rf .venv runs build dist
