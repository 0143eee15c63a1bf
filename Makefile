# Every target does its own set-up: a Rust toolchain, make and a C compiler are
# all that must be there before. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# A toolchain that rustup has just put there is found without a new login, and
# `ip` where Debian hides it from ordinary users.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

CARGO ?= cargo
export CARGO
# cargo too; but where the feature `verbs-link` cannot be built, it leaves it out and says what is
# missing. It finds the libclang that the feature needs.
BUILD := tests/scripts/cargo.sh
# Of programs for use, and of all that is tested. `make demo FEATURES=` is a build
# without RDMA devices.
FEATURES ?= verbs
ALL_FEATURES ?= internals,tracing,$(FEATURES)
# CI does not change the lock file.
LOCKED := $(if $(CI),--locked)
FUZZ_SECONDS ?= 60
# Handed to `exs-cp demo`, to `exs-bench` and `exs-pingpong`, and to the test runner.
DEMO_ARGS ?=
BENCH_ARGS ?=
TEST_ARGS ?=
SUITES ?=

RELEASE := $(LOCKED) --release -p exs-tools --features "$(FEATURES)" --bin
DENY_DOC := RUSTDOCFLAGS="-D warnings" $(BUILD) doc $(LOCKED) --no-deps

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

.PHONY: demo
demo: setup-demo ## Copy a real directory tree between two processes over EXS, verified
	$(BUILD) build $(RELEASE) exs-cp
	$(BUILD) run --quiet $(RELEASE) exs-cp -- demo $(DEMO_ARGS)

# Binaries run side by side; a test that failed runs once more, alone. The summary counts what
# was skipped and what passed at the second try. TEST_ARGS="--test shm -- READY" chooses.
.PHONY: test
test: setup-test ## Run all tests (below 10 minutes on 2 cores)
	@tests/scripts/test.sh $(LOCKED) --workspace --features "$(ALL_FEATURES)" $(TEST_ARGS)

.PHONY: test-quick
test-quick: setup-test ## Run the tests with fewer seeds, without those of whole processes (below 3 minutes)
	@tests/scripts/test.sh $(LOCKED) --workspace --features "$(ALL_FEATURES)" --lib --bins --test tidy $(TEST_ARGS)

.PHONY: nightly
nightly: ## All that is too long for each change: Miri, ThreadSanitizer, valgrind, fuzzing, every guest, benchmarks (hours)
	@tests/scripts/nightly.sh

# POWER_CUT_ARGS="--fs xfs --moments 5" tries less.
POWER_CUT_ARGS ?=
.PHONY: test-power-cut
test-power-cut: setup-test ## Cut the power of ext4, XFS and btrfs images while exs-cp writes them (superuser, some minutes)
	$(BUILD) build $(RELEASE) exs-cp
	@tests/scripts/power_cut.sh $(OUT)/release/exs-cp $(POWER_CUT_ARGS) || [ $$? = 77 ]

.PHONY: c-coverage
c-coverage: setup-test ## Write the table of what the C conformance suite covers
	WRITE_COVERAGE=1 $(BUILD) test $(LOCKED) -p exs-tests --features "$(FEATURES)" --test c_suite -- coverage

# `make test-rdma SUITES="tools netns"` runs these alone, SUITES=all the benchmarks too.
.PHONY: test-rdma
test-rdma: ## Run the suites on kernel RDMA devices in guests (QEMU, or RDMA_KERNEL=uml:FILE); SUITES picks
	@tests/rdma/run.sh $(SUITES)

.PHONY: check
check: setup-check check-fmt check-clippy check-doc check-tidy check-language check-bindings check-targets ## Formatting, lints, rustdoc and house rules, warnings denied
	@echo "check: all is well"

.PHONY: check-fmt
check-fmt: ## Only the formatting
	$(CARGO) fmt --all --check

# exs is looked at more than once: its modules are public with `internals` and private without, and
# the lints and the links of the documentation differ.
.PHONY: check-clippy
check-clippy: ## Only the lints
	$(BUILD) clippy $(LOCKED) --workspace --all-targets --features "$(ALL_FEATURES)" -- -D warnings
	$(CARGO) clippy $(LOCKED) -p exs -p exs-ffi -p exs-tools --all-targets --no-default-features -- -D warnings
	$(CARGO) clippy $(LOCKED) -p exs --features tracing,metrics -- -D warnings

