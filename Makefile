# Everything starts here; `make` alone lists the targets. Needs make, and Python 3.11, 3.12 or 3.13 with venv and pip.

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=
SOAK_ARGS ?=
LOCK_ARGS ?=
SWEEP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
SETUP_EXTRAS := notebooks,lora,trl,ray,tests,docs,dev
CPU_EXTRAS := notebooks lora data trl ray tests docs browser dev
GPU_EXTRAS := $(CPU_EXTRAS) gpu
NOTEBOOKS = $(wildcard notebooks)

PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt
LOG := $(VENV)/pip.log

# The environment of every command: nothing of the caller's may shadow what is installed here.
unexport PYTHONPATH PYTHONHOME MPLBACKEND JUPYTER_PATH
export PIP_USER := 0
export JUPYTER_PREFER_ENV_PATH := 1
export TOKENIZERS_PARALLELISM := false
# Models this small are slower with more threads.
HERE = PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Tests see no network and none of the user's Jupyter or IPython settings.
USER_SETTINGS := $(CURDIR)/$(VENV)/settings
ALONE = HF_HUB_OFFLINE=1 IPYTHONDIR="$(USER_SETTINGS)" JUPYTER_CONFIG_DIR="$(USER_SETTINGS)" JUPYTER_DATA_DIR="$(USER_SETTINGS)"

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-browser test-gpu gpu-first-run test-unsloth test-vllm test-verl test-trl-latest test-environments docs sweep soak lab bench lint lock clean

help:
	@echo 'make setup       install everything into $(VENV) (a few minutes; nothing to do when it is up to date)'
	@echo 'make quickstart  setup, then a first small training run with its picture'
	@echo 'make lab         setup, then JupyterLab on notebooks/'
	@echo 'make test        setup, then all tests, and all notebooks run and compared with what they show'
	@echo 'make test-browser  setup, then the quickstart in JupyterLab, in Chromium (apt install chromium); pictures in build/browser'
	@echo 'make docs        setup, then the documentation, in build/docs'
	@echo 'make sweep       setup, then a notebook over a grid: GRID=data/grids/example.yaml SWEEP_ARGS="--jobs 2"'
	@echo 'make soak        setup, then runs of every method killed at random moments and resumed (SOAK_ARGS="--minutes 60")'
	@echo 'make test-gpu    the tests that need an NVIDIA GPU, with the Python that has the extra gpu (GPU_PYTHON=python)'
	@echo 'make gpu-first-run  a first run on a GPU in pieces of nine minutes, records in data/runs/gpu (GPU_ARGS="--model PATH")'
	@echo 'make test-unsloth, make test-vllm'
	@echo '                 the policies of the GPU box, as far as a CPU runs them, each in an environment of its own'
	@echo 'make test-verl   the tests of the adapter for verl, in an environment of its own, $(VERL)'
	@echo 'make test-trl-latest  the tests of the TRL trainer on TRL $(TRL_LATEST), in an environment of its own, $(TRL_VENV)'
	@echo 'make test-environments  the tests of problems.environment with the package verifiers, in an environment of its own'
	@echo 'make bench       setup, then the benchmarks (8 minutes): data/benchmarks.csv and figures/growth.svg'
	@echo 'make lint        setup, then ruff (rules and format) and mypy on the core'
	@echo 'make lock        renew the constraints files from pyproject.toml (needs uv), except constraints-verl.txt'
	@echo 'make clean       remove the environments and what tools leave behind; runs are kept'
	@echo
	@echo 'variables: PYTHON=$(PYTHON)  JOBS=$(JOBS)  PYTEST_ARGS="-k name"'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt .ci/install-torch
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "error: Python 3.11, 3.12 or 3.13 is needed, and '$(PYTHON)' is $$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo missing); name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: '$(PYTHON)' cannot make environments: its venv or ensurepip is missing (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "[1/4] $(VENV): an environment of $$($(BIN)/python --version)"
	@echo '[2/4] PyTorch'
	@.ci/install-torch $(BIN)/python
	@echo '[3/4] workbench and what it needs, at the pins of constraints.txt (a minute or more; progress in $(LOG))'
	@$(PIP_INSTALL) -e '.[$(SETUP_EXTRAS)]' >$(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 1; }
	@echo '[4/4] reasoning-gym, for more kinds of problems'
	@$(PIP_INSTALL) reasoning-gym >>$(LOG) 2>&1 || \
	  echo '      left out, see $(LOG): one of its dependencies (pycosat) needs a C compiler; all else works without it'
	@touch $@
	@echo 'ready: make quickstart, make lab, or . $(BIN)/activate'

quickstart: setup
	@$(HERE) $(BIN)/python -m workbench quickstart

test: setup
	@$(HERE) $(ALONE) $(BIN)/python -m pytest -p no:benchmark -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	  --nbval --nbval-current-env --nbval-cell-timeout 600 tests $(NOTEBOOKS) $(PYTEST_ARGS)

# What only this target needs is installed by it: the driver of the browser, not a browser.
test-browser: setup
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(PIP_INSTALL) -q -e '.[browser]' || \
	  echo 'playwright could not be installed; the test is skipped'
	@$(HERE) HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -p no:benchmark -n 0 tests/browser $(PYTEST_ARGS)

