# Every target makes .venv by itself, and only when pyproject.toml or constraints.txt changed.
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-minio examples minio servers test test-minio crash test-lowest check docs bench bench-age bench-minio bench-peers clean simulate

PYTHON ?= python3
ARGS ?=
# Half as many again as there are processors: tests that wait for processes and clocks leave half of them idle.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) * 3 // 2)")
# Who has nothing left takes tests from the others: one of minutes does not hold up what was dealt out behind it.
PARALLEL = --numprocesses $(WORKERS) --dist worksteal
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
INSTALLED := .venv/.installed
LOWEST := .venv-lowest/.installed
LOWEST_PY := .venv-lowest/bin/python
CODE := $(wildcard deltaq pyspark_deltaq pytest_deltaq tests examples benchmarks)
PROGRAMS := $(filter-out examples/_%,$(wildcard examples/*.py))

##@ Try it
demo: $(INSTALLED) ## Run the main job: two topics in two time zones become one
	@$(PY) examples/timezone_etl/demo.py $(ARGS)

demo-minio: $(INSTALLED) servers ## The same on MinIO, started for it
	@$(PY) -m tests.servers.minio -- $(PY) examples/timezone_etl/demo.py --root s3://deltaq-test $(ARGS)

minio: $(INSTALLED) servers ## Run MinIO for tests of your own until Ctrl-C, and say how to reach it
	@$(PY) -m tests.servers.minio

examples: $(INSTALLED) ## Run every example, one after the other
	@$(if $(PROGRAMS),,echo "There is no examples/*.py." >&2; exit 1;) \
	for program in $(PROGRAMS); do echo "== $$program"; $(PY) "$$program" </dev/null || exit 1; done

##@ Work on it
test: check ## Run the checks, then all tests but the soak tests; ARGS="-k commit" chooses
	@java -version >/dev/null 2>&1 || echo "No Java here: the tests that need it will not run; the report ends with how to get it."
	@$(PY) -m pytest $(PARALLEL) $(ARGS)

test-minio: $(INSTALLED) servers ## Run what can run on an object store on MinIO, and the contract of stores on versitygw too
	@$(PY) -m tests.servers.minio -- $(PY) -m pytest $(PARALLEL) -m s3_server $(ARGS)
	@$(PY) -m tests.servers.versitygw -- $(PY) -m pytest $(PARALLEL) -m s3_server tests/contract $(ARGS)

test-lowest: $(LOWEST) ## Run what needs no Spark on the oldest libraries that deltaq admits; ARGS="tests/unit" chooses
	@$(LOWEST_PY) -m pytest -p no:cacheprovider $(PARALLEL) $(or $(ARGS),tests/unit tests/contract tests/integration)

crash: $(INSTALLED) servers ## Kill writers, readers and MinIO a hundred times each on local disk and on MinIO; 20 minutes
	@$(PY) -m tests.servers.minio -- $(PY) -m pytest -m soak -s tests/crash/test_soak.py $(ARGS)

servers: ## Build MinIO and versitygw into .tools, once; needs Go and the network, 4 minutes
	@$(PYTHON) -m tests.servers.go_programs

check: $(INSTALLED) ## Check format, lint, types and the rules of the house
	@$(PY) -m ruff format --check --quiet $(CODE) || { echo "Not formatted; remedy: $(PY) -m ruff format $(CODE)" >&2; exit 1; }
	@$(PY) -m ruff check --quiet $(CODE)
	@$(PY) -m mypy --no-error-summary $(CODE)
	@$(PY) -m pytest --quiet tests/test_tidy.py

simulate: $(INSTALLED) ## Play many seeds on a store that fails, each promise checked: RUNS=1000, or SEED=7 for one
	@$(PY) -m tests.simulation --seed $(or $(SEED),0) --runs $(or $(RUNS),$(if $(SEED),1,1000))

docs: $(INSTALLED) ## Write docs/reference and the links of the guarantees to their tests anew, from the code
	@$(PY) tests/test_reference.py
	@$(PY) tests/test_guarantees.py

bench: $(INSTALLED) ## Measure latency and speed, or with ARGS="--only fairness" how a crowd shares a topic
	@$(PY) -m benchmarks $(ARGS)

bench-age: $(INSTALLED) ## Measure what a topic costs after 100,000 commits against after 100; 20 minutes
	@$(PY) -m benchmarks --only age $(ARGS)

bench-minio: $(INSTALLED) servers ## Measure latency and speed on MinIO, started for it
	@$(PY) -m tests.servers.minio -- $(PY) -m benchmarks --root s3://deltaq-test $(ARGS)

bench-peers: $(INSTALLED) ## Measure deltaq and a real Kafka in turns; needs Java and Maven; 10 minutes
	@$(PY) -m tests.servers.kafka -- $(PY) -m benchmarks --only peers $(ARGS)

##@ Tidy up
clean: ## Remove all that make made, .venv included; topics and results stay
	@rm -rf .venv .venv-lowest .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

help: ## Show this
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)'. Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "deltaq needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making .venv: a few minutes the first time, most of it for PySpark ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) install --constraint constraints.txt pip
	@$(PIP) install --constraint constraints.txt --build-constraint constraints.txt --editable '.[minio,spark]' --group lint --group test
	@# Hundreds of processes start in the tests: where none may write its bytecode, each would compile all anew.
	@$(PY) -m compileall -q $(CODE)
	@touch $@

$(LOWEST): pyproject.toml constraints.txt lowest.txt
	@$(PYTHON) -m venv .venv-lowest
	@# pydantic asks for one pydantic-core; all else is as everywhere.
	@{ grep -vE '^(deltalake|obstore|pyarrow|pydantic|pydantic-core)==' constraints.txt; cat lowest.txt; } >.venv-lowest/constraints.txt
	@$(LOWEST_PY) -m pip --disable-pip-version-check --quiet install --constraint .venv-lowest/constraints.txt pip
	@$(LOWEST_PY) -m pip --disable-pip-version-check --quiet install --constraint .venv-lowest/constraints.txt --build-constraint constraints.txt --editable '.[minio]' --group test
	@touch $@
