# The two commands of the README are `make demo` and `make test`. Each installs missing packages,
# builds and runs. Where make itself is missing, run scripts/setup.sh first.
MAKEFLAGS += --no-print-directory
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=
CUDA_ARCHS ?= all

CONFIGURE = cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release $(CMAKE_FLAGS)
COMPILE   = cmake --build $(BUILD) -j $(JOBS)
# The secret of the tests' user is not the secret of the user who runs them.
PYTHON_ENV = PYTHONPATH=python SNUG_LIBRARY=$(BUILD)/libsnug_c.so SNUG_CLI=$(BUILD)/snug \
  XDG_CONFIG_HOME=$(abspath $(BUILD))/tests/config

.PHONY: all setup build demo test proxy-test doors-test fault-test mutation-test reader-test python-test wheel wheel-test bench gpu-test gpu-bench format install clean
all: build

setup:
	@scripts/setup.sh

build: setup  # the tool, at build/snug, and the libraries
	@$(CONFIGURE)
	@$(COMPILE) --target shipped

demo: setup
	@$(CONFIGURE)
	@$(COMPILE) --target snug-cli
	@SNUG_CLI=$(BUILD)/snug scripts/demo.sh

test: setup
	@$(CONFIGURE)
	@$(COMPILE)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -LE '^gpu$$' --no-tests=error

proxy-test: setup  # ten minutes, as root: 10,000 connections through a hostile proxy
	@$(CONFIGURE)
	@$(COMPILE) --target snug-cli
	@python3 tests/transfer/proxy_trial.py $(BUILD)/snug

python-test: setup  # all tests of the Python package, with torch: makes an environment of several GB
	@$(CONFIGURE)
	@$(COMPILE) --target snug_c snug-cli
	@[ -n "$(PYTHON)" ] || python3 -m venv $(BUILD)/venv
	@[ -n "$(PYTHON)" ] || $(BUILD)/venv/bin/pip install -q numpy safetensors ml_dtypes \
	  transformers accelerate torch
	@tests/python/run_tests.sh $(BUILD) $(or $(PYTHON),$(BUILD)/venv/bin/python)

# Compressed models in a real vLLM, on the CPU. VLLM_VENV: an environment that has vLLM.
# LMCACHE_PYTHON, SGLANG_PYTHON: Pythons with these, if wanted (tests/doors/make_sglang_venv.sh).
doors-test: setup
	@$(CONFIGURE)
	@$(COMPILE) --target snug_c snug-cli
	@[ -n "$(VLLM_VENV)" ] || tests/doors/make_vllm_venv.sh $(BUILD)/venv_vllm
	@$(PYTHON_ENV) $(or $(VLLM_VENV),$(BUILD)/venv_vllm)/bin/python tests/doors/doors_test.py
	@$(PYTHON_ENV) tests/doors/kv_trials.sh $(or $(VLLM_VENV),$(BUILD)/venv_vllm)/bin/python \
	  "$(LMCACHE_PYTHON)" "$(SGLANG_PYTHON)"
	@$(PYTHON_ENV) $(or $(VLLM_VENV),$(BUILD)/venv_vllm)/bin/python \
	  tests/doors/weight_transfer_trial.py $(SNUG_TEST_MODEL) $(SNUG_TEST_RL)
	@[ -z "$(SGLANG_PYTHON)" ] || $(PYTHON_ENV) $(SGLANG_PYTHON) \
	  tests/doors/sglang_weights_trial.py $(SNUG_TEST_MODEL)

fault-test: setup  # every system call and allocation fails once; takes half an hour
	@$(CONFIGURE)
	@$(COMPILE) --target fault_test
	@SNUG_FAULT_ALL=1 $(BUILD)/tests/faults/fault_test

mutation-test: setup  # 100,000 mutated files under sanitizers; takes some ten minutes
	@cmake --preset asan
	@cmake --build --preset asan -j $(JOBS) --target store_mutation_test
	@SNUG_MUTATIONS=100000 ASAN_OPTIONS=quarantine_size_mb=16:max_allocation_size_mb=256 \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build-asan/tests/store_mutation_test

reader-test: build  # safe_open: 500 slices, 2,000 damaged files; numpy, safetensors, ml_dtypes
	@$(PYTHON_ENV) SNUG_TEST_SLICES=500 SNUG_TEST_DAMAGED=2000 \
	  python3 tests/python/checkpoint_test.py

wheel: setup  # build/wheel/snug_llm-*.whl; CUDA_ARCHS=none or =90a-real takes minutes less
	@scripts/wheel.sh $(BUILD) $(JOBS) $(CUDA_ARCHS)

wheel-test:  # installs that wheel into fresh environments and uses it
	@tests/wheel/wheel_test.sh $(BUILD)

bench: setup
	@$(CONFIGURE)
	@$(COMPILE) --target bench
	@scripts/bench.sh $(BUILD)

gpu-test: setup
	@scripts/gpu.sh test $(BUILD) $(JOBS)

gpu-bench: setup
	@scripts/gpu.sh bench $(BUILD) $(JOBS)

format:
	@scripts/format.sh fix

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) build-asan build-tsan build-fuzz build-odr build-debug build-cuda build-cuda-all build-python
