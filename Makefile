# Two commands do everything on a fresh machine: make demo, make test. Each sets up .venv by itself.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check chaos lint docs format clean
.DEFAULT_GOAL := demo

# The stamp is older than what it was made from: install again.
.venv/installed: pyproject.toml constraints.txt
	@echo "Setting up .venv: a few minutes and 7 GB, most of it torch"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: .venv/installed  ## train the four core losses on the embedded dataset and print the table
	$(BIN)/harness run

test: .venv/installed  ## every test but the long faults, which `make chaos` runs
	$(BIN)/pytest --numprocesses 2 --dist loadgroup

check: lint  ## format, lint, types and the fast tests
	$(BIN)/pytest --numprocesses 2 --dist loadgroup -m "not slow and not chaos_long"

chaos: .venv/installed  ## every fault of the reliability suite, also the long ones; prints what happened
	$(BIN)/pytest tests/chaos -m fault --faults

lint: .venv/installed  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/installed  ## the documentation site, in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --builder html docs docs/_build/html
	@echo "docs/_build/html/index.html"

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache docs/_build docs/generated
