# make setup   build .venv from the lock files (and bring a Java where there is none)
# make demo    set up, then kill half of an embedded Spark cluster while a stream runs on it
# make test    set up, then lint, check types and run all tests
# make test-long  all tests, with all examples of those that take a share of them
# make lint    only ruff and mypy
# make classes keep Spark's classes in a file that JVMs map: they start with half the CPU
# make lock    write the lock files anew from pyproject.toml
# make docs    build the site into out/site/, strictly
# make wheel   build the wheel into dist/
# make clean   remove .venv and everything built

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where the environment keeps Python from writing bytecode, each of the some hundred processes of the suite compiles 300 modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-long classes lint lock docs wheel clean

setup:
	@$(PYTHON) tools/setup.py

demo: setup
	@$(BIN)/holdfast demo

# Types are checked by one core while the other records classes.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint classes
	@$(BIN)/python -m pytest -n 3 --dist loadscope

# Tests with fixed seeds take all of their examples: for whoever changes what they test.
test-long: setup classes
	@HOLDFAST_TESTS=long $(BIN)/python -m pytest -n 3 --dist loadscope

# The tests start about a hundred JVMs.
classes: setup
	@$(BIN)/python -m holdfast.spark.class_archive --if-missing

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

lock: setup
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --extra dev --extra docs --extra lab -c tools/constraints.in -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -o requirements-java.lock tools/java.in
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -o requirements-build.lock tools/build.in

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: setup
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) out site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
