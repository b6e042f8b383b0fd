# make setup   the environment, the pinned dependencies and the extensions
# make setup-dev  setup, then what the checks and the tests need
# make demo    setup, then the main job on four emulated servers
# make test    setup-dev, then every check and every test
# make test-all  the same with the tests marked exhaustive
# make test-clients  trains with Hugging Face's Trainer, accelerate, Lightning and Ray Train, which it installs
# make figures  figures and tables of the TopoOpt paper (FIGURES="11a 12": some; RAY=auto: on a Ray cluster)
# make figures-quick  the same at small sizes; make figure-11a: one figure
# make bench-regression BASE=COMMIT  is anything slower than at an older commit? (idle machine; minutes)
# make fuzz    ten million inputs to readers of the wire and of documents (FUZZ_INPUTS=100000: fewer)
# make test-aarch64  the C++ suites and the wheel on an emulated 64-bit Arm processor
# make site    the documentation as a site, in build/site
# make stubs   the stubs of the extension modules, from their bindings
# make dist    source distribution and wheel, in dist/
# make dist-aarch64  a wheel for 64-bit Arm, by Debian's cross compiler
# make check-torch VERSIONS="2.11.0 2.15.0"  builds and tests with each of these versions of PyTorch
# make clean   removes what these made
#
# An active virtual environment is used as it is (its torch included); otherwise .venv is made here.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev demo test test-all test-clients bench-regression figures figures-quick fuzz test-aarch64 lint typecheck site stubs dist dist-aarch64 check-torch clean

# The stamp of an active environment lies here, because another checkout may use that one as well.
ifdef VIRTUAL_ENV
VENV := $(VIRTUAL_ENV)
STAMP := build/setup$(subst /,-,$(VENV)).stamp
DEV_STAMP := build/setup-dev$(subst /,-,$(VENV)).stamp
else
VENV := .venv
STAMP := .venv/torch_topoopt-setup.stamp
DEV_STAMP := .venv/torch_topoopt-setup-dev.stamp
endif
BIN := $(VENV)/bin
# Tests wait more than they compute: several run at once, also on few cores.
WORKERS ?= 4
SOURCES := $(shell find csrc -name '*.cc' -o -name '*.h')
CXX ?= c++
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(STAMP)

setup-dev: $(STAMP) $(DEV_STAMP)

# A stamp says nothing once the environment was made anew or the extensions were removed.
ifeq (,$(and $(wildcard $(BIN)/topoopt),$(wildcard torch_topoopt/_core*.so),$(wildcard torch_topoopt/_backend*.so)))
.PHONY: $(STAMP)
endif
ifeq (,$(and $(wildcard $(BIN)/pytest),$(wildcard $(BIN)/mypy),$(wildcard $(BIN)/ruff)))
.PHONY: $(DEV_STAMP)
endif

# __init__.py has the version, which pip records.
$(STAMP): requirements.txt pyproject.toml setup.py torch_topoopt/__init__.py csrc/objects.py $(SOURCES)
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: python3 must be Python 3.11 or newer (found: $$(python3 --version 2>&1))" >&2; exit 1; }
	@command -v $(CXX) >/dev/null || { \
	  echo "make: no C++ compiler; install g++ 12 or newer, or set CXX" >&2; exit 1; }
ifdef VIRTUAL_ENV
	@echo "setup: using the active environment $(VENV)"
	@$(PIP) install setuptools wheel ninja
	@$(call while-compiling,TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/python -c 'import torch' 2>/dev/null || \
	  $(PIP) install "$$(grep '^torch==' requirements.txt)")
	@echo "setup: building the extensions"
	@$(PIP) install --no-build-isolation -e .
else
	@test -x $(BIN)/python || { echo "setup: making $(VENV)"; python3 -m venv $(VENV); }
	@echo "setup: installing the pinned dependencies (requirements.txt)"
	@$(PIP) install $$(grep -E '^(ninja|setuptools|wheel)==' requirements.txt)
	@$(call while-compiling,$(PIP) install --no-compile -r requirements.txt && \
	  { $(if $(PIP_NO_COMPILE),true,$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true); })
	@echo "setup: building the extensions"
	@$(PIP) install --no-build-isolation --no-deps -e .
