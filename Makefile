# Targets create .venv on first use, and again when pyproject.toml or constraints.txt changed.
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-minio replicas work-queue shop transfers bank examples examples-spark minio servers fast format lint check test test-long test-minio test-lowest test-python only-pytest crash docs site bench bench-age bench-minio bench-peers bench-spark clean simulate fidelity fidelity-kafka side-by-side

# The tests start hundreds of processes; without bytecode each of them would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
ARGS ?=
# 1.5 workers per processor, because many tests wait for processes and clocks.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) * 3 // 2)")
# Idle workers take tests from the others, so that a test of minutes does not delay those queued behind it.
PARALLEL = --numprocesses $(WORKERS) --dist worksteal
# `make test-python` has an environment for each Python.
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
INSTALLED := $(VENV)/.installed
LOWEST := .venv-lowest/.installed
LOWEST_PY := .venv-lowest/bin/python
FOR_SITE := .venv-site/.installed
SITE_PY := .venv-site/bin/python
# The rooms of the modules and tests that differ from the branch main; tests/unit if others do, or none.
CHANGED = $(shell { git diff --name-only main...; git diff --name-only HEAD; git ls-files --others --exclude-standard; } 2>/dev/null \
  | sed -nE 's,^(deltaq|tests/unit)/([a-z]+)/.*\.py$$,tests/unit/\2,p; t; s,^(deltaq|tests)/.*\.py$$,tests/unit,p' | sort -u)
