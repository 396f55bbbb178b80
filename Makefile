# Everything is installed into .venv, by the interpreter that PYTHON names: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# One stamp per set of extras; a changed pyproject.toml installs again.
STAMPS := $(VENV)/.stamps

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format jaeger clean

help:
	@echo 'make demo       a small training cluster on this machine, its run put into causal order'
	@echo 'make test       the ordinary test suite; builds a Jaeger to test against, once, where Go is installed'
	@echo 'make test-slow  the longer tests'
	@echo 'make lint       ruff and mypy'
	@echo 'make format     ruff, rewriting'
	@echo 'make jaeger     build Jaeger from source with Go, for `otel-tf jaeger` and the tests'
	@echo 'make clean      remove $(VENV) and what the tools left'

demo: $(STAMPS)/demo
	$(BIN)/otel-tf demo

test: $(STAMPS)/dev
	$(BIN)/python -m pytest

test-slow: $(STAMPS)/slow
	$(BIN)/python -m pytest -m slow

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

jaeger:
	$(PYTHON) tests/backends/build.py

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMPS)/demo: EXTRAS := demo
$(STAMPS)/dev: EXTRAS := demo,report,dev
$(STAMPS)/slow: EXTRAS := demo,report,dev,spark

$(STAMPS)/%: pyproject.toml | $(BIN)/python
	@echo 'Installing otel-tf[$(EXTRAS)] into $(VENV); TensorFlow is a large download.'
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@mkdir -p $(STAMPS) && touch $@

# Debian packages venv without ensurepip, which it needs: asked first, since it would leave half a .venv.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'otel-tf needs Python 3.10 or newer; choose one: make PYTHON=python3.12 …' >&2; exit 2; }
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	elif $(PYTHON) -m virtualenv --version >/dev/null 2>&1; then $(PYTHON) -m virtualenv --quiet $(VENV); \
	elif command -v virtualenv >/dev/null; then virtualenv --quiet --python "$$(command -v $(PYTHON))" $(VENV); \
	else echo '$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv' >&2; exit 2; fi
