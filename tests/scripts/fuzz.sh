#!/usr/bin/env bash
# Runs each fuzz target for FUZZ_SECONDS.
#
#   fuzz.sh [--if-possible]
#
# The fuzzing engine needs a nightly toolchain. cargo-fuzz is installed if it is
# missing. With --if-possible a missing tool is said, and
# the status is 77 (skipped, as in automake).
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${FUZZ_SECONDS:-60}
lenient=no
[ "${1-}" != --if-possible ] || lenient=yes

say() { printf 'fuzz: %s\n' "$*" >&2; }
missing() {
    say "$*"
    if [ $lenient = yes ]; then say "skipped"; exit 77; fi
    exit 1
}

[ -e "$top/fuzz/Cargo.toml" ] || missing "there are no fuzz targets (fuzz/Cargo.toml)"
cargo +nightly --version >/dev/null 2>&1 ||
    missing "a nightly toolchain is needed: run 'rustup toolchain install nightly --profile minimal'"
if ! cargo fuzz --version >/dev/null 2>&1; then
    [ $lenient = no ] || missing "cargo-fuzz is not there: run 'make fuzz' once, or 'cargo install cargo-fuzz'"
    say "installing cargo-fuzz (cargo install cargo-fuzz --locked)"
    # Into a directory of its own: a cross or shared target directory of this
    # workspace is not the place for it.
    env -u CARGO_TARGET_DIR cargo install cargo-fuzz --locked ||
        missing "cargo-fuzz could not be installed"
fi
"$top/tests/scripts/setup.sh" fuzz || missing "the fuzzing engine cannot be built here"

cd "$top"
targets=$(cargo +nightly fuzz list)
[ -n "$targets" ] || missing "fuzz/ has no targets"
failed=0 passed=0
for target in $targets; do
    say "$target for $seconds s"
    # Seeds that are checked in are read; what the run finds goes to the corpus.
    mkdir -p "fuzz/corpus/$target"
    corpora=("fuzz/corpus/$target")
    [ ! -d "fuzz/seeds/$target" ] || corpora+=("fuzz/seeds/$target")
    if cargo +nightly fuzz run "$target" "${corpora[@]}" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 </dev/null; then
        passed=$((passed + 1))
    else
        say "$target FAILED; the input that did it is in fuzz/artifacts/$target"
        failed=$((failed + 1))
    fi
done
say "$passed passed, $failed failed"
[ $failed = 0 ]
