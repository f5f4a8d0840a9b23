# Everything from a fresh machine with Python 3.11+: `make demo` or `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LONG := long and not (slow or gpu or studies or ecosystem or browser or attack)

.PHONY: setup demo test suite long studies bounds lint types bench docs clean pages

demo: $(VENV)/.installed
	$(BIN)/loopwright demo

# mypy, which has one process, runs beside the tests
test: $(VENV)/.installed
	$(MAKE) --no-print-directory --jobs=2 lint types suite

# on a fresh clone pytest takes 8 s in each process to rewrite asserts so that they show their values: only what fails needs that
tested = $(BIN)/python -m pytest --assert=plain $(1) || { $(BIN)/python -m pytest -n 0 $(1) --last-failed --last-failed-no-failures none; exit 1; }

suite: $(VENV)/.installed
	$(call tested,)

# the longest tests of the package, which would take `make test` beyond five minutes on two cores
long: $(VENV)/.installed
	$(call tested,-m '$(LONG)')

studies: $(VENV)/.installed
	$(BIN)/python -m pytest -m 'studies and not slow and not gpu' tests/experiments

# gigabytes and an hour: the suites with the oldest and the newest versions that are allowed, in environments of their own
bounds:
	$(PYTHON) .ci/bounds

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

setup: $(VENV)/.installed

# editable_mode=compat: a script in the folder that holds the clone would else import the clone itself, which is no package
$(VENV)/.installed: pyproject.toml loopwright/version.py
	$(PYTHON) -c 'import sys; sys.exit("loopwright needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@echo 'installing loopwright and what it needs into $(VENV): a few minutes, most of it torch'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[dev]'
	touch $@

# the study pages from the committed rows
pages: $(VENV)/.installed
	$(BIN)/python -m experiments.templates

docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist site *.egg-info
