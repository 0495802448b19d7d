# Everything a user or a contributor types. `make help` lists it.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $(p))))
# Unit tests take the time in which the others wait for servers, and what they say comes in one piece. Not by `&` of the
# shell: what it begins so ignores Ctrl-C, and so do the commands that are tested with it.
BOTH = @$(MAKE) --no-print-directory -k -j2 unit-tests stack-tests

.DEFAULT_GOAL := help
.PHONY: help demo dev up down test test-all unit-tests stack-tests hunt bench lint docs docs-site audit sbom format lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## the whole path on this machine: Postgres, ingestion, vault, marts, checked against the source
	@$(BIN)/lakehouse demo

dev: $(READY) ## stack, ingestion, Dagster UI and daemon in the foreground; Ctrl-C ends them, the stack stays
	@$(BIN)/lakehouse dev

up: $(READY) ## start the stack alone
	@$(BIN)/lakehouse up

down: $(READY) ## stop the stack; the data stays
	@$(BIN)/lakehouse down

test: $(READY) ## unit tests, beside two processes with a stack each for the others
	$(BOTH) MARK='not slow'

test-all: $(READY) ## the slow tests too
	$(BOTH) MARK=

unit-tests: $(READY)
	@said=$$(mktemp); $(TESTS) -q tests/unit -m '$(MARK)' > $$said 2>&1; rc=$$?; cat $$said; rm -f $$said; exit $$rc

stack-tests: $(READY)
	@$(TESTS) tests --ignore tests/unit -m '$(MARK)'

hunt: $(READY) ## random DDL and DML against the oracle: SECONDS=3600 VERSION=15|16|17|18 SEED=7 RESULTS=file
	@$(BIN)/python -m tests.hunt $(if $(SECONDS),--seconds $(SECONDS)) $(if $(VERSION),--version $(VERSION)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results $(RESULTS)) $(if $(WITHOUT),--without '$(WITHOUT)')

bench: $(READY) ## measure ingestion and loads on this machine
	@$(BIN)/python -m benchmarks

lint: $(READY) ## ruff, mypy (of the tests, what a rename breaks) and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file tests/mypy.ini tests
	@$(BIN)/lint-imports

docs: $(READY) ## write again what is generated from code
	@$(BIN)/python -m ingestion.schema.types.docs > docs/types.md
	@$(BIN)/python -m scaffold.docs
	@$(BIN)/python -m maintenance.actions.docs
	@$(BIN)/python -m lakehouse_cli.reference
	@$(BIN)/python -m lakehouse_stack.downloads.licences > NOTICE

docs-site: build/docs-venv/.ready ## build the documentation's site in build/site; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict
	@echo "open build/site/index.html"

build/docs-venv/.ready: requirements-docs.lock
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv build/docs-venv
	@build/docs-venv/bin/python .ci/install.py requirements-docs.lock
	@touch $@

audit: $(READY) ## look every pinned package up among the known vulnerabilities; one that cannot be looked up fails
	@$(BIN)/pip-audit --strict --disable-pip --require-hashes --progress-spinner off --requirement requirements-dev.lock --requirement requirements-docs.lock --requirement lakehouse_stack/downloads/jre21.lock

sbom: $(READY) ## write sbom.cdx.json: every package and file of an installation, as CycloneDX
	@$(BIN)/python -m lakehouse_stack.downloads.sbom > sbom.cdx.json

format: $(READY) ## let ruff rewrite the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: ## pin every dependency with hashes, for all platforms: requirements.lock runs the product, -dev.lock is all, -docs.lock builds the site (needs uv)
	@command -v uv >/dev/null || { echo "error: uv is not installed: pip install uv" >&2; exit 1; }
	uv pip compile pyproject.toml --extra all --extra build --universal --generate-hashes --no-header --output-file requirements.lock
	uv pip compile pyproject.toml --extra dev --constraint requirements.lock --universal --generate-hashes --no-header --output-file requirements-dev.lock
	uv pip compile --group docs --universal --python-version 3.11 --generate-hashes --no-header --output-file requirements-docs.lock

clean: ## delete caches of the tools; not the environment, not the data
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis

$(READY): requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@PYTHONWARNINGS=ignore:DEPRECATION $(BIN)/python .ci/install.py requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
