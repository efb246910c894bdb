# Every target works by hand and is what .ci/run calls. `make help` lists them.

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
UV := $(VENV)/bin/uv
INSTALLED := $(VENV)/.installed
CODE := $(wildcard src tests tools bench conformance examples sim)
FAST := not slow and not conformance
WORKERS := 4# many tests wait for a disk or a timer most of the time

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1
unexport PYTHONDONTWRITEBYTECODE # compiling is two thirds of what a short command costs

.DEFAULT_GOAL := help
.PHONY: help setup run cluster test test-all test-spark spark-versions test-ci test-console test-helm screenshots check format bench bench-cluster bench-tiers bench-scale bench-shared soak conformance differential differential-rights fuzz simulate simulate-archive simulate-shared pairs crash docs docs-check lock wheel sbom clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Install millstream and everything pinned into .venv

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "millstream needs Python 3.11 or newer; name one with make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) \
	  || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	@test -x $(UV) || $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip --upgrade >/dev/null
	@test -x $(UV) || $(PY) -m pip install --quiet --disable-pip-version-check uv
	@echo "installing what requirements.lock pins (with Spark, 1.7 GB on disk)"
	@$(UV) pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(PY) --no-deps --editable .
	@touch $@

run: setup ## See it work: real flights through a broker and a pipeline into tables, killed and resumed
	$(PY) examples/flights/run.py

cluster: setup ## Run three brokers on this machine as one cluster until Ctrl-C (data in ./cluster-data; ARGS=--keep)
	@$(VENV)/bin/millstream dev cluster -n 3 --data ./cluster-data $(ARGS)

test: setup ## Run the tests that every change must pass (under 10 minutes)
	@$(PY) -m pytest -m "$(FAST)" --forks $(WORKERS) --durations 20 --durations-min 0.1

test-all: test ## Run every test but other people's suites
	@$(PY) -m pytest -m "slow and not conformance"

test-spark: setup ## Run the slow tests of pipelines on Spark (about 30 minutes; MILLSTREAM_KILLS=n)
	@$(PY) tests/spark/class_archive.py
	@$(PY) -m pytest -m "slow and spark" tests/spark

spark-versions: setup ## Run the quick Spark tests with PySpark 4.2 and 4.3 (about 5 minutes; ARGS=--help)
	@$(PY) tools/spark_versions.py $(ARGS)

test-ci: setup ## Run the slow tests that .ci/run has time for (some minutes)
	@$(PY) -m pytest -m "ci and not conformance" --forks $(WORKERS)

test-console: setup ## Run the console's tests in a browser (under 2 minutes; needs Debian's chromium and chromium-driver)
	@$(PY) -m pytest -m browser tests/process/test_console_browser.py

test-helm: setup ## Lint and render the chart with Helm itself (the first run builds it: some minutes; needs Go)
	@PATH="$$($(PY) -m conformance.helm):$$PATH" $(PY) -m pytest -q -k helm tests/unit/deploy

screenshots: setup ## Write a picture of every page of the console into screenshots/ (needs the same browser)
	@$(PY) tools/screenshots.py $(ARGS)

check: setup ## Check format, lint, types, layers and shape
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports --no-logo
	$(PY) tools/tidy.py
	$(PY) tools/docs.py --check

format: setup ## Format and mend what can be mended
	$(VENV)/bin/ruff format $(CODE)
	$(VENV)/bin/ruff check --fix $(CODE)

bench: setup ## Measure beside a real Apache Kafka, under 30 minutes (needs Java and Maven; ARGS=--help)
	$(PY) -m bench.run $(ARGS)

bench-cluster: setup ## Measure three brokers with three replicas beside three of Apache Kafka (ARGS=--quick, ARGS=--help)
	$(PY) -m bench.cluster $(ARGS)

bench-tiers: setup ## Measure tiered topics and the warm cache over a slow store (about 14 minutes; ARGS=--help)
	$(PY) -m bench.warm_fanout $(ARGS)

bench-scale: setup ## Measure what grows with partitions, connections, groups, segments, brokers (about 12 minutes; ARGS=--help)
	$(PY) -m bench.scale $(ARGS)

bench-shared: setup ## Measure shared topics: cold reads beside producers, requests, a lost disk (about 4 minutes; ARGS=--help)
	$(PY) -m bench.shared_storage $(ARGS)

soak: setup ## Run the scheduled load for two hours and judge what it did (ARGS="--duration 10m", ARGS=--help)
	$(PY) -m bench.soak $(ARGS)

conformance: setup ## Run other people's suites against the broker (ARGS=--help says what can be chosen)
	@$(PY) -m conformance.run $(ARGS)

differential: setup ## Ask a real Apache Kafka the same and compare (needs Java and Maven; ARGS=--help)
	@PYTHONPATH=tests $(PY) -m differential $(ARGS)

differential-rights: setup ## Ask a real Apache Kafka for each API with each right missing and compare (needs Java and Maven; ARGS=--save)
	@PYTHONPATH=tests $(PY) -m differential.rights $(ARGS)

fuzz: setup ## Bend a million inputs at everything that reads bytes (about 3 minutes; --keep, --seed: tests/fuzz/fuzz_run.py)
	@$(PY) tests/fuzz/fuzz_run.py

simulate: setup ## Run simulated clusters, HOURS=1 of them (about a CPU-minute each; ARGS=--brokers, ARGS=--planted)
	@$(PY) -m sim $(if $(findstring --brokers,$(ARGS)),brokers,raft$(if $(findstring --planted,$(ARGS)), brokers)) --hours $(or $(HOURS),1) $(filter-out --brokers,$(ARGS))

simulate-archive: setup ## Run simulated clusters with a tiered topic over a store that fails (HISTORIES=100; ARGS=--planted)
	@$(PY) -m sim archive --histories $(or $(HISTORIES),100) $(ARGS)

simulate-shared: setup ## Run simulated clusters with shared topics, and take-overs (HISTORIES=100; ARGS=--planted)
	@$(PY) -m sim shared take_over --histories $(or $(HISTORIES),100) $(ARGS)

pairs: setup ## Play every kind of topic with every ordered pair of operations; a run resumes (up to 90 minutes; ARGS=--help)
	@$(PY) -m sim pairs $(ARGS)

crash: setup ## Let the power fail at 300 operations under load (about 15 minutes; ARGS=--help)
	@$(PY) tests/process/crash_run.py $(ARGS)

docs: setup ## Generate the reference pages and build the site into site/
	$(PY) tools/docs.py
	$(VENV)/bin/mkdocs build --quiet --strict

docs-check: setup ## Paste the code blocks of the first pages, page after page (PAGES=…; ARGS=--slow for Spark)
	@$(PY) tools/docs_check.py $(or $(PAGES),README.md docs/start.md docs/clients.md docs/transactions.md docs/queues.md docs/events.md) $(ARGS)

lock: setup ## Refresh requirements.lock from pyproject.toml
	$(UV) lock --quiet
	$(UV) export --quiet --frozen --all-extras --all-groups --no-emit-project --no-header -o requirements.lock

wheel: setup ## Build the wheel into dist/ (docs/install.md)
	@$(UV) build --quiet --wheel --out-dir dist .
	@ls dist/*.whl

sbom: setup ## List what the wheel and its extras depend on, as CycloneDX, into dist/ (docs/security.md)
	@$(UV) lock --quiet
	@$(UV) export --quiet --frozen --all-extras --no-dev --no-emit-project --preview-features sbom-export \
		--format cyclonedx1.5 -o dist/millstream.cdx.json
	@ls dist/*.cdx.json

clean: ## Remove what was built, but not the environment
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
