# Everything below makes its own virtual environment; only python3 and a package index are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Environment with the runtime's dependencies, without PyTorch, and its tests.
RUNTIME ?= .venv-runtime
# Processes that tests start find what the first of them has compiled.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
RUNTIME_TESTS := $(wildcard $(addprefix tests/,conversion documents inference parsing serving tasks))
# Folders of them whose tests need nothing else.
RUNTIME_ONLY := $(addprefix tests/,documents serving)
TEST_RUN := $(CURDIR)/build/test-run

.PHONY: quickstart serve-demo test test-runtime test-slow test-avx2 test-gpu check docs wheel bench-data bench-training bench-training-gpu bench-inference bench-inference-gpu bench-families bench-parsing bench-serving bench-startup bench-documents bench-inline clean

quickstart: $(VENV)/.core
	$(BIN)/dragoman quickstart

# Serve the English-German model of the repository, with a page to translate in.
serve-demo: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]'
	$(BIN)/dragoman serve en-de

# Each test runs once: first those that need no PyTorch, in an environment without it, then the others.
test: test-runtime
	$(TEST_ENVIRONMENT) DRAGOMAN_TEST_RUN=$(TEST_RUN) $(BIN)/pytest -n 2 --dist worksteal --timeout 300 -m "not slow and not gpu" --leave-out $(TEST_RUN)/passed.jsonl tests $(addprefix --ignore=,$(RUNTIME_ONLY))

# The fast tests of what translates, parses, serves and converts, without PyTorch. The other environment trains their model.
# Meanwhile, a second process compiles the tests of both, which each of the later processes would otherwise do by itself.
test-runtime: $(VENV)/.dev $(RUNTIME)/.ready
	rm -rf $(TEST_RUN)
	$(TEST_ENVIRONMENT) $(BIN)/python tests/compile_tests.py & \
	$(TEST_ENVIRONMENT) $(BIN)/python tests/tiny_runs.py $(TEST_RUN) && wait
	$(TEST_ENVIRONMENT) DRAGOMAN_TEST_RUN=$(TEST_RUN) $(RUNTIME)/bin/pytest -n 2 --dist worksteal --timeout 300 -m "not slow and not gpu" --without-pytorch $(TEST_RUN)/passed.jsonl $(RUNTIME_TESTS)

test-slow: $(VENV)/.dev
	$(TEST_ENVIRONMENT) $(BIN)/pytest -n 2 --dist worksteal --timeout 1500 -m "slow and not alone"
	$(BIN)/pytest --timeout 1500 -m "slow and alone"

# The fast tests as on a processor with AVX2 only: neither PyTorch's libraries nor our kernels use AVX-512.
test-avx2: $(VENV)/.dev
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 DRAGOMAN_CPU_ISA=avx2 $(TEST_ENVIRONMENT) $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not gpu"

test-gpu: $(VENV)/.dev
	$(BIN)/pytest -m gpu

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_language.py

# The reference pages are generated from the code; the site is in build/site.
docs: $(VENV)/.docs
	$(BIN)/python scripts/make_reference.py build/docs
	$(BIN)/zensical build --strict --clean --config-file build/zensical.toml
	$(BIN)/python scripts/check_docs.py build/site

# Wheels and source archives of dragoman and of the English-German model, in dist. The kernels are compiled anew.
wheel:
	rm -rf dist build/wheel-env
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt build/wheel-env/bin/python -m build --outdir dist .
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt build/wheel-env/bin/python -m build --outdir dist models/en-de

bench-data: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m data.run $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

bench-training: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m training.run $(if $(QUICK),--quick) $(if $(ISA),--isa $(ISA)) $(if $(JSON),--json $(JSON))

bench-training-gpu: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m training.gpu $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

bench-inference: $(VENV)/.dev
	PYTHONPATH=benchmarks $(BIN)/python -m inference.run $(if $(QUICK),--quick) $(if $(ISA),--isa $(ISA)) $(if $(BUNDLE),--bundle $(BUNDLE)) $(if $(JSON),--json $(JSON))

bench-inference-gpu: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m inference.gpu $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

bench-families: $(VENV)/.dev
	PYTHONPATH=benchmarks $(BIN)/python -m inference.families $(if $(QUICK),--quick) $(if $(ISA),--isa $(ISA)) $(if $(JSON),--json $(JSON))

bench-parsing: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m parsing.run $(if $(QUICK),--quick) $(if $(BUNDLE),--bundle $(BUNDLE)) $(if $(JSON),--json $(JSON))

bench-serving: $(VENV)/.dev
	PYTHONPATH=benchmarks $(BIN)/python -m serving.run $(if $(QUICK),--quick) $(if $(ISA),--isa $(ISA)) $(if $(BUNDLE),--bundle $(BUNDLE)) $(if $(JSON),--json $(JSON))

bench-startup: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m startup.run $(if $(QUICK),--quick) $(if $(BUNDLE),--bundle $(BUNDLE)) $(if $(JSON),--json $(JSON))

bench-documents: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m documents.run $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

bench-inline: $(VENV)/.core
	PYTHONPATH=benchmarks $(BIN)/python -m documents.inline_structure $(if $(QUICK),--texts 30) $(if $(SHARED),--shared $(SHARED)) $(if $(BUNDLE),--bundle $(BUNDLE)) $(if $(FILES),--files $(FILES)) $(if $(JSON),--json $(JSON))

clean:
	rm -rf $(VENV) $(RUNTIME) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,moses]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# After .core, whose installation builds the kernels.
$(RUNTIME)/.ready: $(VENV)/.core
	$(PYTHON) -m venv --clear $(RUNTIME)
	$(RUNTIME)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test-runtime]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,moses,docs]'
	touch $@
