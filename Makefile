# Start with `make demo` or `make test`: both create .venv.
PYTHON ?= python3
BIN := .venv/bin
FRAMEWORKS := .venv-frameworks
LIGHT := .venv/.light
STAMP := .venv/.installed
BUILT_FROM := pyproject.toml setup.py constraints.txt \
	$(wildcard src/turnout/kernel/_fast.pyx src/turnout/kernel/*.hpp release/kernel.py release/commands.py)

# The tests start many processes, which start much faster if modules are compiled only once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z][a-z-]*:' $(firstword $(MAKEFILE_LIST)) | tr -d :)

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

# The modules that the tests import are compiled once here, and not by all workers at the same time.
COMPILED := .venv/.compiled
$(COMPILED): $(STAMP)
	$(BIN)/python -m pytest -qq --collect-only > $@.log || { tail $@.log; exit 1; }
	@mv $@.log $@

setup: $(COMPILED)  ## create .venv with turnout and all development tools

$(LIGHT): $(BUILT_FROM)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "turnout needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[plots]'
	@touch $@

# turnout is installed already, and is not built again: only its other dependencies are added.
$(STAMP): $(LIGHT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt 'turnout[dev]'
	@touch $@

demo: $(LIGHT)  ## run the paper's comparison, print a table, write report.html
	$(BIN)/turnout demo

# `make test` does two things at a time: the tests begin while mypy runs.
ifeq ($(MAKECMDGOALS),test)
MAKEFLAGS += --jobs=2
endif
test: lint check  ## all checks: style, types, import contracts, tests (6 min on two cores, after the installation)

lint: setup  ## check style, types, import contracts and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/zizmor --offline --quiet --persona=pedantic .github

# One more than the number of cores, because some tests mostly wait. Neighbouring tests share fixtures: each worker
# begins with its own part of the suite, and takes over half of what another one has left when it is done.
WORKERS = $$($(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')
check: setup  ## run the tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not framework and not thorough'

# Large versions of what `make test` checks in a small one: more sizes, seeds, rounds and moments to kill a process.
test-thorough: setup  ## run the long versions of tests of which `make test` runs a short one, and the tests of builds and benchmarks
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'thorough and not framework'

# Each worker starts a PostgreSQL server, in which a schema takes the place of each file. THOROUGH=1 adds the long versions.
test-postgres: setup  ## run the tests of live fleets over PostgreSQL instead of files
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not framework and not files$(if $(THOROUGH),, and not thorough)' --store postgres tests/live

# Without the tests that kill processes, read /proc, or run a browser or a framework.
PORTABLE := tests/kernel tests/policies tests/lab/worlds tests/lab/analysis tests/tracking tests/storage/encoding tests/releases tests/test_client.py
portable: setup  ## run the tests that do not need Linux, and use every part once
	$(BIN)/python -m pytest -q -n $(WORKERS) $(PORTABLE)
	rm -rf build/tour && mkdir -p build/tour
	$(BIN)/python tests/platforms/tour.py build/tour

# The workers of pytest and the programs that tests start are measured too; those that are killed leave no data.
coverage: setup  ## measure which lines and branches the tests execute; details in build/coverage (50 min)
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal -m 'not framework' $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered

# pfl and OpenFL do not install with newer versions of Python; their tests are skipped then.
OTHERS = $(shell $(PYTHON) -c 'import sys; print("" if sys.version_info >= (3, 13) else "$(FRAMEWORKS)/.installed")')
test-frameworks: applications oldest  ## run complete applications of all frameworks, and the adapters with the oldest supported versions (35 min)

applications: setup $(OTHERS)  ## run complete applications of all frameworks, one after the other (30 min)
	$(BIN)/python -m pytest -q --durations=12 -m framework tests

torture: setup  ## kill the scheduler and the service many more times than the tests do, and try other examples of every property (20 min)
	TURNOUT_TORTURE=10 $(BIN)/python -m pytest -q -n $(WORKERS) tests/live/test_found_faults.py tests/live/test_interruptions.py tests/live/test_faults.py tests/live/test_every_policy.py tests/live/turns/slots/test_kills.py tests/lab/runs/test_sweep.py tests/service/test_kills.py tests/storage/postgres/test_faults.py tests/dashboard/test_pages.py tests/policies/test_cohorts.py
	$(BIN)/python -m pytest -q -n $(WORKERS) -m hypothesis --hypothesis-profile=search

# turnout, with its compiled kernel, is imported from src; the environment has only the oldest Flower and pytest.
OLDEST := .venv-flower-1.22
$(OLDEST)/.installed: tests/adapters/flower/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# The lowest versions that pyproject.toml allows, of what has no environment of its own. Some have no wheels for Python 3.12.
LOWEST := .venv-lowest
LOWEST_PYTHON ?= $(shell for python in $(PYTHON) python3.11; do $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$python && break; done)
$(LOWEST)/.installed: pyproject.toml release/lowest.py constraints.txt $(STAMP)
	$(LOWEST_PYTHON) -m venv $(LOWEST)
	$(BIN)/python release/lowest.py > $(LOWEST)/requirements.txt
	grep -E '^(pytest|pytest-xdist|hypothesis|playwright)==' constraints.txt > $(LOWEST)/tools.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOWEST)/requirements.txt -r $(LOWEST)/tools.txt
	@touch $@

# Other tests of the commands compare texts that newer versions of typer print. These use each of the dependencies: NumPy, pandas, pyarrow, trackers, typer, matplotlib, Plotly, FastAPI.
LOWEST_TESTS := tests/kernel/test_exchange_time.py tests/kernel/test_backend.py tests/lab/runs/test_runs.py tests/tracking \
	$(addprefix tests/cli/test_commands.py::,test_the_version_names_the_kernel test_an_invalid_setting_prints_one_line_and_exits_with_code_two test_the_demo_shows_the_time_saved_and_the_status_of_the_promise) \
	tests/cli/test_help.py tests/lab/drawing/test_style.py tests/dashboard/test_routes.py tests/service/test_routes.py
ifeq ($(LOWEST_PYTHON),)
lowest:
	@echo "The lowest versions are tested with Python 3.11 only, which was not found: make lowest LOWEST_PYTHON=…"
else
lowest: setup $(LOWEST)/.installed  ## test with the lowest versions of the dependencies that pyproject.toml allows
	PYTHONPATH=$(CURDIR)/src $(LOWEST)/bin/python -m pytest -q -n $(WORKERS) -p no:cacheprovider -o filterwarnings=default -m 'not framework' $(LOWEST_TESTS)
endif

# The newest versions, each time anew, of what has no framework beside it: all other tests run with those of constraints.txt.
NEWEST := .venv-newest
NEWEST_PACKAGES := numpy typer rich matplotlib joblib fastapi uvicorn plotly psycopg
NEWEST_TOOLS := pytest pytest-xdist hypothesis cryptography jsonschema playwright PyYAML schemathesis
NEWEST_TESTS := $(addprefix tests/cli/test_,$(addsuffix .py,help bad_commands tables certify explain fleet fleet_amend fleet_operate fleet_slots tokens)) \
	tests/service tests/dashboard/test_routes.py tests/web
newest: $(LIGHT)  ## test the command line and the HTTP servers with the newest versions of what they need
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(NEWEST_PACKAGES) $(NEWEST_TOOLS)
	PYTHONPATH=$(CURDIR)/src $(NEWEST)/bin/python -m pytest -q -n $(WORKERS) -p no:cacheprovider -o filterwarnings=default -m 'not framework and not thorough' $(NEWEST_TESTS)

NVFLARE_OLDEST := .venv-nvflare-2.7
$(NVFLARE_OLDEST)/.installed: tests/adapters/nvflare/oldest.txt
	$(PYTHON) -m venv $(NVFLARE_OLDEST)
	$(NVFLARE_OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

oldest: setup $(OLDEST)/.installed $(NVFLARE_OLDEST)/.installed lowest  ## test with the oldest supported versions of Flower, NVFlare and all other dependencies
	PYTHONPATH=src $(OLDEST)/bin/python -m pytest -q tests/adapters/flower -p no:cacheprovider
	PYTHONPATH=$(CURDIR)/src $(NVFLARE_OLDEST)/bin/python -m pytest -q tests/adapters/nvflare -p no:cacheprovider

# In an environment of their own: vantage6 needs an older click, OpenFL an older NumPy than .venv has.
$(FRAMEWORKS)/.installed: examples/other_frameworks/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || \
		{ echo "pfl and OpenFL need Python 3.11 or 3.12; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

other-frameworks: setup $(FRAMEWORKS)/.installed  ## run fair selection in pfl-research, vantage6 and OpenFL (1 min)
	PYTHONPATH=src $(FRAMEWORKS)/bin/python examples/other_frameworks/pfl_users.py
	PYTHONPATH=src $(FRAMEWORKS)/bin/python examples/other_frameworks/vantage6_organizations.py
	PYTHONPATH=src $(FRAMEWORKS)/bin/python examples/other_frameworks/openfl_collaborators.py

bench: setup  ## measure rounds, turns and the service, and compare with reference implementations (20 min, needs 3 GB)
	for name in choose imports live postgres takeover slots service sweep training; do $(BIN)/python -m benchmarks $$name || exit 1; done

results: setup  ## reproduce the numerical study and the digits (9 min of CPU time; the runs are stored in build/)
	$(BIN)/turnout study reproduce numerical --out docs/results/numerical --store build/study.turnout
	$(BIN)/turnout study reproduce accuracy --out docs/results/digits --store build/digits.turnout

figures: setup  ## draw the figures in docs/results again from their stored tables (1 min)
	PYTHONPATH=tests $(BIN)/python tests/lab/studies/stored.py

# In a copy of the checkout, because cosmic-ray changes files. PACKAGE may be any folder or module of src/turnout.
PACKAGE ?= kernel
COUNT ?= 20
MUTANTS := build/mutants
mutants: setup  ## make COUNT small faults in PACKAGE, one at a time, and print those that its tests do not notice
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group mutants
	rm -rf $(MUTANTS) && mkdir -p $(MUTANTS)
	cp -r src tests benchmarks docs examples conftest.py pyproject.toml $(MUTANTS)
	sed 's|PACKAGE|$(PACKAGE)|' tests/mutants.toml > $(MUTANTS)/mutants.toml
	cd $(MUTANTS) && export PATH=$(CURDIR)/$(BIN):$$PATH PYTHONPATH=$(CURDIR)/$(MUTANTS)/src && \
		cosmic-ray init mutants.toml mutants.sqlite && \
		cr-filter-operators mutants.sqlite mutants.toml && cr-filter-pragma mutants.sqlite && \
		python tests/mutants.py mutants.sqlite --count $(COUNT) && \
		cosmic-ray baseline mutants.toml && cosmic-ray exec mutants.toml mutants.sqlite && \
		cr-report --surviving-only --show-diff mutants.sqlite

# -W: a warning of Sphinx, such as a link to a heading that does not exist, is an error.
SPHINX = $(BIN)/python -m sphinx -W --keep-going --jobs auto --doctree-dir build/site-doctrees
docs: setup  ## build the documentation site in build/site; a broken link between pages is an error (1 min)
	rm -rf build/site build/site-doctrees
	$(SPHINX) --builder html --quiet docs build/site

docs-links: setup  ## check the links to other sites in the documentation (needs a network connection)
	$(SPHINX) --builder linkcheck docs build/site-links

pictures: setup  ## take the screenshots of the dashboard in docs/ (needs chromium; 2 min)
	PYTHONPATH=. $(BIN)/python tests/dashboard/pictures.py docs/pictures

RELEASE := .venv-release
$(RELEASE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group release
	@touch $@

dist: $(RELEASE)/.installed  ## build the source distribution and the wheels of this commit in dist/, and check their contents
	release/build.sh dist
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/check-wheel-contents dist/*-none-any.whl
	$(RELEASE)/bin/check-wheel-contents --ignore W002,W102 dist/*-abi3-*.whl  # W102: the kernel is no file of the package

# The second build differs in what may differ between two machines.
PYTHONS ?= python3.11 python3.12 python3.13
dist-check: dist  ## build them a second time and compare, then install and use them with each of PYTHONS (10 min)
	umask 077 && TZ=Asia/Kathmandu LC_ALL=C.UTF-8 PYTHONHASHSEED=2 release/build.sh build/dist/again
	for file in dist/turnout-*; do cmp $$file build/dist/again/$$(basename $$file) || exit 1; done
	rm -f build/dist/selections
	for python in $(PYTHONS); do if $$python --version; then release/use.sh dist $$python >> build/dist/selections || exit 1; fi; done
	test "$$(sort -u build/dist/selections | wc -l)" = 1

clean:  ## remove all build results
	rm -rf .venv .venv-flower-* .venv-nvflare-* $(LOWEST) $(NEWEST) $(RELEASE) $(FRAMEWORKS) build dist src/*.egg-info src/turnout/kernel/_fast.cpp src/turnout/kernel/_fast*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
