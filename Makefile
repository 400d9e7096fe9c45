# Two commands make everything: `make test` and `make demo`. Each makes its own environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install lint test demo bench docs suites simulate soak mutants clean

SEEDS ?= 100
# Processes that run tests side by side. They wait more than they compute: four for two cores.
JOBS ?= 4
# Tests start hundreds of processes: without compiled modules, each compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make test [JOBS=4]   install everything into $(VENV), run the tests, and check style and import rules beside them (types: make lint)"
	@echo "make lint   style, types and import rules alone"
	@echo "make demo   three workers share real Spark tasks; one is killed, one is added; every row is counted"
	@echo "make docs   write the API reference to docs/api.md, from the signatures and docstrings of the public names"
	@echo "make bench  time rebalances of 300 idle tasks over TCP, the assignors, the REST API, and tracing"
	@echo "make suites [SUITES=kafka-python]   tests of Kafka's clients, on a real broker and on the proxy; a table of what differs"
	@echo "make simulate SEEDS=100 [SEED=n]   the whole group under faults, in one thread, in virtual time"
	@echo "make soak   about an hour: that, beside the reference model too; then the tests with generated inputs, with many more of them; 100 faults of real pipelines"
	@echo "make mutants [MUTANTS=lease]   measure coverage; then plant faults in the product, one at a time: the tests must find each (those with this word)"

# The stamp is newer than pyproject.toml exactly when the environment has what it asks for.
$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Python 3.11 or later is needed, found '$(PYTHON)'; allowed: make PYTHON=<path of one>"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	@touch $@

install: $(VENV)/installed

# Saves 4 s of processor time at each start of Spark. Not every Java can do it.
$(VENV)/prepared: $(VENV)/installed
	-$(BIN)/connectgroup prepare
	@touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# tests/test_lint.py is make lint; types only where CI=true, with the few other tests that are marked ci_only.
test: $(VENV)/prepared
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

demo: $(VENV)/prepared
	$(BIN)/python examples/demo.py $(DEMO_ARGS)

bench: install
	$(BIN)/python benchmarks/rebalance.py
	$(BIN)/python benchmarks/assignors.py
	$(BIN)/python benchmarks/rest.py
	$(BIN)/python -m benchmarks.tracing

docs: install
	$(BIN)/python -m tests.api_reference > docs/api.md

suites: install
	$(BIN)/python -m tests.suites $(SUITES)

simulate: install
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

soak: install
	$(BIN)/python -m tests.simulation --minutes 10
	$(BIN)/python -m tests.model --minutes 5 --seed 10001
	TEST_VOLUME=soak $(BIN)/python -m pytest -m generated -n 3 --dist loadgroup --timeout 7200

mutants: install
	COVERAGE=true $(BIN)/python -m pytest tests/test_coverage.py
	$(BIN)/python -m tests.mutation $(MUTANTS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-data
