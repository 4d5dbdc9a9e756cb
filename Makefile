# make demo   set up, then optimize an example end to end        make test   set up, then the quick tests
# make check  lint, types, quick tests                           make slow   the tests that take minutes
# make prove  the judge against 600 mutants and 300 honest kernels (an hour; goes on where it was stopped)
.PHONY: setup demo test check lint types slow prove bench clean
PYTHON ?= python3
BIN := .venv/bin
# Tests of one process each that measure no time: two at once.
TOGETHER := tests/fuse tests/reference_kernels tests/knowledge

setup:
	@scripts/setup.sh $(PYTHON)

demo: setup
	$(BIN)/aka optimize examples/rmsnorm.py --chip v5e --max-minutes 4
	@echo "The kernel: runs/<id>/best.py. How it was found: runs/<id>/report.md. Judge it again:"
	$(BIN)/aka check "$$(ls -td runs/*/ | head -1)best.py" --op examples/rmsnorm.py --chip v5e

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TOGETHER)
	$(BIN)/python -m pytest $(addprefix --ignore=,$(TOGETHER))

check: setup lint types test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy --strict aka

slow: setup
	$(BIN)/python -m pytest -m slow -n 2 --dist worksteal $(TOGETHER)
	$(BIN)/python -m pytest -m slow $(addprefix --ignore=,$(TOGETHER))

prove: setup
	$(BIN)/python tests/prove/prove.py

bench: setup
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/kb.py
	$(BIN)/python benchmarks/judge.py

clean:
	rm -rf .venv build dist index/*/ index/*.json .pytest_cache .mypy_cache .ruff_cache
