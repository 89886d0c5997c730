# Everything that a newcomer, a developer or CI does here. `make` alone lists it.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.run-installed
DEV := .venv/.dev-installed
BENCH := .venv/.bench-installed
THIRD_PARTY := tests/third_party/node_modules/.installed

# a shell that forbids it would have every command compile all packages anew
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test programs suite proof check migrate doctor bench-load bench-relevance bench-console docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN) ## start Toolscout on an embedded Postgres, with a demo catalogue
	@$(BIN)/toolscout serve

test: ## everything that `check` does, and the whole test suite with coverage
	@$(MAKE) --no-print-directory --jobs=2 programs $(DEV) $(THIRD_PARTY)
	@$(MAKE) --no-print-directory --jobs=2 check suite

programs:
	@command -v promtool >/dev/null || { echo "the tests need promtool (Debian: prometheus): they try the alerts"; exit 1; }
	@test -x /usr/bin/chromium || { echo "the tests need /usr/bin/chromium (Debian's package): they look at the console"; exit 1; }
	@PATH="$$PATH:/usr/sbin"; command -v nginx >/dev/null || { echo "the tests need nginx: they restart replicas behind it"; exit 1; }

suite: programs $(DEV) $(THIRD_PARTY)
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --cov=app --cov-report=term

proof: $(DEV) ## what `test` does in part: a thousand random histories of who sees what, kills at twenty moments
	PROOF_SEQUENCES=1000 PROOF_KILLS=10 $(BIN)/pytest tests/e2e/test_visibility_proof.py tests/e2e/test_crash_recovery.py

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

bench-relevance: $(BENCH) ## how often the right tools are found, beside simpler rankings (ARGS="FOLDER … --haystack FOLDER")
	$(BIN)/python -m bench.relevance $(ARGS)

bench-console: $(DEV) ## how long each page of the console takes, with 10,000 tools
	$(BIN)/python -m bench.console

docs: $(RUN) ## write the pages of docs/reference from the code
	$(BIN)/python -m docs.generate

lock: $(DEV) ## pin all dependencies anew, with hashes
	$(BIN)/pip-compile $(LOCK) --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra dev --output-file requirements-dev.lock pyproject.toml
	cd tests/third_party && rm -f package-lock.json && npm install --package-lock-only --ignore-scripts
	@$(PYTHON) -c "$$WITHOUT_FUNDING" tests/third_party/package-lock.json

clean: ## remove the virtual environment and all caches; the data folder stays
	rm -rf .venv tests/third_party/node_modules .mypy_cache .ruff_cache .pytest_cache .coverage *.egg-info

LOCK := --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-emit-options --no-header

define INSTALL
@test -x $(BIN)/python || $(PYTHON) -m venv .venv
@echo "installing, once …"
@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r $(1)
@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
endef

$(RUN): requirements.lock pyproject.toml
	$(call INSTALL,requirements.lock)
	@touch $@

# all of the former, too
$(DEV): requirements-dev.lock pyproject.toml
	$(call INSTALL,requirements-dev.lock)
	@touch $(RUN) $@

# what peers and plots need, beside what is pinned and without changing it
$(BENCH): $(DEV)
	@echo "installing what the bench compares with, once …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
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
