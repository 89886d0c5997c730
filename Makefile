# Everything that a newcomer, a developer or CI does here. `make` alone lists it.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.run-installed
DEV := .venv/.dev-installed
THIRD_PARTY := .venv/.third-party-installed

.DEFAULT_GOAL := help
.PHONY: help run test proof check migrate doctor bench-load lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN) ## start Toolscout on an embedded Postgres, with a demo catalogue
	@$(BIN)/toolscout serve

test: check $(THIRD_PARTY) ## everything that `check` does, then the whole test suite with coverage
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --cov=app --cov-report=term

proof: $(DEV) ## a thousand random histories of rules, projects, switches and reindexing: found is what can be run
	PROOF_SEQUENCES=1000 $(BIN)/pytest tests/journeys/test_visibility_proof.py

check: $(DEV) ## the quick part: style, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

migrate: $(RUN) ## bring the database's schema up to date
	@$(BIN)/toolscout migrate

doctor: $(RUN) ## check settings, database and embedder
	@$(BIN)/toolscout doctor

bench-load: $(DEV) ## requests a second and latencies of /discover and /execute, beside doing without them
	$(BIN)/python -m bench.load

lock: $(DEV) ## pin all dependencies anew, with hashes
	$(BIN)/pip-compile $(LOCK) --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra dev --output-file requirements-dev.lock pyproject.toml
	cd tests/third_party && rm -f package-lock.json && npm install --package-lock-only --ignore-scripts
	@$(PYTHON) -c "$$WITHOUT_FUNDING" tests/third_party/package-lock.json

clean: ## remove the virtual environment and all caches; the data folder stays
	rm -rf .venv tests/third_party/node_modules .mypy_cache .ruff_cache .pytest_cache .coverage *.egg-info

LOCK := --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-emit-options --no-header

$(RUN): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing, once …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(DEV): $(RUN) requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements-dev.lock
	@touch $@

$(THIRD_PARTY): tests/third_party/package-lock.json
	@command -v npm >/dev/null || { echo "the tests need npm: they speak with an MCP server from there"; exit 1; }
	@cd tests/third_party && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# npm writes the addresses of sponsors into a lock file, which is to hold none
define WITHOUT_FUNDING
import json, sys
lock = json.load(open(sys.argv[1]))
for package in lock["packages"].values():
    package.pop("funding", None)
json.dump(lock, open(sys.argv[1], "w"), indent=2)
endef
export WITHOUT_FUNDING
