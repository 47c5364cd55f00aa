# Every target sets up what it needs in a local .venv; nothing is installed outside this clone.
# make PYTHON=… chooses the interpreter; SILTSTONE_PURE=1 leaves the hot modules uncompiled.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo dev test unit lint bench base compare soak fmt types check coverage dist docs lock clean help

# What a surrounding environment or an outer project says must not leak in. Without bytecode each
# process would compile all its modules again, and each run of pytest all tests.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PYTHON

# .venv has the wheel of this clone, compiled; .venv-dev runs src as it stands, uncompiled.
VENV := .venv
BIN := $(VENV)/bin
DEV := .venv-dev
PEERS := build/peers/.fetched
# A test process for each core, two at least: much of the time is spent waiting.
PARALLEL := -n $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 2 ? n : 2))) --dist loadgroup

# What hypothesis draws from in a long run; each run has another one, and prints it.
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

# Seeds of the simulation of replicated shards that a long run takes.
RUNS := 20000

# A directory is newer when a module was added to it or removed from it.
SOURCES := $(shell find src -name __pycache__ -prune -o \( -type d -o -name '*.py' \) -print)

FORM := $(if $(filter 1,$(SILTSTONE_PURE)),pure,compiled)
SYNCED := $(VENV)/.synced
BUILT := $(VENV)/.built-$(FORM)
EDITABLE := $(DEV)/.made

demo: $(BUILT)  ## devices publish, kill -9, nothing is lost, Spark reads the log, Delta tables appear
	$(BIN)/python -m examples.demo

dev: $(EDITABLE)  ## .venv-dev: an environment in which an edit counts at once; compiles nothing
	@echo "run $(DEV)/bin/siltstone, $(DEV)/bin/python -m pytest …; make unit runs the unit tests"

test: $(BUILT) $(EDITABLE) $(PEERS)  ## run the whole suite as installed, then unit and property tests uncompiled
	$(BIN)/python -m pytest $(PARALLEL)
	$(DEV)/bin/python -m pytest $(PARALLEL) --form=pure --hypothesis-profile=brief \
		tests/unit tests/property

unit: $(EDITABLE)  ## run the unit tests uncompiled; needs no C compiler
	$(DEV)/bin/python -m pytest $(PARALLEL) --form=pure --hypothesis-profile=brief tests/unit

lint: $(EDITABLE) types  ## check style, format, types and the import arrows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PYTHONPATH=src $(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

types: $(EDITABLE)  ## check types
	$(BIN)/mypy

check: lint test  ## everything that must pass before a commit

fmt: $(SYNCED)  ## format, and mend what can be mended by machine
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

bench: $(BUILT) $(PEERS)  ## measure against the speeds we promise, beside Mosquitto, NATS, RocksDB and SQLite
	$(BIN)/python -m bench.traffic
	$(BIN)/python -m bench
	$(BIN)/python -m bench.reading --only small
	$(BIN)/python -m bench.broker
	$(BIN)/python -m bench.sessions
	$(BIN)/python -m bench.idle_sessions
	$(BIN)/python -m bench.largest_packets
	$(BIN)/python -m bench.pipeline
	$(BIN)/python -m bench.topiclog
	$(BIN)/python -m bench.snapshot
	$(BIN)/python -m bench.cluster

base: $(SYNCED)  ## build another version in build/base, to compare with: make base REF=<commit>
	tools/base.sh $(REF)

compare: $(BUILT)  ## measure this build beside the one in build/base, in turns
	$(BIN)/python -m bench.compare

soak: $(BUILT)  ## the long runs: fifty kills, more examples, a hundred million rows
	@echo "seed of the generated histories: $(SEED); make soak SEED=$(SEED) runs the same ones again"
	$(BIN)/python -m tests.simulation --first $(SEED) --runs $(RUNS)
	$(BIN)/python -m pytest -m soak --hypothesis-profile=soak --hypothesis-seed=$(SEED)
	@if [ -e bench/scale.py ]; then set -x; $(BIN)/python -m bench.scale --full; fi

coverage: $(EDITABLE) $(PEERS)  ## branches that the tests reach, measured uncompiled
	$(DEV)/bin/python -m coverage erase
	$(DEV)/bin/python -m coverage run -m pytest --form=pure
	$(DEV)/bin/python -m coverage combine --quiet
	$(DEV)/bin/python -m coverage report

dist: $(SYNCED)  ## build a wheel in dist/, compiled where a C compiler works
	tools/setup.sh wheel dist
	@ls dist/*.whl

docs: $(BUILT)  ## remake the generated references, and build the documentation in build/site
	$(BIN)/python -m tools.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lock:  ## remake requirements.lock; LOCK_FLAGS=--upgrade takes newer versions
	tools/setup.sh lock $(LOCK_FLAGS)

clean:  ## remove everything that make made
	rm -rf $(VENV) $(DEV) build dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache src/siltstone.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

help:  ## say what the targets do
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/\1\t\2/p' Makefile | sort | while IFS=$$'\t' read -r name text; \
		do printf '  make %-9s %s\n' "$$name" "$$text"; done

$(SYNCED): requirements.lock tools/setup.sh
	tools/setup.sh environment
	touch $@

# setup.py compiles again only if a hot module has changed, or one that it imports.
$(BUILT): $(SYNCED) pyproject.toml setup.py $(SOURCES)
	rm -f $(VENV)/.built-*
	tools/setup.sh package
	touch $@

$(EDITABLE): $(SYNCED) pyproject.toml setup.py
	tools/setup.sh dev
	touch $@

# Stock clients and brokers that the machine lacks; what is not to be had is left out, visibly.
$(PEERS): tools/peers.sh
	tools/peers.sh
	mkdir -p $(@D) && touch $@