.PHONY: check-doc
check-doc: ## Only the documentation
	$(DENY_DOC) -p exs -p exs-ffi
	$(DENY_DOC) --workspace --features "$(ALL_FEATURES)"

.PHONY: bindings
bindings: ## Make the declarations of rdma-core's libraries anew, of those of rdma-sys
	tests/scripts/bindings.sh

.PHONY: check-bindings
check-bindings: ## Only compare these declarations with rdma-sys's (where its build has what it needs)
	@tests/scripts/bindings.sh --check || [ $$? = 77 ]

# Other targets than this machine's: those of which the toolchain has the standard library.
.PHONY: check-targets
check-targets: ## Only compile for aarch64 and for musl
	@for target in aarch64-unknown-linux-gnu x86_64-unknown-linux-musl; do \
	    if [ -d "$$(rustc --print sysroot)/lib/rustlib/$$target" ]; then \
	        $(CARGO) check $(LOCKED) -p exs -p exs-ffi --target $$target; \
	    else \
	        echo "skipped: rustup target add $$target" >&2; \
	    fi; \
	done

.PHONY: check-tidy
check-tidy: ## Only the house rules (floors, sizes, unsafe islands, words)
	$(CARGO) test $(LOCKED) --quiet -p exs-tests --test tidy

.PHONY: check-language
check-language: ## Only print how many phrases in comments and documents are hard to read
	@if command -v python3 >/dev/null; then tests/scripts/language.py; else echo "skipped: there is no python3"; fi

.PHONY: fuzz
fuzz: ## Fuzz each decoder for FUZZ_SECONDS (60); needs a nightly toolchain
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/scripts/fuzz.sh

.PHONY: miri
miri: ## Run the tests of memory, of shared rings and of futures under Miri; needs a nightly toolchain with it
	@tests/scripts/miri.sh

.PHONY: tsan
tsan: setup-test ## Run the tests in which threads meet under ThreadSanitizer; builds the standard library, too
	@tests/scripts/tsan.sh

.PHONY: bench-pingpong
bench-pingpong: setup-demo ## Latency and bandwidth of exs-pingpong beside plain TCP sockets
	$(BUILD) build $(RELEASE) exs-pingpong
	$(BUILD) run --quiet $(RELEASE) exs-pingpong -- demo --compare tcp $(BENCH_ARGS)

# BENCH_ARGS=--quick takes less than a minute and writes to target/bench-quick, as it
# measures nothing that is worth keeping.
.PHONY: bench
bench: setup-demo ## EXS beside plain sockets and installed neighbours: docs/bench (tables, plots, JSON)
	$(BUILD) build $(RELEASE) exs-perf --bin exs-cp --bin exs-bench
	$(BUILD) run --quiet $(RELEASE) exs-bench -- --summary docs/book/src/measurements/summary.md $(BENCH_ARGS)

.PHONY: bench-deps
bench-deps: ## Install the neighbours that `make bench` measures (UCX, libfabric, iperf3, sockperf, rsync, scp)
	@tests/scripts/setup.sh bench

# What is installed where: exs-ffi/install.sh. LIBDIR, INCLUDEDIR, MANDIR and BINDIR may
# be given too.
PREFIX ?= /usr/local
DESTDIR ?=
export PREFIX DESTDIR
OUT := $(or $(CARGO_TARGET_DIR),target)

.PHONY: lib
lib: setup-demo ## Build the C library: libexs.so and libexs.a
	FEATURES="$(FEATURES)" exs-ffi/build.sh $(OUT)/lib

.PHONY: examples-c
examples-c: lib ## Build the examples in C against it (examples/c/README.md)
	$(MAKE) -C examples/c OUT=$(abspath $(OUT))/examples-c EXS_CFLAGS=-I$(abspath exs-ffi/include) \
	    EXS_LIBS="-L$(abspath $(OUT))/lib -Wl,-rpath,$(abspath $(OUT))/lib -lexs"

.PHONY: tools
tools: setup-demo
	$(BUILD) build $(LOCKED) --release -p exs-tools --features "$(FEATURES)" --bins

.PHONY: install
install: lib tools ## Install library, header, manual pages and programs (PREFIX=/usr/local DESTDIR=)
	exs-ffi/install.sh $(OUT)/lib $(OUT)/release

