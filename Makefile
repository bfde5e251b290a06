# From a bare clone with Python 3.11 or newer and make, nothing else: `make demo`, `make test`.
# What runs in CI is `make test`; everything in it is a tox environment, so that a red run can be
# repeated by name: `.venv/bin/tox run -e lint`.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
PARTS := core plugins/storage_file plugins/transport_tcp
PROJECTS := $(PARTS:%=%/pyproject.toml)

# pyenv hides the interpreters that are installed but not selected; tox should see them all
PYENV_VERSION ?= $(shell command -v pyenv >/dev/null && pyenv versions --bare 2>/dev/null | \
	grep -E '^3\.(1[1-9])\.[0-9]+$$' | paste -sd: -)
ifneq ($(PYENV_VERSION),)
export PYENV_VERSION
endif

.PHONY: help demo test lint types format reference clean

help:  ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

demo: $(BIN)/odradek  ## start a broker, send data of this machine through it
	@$(BIN)/odradek demo

test: $(BIN)/tox  ## run everything that CI runs (ARGS="-e storage_file" for one environment)
	@$(BIN)/tox run $(ARGS)

lint: $(BIN)/tox  ## check style, format and the direction of imports
	@$(BIN)/tox run -q -e lint

types: $(BIN)/tox  ## check types
	@$(BIN)/tox run -q -e types

format: $(BIN)/tox  ## format the code
	@$(BIN)/tox exec -q -e lint -- ruff format .
	@$(BIN)/tox exec -q -e lint -- ruff check --fix .

reference: $(BIN)/odradek  ## write the pages on settings from the settings' classes
	@$(BIN)/python scripts/reference.py

clean:  ## remove what make and tox made
	rm -rf $(VENV) .tox .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none was found" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)

$(BIN)/odradek: $(BIN)/python $(PROJECTS)
	@echo "installing odradek and its plugins into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PARTS:%=--editable %)
	@touch $@

$(BIN)/tox: $(BIN)/python tox.ini
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'tox>=4.22' 'tox-uv>=1.16'
	@touch $@
