#!/usr/bin/env bash
# What `make test-rdma` runs: builds the programs and the test binaries here, runs
# each suite in a guest whose kernel has RDMA devices, and sums up.
#
#   run.sh [SUITE]...       all, or these (files of suites/, without .sh)
#
#   RDMA_KERNEL=uml:FILE    the kernel, see kernel.sh; QEMU with Debian's otherwise
#   EXS_TRANSPORT=soft      not verbs: tries the test bed itself
#
# Logs of the suites and of the guests' consoles stay in target/rdma.
# Status: 0 all passed, 1 some failed, 77 no guest can run here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
out=${CARGO_TARGET_DIR:-$top/target}/rdma
cd "$top"
say() { printf 'rdma: %s\n' "$*" >&2; }

suites=("$@")
if [ $# = 0 ]; then
    for file in "$here"/suites/*.sh; do suites+=("$(basename "$file" .sh)"); done
fi
for suite in "${suites[@]}"; do
    [ -e "$here/suites/$suite.sh" ] || { say "there is no suite '$suite'"; exit 2; }
done

# --- the kernel ---------------------------------------------------------------------
tests/scripts/setup.sh rdma
kernel=$("$here/kernel.sh") || exit $?
say "guests: $kernel"
case $kernel in
    # The threads of a process take turns there, and one that spins (some tests wait that way)
    # gets nearly all of them: two tests in one process starve each other.
    uml*) factor=1 release=7 ;;
    # An emulated processor is that much slower. There are two, but a test with hundreds of
    # connections keeps both from its neighbour for longer than rxe waits for it.
    *) factor=5 release=$(cut -d. -f1 "${kernel#* }/version") ;;
esac

# --- the binaries -------------------------------------------------------------------
rm -rf "$out"
mkdir -p "$out/bin" "$out/logs"
transport=${EXS_TRANSPORT:-verbs}
if [ "$transport" = verbs ]; then
    tests/scripts/cargo.sh --can-verbs || { say "so there is no verbs transport to be tested"; exit 1; }
fi
# build NAME-OF-STEP CARGO-ARGUMENTS...: links each executable that cargo speaks of.
build() {
    local step=$1 file name
    shift
    say "building the $step"
    tests/scripts/cargo.sh "$@" ${CI:+--locked} --message-format=json-render-diagnostics >"$out/$step.json"
    grep -o '"executable":"[^"]*"' "$out/$step.json" | cut -d'"' -f4 | while read -r file; do
        name=$(basename "$file")
        # Test binaries have a hash at the end of their name.
        [ "$step" = programs ] || name=${name%-*}
        ln -sf "$file" "$out/bin/$name"
    done
}
build programs build --release -p exs-examples --features verbs --bins
build tests test --no-run -p exs-tests --features verbs --tests
case " ${suites[*]} " in *" neighbours "*)
    gcc -O2 -Wall -o "$out/bin/announced" "$here/announced.c" -lrdmacm -libverbs
    ;;
esac
# The C library and its programs, for the suites that are in C.
case " ${suites[*]} " in *" c "* | *" c-bench "*)
    say "building the C programs"
    QUIET=1 PROFILE=release FEATURES=verbs exs-ffi/build.sh "$out/bin/c/lib"
    tests/c/build.sh "$out/bin/c/lib" "$out/bin/c"
    ;;
esac

# --- the guests ---------------------------------------------------------------------
header() { sed -n "s/^# $2: *//p" "$here/suites/$1.sh" | head -n 1; }
rows=() failures=0 began_all=$SECONDS

# guest SUITE DEVICE
guest() {
    local suite=$1 device=$2 name=$1${2:+-$2} limit try status=0 began=$SECONDS outcome counts log
    log=$out/logs/$name.log
    limit=$(header "$suite" limit)
    say "--- $suite ${device:+on $device }(at most $((limit * factor)) s)"
    # Once more, if something failed: kernels have time limits of their own that a busy machine
    # exceeds (siw drops a request that has no answer for five seconds, say while two hundred
    # wait). What fails twice is ours; what fails once is said, and its log kept.
    for try in 1 2; do
        status=0
        "$here/guest.sh" -t $((limit * factor)) -l "$out/logs/$name.console" -- \
            "RDMA_BIN=$out/bin RDMA_FACTOR=$factor RDMA_RELEASE=$release EXS_TRANSPORT=$transport RUST_TEST_THREADS=1 ${RDMA_ENV-} bash tests/rdma/suites/$suite.sh $device" \
            </dev/null 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
        case $status-$try in
            0-* | 77-* | 130-* | 143-* | *-2) break ;;
        esac
        say "--- $suite ${device:+on $device }failed ($status); once more"
        mv "$log" "$log.1"
    done
    counts=$(grep -c '^ok ' "$log" || true)/$(grep -c '^\(ok\|FAILED\) ' "$log" || true)
    case $status in
        0) outcome=passed; [ $try = 1 ] || outcome="passed at the second try, see $name.log.1" ;;
        77) outcome=skipped ;;
        124) outcome="FAILED: not done in time" ;;
        125) outcome="FAILED: the guest died" ;;
        130 | 143) exit "$status" ;;
        *) outcome="FAILED" ;;
    esac
    case $outcome in FAILED*) failures=$((failures + 1)) ;; esac
    if [ "$status" = 0 ] && grep -q '^guest: once more' "$log"; then outcome="$outcome (after a guest that died)"; fi
    # A kernel that complains is worth a look, even if the tests passed.
    if sed '1,/exs: the command starts/d' "$out/logs/$name.console" | grep 'WARNING:\|BUG:\|Oops' >/dev/null; then
        outcome="$outcome; the kernel complains, see $name.console"
    fi
    rows+=("$(printf '%-18s %-6s %6d s  %7s  %s' "$suite" "${device:-both}" $((SECONDS - began)) "$counts" "$outcome")")
}

for suite in "${suites[@]}"; do
    case $(header "$suite" devices) in
        each) guest "$suite" rxe; guest "$suite" siw ;;
        both) guest "$suite" '' ;;
        rxe | siw) guest "$suite" "$(header "$suite" devices)" ;;
        *) say "suites/$suite.sh must say '# devices: each', 'both', 'rxe' or 'siw'"; exit 2 ;;
    esac
done

printf '\n%-18s %-6s %8s  %7s  %s\n' suite device time ok outcome
printf '%s\n' "${rows[@]}"
printf 'logs: %s; %d s in all, under %s\n' "$out/logs" $((SECONDS - began_all)) "${kernel%% *}"
[ $failures = 0 ] || { printf '%d of %d guests failed\n' "$failures" "${#rows[@]}"; exit 1; }
