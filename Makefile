# Everything here can be run again and again, in any order. `make setup` stands behind the others.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup layer demo test checked validate lint bench docs clean distclean

PYTHON_IN_VENV := .venv/bin/python
# Under `sudo make` this gives root's rights up first, so that files stay the caller's.
AS_OWNER := $(PYTHON_IN_VENV) -B tools/setup/owner.py
OUT ?= out
PROMPT ?= def
TOKENS ?= 200
PYTEST_ARGS ?=
BENCH_ARGS ?= --cold
PYTEST := $(AS_OWNER) $(PYTHON_IN_VENV) -m pytest -q -n 2 --dist loadfile
# Passed to the commands below through the environment, where no quotation mark in them can do harm.
export PYTHON OUT PROMPT TOKENS

help:
	@echo "make demo    train a small Kimi K3 on a Vulkan device and let it write"
	@echo "             TEXT=path  a file or folder to learn (default: this repository)"
	@echo "             OUT=dir (out)  STEPS=n  SEED=n  PROMPT=text  TOKENS=n"
	@echo "make test    run the tests       PYTEST_ARGS='-k softmax'"
	@echo "make checked   the tests with every index tested and every barrier proved"
	@echo "make validate  the tests under the Khronos validation layer"
	@echo "make bench   speed beside XLA, IREE and hand-written kernels, into out/bench.md   BENCH_ARGS='matmul_512 --peers xla'"
	@echo "make lint    ruff and mypy"
	@echo "make docs    the pages that are made from the code"
	@echo "make setup   what those need: a Vulkan driver and .venv"
	@echo "make clean   remove caches and out/; make distclean removes .venv too"

setup:
	@tools/setup.sh

# The tests ask the validation layer too.
layer:
	@tools/setup.sh --layer

demo: setup
	@$(AS_OWNER) .venv/bin/k3jit train --out "$$OUT" $${TEXT:+--text "$$TEXT"} $${STEPS:+--steps "$$STEPS"} $${SEED:+--seed "$$SEED"}
	@$(AS_OWNER) .venv/bin/k3jit generate "$$OUT" --prompt "$$PROMPT" --tokens "$$TOKENS"

test: layer
	@$(PYTEST) $(PYTEST_ARGS) tests

checked: layer
	@K3JIT_CHECK=1 $(PYTEST) $(PYTEST_ARGS) tests

# GPU-assisted validation multiplies the code of a kernel, and compile time on the CPU grows with its square: hence short kernels.
# The last two variables concern Mesa's CPU driver only.
validate: layer
	@K3JIT_VALIDATE=core,sync $(PYTEST) $(PYTEST_ARGS) tests
	@K3JIT_VALIDATE=gpu K3JIT_COMPACT=1 LP_NATIVE_VECTOR_WIDTH=128 GALLIVM_PERF=nopt $(PYTEST) $(PYTEST_ARGS) tests

bench:
	@tools/setup.sh bench
	@$(AS_OWNER) $(PYTHON_IN_VENV) -m k3jit.benchmarks --out "$$OUT" $(BENCH_ARGS)

lint:
	@tools/setup.sh dev
	@$(AS_OWNER) $(PYTHON_IN_VENV) -m ruff check .
	@$(AS_OWNER) tools/typecheck.sh

docs: setup
	@$(AS_OWNER) $(PYTHON_IN_VENV) tools/make_docs.py
	@$(AS_OWNER) $(PYTHON_IN_VENV) tools/kernel_report.py

clean:
	@rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	@rm -rf .venv k3jit.egg-info
