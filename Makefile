# Every target sets up what it needs in a local .venv; nothing is installed outside this clone.
# make PYTHON=… chooses the interpreter; SILTSTONE_PURE=1 leaves the hot modules uncompiled.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo test lint bench soak fmt types check coverage dist docs lock clean help

# What a surrounding environment or an outer project says must not leak in.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME
export PYTHON

VENV := .venv
BIN := $(VENV)/bin
PURE := build/pure
PEERS := build/peers/.fetched
# A test process for each core, two at least: much of the time is spent waiting.
PARALLEL := -n $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 2 ? n : 2))) --dist loadgroup

# What hypothesis draws from in a long run; each run has another one, and prints it.
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

COMPILED := $(shell sed -n 's|^    "\(src/siltstone/.*\.py\)",$$|\1|p' setup.py)
ifeq ($(COMPILED),)
$(error setup.py lists no compiled modules in the form this Makefile reads)
endif
# mypyc copies the Final constants of the modules that these import, so they are inputs too.
IMPORTED := $(shell sed -n 's|^from \(siltstone[a-z_.]*\) import.*|\1|p' $(COMPILED) | tr . /)
BUILD_INPUTS := $(sort $(COMPILED) $(IMPORTED:%=src/%.py))

FORM := $(if $(filter 1,$(SILTSTONE_PURE)),pure,compiled)
SYNCED := $(VENV)/.synced
BUILT := $(VENV)/.built-$(FORM)

demo: $(BUILT)  ## devices publish, kill -9, nothing is lost, Spark reads the log, Delta tables appear
	$(BIN)/python -m examples.demo

test: $(BUILT) $(PURE) $(PEERS)  ## run the whole suite as installed, then unit and property tests uncompiled
	$(BIN)/python -m pytest $(PARALLEL)
	PYTHONPATH=$(PURE) $(BIN)/python -m pytest $(PARALLEL) --form=pure --hypothesis-profile=brief \
		tests/unit tests/property

lint: $(BUILT) types  ## check style, format, types and the import arrows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

types: $(BUILT)  ## check types
	$(BIN)/mypy

check: lint test  ## everything that must pass before a commit

fmt: $(BUILT)  ## format, and mend what can be mended by machine
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

bench: $(BUILT) $(PEERS)  ## measure against the speeds we promise, beside Mosquitto, NATS, RocksDB and SQLite
	$(BIN)/python -m bench
	$(BIN)/python -m bench.broker
	$(BIN)/python -m bench.sessions
	$(BIN)/python -m bench.idle_sessions
	$(BIN)/python -m bench.largest_packets
	$(BIN)/python -m bench.pipeline
	$(BIN)/python -m bench.topiclog
	$(BIN)/python -m bench.snapshot

soak: $(BUILT)  ## the long runs: fifty kills, more examples, a hundred million rows
	@echo "seed of the generated histories: $(SEED); make soak SEED=$(SEED) runs the same ones again"
	$(BIN)/python -m pytest -m soak --hypothesis-profile=soak --hypothesis-seed=$(SEED)
	@if [ -e bench/scale.py ]; then set -x; $(BIN)/python -m bench.scale --full; fi

coverage: $(BUILT) $(PURE)  ## branches that the tests reach, measured uncompiled
	$(BIN)/coverage erase
	PYTHONPATH=$(PURE) $(BIN)/coverage run -m pytest --form=pure
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

dist: $(BUILT)  ## build a wheel in dist/, compiled where a C compiler works
	$(BIN)/python -m uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist
	@ls dist/*.whl

docs: $(BUILT)  ## build the documentation in build/site, strict about links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lock:  ## remake requirements.lock; LOCK_FLAGS=--upgrade takes newer versions
	tools/setup.sh lock $(LOCK_FLAGS)

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache src/siltstone.egg-info
	find src -name '*.so' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

help:  ## say what the targets do
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/\1\t\2/p' Makefile | sort | while IFS=$$'\t' read -r name text; \
		do printf '  make %-9s %s\n' "$$name" "$$text"; done

$(SYNCED): requirements.lock tools/setup.sh
	tools/setup.sh environment
	touch $@

# A stale extension would run instead of the edited module, so a newer input means a new build.
$(BUILT): $(SYNCED) pyproject.toml setup.py $(wildcard $(BUILD_INPUTS))
	rm -f $(VENV)/.built-*
	tools/setup.sh package
	touch $@

# Stock clients and brokers that the machine lacks; what is not to be had is left out, visibly.
$(PEERS): tools/peers.sh
	tools/peers.sh
	mkdir -p $(@D) && touch $@

# The same sources without the extensions beside them; the tests refuse to run on anything else.
.PHONY: $(PURE)
$(PURE):
	rm -rf $@ && mkdir -p $@
	cp -R src/siltstone $@/
	find $@ -name '*.so' -delete
