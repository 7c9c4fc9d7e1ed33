# Everyday commands; `make` lists them. Needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=

bin := $(VENV)/bin
installed := $(VENV)/.installed
# One process per core beats several threads per process for tests as small as these.
pytest := OMP_NUM_THREADS=1 $(bin)/python -m pytest -n $(JOBS) --dist worksteal
none_is_fine := test $$? -eq 5 # pytest's status for an empty selection

.DEFAULT_GOAL := help
.PHONY: help install demo test test-cluster test-slow test-real test-learning test-wheel fuzz soak lint format hooks docs tutorials browser-tools bench constraints clean
MAKEFLAGS += --no-print-directory

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(installed) ## the package with every extra and the test tools, into .venv

# The stamp makes this a no-op until the requirements or the version change.
$(installed): pyproject.toml constraints.txt ltnode/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "ltnode needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1): make install PYTHON=python3.12" >&2; exit 1; }
	@test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ltnode and its tools into $(VENV) (a few minutes the first time)"
	@$(bin)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(installed) ## train the four models on data with a gap; table, figure and page in demo/
	@$(bin)/ltnode demo --out demo

test: $(installed) ## every test but the slow ones, those on real data, on Ray clusters and for a GPU
	@$(pytest) -m "not slow and not gpu and not realdata and not ray" $(PYTEST_ARGS)

test-cluster: $(installed) ## the tests on Ray clusters of this machine, one at a time
	@OMP_NUM_THREADS=1 $(bin)/python -m pytest -m ray --timeout 300 $(PYTEST_ARGS) || $(none_is_fine)

test-slow: $(installed) ## the tests that take minutes
	@$(pytest) -m "slow and not gpu and not realdata and not ray" --timeout 1200 $(PYTEST_ARGS) || $(none_is_fine)

test-real: $(installed) ## the quick tests on the real image sets in the folder LTNODE_DATA
	@$(pytest) -m "realdata and not slow and not gpu" --timeout 600 $(PYTEST_ARGS) || $(none_is_fine)

test-learning: $(installed) ## every model learns 6,000 digits of LTNODE_DATA on the CPU: minutes each
	@$(pytest) -m "realdata and slow and not gpu" --timeout 1200 $(PYTEST_ARGS) || $(none_is_fine)

test-wheel: $(installed) ## build the packages, and use them in fresh environments outside of the clone
	@$(bin)/python .ci/test_wheel.py

# An hour each by default: make fuzz SECONDS=60
SECONDS ?= 3600

fuzz: $(installed) ## mutated files and requests for every reader of untrusted bytes, for SECONDS
	@cd tests && OMP_NUM_THREADS=1 PYTHONPATH=..:. ../$(bin)/python -m fuzz.run --seconds $(SECONDS) --findings ../fuzz-findings

soak: $(installed) ## mixed traffic to a server on this machine for SECONDS; memory and descriptors must stay flat
	@cd tests && OMP_NUM_THREADS=1 PYTHONPATH=..:. ../$(bin)/python -m serve.soak --seconds $(SECONDS)

lint: $(installed) ## ruff (rules and format) and mypy (strict on the package)
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy

format: $(installed) ## rewrite the sources in the house format
	@$(bin)/ruff check --fix --exit-zero -q .
	@$(bin)/ruff format .

hooks: $(installed) ## run the lint before every commit (pre-commit)
	@$(bin)/pre-commit install

docs: $(installed) ## the documentation site in build/site, with every link checked; it needs no network, nor does its reader
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict --quiet
	@$(bin)/python docs/site/check.py build/site

# SCRIPTS="tutorials/table.py" renders one of them.
SCRIPTS ?=

tutorials: $(installed) ## run the tutorials and the gallery, and record what their pages show, in docs/rendered
	@$(bin)/python docs/site/render.py $(SCRIPTS)

browser-tools: ## onnxruntime-web for the browser test of exported models (needs npm; the browser is your system's Chromium)
	@npm install --silent --no-audit --no-fund --prefix "$(HOME)/.cache/ltnode-npm" onnxruntime-web@1.30.0

bench: $(installed) ## the solver beside its peers, as ratios of one run
	@$(bin)/python benchmarks/solver.py

# The local part of a version (+cpu) names a build for one machine, not a version to ask for.
constraints: $(installed) ## write the versions in .venv to constraints.txt
	@{ sed -n '/^#/p' constraints.txt; $(bin)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > constraints.new
	@mv constraints.new constraints.txt
	@touch $(installed)

clean: ## remove caches and what demo and builds wrote (keeps .venv and runs/)
	@rm -rf demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
