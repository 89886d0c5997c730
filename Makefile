# Everything that a newcomer, a developer or CI does here. `make` alone lists it.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.run-installed
DEV := .venv/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help run test check migrate doctor bench-load lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN) ## start Toolscout on an embedded Postgres, with a demo catalogue
	@$(BIN)/toolscout serve

test: check ## everything that `check` does, then the whole test suite with coverage
	$(BIN)/pytest --cov=app --cov-report=term

check: $(DEV) ## the quick part: style, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

migrate: $(RUN) ## bring the database's schema up to date
	@$(BIN)/toolscout migrate

doctor: $(RUN) ## check settings, database and embedder
	@$(BIN)/toolscout doctor

bench-load: $(DEV) ## requests a second and latencies of /discover, beside an empty endpoint
	$(BIN)/python -m bench.load

lock: $(DEV) ## pin all dependencies anew, with hashes
	$(BIN)/pip-compile $(LOCK) --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra dev --output-file requirements-dev.lock pyproject.toml

clean: ## remove the virtual environment and all caches; the data folder stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .coverage *.egg-info

LOCK := --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-emit-options --no-header

$(RUN): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing, once …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(DEV): $(RUN) requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@