ROOMS = $(or $(filter tests/unit,$(CHANGED)),$(wildcard $(CHANGED)),tests/unit)
CODE := $(wildcard deltaq pyspark_deltaq pytest_deltaq tests examples benchmarks)
PROGRAMS := $(filter-out examples/_%,$(wildcard examples/*.py))
SPARK_PROGRAMS := $(filter-out examples/spark/_%,$(wildcard examples/spark/*.py))

##@ Try it
demo: $(INSTALLED) ## Run the main example: Spark converts two topics in two time zones to one
	@$(PY) examples/timezone_etl/demo.py $(ARGS)

demo-minio: $(INSTALLED) servers ## Run the main example on a MinIO that is started for it
	@$(PY) -m tests.servers.minio -- $(PY) examples/timezone_etl/demo.py --root s3://deltaq-test $(ARGS)

replicas: $(INSTALLED) ## Run replicas that share a topic and count in PostgreSQL, in a live table; ARGS="--seconds 30"
	@$(PY) -m examples.replicas.demo $(ARGS)

work-queue: $(INSTALLED) ## Run workers that send mails to a flaky address book, in a live table; ARGS="--seconds 10"
	@$(PY) -m examples.work_queue.demo $(ARGS)

shop: $(INSTALLED) ## Run tills that sell and Spark that adds up, on a page with a button that kills Spark; ARGS="--seconds 60"
	@$(PY) -m examples.shop.demo $(ARGS)

transfers: $(INSTALLED) ## Move money between two topics in transactions that are killed, on a page that shows the sum; ARGS="--seconds 60"
	@$(PY) examples/transfers.py --seconds 20 $(ARGS)

bank: $(INSTALLED) ## Run a bank whose total is zero, beside a naive consumer, on a page that kills the runner; ARGS="--seconds 60"
	@$(PY) -m examples.bank.demo $(ARGS)

minio: $(INSTALLED) servers ## Run MinIO until Ctrl-C and print its address, for tests of your own
	@$(PY) -m tests.servers.minio

examples: $(INSTALLED) ## Run all examples, one after the other
	@$(if $(PROGRAMS),,echo "There is no examples/*.py." >&2; exit 1;) \
	for program in $(PROGRAMS); do echo "== $$program"; $(PY) "$$program" </dev/null || exit 1; done

examples-spark: $(INSTALLED) ## Run the small Spark programs; needs Java, and network access for the jars of Delta
	@for program in $(SPARK_PROGRAMS); do echo "== $$program"; $(PY) "$$program" </dev/null || exit 1; done

##@ Work on it
fast: lint ## Run the checks and the quick unit tests of the folders that you changed; ARGS="tests/unit/store" selects others
	@$(PY) -m pytest $(PARALLEL) -m "not slow" --hypothesis-profile=few $(or $(ARGS),$(ROOMS) tests/test_tidy.py tests/test_vocabulary.py)

format: $(INSTALLED) ## Format the code, sort the imports, and apply what else ruff can mend
	@$(PY) -m ruff check --fix --quiet $(CODE); $(PY) -m ruff format --quiet $(CODE)

lint: $(INSTALLED) ## Check format, lint and types; seconds if little has changed
	@$(PY) -m ruff format --check --quiet $(CODE) || { echo "Not formatted; run: make format" >&2; exit 1; }
	@$(PY) -m ruff check --quiet $(CODE)
	@$(PY) -m mypy --no-error-summary $(CODE)

check: lint ## Check format, lint, types and the project's own rules
	@$(PY) -m pytest --quiet tests/test_tidy.py tests/test_vocabulary.py

test: lint ## Check format, lint and types, then run the tests; ARGS="-k commit" selects
	@java -version >/dev/null 2>&1 || echo "No Java found: the tests that need it will be skipped; the end of the report says how to install it."
	@$(PY) -m tests.spark.class_archive & $(PY) -m pytest $(PARALLEL) $(ARGS)

test-long: $(INSTALLED) servers ## Run the tests, also those on MinIO, with all seeds, examples and crash points; an hour
	@DELTAQ_TESTS=long $(PY) -m tests.servers.minio -- $(PY) -m pytest $(PARALLEL) $(ARGS)

test-minio: $(INSTALLED) servers ## Run the object store tests on MinIO, and the store contract tests on versitygw
	@$(PY) -m tests.servers.minio -- $(PY) -m pytest $(PARALLEL) -m s3_server $(ARGS)
	@$(PY) -m tests.servers.versitygw -- $(PY) -m pytest $(PARALLEL) -m s3_server tests/contract $(ARGS)

test-lowest: $(LOWEST) ## Run the tests without Spark on the oldest supported libraries; ARGS="tests/unit" selects
	@$(LOWEST_PY) -m pytest -p no:cacheprovider $(PARALLEL) $(or $(ARGS),tests/unit tests/contract tests/integration --ignore tests/unit/spark)

test-python: ## Run the tests on another Python: PYTHON=python3.13; ARGS="tests/unit" selects
	@$(MAKE) --no-print-directory VENV=.venv-$(notdir $(PYTHON)) only-pytest

only-pytest: $(INSTALLED)
	@$(PY) -m pytest -p no:cacheprovider $(PARALLEL) $(ARGS)

crash: $(INSTALLED) servers ## Kill and stop writers, members of groups, replicas and MinIO at random, on local disk and on MinIO; an hour
	@$(PY) -m tests.servers.minio -- $(PY) -m pytest -m soak -s tests/crash tests/examples $(ARGS)

servers: ## Build MinIO and versitygw into .tools, once; needs Go and network access; 4 minutes
	@$(PYTHON) -m tests.servers.go_programs

simulate: $(INSTALLED) ## Run simulations with injected faults and check the guarantees: RUNS=1000, or SEED=7 for one; KIND=groups
	@$(PY) -m tests.simulation --seed $(or $(SEED),0) --runs $(or $(RUNS),$(if $(SEED),1,1000)) $(if $(KIND),--kind "$(KIND)")

docs: $(INSTALLED) ## Regenerate docs/reference, the links from the guarantees to their tests, and the table of modules, from the code
	@$(PY) tests/test_reference.py
	@$(PY) tests/test_guarantees.py
	@$(PY) -m tests.test_module_map

site: $(FOR_SITE) ## Build the documentation as a site with search, in site/
	@$(SITE_PY) -m tests.docs_site lay-out
	@$(SITE_PY) -m zensical build --clean --strict
	@$(SITE_PY) -m tests.docs_site check
	@echo "To read it: $(PYTHON) -m http.server --directory site"

fidelity: $(INSTALLED) ## Compare the answers of deltaq.compat.confluent with what was observed of Kafka; ARGS="seek headers" selects
	@$(PY) -m tests.fidelity $(ARGS)

fidelity-kafka: $(INSTALLED) ## Play the same programs with confluent-kafka and a broker, to check the programs; needs Java and Maven
	@$(PY) -m tests.servers.kafka -- bash -c '$(PY) -m tests.fidelity --kafka "$$DELTAQ_BENCH_KAFKA" $(ARGS)'

side-by-side: $(INSTALLED) ## Run the programs of examples/kafka_migration with Kafka and with deltaq, and compare; needs Java and Maven
	@$(PY) -m tests.servers.kafka -- bash -c '$(PY) -m examples.kafka_migration.side_by_side --kafka "$$DELTAQ_BENCH_KAFKA"'

bench: $(INSTALLED) ## Measure latency and throughput, or with ARGS="--only contention" how many clients share a topic
	@$(PY) -m benchmarks $(ARGS)

bench-age: $(INSTALLED) ## Compare the costs of a topic after 100,000 commits with those after 100; 20 minutes
	@$(PY) -m benchmarks --only age $(ARGS)

bench-minio: $(INSTALLED) servers ## Measure latency and throughput on a MinIO that is started for it
	@$(PY) -m tests.servers.minio -- $(PY) -m benchmarks --root s3://deltaq-test $(ARGS)

bench-peers: $(INSTALLED) ## Measure deltaq and Kafka alternately; needs Java and Maven; 10 minutes
	@$(PY) -m tests.servers.kafka -- $(PY) -m benchmarks --only peers $(ARGS)

bench-spark: $(INSTALLED) ## Measure Spark's sources and sinks of deltaq and Kafka alternately; needs Java and Maven; 5 minutes
	@$(PY) -m tests.servers.kafka -- $(PY) -m benchmarks --only spark $(ARGS)

##@ Tidy up
clean: ## Remove everything that make created, including .venv; topics and results stay
	@rm -rf .venv .venv-* .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "'$(PYTHON)' was not found. Install Python 3.11 or newer, or specify one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "deltaq needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Specify another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' cannot create virtual environments. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Creating $(VENV): a few minutes the first time, mostly for PySpark ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt pip
	@$(PIP) install --constraint constraints.txt --build-constraint constraints.txt --editable '.[avro,cli,console,json,minio,otel,protobuf,spark,xlsx]' --group lint --group test
	@touch $@

$(LOWEST): pyproject.toml constraints.txt lowest.txt
	@$(PYTHON) -m venv .venv-lowest
	@# Each pydantic pins one pydantic-core. All other versions are those of constraints.txt.
	@{ grep -vE '^(obstore|pyarrow|pydantic|pydantic-core)==' constraints.txt; cat lowest.txt; } >.venv-lowest/constraints.txt
	@$(LOWEST_PY) -m pip --disable-pip-version-check --quiet install --constraint .venv-lowest/constraints.txt pip
	@$(LOWEST_PY) -m pip --disable-pip-version-check --quiet install --constraint .venv-lowest/constraints.txt --build-constraint constraints.txt --editable '.[avro,cli,console,json,minio,otel,protobuf,xlsx]' --group test
	@touch $@

$(FOR_SITE): pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv-site
	@$(SITE_PY) -m pip --disable-pip-version-check --quiet install --constraint constraints.txt pip
	@$(SITE_PY) -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --group site
	@touch $@