endif
	@mkdir -p $(@D) && touch $@

# pip would compile Python's files one after the other, hence --no-compile and compileall. With
# PIP_NO_COMPILE, each is compiled when it is imported for the first time.
# Most of csrc/ needs no torch, whose download leaves the processor idle. What does not compile is
# compiled again, and shown, where the extensions are built.
define while-compiling
setsid nice $(BIN)/python csrc/objects.py >/dev/null 2>&1 & compiling=$$!; \
trap 'kill -- -$$compiling 2>/dev/null || true' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
{ $(1); } && { wait $$compiling || true; }
endef

$(DEV_STAMP): requirements-dev.txt pyproject.toml $(STAMP)
	@echo "setup: installing what the tests need"
ifdef VIRTUAL_ENV
	@$(PIP) install --no-build-isolation -e '.[dev]'
else
	@$(PIP) install -r requirements-dev.txt
endif
	@mkdir -p $(@D) && touch $@

demo: setup
	@$(BIN)/topoopt demo

# Tests start processes by the hundred: what they import is compiled once, also where the environment
# (PYTHONDONTWRITEBYTECODE) keeps them from keeping it.
test: setup-dev lint
	@$(BIN)/python -m compileall -q torch_topoopt launcher models tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: setup-dev lint
	@TOPOOPT_TEST_TRAINED_STEPS=12 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m ''

test-clients: setup-dev
ifdef VIRTUAL_ENV
	@$(PIP) install --no-build-isolation -e '.[dev,clients]'
else
	@$(PIP) install -r requirements-clients.txt
endif
	@$(BIN)/python -m pytest -m '' tests/clients

test-aarch64: setup-dev
	@$(BIN)/python -m pytest -m '' tests/cpp/test_aarch64.py

FIGURES ?=
JOBS ?= $(shell nproc)
COMPUTE = $(BIN)/python benchmarks/figures --jobs $(JOBS) $(if $(RAY),--ray $(RAY))
figures: setup
	@$(COMPUTE) $(FIGURES)

figures-quick: setup
	@$(COMPUTE) --quick $(FIGURES)

figure-%: setup
	@$(COMPUTE) $*

bench-regression: setup
	@test -n "$(BASE)" || { echo "bench-regression: name an older commit: make bench-regression BASE=COMMIT" >&2; exit 2; }
	@$(BIN)/python benchmarks/regression.py $(BASE)

# Of all inputs, 45 % each go to the two targets in C++, 9 % to the handshake, 1 % are documents; and
# 1 % more are connections to a controller.
FUZZ_INPUTS ?= 10000000
FUZZ_SEED ?= 1
fuzz: setup-dev
	@$(MAKE) -s -f tests/fuzz/Makefile
	@for target in frame_reader flow_file; do \
	  build/fuzz/$$target tests/fuzz/corpus/$$target \
	    --runs $$(($(FUZZ_INPUTS) * 45 / 100)) --seed $(FUZZ_SEED); done
	@$(BIN)/python tests/fuzz/handshake_inputs.py $$(($(FUZZ_INPUTS) * 9 / 100)) $(FUZZ_SEED)
	@PYTHONPATH=tests $(BIN)/python tests/fuzz/controller_requests.py \
	  $$(($(FUZZ_INPUTS) / 100)) $(FUZZ_SEED)
	@FUZZ_DOCUMENTS=$$(($(FUZZ_INPUTS) / 500)) \
	  $(BIN)/python -m pytest -q -n $(WORKERS) tests/fuzz/test_documents.py

lint: setup-dev typecheck
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@find csrc $(wildcard tests/cpp) -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

typecheck: setup-dev
	@$(BIN)/mypy -p torch_topoopt

site: setup-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

stubs: setup-dev
	@$(BIN)/python csrc/bind/stubs.py

dist: setup
	@.ci/make-dist $(BIN)/python dist

dist-aarch64: setup
	@.ci/make-dist-aarch64 $(BIN)/python dist

check-torch:
	@WORKERS=$(WORKERS) .ci/check-torch $(VERSIONS)

clean:
	@rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@rm -f torch_topoopt/*.so torch_topoopt/_build_info.json
	@find csrc torch_topoopt launcher models examples tests -name __pycache__ -prune -exec rm -rf {} +
