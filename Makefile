# Everything is set up by the target that is asked for; only Python 3.11+, make and a package registry
# are needed. Settings: ARGS="…" for the program that a target runs, PYTHON=… for the interpreter.

SHELL := /bin/sh
PYTHON ?=
ARGS ?=

BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Rows cost less with it, and nothing needs it.
COMPILED := packaging/compiled/bwtui_compiled.c packaging/compiled/pyproject.toml
INSTALL_COMPILED = $(PIP_INSTALL) -q './packaging/compiled[checksum]' >.venv/compiled.log 2>&1 || \
	$(PIP_INSTALL) -q ./packaging/compiled >>.venv/compiled.log 2>&1 || \
	echo "rows are encoded in Python, as bwtui_compiled can't be built here: .venv/compiled.log says why"; \
	rm -rf packaging/compiled/build packaging/compiled/*.egg-info
CANDIDATES := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-unit test-services test-one test-long check house format bench bench-screens bench-verify bench-compare bench-snapshot bench-debezium bench-pipeline bench-replay torture drift kills heal promotions shapes bounds snapshots exactly-once campaign storm sample audit-proof audit-segments dist docs man venv lock clean

help: ## Show this help.
	@printf 'bwtui: see every change travel from PostgreSQL to Kafka.\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'
	@printf '\nOptions go into ARGS: make demo ARGS="--headless --seconds 20"\n'

demo: .venv/installed ## Start real services and show the relay live; q ends it.
	@$(BIN)/bwtui demo $(ARGS)

# The limit in pyproject.toml raises in the main thread, once a test: code that waits in C, or a fixture's end
# behind it, would go on for ever. Then the process ends with the stacks of all its threads, and pytest-xdist
# names the test and begins its file again, once.
END_A_HANG = --max-worker-restart 1 -o faulthandler_exit_on_timeout=true -o faulthandler_timeout=

UNIT = tests/unit tests/property tests/cli

test: test-unit test-services ## Run the tests: first those without services, then those on real services.

test-unit: .venv/installed-dev ## Run the tests that need no services.
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(END_A_HANG)420 -m "not long" \
		$(UNIT) $(ARGS)

# Most of these wait for services and for intervals of the relay: four processes keep two cores busy.
test-services: .venv/installed-dev ## Run all other tests; real services are started for them.
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(END_A_HANG)420 -m "not long" \
		$(patsubst %,--ignore %,$(UNIT)) $(ARGS)

test-one: .venv/installed-dev ## Run one file or case: make test-one T=tests/unit/test_decoder.py
	@$(BIN)/python -m pytest -n 0 $(T) $(ARGS)

test-long: .venv/installed-dev ## Run what make test leaves out: more cases of faults that it has a case of.
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(END_A_HANG)2000 -m long $(ARGS)

check: .venv/installed-dev ## Check style, types, import contracts and plain English.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

house: .venv/installed-dev ## Measure the structure of bwtui/: lines, imports, and what ARGS=--list names.
	@$(BIN)/python -m tests.house $(ARGS)

format: .venv/installed-dev ## Format the sources, and mend what ruff can mend.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed ## Measure the relay (ARGS are its) and the audit, both beside plain readers.
	@$(BIN)/python benchmarks/relay.py $(ARGS)
	@$(BIN)/python benchmarks/verify.py

bench-screens: .venv/installed ## Measure the screens: keys, starts, CPU, memory (ARGS="--minutes 30").
	@$(BIN)/python benchmarks/screens.py $(ARGS)

bench-verify: .venv/installed ## Measure the audit of a recording, beside kcat and counting by Spark.
	@$(BIN)/python benchmarks/verify.py $(ARGS)

bench-compare: .venv/installed ## Measure the comparison of a table with its topic (ARGS="--rows 10000000").
	@$(BIN)/python benchmarks/compare.py $(ARGS)

bench-snapshot: .venv/installed ## Measure ways of a first snapshot, in turn (ARGS="--ways export,2,chunks --kill-at 80").
	@$(BIN)/python benchmarks/first_snapshot.py $(ARGS)

bench-debezium: .venv/installed ## Measure bwtui beside Debezium (ARGS="--workloads stream,snapshot --pairs 5 --rows 2000000").
	@$(BIN)/python -m benchmarks.debezium $(ARGS)

bench-pipeline: .venv/installed-dev ## Measure Kafka as a source and a sink of Spark, beside kcat.
	@$(BIN)/python benchmarks/kafka_spark.py $(ARGS)

bench-replay: .venv/installed ## Measure messages per second, CPU and memory of a replay.
	@$(BIN)/python benchmarks/replay.py $(ARGS)

torture: .venv/installed-dev ## Random faults on all services for SECONDS, by SEED (VERSION=14, BROKERS=3, EXACTLY_ONCE=1, CLOCK=1); SUMS=file adds runs up.
	BWTUI_TORTURE_SECONDS=$(or $(SECONDS),600) BWTUI_TORTURE_SEED=$(or $(SEED),1) BWTUI_TORTURE_EXACTLY_ONCE=$(EXACTLY_ONCE) \
		BWTUI_TORTURE_CLOCK=$(CLOCK) \
		BWTUI_TORTURE_SUMS=$(abspath $(SUMS)) \
		BWTUI_TEST_POSTGRES=$(or $(VERSION),18) BWTUI_TEST_BROKERS=$(or $(BROKERS),1) $(BIN)/python -m pytest -s \
		tests/torture/test_torture.py::test_no_fault_loses_a_row $(ARGS)

drift: .venv/installed-dev ## Change publications, tables, keys, topics and settings for SECONDS, by SEED (VERSION=14, CHANGES=100, ONLY=names, EACH=1).
	BWTUI_DRIFT_SECONDS=$(or $(SECONDS),600) BWTUI_DRIFT_SEED=$(or $(SEED),1) BWTUI_DRIFT_CHANGES=$(CHANGES) \
		BWTUI_DRIFT_ONLY="$(ONLY)" BWTUI_DRIFT_EACH=$(EACH) BWTUI_TEST_POSTGRES=$(or $(VERSION),18) \
		$(BIN)/python -m pytest -s -n 0 -k names_what_differs tests/drift/test_drift.py $(ARGS)

kills: .venv/installed-dev ## Kill the relay ten times in the snapshot and ten times while it streams.
	BWTUI_KILLS=$${BWTUI_KILLS:-10} $(BIN)/python -m pytest --timeout 900 tests/faults/test_kill.py $(ARGS)

heal: .venv/installed-dev ## Lose slots in every way for SECONDS, and see that exactly what differs is sent.
	BWTUI_HEAL_SECONDS=$(or $(SECONDS),600) BWTUI_HEAL_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -s --timeout 0 \
		tests/faults/test_heal.py $(ARGS)

snapshots: .venv/installed-dev ## Put a table of ROWS into the stream under RATE transactions/s, with KILLS of the relay.
	BWTUI_SNAPSHOT_ROWS=$(or $(ROWS),1000000) BWTUI_SNAPSHOT_KILLS=$(or $(KILLS),20) BWTUI_SNAPSHOT_RATE=$(or $(RATE),1000) \
		$(BIN)/python -m pytest -s --timeout 0 tests/faults/test_backfill_campaign.py $(ARGS)

promotions: .venv/installed-dev ## Promote a standby N times under writes, and see that nothing is lost or comes twice.
	BWTUI_PROMOTIONS=$(or $(N),200) BWTUI_PROMOTIONS_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -s --timeout 0 \
		tests/faults/test_promotion.py $(ARGS)

exactly-once: .venv/installed-dev ## Kill relay and broker KILLS times under --exactly-once: nothing twice, lost or torn.
	BWTUI_EXACT_KILLS=$(or $(KILLS),200) BWTUI_SEED=$(or $(SEED),1) BWTUI_TEST_FRESH=25 $(BIN)/python -m pytest -s \
		--timeout 0 -m "long or not long" -k "no_kill_of or row_of_a_chunk or parts_the_recording" \
		tests/faults/test_exactly_once.py tests/faults/test_exactly_recorded.py $(ARGS)

shapes: .venv/installed-dev ## 10,000 trees of savepoints, 1,000 transactions at once, 1,000 tables, rows of 100 MB.
	BWTUI_SHAPES_TREES=$(or $(TREES),10000) BWTUI_SHAPES_OPEN=$(or $(OPEN),1000) BWTUI_SHAPES_TABLES=$(or $(TABLES),1000) \
		BWTUI_SHAPES_SEED=$(SEED) $(BIN)/python -m pytest -s --timeout 0 tests/shapes $(ARGS)

bounds: .venv/installed ## Draw memory and lag of a transaction of 20,000,000 rows, and of five minutes without Kafka.
	@$(BIN)/python benchmarks/bounds.py $(or $(ARGS),--protocols 2000000 --transaction 20000000 --outage 300 --write docs/bounds)

campaign: .venv/installed-dev ## Send 500 random tables with 10,000 rows through PostgreSQL and back.
	BWTUI_RANDOM_TABLES=$${BWTUI_RANDOM_TABLES:-500} $(BIN)/python -m pytest --timeout 1800 \
		tests/integration/test_random_types.py tests/integration/test_random_tables_relayed.py $(ARGS)

storm: .venv/installed-dev ## Alter tables 200 times among 20,000 row changes, with ten kills of the relay.
	BWTUI_STORM_CHANGES=$${BWTUI_STORM_CHANGES:-200} BWTUI_STORM_ROWS=$${BWTUI_STORM_ROWS:-20000} \
		BWTUI_STORM_KILLS=$${BWTUI_STORM_KILLS:-10} $(BIN)/python -m pytest -s tests/faults/test_ddl_storm.py $(ARGS)

sample: .venv/installed ## Record recordings/shop anew: a small shop, half a minute of it.
	rm -rf recordings/shop
	$(BIN)/bwtui demo --headless --seconds 30 --rate 15 --scale 0.08 --no-audit --record recordings/shop $(ARGS)

audit-proof: .venv/installed-dev ## Plant 1,000 cases and write the confusion matrix into docs/audit.md.
	@$(BIN)/python -m tests.audit.proof --cases $${BWTUI_AUDIT_CASES:-1000} --write $(ARGS)

audit-segments: .venv/installed-dev ## Plant faults by rewriting Kafka's segment files, and audit them.
	@$(BIN)/python -m tests.audit.segments $(ARGS)

dist: .venv/installed-dev ## Make wheel and sdist in dist/: of one commit always the same bytes.
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m hatchling build
	@cd dist && sha256sum bwtui-*

docs: .venv/docs/installed ## Make the documentation's site in site/; its packages are in an environment of their own.
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build $(ARGS)

man: .venv/installed ## Make man pages and shell completions anew: packaging/share.
	@$(BIN)/python -m bwtui.cli.man_pages packaging/share

venv: .venv/installed-dev ## Make .venv with the development tools, and nothing more.

lock: .venv/installed-dev ## Pin all versions anew: constraints.txt and the sandbox's files.
	$(BIN)/python -m venv --clear .venv/fresh
	.venv/fresh/bin/python -m pip install --disable-pip-version-check -e '.[dev]' './packaging/compiled[checksum]'
	rm -rf packaging/compiled/build packaging/compiled/*.egg-info
	.venv/fresh/bin/python -m pip freeze --exclude-editable --exclude bwtui-compiled | sed "1i\\# Versions that are known to work together; written by make lock." > constraints.txt
	rm -rf .venv/fresh
	$(BIN)/python -m bwtui.packages.relock

clean: ## Remove .venv and what the tools left; the user's cache folder stays.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist site

.venv/installed: .venv/bin/python constraints.txt pyproject.toml $(COMPILED)
	@echo "installing bwtui and its packages into .venv: 1 GB on the disk, and the first time it takes minutes"
	@$(PIP_INSTALL) -e .
	@$(INSTALL_COMPILED)
	@touch $@

.venv/installed-dev: .venv/bin/python constraints.txt pyproject.toml $(COMPILED)
	@$(PIP_INSTALL) -e '.[dev]'
	@$(INSTALL_COMPILED)
	@touch $@ .venv/installed

.venv/docs/installed: .venv/bin/python packaging/docs.txt
	@$(BIN)/python -m venv --clear .venv/docs
	@.venv/docs/bin/python -m pip install --disable-pip-version-check -r packaging/docs.txt
	@touch $@

.venv/bin/python:
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making .venv with $$("$$python" --version)"; \
	    exec "$$python" -m venv --clear .venv; \
	  fi; \
	done; \
	echo "bwtui needs Python 3.11 or newer with its venv module, and none was found; name one with make PYTHON=/path/to/python3" >&2; \
	exit 2
