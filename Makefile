# The one list of commands: the same on a laptop and in CI. `make help` prints it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Some machines ask Python not to keep what it compiled. There are hundreds of processes here, and each would compile
# pandas and Airflow again: a second and more.
unexport PYTHONDONTWRITEBYTECODE

# `make test PYTHON=python3.13` tests with another Python, `make test JAVA_HOME=/path/to/java-21` with another Java:
# .venv is recreated for it, and stays so until the next such command.
ifdef PYTHON
export STATEFLOW_PYTHON = $(PYTHON)
endif

# Asked for by each recipe, not when this file is read: on a fresh machine `setup` has to write it first.
RUN = JAVA_HOME="$$(cat .venv/java_home)" PATH="$(CURDIR)/.venv/bin:$$PATH"

# A file's tests stay on one worker, which starts at most one Spark session; tests/conftest.py has their order and the
# exceptions. Groups (--dist loadgroup) would be finer, but pytest-xdist 3.8 cannot
# mark them under pytest 9.2: it names tests by an attribute that is gone.
# One more than cores of a small machine: a worker often waits for processes that it has started.
WORKERS ?= 3
# Classes that Spark loads, parsed and verified; a JVM that cannot use the file, or finds none, logs nothing and continues.
ARCHIVE = -XX:SharedArchiveFile=$(CURDIR)/.venv/spark.jsa -Xlog:cds=off -Xlog:cds+dynamic=off
# The tests start many short-lived JVMs: compiling well costs them more than it gives.
PYTEST = $(RUN) JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC $(ARCHIVE)" bash scripts/run_tests.sh -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup kubernetes demo demo-bucket broker ui ui-build test test-all bugs scoreboard lint format golden screenshots bench reference docs requirements image-digests sbom clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup:  ## make .venv with everything in it; returns at once when nothing has changed
	@bash scripts/setup.sh

# Not part of setup: it takes ten minutes of CPU time. Only tests of drivers in Kubernetes need it; without, they are skipped.
kubernetes:  ## build the programs of the tests' Kubernetes from their Go modules; needs Go 1.21 or newer
	@command -v go >/dev/null || { echo "make kubernetes: install Go 1.21 or newer: it gets the version that it needs itself"; exit 1; }
	@cd tests/servers/kubernetes_modules && go build -trimpath -ldflags "-s -w" -o $(CURDIR)/.kubernetes/ ./...

demo: setup  ## a year of flights under a real Airflow, killed on the way, compared row for row
	@$(RUN) python scripts/demo.py

demo-bucket: setup  ## the first job of the demo, with job root, input and tables in a bucket of S3, killed and restored
	@$(RUN) python scripts/demo.py bucket

broker: setup  ## a Kafka broker on loopback to try jobs with, until it is stopped
	@$(RUN) python scripts/kafka_broker.py $(PORT)

ui: setup  ## the same with Airflow's web interface; prints the address of the timeline
	@$(RUN) python scripts/demo.py ui

ui-build: setup  ## build the pages of ui/ into stateflow/ui/static
	@$(RUN) python scripts/pages.py build

# Lint first, because it is quick, but a line that is too long does not hide what the tests say: both run, both count,
# and pytest has the last word.
test: setup  ## lint, then the tests that are not marked slow or setup; PACKAGE=connectors/kafka those of a package, MATRIX=spark-4.0 or all those of other versions
	@if [ -n "$(MATRIX)" ]; then exec bash scripts/matrix.sh $(MATRIX); fi; \
	$(MAKE) lint; lint=$$?; echo "make test: lint took $$SECONDS s"; \
	if [ $$lint -ne 0 ]; then echo "make test: lint failed, see above; running the tests nevertheless"; fi; \
	files=$$([ -z "$(PACKAGE)" ] || $(RUN) python scripts/affected_tests.py $(PACKAGE)) || exit 1; \
	$(PYTEST) -m "not slow and not setup" $$files; tests=$$?; \
	exit $$((lint || tests))

