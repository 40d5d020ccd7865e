# `make demo` and `make test` need Python 3.11 or newer and a package index, nothing else.
PYTHON ?= python3
BIN := .venv/bin
# The networks here are small: one thread per process is fastest, and tests run in two processes.
export OMP_NUM_THREADS ?= 1

.PHONY: demo install test test-slow check docs benchmark clean

demo: install
	$(BIN)/akegnn train digits --out runs/demo
	@echo
	@echo "The run folder is runs/demo; its first predictions:"
	@$(BIN)/akegnn predict runs/demo --force --out runs/demo-predictions.csv && head -n 4 runs/demo-predictions.csv

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

test: install check
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: install
	$(BIN)/pytest -n 2 -m slow

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m sphinx -W --keep-going -q docs build/docs
	@echo "The documentation is build/docs/index.html."

benchmark: install
	$(BIN)/python benchmarks/exchange.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
