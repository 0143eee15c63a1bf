#!/usr/bin/env bash
# Runs the tests of the memory floor, of the shared rings and of the memory that futures hand over
# under Miri, which sees undefined behaviour that a plain run survives.
set -euo pipefail

say() { printf 'miri: %s\n' "$*" >&2; }
cargo +nightly --version >/dev/null 2>&1 || {
    say "a nightly toolchain is needed: run 'rustup toolchain install nightly --profile minimal'"
    exit 1
}
cargo +nightly miri --version >/dev/null 2>&1 || {
    say "the nightly toolchain has no Miri: run 'rustup component add miri rust-src --toolchain nightly'"
    exit 1
}
# Generated cases cost a thousand times more here; a few of them reach each path.
export PROPTEST_CASES=${PROPTEST_CASES:-8}
# Without `verbs`: Miri cannot call into C libraries.
[ $# -gt 0 ] || set -- mem:: shm::ring shm::ring_window aio::slots
exec cargo +nightly miri test -p exs --lib --features internals,tracing,bytes,futures -- "$@"
