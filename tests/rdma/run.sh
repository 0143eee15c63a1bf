#!/usr/bin/env bash
# What `make test-rdma` runs: builds the programs and the test binaries here, runs
# each suite in a guest whose kernel has RDMA devices, and sums up.
#
#   run.sh [SUITE]...       these (files of suites/, without .sh). `all` stands for every suite;
#                           without arguments the benchmarks and the long ones are left out
#
#   RDMA_KERNEL=uml:FILE    the kernel, see kernel.sh; QEMU with Debian's otherwise
#   RDMA_JOBS=N             guests that run side by side; see below for the default
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

header() { sed -n "s/^# $2: *//p" "$here/suites/$1.sh" | head -n 1; }
suites=("$@")
case "$*" in '' | all)
    suites=()
    for file in "$here"/suites/*.sh; do
        suite=$(basename "$file" .sh)
        if [ "$*" = all ] || [ -z "$(header "$suite" kind)" ]; then suites+=("$suite"); fi
    done
    ;;
esac
for suite in "${suites[@]}"; do
    [ -e "$here/suites/$suite.sh" ] || { say "there is no suite '$suite'"; exit 2; }
done

# --- the kernel ---------------------------------------------------------------------
tests/scripts/setup.sh rdma
kernel=$("$here/kernel.sh") || exit $?
say "guests: $kernel"
case $kernel in
    # The threads of a process take turns there, and a thread that spins (some tests wait that way)
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
build programs build --release -p exs-tools --features verbs --bins
# The test binaries of these suites, with the features of `make test`: what that has built is
# not built again.
tests=()
while read -r name; do tests+=(--test "$name"); done < <(
    for suite in "${suites[@]}"; do sed -n 's/.*run_tests \([a-z_][a-z_]*\).*/\1/p' "$here/suites/$suite.sh"; done | sort -u)
[ ${#tests[@]} = 0 ] || build tests test --no-run --workspace --features internals,tracing,verbs "${tests[@]}"
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
# The threads of a UML guest take turns on about one processor of the host, so rxe and siw
# run side by side on two. An emulated processor of QEMU keeps a thread of the host busy, and
# a guest has two.
case $kernel in
    uml*) jobs=${RDMA_JOBS:-$(nproc)} ;;
    *) jobs=${RDMA_JOBS:-$((($(nproc) + 1) / 2))} ;;
esac
began_all=$SECONDS
mkdir -p "$out/rows"

