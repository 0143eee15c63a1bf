#!/usr/bin/env bash
# Builds tests, and runs the test binaries side by side (tests/runner).
#
#   test.sh CARGO-ARGUMENTS... [-- ARGUMENTS OF EACH TEST BINARY]
#
#   TEST_JOBS=N        binaries that run at a time (one for each processor)
#   EXS_TEST_NOTES=F   appends to F what was skipped, flaky or failed, for a caller's summary
#
# The documentation's examples run at the same time, unless the arguments choose targets.
# The output of each binary stays in target/test-logs.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top"
target=${CARGO_TARGET_DIR:-$top/target}
cargo=tests/scripts/cargo.sh
logs=$target/test-logs

build=() run=() docs=yes
while [ $# -gt 0 ]; do
    case $1 in
        --) shift; run=("$@"); break ;;
        --lib | --bin | --bins | --test | --tests | --example | --examples | --all-targets) docs=no ;;
    esac
    build+=("$1")
    shift
done

rm -rf "$logs"
mkdir -p "$logs"
$cargo test "${build[@]}" --no-run --message-format=json-render-diagnostics >"$logs/built.json"
$cargo build --quiet ${CI:+--locked} -p exs-test-runner

documents=0 tests=0
if [ $docs = yes ]; then
    $cargo test "${build[@]}" --doc -- "${run[@]}" >"$logs/documentation.out" 2>&1 &
    child=$!
fi
# The runner keeps the durations beside the logs, for the order of the next run.
"$target/debug/exs-test-runner" ${TEST_JOBS:+--jobs "$TEST_JOBS"} "$logs/built.json" "$logs" -- "${run[@]}" || tests=$?
if [ $docs = yes ]; then
    wait "$child" || documents=$?
    [ $documents = 0 ] || cat "$logs/documentation.out"
    awk '/^test result:/ { passed += $4; failed += $6 } END {
        printf "=== examples in the documentation: %d passed, %d failed\n", passed, failed }' "$logs/documentation.out"
    if [ $documents != 0 ] && [ -n "${EXS_TEST_NOTES-}" ]; then
        printf 'failed\tdocumentation\tsee %s\n' "$logs/documentation.out" >>"$EXS_TEST_NOTES"
    fi
fi
[ $tests = 0 ] || exit $tests
exit $documents
