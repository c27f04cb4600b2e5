# One environment, a handful of commands; `make help` lists them.
#
# The environment is plain `python3 -m venv` and pip. A stamp named after everything that shapes it
# (pyproject.toml, constraints.txt, the Python version, this folder) makes the next call start at
# once and work offline. Nothing here needs root.

# Where the surroundings forbid it, each of the hundreds of processes that the tests start would
# compile every module again.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
EXTRAS ?= torch,hf,trl,lightning,streams,loggers,data,frames,plots,docs,dev
RUNS ?= 1000000
KILLS ?= 210
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check --constraint constraints.txt

MADE_FOR := $(shell $(PYTHON) -VV 2>/dev/null) in $(CURDIR)
SHAPE := $(shell { cat pyproject.toml constraints.txt; echo '$(EXTRAS) $(MADE_FOR)'; } | sha256sum | cut -c1-16)
READY := $(VENV)/.ready-$(SHAPE)
# What the demo needs: trimtab and torch. An environment that holds everything serves it, too.
LEAST_SHAPE := $(shell { cat pyproject.toml constraints.txt; echo 'torch $(MADE_FOR)'; } | sha256sum | cut -c1-16)
LEAST := $(VENV)/.least-$(LEAST_SHAPE)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses $(JOBS) --dist worksteal

, := ,
say = @printf '\033[1m%s\033[0m\n' '$(1)'

.PHONY: help setup demo examples test test-slow test-failed bench accept fuzz lint house docs pictures checklist clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo '  variables: PYTHON (default python3), EXTRAS (default: all that the tests use; torch,dev is the least), JOBS (default: cores); demo: QUICK=1, TEXT=PATH, SCENARIO=NAME, SEED=N; bench: SEEDS=N; accept: SEEDS=A-B'

setup: $(READY)  ## make .venv with torch, trimtab and the tools; every other target does this by itself

# Makes the environment where this Python or folder has none yet, and puts torch in first.
define begin_environment
@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"trimtab needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}; try make PYTHON=python3.12")'
@if [ "$$(cat $(VENV)/.made-for 2>/dev/null)" != '$(MADE_FOR)' ]; then \
  $(PYTHON) -m venv --clear $(VENV) || { echo 'python3 -m venv failed; on Debian: apt-get install python3-venv'; exit 1; }; \
  echo '$(MADE_FOR)' > $(VENV)/.made-for; \
fi
@rm -f $(VENV)/.ready-* $(VENV)/.least-*
@$(PIP) torch
endef

$(READY):
	$(call say,Setting up $(VENV): torch first$(,) then trimtab [$(EXTRAS)]. Once; a few minutes on a slow line.)
	$(begin_environment)
	@$(PIP) 'hatchling>=1.26' editables $(if $(findstring deepspeed,$(EXTRAS)),'setuptools>=70.1')
	@$(PIP) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@ $(LEAST)
	$(call say,Ready: $(VENV)/bin/trimtab; or activate it: . $(VENV)/bin/activate)

$(LEAST):
	$(call say,Setting up $(VENV) for the demo: torch$(,) then trimtab. Once.)
	$(begin_environment)
	@$(PIP) 'hatchling>=1.26' editables
	@$(PIP) --no-build-isolation --editable '.[torch]'
	@touch $@

demo: $(LEAST)  ## train small runs on real text (healthy, faulty, guarded), read a public log, write runs/demo/report.html; QUICK=1: one short fault, under a minute
	$(call say,Demo: a healthy run$(,) one with a fault$(,) the same fault with the guard; then a public log.)
	@$(PY) -m trimtab lab demo --out runs/demo $(if $(QUICK),--quick) $(if $(TEXT),--text '$(TEXT)') $(if $(SCENARIO),--scenario '$(SCENARIO)') $(if $(SEED),--seed '$(SEED)')

lint: $(READY)  ## ruff (rules and format), mypy strict, the order of imports, the gates of `make house`
	$(call say,Lint: ruff$(,) mypy$(,) import order$(,) structure.)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) tools/house.py --check

house: $(READY)  ## the structure of the code in figures, beside seven anchor codebases
	@$(PY) tools/house.py

test: $(READY)  ## lint, and beside it every test that takes less than about 1 s
	$(call say,Tests$(,) without the slow ones; lint runs beside them and is printed after them.)
	@out=$$(mktemp); $(MAKE) --no-print-directory lint >"$$out" 2>&1 & lint=$$!; \
	tested=0; $(PYTEST) -m 'not slow' || tested=$$?; \
	linted=0; wait $$lint || linted=$$?; \
	cat "$$out"; rm -f "$$out"; \
	[ $$tested = 0 ] || exit $$tested; exit $$linted

test-slow: $(READY)  ## the tests that take longer: whole runs, kills, benchmarks in small
	$(call say,Slow tests: whole training runs; tens of minutes on two cores.)
	@$(PYTEST) -m slow