docs: setup
	@$(HERE) $(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo 'open build/docs/index.html'

sweep: setup
	@test -n '$(GRID)' || { echo 'error: name a grid: make sweep GRID=data/grids/example.yaml' >&2; exit 1; }
	@$(HERE) $(BIN)/python -m workbench sweep '$(GRID)' $(SWEEP_ARGS)

soak: setup
	@$(HERE) $(ALONE) $(BIN)/python tests/soak.py $(SOAK_ARGS)

# On a GPU the packages come from environment.yml or constraints-gpu.txt, into an environment of the user's own.
# Every class and function runs in a process of its own, since vLLM gives its memory back only when its process ends.
GPU_PYTHON ?= $(PYTHON)
GPU_ARGS ?=
GPU_TESTS = $(shell grep -l 'mark[.]gpu' tests/test_*.py)

test-gpu:
	@groups=$$(HF_HUB_OFFLINE=1 $(GPU_PYTHON) -m pytest -p no:benchmark --collect-only -q -m gpu $(GPU_TESTS) \
	    | sed -n 's/^\(tests[^:]*::[^:[]*\).*/\1/p' | uniq); \
	test -n "$$groups" || { echo 'error: no test was collected: python -m workbench doctor --lab unsloth says why' >&2; exit 1; }; \
	status=0; for group in $$groups; do \
	  HF_HUB_OFFLINE=1 $(GPU_PYTHON) -m pytest -p no:benchmark -n 0 -m gpu "$$group" $(PYTEST_ARGS) || status=1; done; exit $$status

# Exit status 75, which make shows as an error, means that the next call goes on.
gpu-first-run:
	@$(GPU_PYTHON) -m examples.gpu_first_run $(GPU_ARGS)

# The policies of the GPU box on a CPU. Their packages conflict with the pins of $(VENV), so each has its own environment,
# made without a resolver from the list of constraints-NAME.txt, which also says what was left out and why.
# The CPU backend of Unsloth is AGPL-3.0: it is installed for these tests alone, and nothing of it is shipped.
test-unsloth test-vllm: test-%: .venv-%/.setup-stamp
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-$*/bin/python -m pytest -p no:benchmark -n 0 tests/test_$*.py $(PYTEST_ARGS)

.PRECIOUS: .venv-%/.setup-stamp
.venv-%/.setup-stamp: constraints-%.txt constraints.txt .ci/install-torch
	@echo 'an environment in .venv-$* (a few minutes)'
	@$(PYTHON) -m venv --clear .venv-$*
	@.ci/install-torch .venv-$*/bin/python
	@for what in '-r constraints-$*.txt' '-e .'; do \
	  .venv-$*/bin/python -m pip install --disable-pip-version-check --no-input --no-deps $$what >.venv-$*/pip.log 2>&1 || \
	    { tail -n 20 .venv-$*/pip.log >&2; exit 1; }; done
	@touch $@

# verl wants older transformers than the rest, and Python 3.11 or 3.12: its tests have an environment of their own.
VERL := .venv-verl
VERL_STAMP := $(VERL)/.setup-stamp
VERL_NEEDS := verl TransferQueue cachetools fastapi uvicorn pytest hypothesis pyyaml

test-verl: $(VERL_STAMP)
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VERL)/bin/python -m pytest -W ignore::UserWarning \
	  tests/test_verl.py $(PYTEST_ARGS)

$(VERL_STAMP): pyproject.toml constraints-verl.txt .ci/install-torch
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null || { \
	  echo "error: verl needs Python 3.11 or 3.12 with venv; name one: make test-verl PYTHON=python3.12" >&2; exit 1; }
	@$(VERL)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VERL)
	@echo '[1/2] $(VERL): PyTorch'
	@.ci/install-torch $(VERL)/bin/python
	@echo '[2/2] verl and what it needs, at the pins of constraints-verl.txt (progress in $(VERL)/pip.log)'
	@$(VERL)/bin/python -m pip install --disable-pip-version-check --no-input -c constraints-verl.txt -e . $(VERL_NEEDS) \
	  >$(VERL)/pip.log 2>&1 || { tail -n 20 $(VERL)/pip.log >&2; exit 1; }
	@touch $@

# The TRL trainer is tested on the TRL of constraints.txt by `make test`, and here on the newest one that it works with: the
# pins of constraints.txt, TRL's alone replaced.
TRL_LATEST := 1.16.0
TRL_VENV := .venv-trl-latest
TRL_STAMP := $(TRL_VENV)/.setup-stamp

test-trl-latest: $(TRL_STAMP)
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(TRL_VENV)/bin/python -m pytest -p no:benchmark -n 0 tests/test_trl*.py $(PYTEST_ARGS)

