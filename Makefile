# The two commands of the README are `make demo` and `make test`. Each installs
# what is missing, builds and runs.
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=

.PHONY: all demo test build setup bench gpu-test gpu-bench format install clean
all: build

setup:
	@scripts/setup.sh

build: setup
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release $(CMAKE_FLAGS)
	@cmake --build $(BUILD) -j $(JOBS)

demo: setup
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release $(CMAKE_FLAGS)
	@cmake --build $(BUILD) -j $(JOBS) --target snug-cli
	@SNUG_CLI=$(BUILD)/snug scripts/demo.sh

test: build
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -LE gpu

bench: build
	@scripts/bench.sh $(BUILD)

gpu-test: setup
	@scripts/gpu.sh test $(BUILD)

gpu-bench: setup
	@scripts/gpu.sh bench $(BUILD)

format:
	@command -v clang-format >/dev/null || { echo "make format needs the package clang-format"; exit 1; }
	@find include src tests bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format -i

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) build-*
