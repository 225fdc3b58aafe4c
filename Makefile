# Every target that needs Python depends on a stamped .venv, so a fresh machine needs no other command.
# Recipes are plain sh, and every path in them is relative or quoted: the checkout may lie in "a folder with blanks".

CONFIG = day1
RUN = day1
ARGS =
PYTHON ?= python3
TORCH_INDEX ?=

# PROMPT reaches generate.py in the environment, for make and sh would both read its quotes and dollars. `$(value)`
# takes it unexpanded, so that `$x`, `$(` and `$$x` (make's own spelling of `$x`) all arrive as a person meant them.
# make itself drops blanks at the start of a value on its command line: PROMPT='  x' make generate keeps them.
ifeq ($(origin PROMPT),command line)
override PROMPT := $(subst $$$$,$$,$(value PROMPT))
export PROMPT
endif
export CONFIG RUN

PY = .venv/bin/python
# one process a core, and one thread in each: more would only wait for each other
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadfile
STAMP = .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup prepare train generate audit tensorboard web test-web test test-all lint clean no-python

help: ## show this text
	@echo 'octlm: train, sample and prove a tiny decoder-only language model'
	@echo
	@awk -F ' +## +' '/^[a-z-]+:.* ## / { name = $$1; sub(/:.*/, "", name); \
	  if (split($$2, part, " [|] ") == 2) { name = name " " part[1]; $$2 = part[2] } \
	  printf "  make %-33s %s\n", name, $$2 } \
	  /^##/ { print substr($$0, 4) }' Makefile

setup: $(STAMP) ## make .venv with all packages (the targets below do it themselves)

prepare: $(STAMP) ## CONFIG=day1 | make a recipe's tokenizer and token files (train does it itself)
	$(PY) scripts/prepare.py --config "$$CONFIG" $(ARGS)

train: $(STAMP) ## CONFIG=day1 | train configs/day1.yaml into runs/day1
	$(PY) train.py --config "$$CONFIG" $(ARGS)

generate: $(STAMP) ## RUN=day1 PROMPT='def ' | let a trained run go on with a text
	@case "$$RUN" in */*) run=$$RUN ;; *) run=runs/$$RUN ;; esac; \
	$(PY) generate.py --run "$$run" $${PROMPT+"--prompt=$$PROMPT"} $(ARGS)

audit: $(STAMP) ## RUN=day1 | test what a trained run claims: causality, cache, resume, parity, ...
	@case "$$RUN" in */*) run=$$RUN ;; *) run=runs/$$RUN ;; esac; \
	$(PY) scripts/audit.py --run "$$run" $(ARGS)

tensorboard: $(STAMP) ## look at the curves of runs/ in a browser
	$(PY) -m tensorboard.main --logdir runs $(ARGS)

web: ## build the page and open it in a browser (Node 20 or newer)
	cd web && npm ci --no-audit --no-fund && npm run build && npm run preview -- --open $(ARGS)

test-web: ## test the page: its numbers against PyTorch's, its use in Chromium
	cd web && npm ci --no-audit --no-fund && npm run all $(ARGS)

test: $(STAMP) ## run the tests that take at most two minutes together
	$(PYTEST) -m 'not slow' $(ARGS)

test-all: $(STAMP) ## run every test
	$(PYTEST) $(ARGS)

lint: $(STAMP) ## check style (ruff) and types (mypy)
	$(PY) -m ruff check .
	$(PY) -m mypy

clean: ## remove .venv, the page and all caches in this folder; runs/ stays
	rm -rf web/node_modules web/dist web/coverage web/test-results
	rm -rf .venv build octlm.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##
## Variables
##   CONFIG=NAME|PATH   a recipe of configs/, or any YAML file
##   RUN=NAME|PATH      a run under runs/; with a slash in it, the path of a run or a checkpoint
##   PROMPT='TEXT'      the text to go on with: quotes, $ and newlines arrive as typed
##   ARGS='...'         more for the command behind the target: ARGS='train.steps=800 train.seed=1',
##                      ARGS='--temperature 0.5', ARGS='-k cache'; --help lists what it takes
##   PYTHON=python3     the Python (3.10 or newer) that .venv is made from
##   TORCH_INDEX=URL    a package index with PyTorch builds, looked at beside pip's own: on Linux without
##                      a GPU, the URL that PyTorch's installation page gives for CPU saves gigabytes

# The stamp is removed first and made last, so an interrupted set-up starts over in an empty .venv. A dead link
# (the Python that .venv was made from is gone) counts as no .venv at all.
$(STAMP): pyproject.toml constraints.txt $(if $(shell test -x $(PY) && echo yes),,no-python)
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo 'make: PYTHON=$(PYTHON): no such program; name one: make PYTHON=python3.12' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: PYTHON=$(PYTHON) is $$("$(PYTHON)" --version 2>&1); octlm needs Python 3.10 or newer:" \
	    'make PYTHON=python3.12' >&2; exit 1; }
	@echo 'Setting up .venv, once: PyTorch and 70 smaller packages, about 1.2 GB on disk (more with CUDA).'
	@if [ -z "$(TORCH_INDEX)" ] && [ "$$(uname)" = Linux ] && ! command -v nvidia-smi >/dev/null; then \
	  echo 'No NVIDIA GPU found. If pip picks a CUDA build (3 GB to load), TORCH_INDEX helps: see make help.'; fi
	@if [ -f $@ ] && [ -x $(PY) ]; then rm -f $@; else "$(PYTHON)" -m venv --clear .venv || { \
	  echo 'make: $(PYTHON) cannot make .venv (on Debian and Ubuntu the package python3-venv is missing)' >&2; \
	  exit 1; }; fi
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; \
	$(PY) -m pip install $$quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -c constraints.txt -e '.[dev]'
	@$(PY) -c 'import importlib.metadata, platform; \
	print(".venv is ready: Python", platform.python_version() + ", PyTorch", importlib.metadata.version("torch"))'
	@touch $@
