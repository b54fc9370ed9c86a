# Every target sets up what it needs on a machine that has Python 3.11 to 3.14 and make; once set up, none needs the network.
PYTHON ?= python3
BIN := .venv/bin
# which one is installed: make TORCH='torch==2.11.*'
TORCH ?= torch
# Triton 3.6, which torch 2.11 brings, interprets kernels only with a numpy below 2.4 (newer ones refuse a loop's bound that is an argument)
NUMPY := $(if $(findstring 2.11,$(TORCH)),"numpy<2.4")
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --editable
# Jupyter refuses to start as root without it
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: demo test test-all lab lessons release lint measured nightly site help

help:
	@echo "make demo      grade a slowed-down loop and its fix on this machine, and show both reports"
	@echo "make lab       open the course in JupyterLab"
	@echo "make test      run the tests"
	@echo "make test-all  run the slow ones, too"
	@echo "make lessons   execute the lessons in full on this machine and keep their outputs; some of them: make lessons NOTEBOOKS='a.ipynb b.ipynb'"
	@echo "make release   make labs/ anew from solutions/ and the starters"
	@echo "make nightly   execute and grade everything on this machine; one lab: make nightly NIGHTLY='--quick --labs 2a_workers --kinds solution,grade'"
	@echo "make site      the lessons with their outputs as a web site, in work/site"
	@echo "make measured  measure on this machine what the course says of its labs (long; for maintainers); one lab: make measured MEASURED='--labs 2a_workers'"

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "The course needs Python 3.11 to 3.14; this is " + sys.version.split()[0] + ". Say which with: make PYTHON=python3.12 ...")'
	@echo "Setting up takes 6 GB and some minutes. pip is silent while it unpacks what it fetched."
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[all]" "$(TORCH)" $(NUMPY)
	touch $@

# what the tests need beside it
.venv/tested: .venv/ready
	$(INSTALL) ".[all,test]" "$(TORCH)" $(NUMPY)
	touch $@

demo: .venv/ready
	$(BIN)/grader demo

# without the instructor's tools of nbgrader; whoever marks starts `jupyter lab` (docs/instructors.md)
lab: .venv/ready
	JUPYTER_CONFIG_PATH="$(CURDIR)/grader/frontends/learner:$$JUPYTER_CONFIG_PATH" PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab $(ALLOW_ROOT) --ServerApp.root_dir="$(CURDIR)" notebooks/00_start_here.ipynb

# Two at a time. What fails beside another test, on a busy machine, gets one more try alone, and has to pass it.
tests = $(BIN)/python -m pytest -n 2 $(1) || \
	{ [ $$? -eq 1 ] && $(BIN)/python -m pytest $(1) --last-failed --last-failed-no-failures=none --exitfirst; }

test: .venv/tested lint
	$(call tests)

test-all: test
	$(call tests,-m slow)

lint: .venv/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

lessons: .venv/ready
	$(BIN)/python -m grader.frontends.lessons $(NOTEBOOKS)

release: .venv/ready
	$(BIN)/python -m grader.frontends.release

measured: .venv/tested
	$(BIN)/python -m tests.benchmarks.measured $(MEASURED)

nightly: .venv/tested
	$(BIN)/grader nightly $(NIGHTLY)

site: .venv/tested
	$(BIN)/python -m grader.nightly.site $(SITE)