# guest SUITE DEVICE: runs one guest, and leaves a row of the table in $out/rows.
guest() {
    local suite=$1 device=$2 name=$1${2:+-$2} limit try status=0 began=$SECONDS outcome counts log
    log=$out/logs/$name.log
    limit=$(header "$suite" limit)
    say "--- $suite ${device:+on $device }(at most $((limit * factor)) s)"
    # A suite that fails runs once more: kernels have time limits of their own that a busy
    # machine exceeds. siw drops a request that has no answer for five seconds, for example while
    # two hundred wait. A suite that fails twice has failed. The table names a suite that failed once, and
    # its log is kept.
    for try in 1 2; do
        status=0
        "$here/guest.sh" -t $((limit * factor)) -l "$out/logs/$name.console" -- \
            "RDMA_BIN=$out/bin RDMA_FACTOR=$factor RDMA_RELEASE=$release EXS_TRANSPORT=$transport RUST_TEST_THREADS=1 ${RDMA_ENV-} bash tests/rdma/suites/$suite.sh $device" \
            </dev/null 2>&1 | show "$log" || status=${PIPESTATUS[0]}
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
    if [ "$status" = 0 ] && grep -q '^guest: once more' "$log"; then outcome="$outcome (after a guest that died)"; fi
    # A kernel that complains is worth a look, even if the tests passed.
    if sed '1,/exs: the command starts/d' "$out/logs/$name.console" | grep 'WARNING:\|BUG:\|Oops' >/dev/null; then
        outcome="$outcome; the kernel complains, see $name.console"
    fi
    note_all "$name" "$log" "$outcome"
    if [ "$jobs" != 1 ]; then
        printf -- '--- %s %s\n' "$suite" "$device"
        cat "$log"
    fi
    printf '%-18s %-6s %6d s  %7s  %s\n' "$suite" "${device:-both}" $((SECONDS - began)) "$counts" "$outcome" >"$out/rows/$name"
}
# note_all NAME LOG OUTCOME: for the summary of a caller (EXS_TEST_NOTES), what was skipped, what
# passed at a second try, and what failed. A line is KIND<tab>PLACE<tab>REASON.
note_all() {
    local name=$1 log=$2 outcome=$3
    [ -n "${EXS_TEST_NOTES-}" ] || return 0
    {
        # `TEST: REASON`, or a reason alone.
        sed -n 's/^ *\(skipped in part\|skipped\|flaky\): /\1\t/p' "$log" | sort -u |
            awk -F'\t' -v name="rdma $name" '{
                at = index($2, ": ")
                if (at && substr($2, 1, at - 1) !~ / /) print $1 "\t" name " " substr($2, 1, at - 1) "\t" substr($2, at + 2)
                else print $1 "\t" name "\t" $2 }'
        sed -n "s/^skipped \(.*\): \(.*\)/skipped\trdma $name \1\t\2/p" "$log"
        case $outcome in
            FAILED*) printf 'failed\trdma %s\t%s\n' "$name" "$outcome" ;;
            *second\ try* | *died*) printf 'flaky\trdma %s\t%s: %s\n' "$name" "$outcome" "$(first_failure "$log.1")" ;;
        esac
    } >>"$EXS_TEST_NOTES"
}
# first_failure LOG: the first check that failed in a log, if there is such a log.
first_failure() { sed -n 's/^FAILED  //p' "$1" 2>/dev/null | head -n 1; }
# show LOG: writes what a guest says to LOG, and shows it at once if no other guest speaks too.
show() {
    if [ "$jobs" = 1 ]; then tee "$1"; else cat >"$1"; fi
}

queue=()
for suite in "${suites[@]}"; do
    case $(header "$suite" devices) in
        each) queue+=("$suite rxe" "$suite siw") ;;
        both) queue+=("$suite ") ;;
        rxe | siw) queue+=("$suite $(header "$suite" devices)") ;;
        *) say "suites/$suite.sh must say '# devices: each', 'both', 'rxe' or 'siw'"; exit 2 ;;
    esac
done
# The longest first, so that no guest is left alone with a long one at the end.
mapfile -t queue < <(for entry in "${queue[@]}"; do
    printf '%s\t%s\n' "$(header "${entry%% *}" limit)" "$entry"
done | sort -s -t "$(printf '\t')" -k1,1nr | cut -f2)

running=0
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
for entry in "${queue[@]}"; do
    suite=${entry%% *} device=${entry#* }
    # A benchmark has the machine to itself.
    alone=$([ "$(header "$suite" kind)" = benchmark ] && echo 1 || echo "$jobs")
    while [ "$running" -ge "$alone" ]; do
        wait -n || true
        running=$((running - 1))
    done
    guest "$suite" "$device" &
    running=$((running + 1))
    if [ "$alone" = 1 ]; then
        wait || true
        running=0
    fi
done
wait || true

printf '\n%-18s %-6s %8s  %7s  %s\n' suite device time ok outcome
failures=0
for entry in "${queue[@]}"; do
    suite=${entry%% *} device=${entry#* }
    row=$(cat "$out/rows/$suite${device:+-$device}" 2>/dev/null) || row="$suite $device: FAILED: no guest ran"
    case $row in *FAILED*) failures=$((failures + 1)) ;; esac
    printf '%s\n' "$row"
done
printf 'logs: %s; %d s in all, %d guests at a time, under %s\n' "$out/logs" $((SECONDS - began_all)) "$jobs" "${kernel%% *}"
[ $failures = 0 ] || { printf '%d of %d guests failed\n' "$failures" "${#queue[@]}"; exit 1; }
