# Two commands do everything on a fresh machine: `make up` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
BENCH := .venv-bench
TESTS ?= tests
# One more than there are cores: some tests wait for others' processes most of their time.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

# Every process would compile the sources anew, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help up example test strain check browser types conformance claude bench profile soak docs lock resolve wheel clean
.DEFAULT_GOAL := help

help: ## Show what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(VENV)/.runs ## Start everything here: PostgreSQL, API, inbox, a worker, a demo. Ctrl-C stops it
	@$(RUN)/cortex up

example: $(VENV)/.runs ## Run one of examples/: make example NAME=release_agent, with AUTO=1 to approve by itself
	@[ -f "examples/$(NAME)/__main__.py" ] || \
	  { echo "NAME is one of:"; for each in examples/*/__main__.py; do basename "$$(dirname "$$each")"; done; exit 2; }
	@$(RUN)/python -m examples.$(NAME) $(if $(AUTO),--auto)

test: check browser types conformance claude ## Everything CI runs: style, types, architecture, tests, the browser's included
	@$(RUN)/python -m pytest $(TESTS) -q -n $(TEST_PROCESSES) --dist worksteal

strain: check browser types conformance claude ## The tests while busy loops load every core: what fails then is a race
	@$(RUN)/python -m scripts.strain $(RUN)/python -m pytest $(TESTS) -q -n $(TEST_PROCESSES) --dist worksteal

check: $(VENV)/.develops ## Style, types and the direction of imports
	@$(RUN)/ruff check --quiet .
	@$(RUN)/ruff format --check --quiet .
	@$(RUN)/mypy --no-error-summary
	@$(RUN)/lint-imports --no-cache > $(VENV)/imports.log || (cat $(VENV)/imports.log; exit 1)

# The browser tests need a Chromium. Where this may install Debian's, it does, and prefers the one without a window, which
# takes half the time; elsewhere pytest says at its end that they did not run, and how to get them.
INSTALL := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -qq -y --no-install-recommends
browser:
	@[ -n "$$CORTEX_CHROMIUM" ] || command -v chromium-headless-shell >/dev/null 2>&1 || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	    echo "installing Chromium for the browser tests …" && \
	    { $(INSTALL) chromium-headless-shell >/dev/null 2>&1 || \
	      { timeout 120 apt-get update -qq >/dev/null 2>&1; $(INSTALL) chromium-headless-shell >/dev/null 2>&1; } || \
	      command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	      $(INSTALL) chromium >/dev/null 2>&1; }; } || true

# The types that vendors of channels publish, against which the tests check the emulators, and gRPC's own client for Node. Where npm is,
# it fetches them.
VENDOR_TYPES := @grammyjs/types@5.0.0 @slack/types@3.2.0 @slack/web-api@8.2.0 @slack/bolt@5.1.0 @types/node@24 typescript@5.9.3 \
  @grpc/grpc-js@1.14.7 @grpc/proto-loader@0.8.1 grpc-js-reflection-client@1.4.2
types: | $(VENV)/bin/python
	@[ -d $(VENV)/types/node_modules/@grpc/grpc-js ] || ! command -v npm >/dev/null 2>&1 || \
	  { echo "fetching the types that vendors publish, and a gRPC client …" && \
	    timeout 120 npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/types $(VENDOR_TYPES); } || true

# The conformance suite of MCP, against which the tests check the gateway. Later releases need a newer Node.
conformance: | $(VENV)/bin/python
	@[ -d $(VENV)/conformance/node_modules ] || ! command -v npm >/dev/null 2>&1 || \
	  { echo "fetching the conformance suite of MCP …" && \
	    timeout 120 npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/conformance \
	      @modelcontextprotocol/conformance@0.1.13; } || true

# Claude Code itself, which the tests run behind the plane: the program of a wheel of 160 MB, in a place of its own.
CLAUDE := claude-agent-sdk==0.2.184
claude: | $(VENV)/bin/python
	@[ -x $(VENV)/claude/claude_agent_sdk/_bundled/claude ] || \
	  { echo "fetching Claude Code for its tests …" && \
	    timeout 300 $(RUN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	      --target $(VENV)/claude $(CLAUDE) 2>/dev/null; } || true

bench: $(BENCH)/.ready ## Measure against the floor (the same rows, written bare) and against peers
	@$(BENCH)/bin/python -m benchmarks $(if $(SMOKE),--smoke) $(if $(OUT),--out $(OUT)) $(PARTS)

profile: $(VENV)/.develops ## CPU by function for each operation that has a budget: make profile, or NAME=decision for one
	@$(RUN)/python -m scripts.profiles $(NAME)

soak: $(VENV)/.develops $(BENCH)/.ready ## The long campaigns, and what the same crashes do to peers
	@$(RUN)/python -m pytest tests -q -s -m soak
	@$(BENCH)/bin/python -m benchmarks.crash

docs: $(VENV)/.develops ## Write the generated parts of the docs and of the schema anew
	@$(RUN)/python -m scripts.docs
	@$(RUN)/python -m scripts.schema

lock: $(VENV)/.runs ## Write requirements.lock: what constraints.txt pins, with the hashes of all files
	@$(RUN)/python -m scripts.lock

resolve: $(VENV)/.runs ## Install the client alone into an empty environment, beside which frameworks, and try it
	@$(RUN)/python -m scripts.installs client
	@$(RUN)/python -m scripts.installs frameworks

wheel: $(VENV)/.runs ## Build wheel and sdist in dist/, and try `cortex up` from the wheel
	@$(RUN)/python -m scripts.installs wheel

clean: ## Remove the environment and the plane's data in this folder
	rm -rf $(VENV) $(BENCH) .cortex

# Debian's python3 may come without ensurepip; pip can bring virtualenv instead.
$(VENV)/bin/python:
	@echo "making the environment in $(VENV) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  (echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 1)
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || \
	  (rm -rf $(VENV) && $(PYTHON) -m pip install --quiet --user --break-system-packages virtualenv && \
	   $(PYTHON) -m virtualenv --quiet $(VENV))

$(VENV)/.runs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what the plane needs …"
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.develops: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what the plane and its tests need …"
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@ $(VENV)/.runs

# Peers pin what we do not, so they and we are measured in an environment of their own.
$(BENCH)/.ready: pyproject.toml constraints-bench.txt | $(VENV)/bin/python
	@echo "installing the peers in $(BENCH) …"
	@$(RUN)/python -m venv $(BENCH) 2>/dev/null || $(PYTHON) -m virtualenv --quiet $(BENCH)
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-bench.txt -e '.[all,bench]'
	@touch $@
