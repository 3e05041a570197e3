# Every target does its own set-up: a virtual environment in .venv with packages from PyPI, and for the tests two
# servers in .cache and a Java for Spark. Install only Python 3.11 or newer, make and git beforehand.

.DEFAULT_GOAL := help
.PHONY: help demo compose-demo check test test-all test-rest tidy soak soak-log soak-processes soak-retriers soak-workers soak-lasting soak-overload soak-reads soak-hostile soak-hellos soak-messages soak-mutated soak-pipeline soak-faults soak-members soak-filesystems soak-histories bench bench-commits lint lint-ruff lint-format lint-mypy lint-pyright clean distclean run-environment dev-environment go-tools java filesystems

BIN := .venv/bin

# The folders that hold tests for `make check`: to collect the others as well would take seconds.
QUICK := $(addprefix tests/,tidy log sm sim glue rules golden verdict replication cluster control backup)

# With marks behind it. The tests that start nodes or Spark are a group: one worker runs it, the other one the rest.
RUN_TESTS := $(BIN)/python -m pytest -n 2 --dist loadgroup

help: ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 21

demo: run-environment ## run three nodes with one log (CHECK=1: check their answers and exit; ARGS=...: more flags)
	@check=$(if $(filter-out 0,$(CHECK)),--check); \
	if [ ! -t 0 ] || [ ! -t 1 ]; then check=--check; fi; \
	exec $(BIN)/quire demo $$check $(ARGS)

compose-demo: ## run containers under load, kill one, cut one off (needs docker and docker-compose)
	@deploy/demo.py

check: dev-environment ## in a minute: lint, tidy tests, synchronous unit tests, ten simulated histories
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/python -m pytest -q -n 2 --durations=0 --durations-min=2 -m "not alone and not slow and not full" $(QUICK)

test: dev-environment go-tools java ## before a commit is pushed: every package, one test of each kind (ARGS=...: what to pass to pytest)
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(RUN_TESTS) -m "not full"
endif

test-all: dev-environment go-tools java filesystems ## every test there is
	$(RUN_TESTS) -m "full or not full"

test-rest: dev-environment go-tools java filesystems ## what test-all runs and test does not
	$(RUN_TESTS) -m full

soak: soak-log soak-processes soak-retriers soak-workers soak-lasting soak-overload soak-reads soak-hostile soak-hellos soak-messages soak-mutated soak-pipeline soak-faults soak-members soak-filesystems soak-histories ## long runs of the tests; the last goes on until a rule breaks (FROM=seed, JOBS=processes)

soak-log: dev-environment
	$(BIN)/python -m tests.log $(ARGS)

soak-processes: dev-environment go-tools java
	$(BIN)/python -m pytest -m soak $(ARGS)

soak-retriers: dev-environment
	$(BIN)/python -m tests.processes.retriers

soak-workers: dev-environment
	$(BIN)/python -m tests.processes.workers

soak-lasting: dev-environment
	$(BIN)/python -m tests.processes.lasting

soak-overload: dev-environment
	$(BIN)/python -m tests.overload load --minutes 5

soak-reads: dev-environment
	$(BIN)/python -m tests.overload reads --minutes 2 --callers 200

soak-hostile: dev-environment
	$(BIN)/python -m tests.overload hostile --minutes 60 --seed $(or $(FROM),1)

soak-hellos: dev-environment
	$(BIN)/python -m tests.processes.bad_hellos $(ARGS)

soak-messages: dev-environment
	CHANGED_MESSAGES=1 $(BIN)/python -m pytest -m "full or not full" tests/cluster/test_changed_messages.py tests/cluster/test_changed_requests.py $(ARGS)

soak-mutated: dev-environment
	$(BIN)/python -m tests.overload mutated --messages $(or $(MESSAGES),200000) --seed $(or $(FROM),1)

soak-pipeline: dev-environment java
	PIPELINE_RECORDS=10000000 PIPELINE_KILLS=20 $(BIN)/python -m pytest tests/pipeline $(ARGS)

soak-faults: dev-environment go-tools
	$(BIN)/python -m tests.faults --page
	$(BIN)/python -m tests.faults --slow-follower 5
	$(BIN)/python -m tests.faults --seed $(or $(FROM),10) --minutes 30 --page

soak-members: dev-environment
	$(BIN)/python -m quire.cluster.simulator --members --histories $(or $(HISTORIES),2000) --jobs $(or $(JOBS),2)

soak-filesystems: dev-environment filesystems
	$(BIN)/python -m tests.filesystems $(ARGS)

soak-histories: dev-environment
	$(BIN)/python -m quire.cluster.simulator --stranger --seeds 0:5000 --jobs $(or $(JOBS),2)
	$(BIN)/python -m quire.cluster.simulator --other-code --seeds 0:1000 --jobs $(or $(JOBS),2)
	$(BIN)/python -m quire.cluster.simulator --soak $(or $(FROM),1000000) --jobs $(or $(JOBS),2)

bench: dev-environment ## compare with etcd, NATS and Kafka: an hour; BENCH=quick takes 15 minutes (ARGS=...: more flags)
	@tests/setup/go_tools.sh etcd nats-server load >&2
	@tests/setup/kafka.sh >&2
	@$(BIN)/python -m benchmarks.compare $(if $(filter quick,$(BENCH)),--quick) $(ARGS)

bench-commits: dev-environment ## compare the checkout with a commit: OLD=commit (LOAD=alone,64,500,batch,idle SLICES=12)
	@$(BIN)/python -m benchmarks.commits $(OLD) $(if $(LOAD),--load $(LOAD)) $(if $(SLICES),--slices $(SLICES))

lint: lint-ruff lint-format lint-mypy lint-pyright ## run ruff, mypy and pyright

tidy: dev-environment
	$(BIN)/python -m pytest -q -n 2 tests/tidy

lint-ruff: dev-environment
	$(BIN)/ruff check

lint-format: dev-environment
	$(BIN)/ruff format --check

lint-mypy: dev-environment
	$(BIN)/mypy

lint-pyright: dev-environment
	$(BIN)/pyright

clean: ## remove the output of builds, tests and linters
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove the virtual environment and the cached tools, too
	rm -rf .venv .cache

run-environment:
	@tests/setup/python.sh run

dev-environment:
	@tests/setup/python.sh dev

go-tools: dev-environment
	@tests/setup/go_tools.sh

java:
	@tests/setup/java.sh

# After java: two runs of apt-get do not wait for each other.
filesystems: | java
	@tests/setup/filesystems.sh
