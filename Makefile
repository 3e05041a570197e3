# Every target does its own set-up: a virtual environment in .venv, what it needs from PyPI, and for the tests a
# toxiproxy server in .cache and a Java for Spark. Python 3.11 or newer, make and git are all that must be there before.

.DEFAULT_GOAL := help
.PHONY: help demo compose-demo test soak soak-log soak-planted soak-retriers soak-lasting soak-pipeline soak-faults soak-histories lint lint-ruff lint-format lint-mypy lint-pyright clean distclean run-environment dev-environment toxiproxy java

BIN := .venv/bin

# Tests that start no cluster and mind no neighbour; all others run one at a time.
SIDE_BY_SIDE := $(addprefix tests/,tidy log sm sim paper golden linear)

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: run-environment ## three nodes, one log, one answer (CHECK=1: check the answers and exit; ARGS=...: more flags)
	@check=$(if $(filter-out 0,$(CHECK)),--check); \
	if [ ! -t 0 ] || [ ! -t 1 ]; then check=--check; fi; \
	exec $(BIN)/quire demo $$check $(ARGS)

compose-demo: ## three containers under load; one is killed, one cut off, all answer the same (needs docker, docker-compose)
	@deploy/demo.py

test: dev-environment toxiproxy java ## all tests (ARGS=...: what to pass to pytest)
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	@status=0; \
	$(BIN)/python -m pytest -n 2 $(SIDE_BY_SIDE) || status=$$?; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE:%=--ignore=%) || status=$$?; \
	exit $$status
endif

soak: soak-log soak-planted soak-retriers soak-lasting soak-pipeline soak-faults soak-histories ## the long forms of the tests; the last runs until a rule breaks (FROM=seed, JOBS=processes)

soak-log: dev-environment
	$(BIN)/python -m tests.log $(ARGS)

soak-planted: dev-environment
	$(BIN)/python -m tests.planted --jobs $(or $(JOBS),2)

soak-retriers: dev-environment
	$(BIN)/python -m tests.processes.retriers

soak-lasting: dev-environment
	$(BIN)/python -m tests.processes.lasting

soak-pipeline: dev-environment java
	PIPELINE_RECORDS=10000000 PIPELINE_KILLS=20 $(BIN)/python -m pytest tests/pipeline $(ARGS)

soak-faults: dev-environment toxiproxy
	$(BIN)/python -m tests.faults --page
	$(BIN)/python -m tests.faults --slow-follower 5
	$(BIN)/python -m tests.faults --seed $(or $(FROM),10) --minutes 30

soak-histories: dev-environment
	$(BIN)/python -m quire.cluster.simulator --soak $(or $(FROM),1000000) --jobs $(or $(JOBS),2)

lint: lint-ruff lint-format lint-mypy lint-pyright ## ruff, mypy, pyright

lint-ruff: dev-environment
	$(BIN)/ruff check

lint-format: dev-environment
	$(BIN)/ruff format --check

lint-mypy: dev-environment
	$(BIN)/mypy

lint-pyright: dev-environment
	$(BIN)/pyright

clean: ## remove what builds, tests and linters left
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## that, and the virtual environment and the cache of tools
	rm -rf .venv .cache

run-environment:
	@tests/setup/python.sh run

dev-environment:
	@tests/setup/python.sh dev

toxiproxy: dev-environment
	@tests/setup/toxiproxy.sh

java:
	@tests/setup/java.sh
