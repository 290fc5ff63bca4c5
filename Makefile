# Two commands on a machine with Python >= 3.11 and make: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
MINUTES ?= 10
PORT ?= 8000

# Several test processes share the cores; one thread each keeps their small products from fighting. Many tests start
# Python: compiled modules are kept, or each start would compile all of zeroshift again.
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: demo serve-demo test test-all fuzz lint docs bench leaderboard clean help

help:
	@echo "make demo      adapt a zero-shot classifier on bundled real features, and write a report"
	@echo "make serve-demo  the streaming service and its dashboard, on bundled features (PORT=8000)"
	@echo "make test      lint, types, import contracts, tests, doctests, docs"
	@echo "make test-all  the same with the slow tests"
	@echo "make fuzz      random cases on every core for MINUTES=10 (SEED=n repeats a run); findings go to fuzz-findings"
	@echo "make lint      only the static checks"
	@echo "make docs      the documentation site, in build/site"
	@echo "make bench     startup, accuracy, engines and extraction, as in benchmarks/results"
	@echo "make leaderboard  every method on the bundled packs: docs/leaderboard.md; resumes"
	@echo "make clean     remove .venv and everything built"

demo: $(VENV)/.core
	$(BIN)/zeroshift demo

serve-demo: $(VENV)/.serve
	@$(BIN)/zeroshift serve demo --port $(PORT) $(if $(STORE),--store $(STORE))

test: $(VENV)/.dev lint
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow"

test-all: $(VENV)/.dev lint
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

fuzz: $(VENV)/.dev
	$(TEST_ENV) PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	$(BIN)/python scripts/build_docs.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/accuracy.py --again
	$(BIN)/zeroshift bench --again --out benchmarks/engines.json
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/extraction.py

leaderboard: $(VENV)/.dev
	$(BIN)/python benchmarks/leaderboard.py --bundled

$(VENV)/.core: pyproject.toml constraints.txt src/zeroshift/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "zeroshift needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Fix: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.serve: $(VENV)/.core
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[serve]'
	@touch $@

# The extra packages of the checks: torch's CPU build alone is about 200 MB.
$(VENV)/.dev: $(VENV)/.core
	@echo "Adding what the checks need (once; a few minutes) ..."
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist build zeroshift-demo zeroshift-compare zeroshift-experiments fuzz-findings .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