.PHONY: deb
deb: lib tools ## Make Debian packages of all that (into OUT/deb of the target directory)
	exs-ffi/deb.sh $(OUT)/lib $(OUT)/release $(OUT)/deb

# What is compiled names no path of this machine.
REMAP := --remap-path-prefix=$(CURDIR)=/exs --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
.PHONY: dist
dist: ## Make what a release has: the tarball, the Debian packages and checksums (into OUT/dist of the target directory)
	rm -rf $(OUT)/dist
	RUSTFLAGS="$(REMAP) $${RUSTFLAGS-}" $(MAKE) --no-print-directory lib tools
	exs-ffi/dist.sh $(OUT)/lib $(OUT)/release $(OUT)/dist
	if command -v dpkg-deb >/dev/null; then exs-ffi/deb.sh $(OUT)/lib $(OUT)/release $(OUT)/dist; fi
	cd $(OUT)/dist && sha256sum $$(ls) > SHA256SUMS
	@echo "see $(OUT)/dist"

.PHONY: test-dist
test-dist: setup-demo ## Unpack the tarball and the image of the book into roots of their own, and use them (superuser)
	@tests/scripts/dist.sh || [ $$? = 77 ]

.PHONY: test-package
test-package: ## Install the package and `make install` into roots of their own, use them, remove them (superuser)
	@tests/scripts/package.sh $(OUT)/deb || [ $$? = 77 ]

.PHONY: test-crates
test-crates: setup-demo ## Pack exs, exs-ffi and exs-tools as crates.io would get them, and install the programs from that
	@tests/scripts/crates.sh || [ $$? = 77 ]

.PHONY: test-bare
test-bare: setup-demo ## Build everything where rdma-core, its headers, clang and pkg-config are hidden, and run it (superuser)
	@tests/scripts/bare.sh || [ $$? = 77 ]

.PHONY: bench-kernel
bench-kernel: setup-demo ## Asynchronous sends on kernel sockets beside a blocking send() loop
	$(CARGO) run --quiet $(LOCKED) --release -p exs-tests --bin kernel-bench -- $(BENCH_ARGS)

# BENCH_ARGS="--only own-64k,pairs" measures these alone, BENCH_ARGS=--quick everything in a minute.
.PHONY: bench-cores
bench-cores: setup-demo ## How programs use all cores, over EXS and plain TCP, beside the aims (about ten minutes)
	$(BUILD) run --quiet $(RELEASE) exs-perf -- cores $(BENCH_ARGS)

# BENCH_ARGS="http 3 --clients=64" measures requests of 64 connections alone, BENCH_ARGS=--help tells the rest.
.PHONY: bench-async
bench-async: setup-demo ## Streams of exs::aio beside tokio's TcpStream: echo, bulk, axum with hyper, many connections (a minute)
	$(BUILD) run --quiet $(LOCKED) --release -p exs-async-examples --bin exs-aio-bench -- $(BENCH_ARGS)

.PHONY: bench-c
bench-c: lib ## A bulk sender, and round trips by poll and epoll, in C through libexs beside kernel sockets
	@tests/c/bench.sh $(OUT)/lib $(OUT)/c-bench $(BENCH_ARGS)

.PHONY: doc
doc: setup-demo ## Build the documentation of the Rust API
	$(CARGO) doc $(LOCKED) --no-deps -p exs
	@echo "open $${CARGO_TARGET_DIR:-target}/doc/exs/index.html"

BOOK := $(OUT)/book
.PHONY: book
book: setup-book tools ## Build the book: guide, C, tools, design, measurements (into OUT/book of the target directory)
	docs/book/assemble.py $(BOOK)-src $(OUT)/release
	PATH="$(abspath $(OUT))/tools/bin:$$PATH" mdbook build $(BOOK)-src --dest-dir $(abspath $(BOOK))
	@echo "open $(BOOK)/index.html"

.PHONY: deps
deps: ## Only the set-up: tools, Debian packages, crates
	@tests/scripts/setup.sh demo test check
	$(CARGO) fetch $(LOCKED)

.PHONY: clean
clean: ## Remove what was built
	$(CARGO) clean

.PHONY: setup-demo setup-test setup-check setup-book
setup-demo setup-test setup-check setup-book: setup-%:
	@tests/scripts/setup.sh $*