test-all: setup  ## lint, then every test
	@$(MAKE) lint; lint=$$?; echo "make test-all: lint took $$SECONDS s"; \
	if [ $$lint -ne 0 ]; then echo "make test-all: lint failed, see above; running the tests nevertheless"; fi; \
	$(PYTEST); tests=$$?; \
	exit $$((lint || tests))

bugs: setup  ## plant each bug of tests/bugs in a copy, and run the tests that must find it; BUGS=NAME… only these
	@$(RUN) JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC $(ARCHIVE)" python -m tests.bugs $(BUGS)

TIER ?= half-hour
scoreboard: setup  ## inject faults of every kind and write docs/scoreboard.md; TIER=nightly runs more rounds, ROWS=NAME,… SEED=N one round
	@$(PYTEST) -n 2 --dist worksteal tests/scoreboard --tier $(TIER) $(if $(ROWS),--rows $(ROWS)) $(if $(SEED),--seed $(SEED))

lint: setup  ## ruff, mypy, the layer contracts, the limits of structure and vocabulary, generated pages, and ESLint
	@$(RUN) ruff check --quiet .
	@$(RUN) ruff format --check --quiet .
	@$(RUN) mypy --no-error-summary
	@$(RUN) lint-imports --no-logo
	@$(RUN) python scripts/structure.py
	@$(RUN) python scripts/vocabulary.py
	@$(RUN) python scripts/reference.py --check
	@$(RUN) python scripts/pictures.py --check
	@$(RUN) python scripts/pages.py check

format: setup  ## put the code into the form that lint asks for
	@$(RUN) ruff check --quiet --fix .
	@$(RUN) ruff format --quiet .

bench: setup  ## run the benchmarks; some of them with BENCH="micro-batch throughput"
	@$(RUN) python benchmarks/run.py $(BENCH)

golden: setup  ## rewrite the golden files of command line screens; read the diff before you commit it
	@$(PYTEST) --snapshot-update -m syrupy_snapshot

screenshots: setup  ## take the pictures of the pages, the tour and the table of tasks anew; look at them before you commit
	@$(PYTEST) -n 0 -m "" tests/browser --renew-pictures

reference: setup  ## write the reference pages and pictures that follow from the code
	@$(RUN) python scripts/reference.py
	@$(RUN) python scripts/pictures.py

docs: setup  ## build the documentation site into build/site; a broken link is an error
	@$(RUN) NO_MKDOCS_2_WARNING=1 mkdocs build --strict

requirements: setup  ## pin packages, JARs and npm packages with their hashes; UPGRADE=1 takes new versions
	@for file in requirements-build requirements requirements-dev requirements-node tests/servers/moto; do \
		$(RUN) UV_SYSTEM_CERTS=$${UV_SYSTEM_CERTS-1} uv pip compile --quiet $${UPGRADE:+--upgrade} --generate-hashes \
			--universal --python-version 3.11 --no-annotate --custom-compile-command "make requirements" \
			$$file.in --output-file $$file.txt || exit 1; \
	done
	@$(RUN) python scripts/matrix.py lock
	@$(RUN) python scripts/fetch_jars.py --record
	@$(RUN) python scripts/fetch_jars.py --record --package hdfs
	@$(RUN) python scripts/fetch_jars.py --record --package s3a
	@$(RUN) python scripts/fetch_jars.py --record --package kafka
	@$(RUN) python scripts/fetch_jars.py --record --package kafka-broker
	@$(RUN) python scripts/fetch_jars.py --record --package jdbc
	@$(RUN) python scripts/fetch_jars.py --record --package yarn
	@$(RUN) python scripts/lock_npm.py $${UPGRADE:+--upgrade}

image-digests:  ## write the digests of the base images into docker/images.lock; needs docker with buildx
	@$(RUN) python scripts/image_digests.py

sbom: setup  ## list all that is installed, with versions and hashes, in build/sbom.json (CycloneDX)
	@$(RUN) python scripts/sbom.py

clean:  ## remove the files that tools and the demo create; .venv stays
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		spark-warehouse metastore_db derby.log .demo .demo-bucket
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
