# Every target does its own set-up: all it needs is Python 3.11 or newer.
#   PYTHON=python3.12 make test     another interpreter
#   VENV=.venv-312 make test        another environment

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -q
WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-redis7 test-chaos check lint-fix bench bench-http gate surface clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Made again only when pyproject.toml or constraints.txt changes.
$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(READY) ## Make the environment (.venv) with everything for development

demo: $(READY) ## Show orders becoming invoices while workers are killed and frozen
	@$(BIN)/fencepost demo $(ARGS)

test: test-fast test-redis7 test-chaos ## Run all tests: on Valkey, on Redis 7.0 if it is there, and with real faults

test-fast: $(READY) ## Run the tests on Valkey, without the chaos tests; ARGS="-k word" picks some
	$(PYTEST) -n $(WORKERS) -m "not chaos" $(ARGS)

test-redis7: $(READY) ## Run the tests of scripts and guarantees on the Redis 7.0 of PATH; skipped without one
	@if redis-server --version 2>/dev/null | grep -q 'v=7\.0\.'; then \
		set -x; FENCEPOST_TEST_SERVER=redis7 $(PYTEST) -n $(WORKERS) -m "not chaos" $(ARGS) $(CORE_TESTS); \
	else \
		echo "SKIPPED: the tests against Redis 7.0, because no redis-server 7.0 is on PATH"; \
	fi

test-chaos: $(READY) ## Run the tests that kill and freeze real processes, one after another
	$(PYTEST) -m chaos $(ARGS) || { code=$$?; test $$code -eq 5 && echo "no chaos test was selected"; }

CORE_TESTS = $(wildcard tests/scripts tests/guarantees tests/embedded)

check: $(READY) ## Check format, lint, types, import directions, sizes and the public surface, as CI does
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/limits.py
	$(PYTEST) tests/surface

lint-fix: $(READY) ## Format the code and mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure throughput, latency and cost per job, with the floors of this machine beside them
	@$(BIN)/fencepost bench $(ARGS)

bench-http: $(READY) ## Measure enqueueing over HTTP, beside FastAPI with arq and with Celery on the same Redis
	@$(BIN)/python bench/http.py $(ARGS)

gate: $(READY) ## Refuse a job that costs more round trips, commands or CPU than bench/limits.json allows
	$(BIN)/python bench/gate.py

surface: $(READY) ## Print the public names with their signatures
	@$(BIN)/python tools/surface.py

clean: ## Remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