$(TRL_STAMP): pyproject.toml constraints.txt .ci/install-torch
	@$(TRL_VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(TRL_VENV)
	@echo '[1/2] $(TRL_VENV): PyTorch'
	@.ci/install-torch $(TRL_VENV)/bin/python
	@echo '[2/2] TRL $(TRL_LATEST) and what the tests need (progress in $(TRL_VENV)/pip.log)'
	@sed 's/^trl==.*/trl==$(TRL_LATEST)/' constraints.txt >$(TRL_VENV)/constraints.txt
	@$(TRL_VENV)/bin/python -m pip install --disable-pip-version-check --no-input -c $(TRL_VENV)/constraints.txt \
	  -e '.[trl,lora,tests]' >$(TRL_VENV)/pip.log 2>&1 || { tail -n 20 $(TRL_VENV)/pip.log >&2; exit 1; }
	@touch $@

# The package verifiers and its forty dependencies, some of them older than what vLLM asks for, are for `problems.environment` alone; `make test` runs the same tests with
# a stand-in.
ENVIRONMENTS_VENV := .venv-environments
ENVIRONMENTS_STAMP := $(ENVIRONMENTS_VENV)/.setup-stamp

test-environments: $(ENVIRONMENTS_STAMP)
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(ENVIRONMENTS_VENV)/bin/python -m pytest -p no:benchmark -n 0 tests/test_environments.py $(PYTEST_ARGS)

$(ENVIRONMENTS_STAMP): pyproject.toml constraints-environments.txt .ci/install-torch
	@$(ENVIRONMENTS_VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(ENVIRONMENTS_VENV)
	@echo '[1/2] $(ENVIRONMENTS_VENV): PyTorch'
	@.ci/install-torch $(ENVIRONMENTS_VENV)/bin/python
	@echo '[2/2] verifiers and what the tests need (progress in $(ENVIRONMENTS_VENV)/pip.log)'
	@$(ENVIRONMENTS_VENV)/bin/python -m pip install --disable-pip-version-check --no-input -c constraints-environments.txt \
	  -e '.[environments,tests]' >$(ENVIRONMENTS_VENV)/pip.log 2>&1 || { tail -n 20 $(ENVIRONMENTS_VENV)/pip.log >&2; exit 1; }
	@touch $@

lab: setup
	@$(HERE) $(BIN)/python -m jupyterlab --notebook-dir notebooks

# A part of the benchmarks, chosen by PYTEST_ARGS, is printed and not kept.
bench: setup
	@$(HERE) $(ALONE) $(BIN)/python -m pytest tests/bench --benchmark-columns=min,median,max,rounds \
	  $(if $(PYTEST_ARGS),$(PYTEST_ARGS),--table data/benchmarks.csv --figure figures/growth.svg)

lint: setup
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check --quiet . || { echo 'error: not formatted; run: $(BIN)/ruff format .' >&2; exit 1; }
	@$(BIN)/python -m mypy

# The tighter set first: whatever both files name has one pin. Python 3.11's answer serves 3.12 and 3.13 as well.
LOCK = uv pip compile pyproject.toml $(LOCK_ARGS) --quiet --python-version 3.11 --python-platform linux --no-annotate --no-header
define HEADER
# Pins that fit together, for Python 3.11 to 3.13: $(1).
# Use:   pip install -c $(2) -e ".[$(3)]"
# Made by `make lock`, which keeps the pins that still fit pyproject.toml; `make lock LOCK_ARGS=--upgrade` renews them all.
endef
export CPU_HEADER = $(call HEADER,what every extra but gpu brings,constraints.txt,notebooks)
export ENVIRONMENTS_HEADER = $(call HEADER,what problems.environment brings,constraints-environments.txt,environments)
export GPU_HEADER = $(call HEADER,what all extras bring on Linux with an NVIDIA GPU,constraints-gpu.txt,gpu$(comma)notebooks)
comma := ,

lock:
	@command -v uv >/dev/null || { echo 'error: uv is needed: pip install uv' >&2; exit 1; }
	$(LOCK) $(addprefix --extra ,$(GPU_EXTRAS)) -o constraints-gpu.txt
	$(LOCK) $(addprefix --extra ,$(CPU_EXTRAS)) -c constraints-gpu.txt -o constraints.txt
	$(LOCK) --extra environments --extra tests -c constraints.txt -o constraints-environments.txt
	@{ echo "$$CPU_HEADER"; cat constraints.txt; } > constraints.tmp && mv constraints.tmp constraints.txt
	@{ echo "$$GPU_HEADER"; cat constraints-gpu.txt; } > constraints.tmp && mv constraints.tmp constraints-gpu.txt
	@{ echo "$$ENVIRONMENTS_HEADER"; cat constraints-environments.txt; } > constraints.tmp && mv constraints.tmp constraints-environments.txt
	$(PYTHON) .ci/follow-pins constraints-unsloth.txt constraints-gpu.txt unsloth unsloth-zoo
	$(PYTHON) .ci/follow-pins constraints-vllm.txt constraints-gpu.txt setuptools
	@echo 'not renewed: constraints-verl.txt, which is what pip freeze says in $(VERL). For another verl: remove $(VERL), change'
	@echo 'its pins by hand, run make test-verl, and keep what $(VERL)/bin/python -m pip freeze says'

clean:
	rm -rf $(VENV) .venv-unsloth .venv-vllm $(VERL) $(TRL_VENV) $(ENVIRONMENTS_VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