test-failed: $(READY)  ## the tests that failed last time, at most three of them, one after the other
	$(call say,Tests that failed$(,) again and alone.)
	@n=$$($(PY) -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))' 2>/dev/null || echo no); \
	case $$n in 1|2|3) ;; *) echo "$$n tests are known to have failed: not run again"; exit 1;; esac
	@OMP_NUM_THREADS=1 $(PY) -m pytest --last-failed -v

bench: $(READY)  ## trimtab beside the published rules of others on made-up runs, what the guard costs per step, how fast logs are read and a long report opens
	$(call say,Bench: what trimtab and the rules of others catch$(,) and what noise alone sets off. SEEDS=N for fewer.)
	@$(PY) -m benchmarks noise $(if $(SEEDS),--seeds '$(SEEDS)')
	$(call say,Bench: how fast a core scans training data.)
	@$(PY) -m benchmarks scan
	$(call say,Bench: the report of a million rows$(,) opened in a browser.)
	@$(PY) -m benchmarks page
	$(call say,Bench: step time with and without the guard$(,) interleaved in one process.)
	@$(PY) -m benchmarks cost
	$(call say,Bench: the slowest step among 20$(,)000 with 100 incidents$(,) and whether steps grow dearer.)
	@$(PY) -m benchmarks tail
	$(call say,Bench: reading logs$(,) beside tbparse$(,) TensorBoard$(,) pandas and a plain loop.)
	@$(PY) -c 'import pandas, tbparse' 2>/dev/null || $(PIP) pandas tbparse tensorboard
	@$(PY) -m benchmarks read

accept: $(READY)  ## every scenario of the acceptance table without and with the guard (SEEDS=A-B); an hour or so for each ten seeds
	$(call say,Acceptance: scenarios with planted faults$(,) sound runs and benign spikes.)
	@$(PY) -m benchmarks accept --jobs $(JOBS) $(if $(SEEDS),--seeds '$(SEEDS)')

fuzz: $(READY)  ## the property tests again, with fresh seeds and more examples; the readers, guided by coverage (RUNS=N); every other parser (RUNS=N of each, resumed by the next call); then runs killed at random moments (KILLS=N)
	$(call say,Fuzz: property tests with random seeds; a failure prints how to repeat it.)
	@$(PY) -m pytest -m hypothesis --hypothesis-profile=fuzz || { rc=$$?; [ $$rc = 5 ] && echo 'no property tests yet' || exit $$rc; }
	$(call say,Fuzz: the readers$(,) guided by coverage; an input that breaks one is written here.)
	@$(PY) -c 'import atheris' 2>/dev/null || $(PIP) 'atheris>=3.0'
	@$(PY) tools/fuzz.py --runs $(RUNS)
	$(call say,Fuzz: data$(,) configs$(,) checkpoints$(,) journals$(,) pages and preflight in limited processes; it goes on where it ended.)
	@$(PY) -m benchmarks fuzz all --num $(RUNS) --jobs $(JOBS) --out runs/fuzz.json
	$(call say,Fuzz: $(KILLS) kills of guarded runs$(,) at random moments and in mid-write; they must end as if unbroken.)
	@KILLS=$(KILLS) KILLS_SEED=$$RANDOM $(PY) -m pytest -m slow tests/guard/test_kills.py -rP

docs: $(READY)  ## build the documentation site, warnings as errors: build/docs/index.html
	$(call say,Docs: the site is built from docs/ and from the program itself; offline.)
	@$(PY) -c 'import furo, myst_parser' 2>/dev/null || { echo 'the docs extra is missing: make docs EXTRAS=torch,docs'; exit 1; }
	@$(PY) -m sphinx -b html -W --keep-going -n -q docs build/docs
	@echo 'build/docs/index.html'

pictures: $(READY)  ## make the pictures and the sessions of the documentation anew
	$(call say,Pictures: made anew from commands.)
	@$(PY) -m tools.doc_blocks --refresh
	@$(PY) tools/docs.py

examples: $(READY)  ## the guard in each trainer: a fault planted in a tiny GPT on real text, and the recovery
	@for script in examples/*.py; do \
	  case $$script in *deepspeed*) needs=deepspeed;; *torchtitan*) needs='torchtitan, torch; torch.cuda.current_device()';; *megatron*) needs=megatron.training;; *) needs=torch;; esac; \
	  $(PY) -c "import $$needs" 2>/dev/null || { echo "$$script: skipped, not possible here: import $$needs"; continue; }; \
	  printf '\033[1m%s\033[0m\n' "$$script"; $(PY) "$$script" || exit 1; \
	done

checklist: $(READY)  ## which items of tests/checklist.md have a test, and which are open
	$(call say,Checklist: tests/checklist.md against the tests that claim its items.)
	@$(PY) tools/checklist.py

clean:  ## remove the environment and every cache; runs/ stays
	$(call say,Removing $(VENV) and caches; runs/ stays.)
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
