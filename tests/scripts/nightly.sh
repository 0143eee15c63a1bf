#!/usr/bin/env bash
# What `make nightly` runs: everything that is too long for each change, and benchmarks.
#
#   NIGHTLY_FUZZ_SECONDS=N   for each decoder (600)
#
# A step that cannot run on this machine is skipped, and says why. The figures of the benchmarks
# go to target: no file of the tree changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null
# shellcheck source=steps.sh
. tests/scripts/steps.sh

# The C suite under valgrind on all sockets; its cases that move gigabytes in guests, too.
adapters="irdma erdma mana cxgb4 mlx5 smallest"
export EXS_TEST_FULL=1 RDMA_ENV="EXS_TEST_FULL=1 RDMA_ADAPTERS='$adapters' ${RDMA_ENV-}"

miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || { echo "there is no Miri: rustup component add miri rust-src --toolchain nightly"; return 77; }
    tests/scripts/miri.sh
}
export -f miri

step miri 120 bash -c miri
step tsan 60 tests/scripts/tsan.sh --if-possible
step test 90 make test
step fuzz 240 env FUZZ_SECONDS="${NIGHTLY_FUZZ_SECONDS:-600}" tests/scripts/fuzz.sh --if-possible
step rdma 240 tests/rdma/run.sh all
step power 90 make test-power-cut
step bench 60 make bench BENCH_ARGS=--quick
step bench-c 30 make bench-c
step bench-kernel 30 make bench-kernel
finish_steps
