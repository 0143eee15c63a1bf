# shellcheck shell=bash disable=SC2034 # variables that suites read
# For suites, in a guest. A suite is a script in suites/ that sources this, calls
# `check` for each thing it looks at, and ends with `finish`. It gets from run.sh:
# RDMA_BIN (a directory with the programs and the test binaries by their names),
# RDMA_FACTOR (how much slower than an ordinary machine this guest may be),
# EXS_TRANSPORT (verbs, unless the caller wants another), and the device as $1.
set -euo pipefail
export PATH=$PATH:/sbin:/usr/sbin
bed=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
temp=$(mktemp -d -p /tmp)
failed=0 passed=0 skipped=0

# --- results ------------------------------------------------------------------------

# check NAME COMMAND...: a command or function of this shell; it fails by its status,
# and only then its output is shown, but for lines that begin with "note: ".
check() {
    local name=$1 began=${EPOCHREALTIME/./} status=0 log=$temp/check.log
    shift
    # Not `"$@" || status=$?`, which would switch `set -e` off inside of functions.
    set +e
    (
        # Processes that it started and did not end must not disturb the next.
        trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
        set -e
        "$@"
    ) >"$log" 2>&1
    status=$?
    set -e
    began=$(((${EPOCHREALTIME/./} - began) / 100000))
    began=$((began / 10)).$((began % 10))
    if [ $status = 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %s (%s s)\n' "$name" $began
        sed -n 's/^note: /          /p' "$log"
    elif [ $status = 77 ]; then
        skip "$name" "$(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        case $status in
            124 | 137) printf 'FAILED  %s (%s s): not done in time\n' "$name" $began ;;
            *) printf 'FAILED  %s (%s s): status %d\n' "$name" $began $status ;;
        esac
        tail -n "${CHECK_TAIL:-120}" "$log" | sed 's/^/        | /'
    fi
}

skip() { # NAME REASON
    skipped=$((skipped + 1))
    printf 'skipped %s: %s\n' "$1" "$2"
}

# The last command of a suite.
finish() {
    printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
    [ $failed = 0 ] || exit 1
    exit 0
}

# within SECONDS COMMAND...: ends it after this time; later in a slow guest.
within() { timeout -k 5 $(($1 * RDMA_FACTOR)) "${@:2}"; }

# until_true SECONDS COMMAND...: asks again and again, for this time.
until_true() {
    local deadline=$((SECONDS + $1 * RDMA_FACTOR))
    shift
    until "$@"; do
        if [ $SECONDS -ge $deadline ]; then return 1; fi
        sleep 0.05
    done
}

# --- devices -------------------------------------------------------------------------

# use rxe|siw: the device of links.sh's single namespace, for programs and tests.
use() {
    case $1 in
        rxe) addr=10.9.0.1 addr6=fd09::1 ;;
        siw) addr=10.9.2.1 addr6=fd09:2::1 ;;
        *) echo "no such device: $1" >&2; exit 2 ;;
    esac
    kind=$1 device=${1}0
    export EXS_TEST_RDMA_DEVICE=$device EXS_TEST_RDMA_ADDR=$addr EXS_TEST_RDMA_ADDR6=$addr6
}

# What the kernel holds for RDMA programs, all devices. Contexts are left out: a device
# that was removed and made again has none of its old ones.
census() { rdma resource show | sed 's/^[0-9]*: //; s/ ctx [0-9]*//; s/ *$//' | sort; }

same_census() { [ "$(census)" = "$1" ]; }

# no_leaks CENSUS: within moments, as the kernel frees in the background.
no_leaks() {
    until_true 5 same_census "$1" && return
    echo "before:"; echo "$1"
    echo "now:"; census
    for object in qp cq mr pd cm_id; do rdma resource show "$object" | grep 'comm ' || true; done
    return 1
}

# A process of ours (its name is cut to 15 characters) has a queue pair.
# Not grep -q, here and elsewhere: it hangs up on a program that still writes, which
# pipefail then takes for a failure.
has_qp() { rdma resource show qp | grep 'comm exs-' >/dev/null; }

# --- programs --------------------------------------------------------------------------

# serve COMMAND...: starts a server, waits until it prints "listening on ADDR" or
# "serving X on ADDR"; then `at` is ADDR, `server` its process, `server_log` its output.
serve() {
    local listening='\(listening\|serving .*\) on \([][0-9a-f.:]*\)'
    server_log=$temp/server.log
    : >"$server_log"
    "$@" >"$server_log" 2>&1 </dev/null &
    server=$!
    until_true 20 grep -q "$listening" "$server_log" || { cat "$server_log"; echo "the server does not listen"; return 1; }
    at=$(sed -n "s/.*$listening.*/\2/p" "$server_log" | head -n 1)
}

# await_rdma_listener PORT: for servers that do not say when they listen
await_rdma_listener() { until_true 20 has_listener "$1"; }
has_listener() { rdma resource show cm_id | grep "LISTEN .*:$1 " >/dev/null; }

# end PID: by SIGTERM, and in time
end() {
    kill "$1" 2>/dev/null || true
    if ! until_true 10 gone "$1"; then
        echo "process $1 does not end by SIGTERM"
        kill -9 "$1"
        return 1
    fi
    wait "$1" 2>/dev/null || true
}

gone() { ! kill -0 "$1" 2>/dev/null || [ "$(awk '{ print $3 }' "/proc/$1/stat" 2>/dev/null)" = Z ]; }

# over_device COMMAND...: runs it, and fails if no program of ours had a queue pair in
# the kernel meanwhile: it may have gone another way and pleased everybody.
over_device() {
    local pid status=0 seen=no
    "$@" &
    pid=$!
    until gone $pid; do
        if [ $seen = no ] && has_qp; then seen=yes; fi
        sleep 0.005
    done
    wait $pid || status=$?
    [ $status = 0 ] || return $status
    case $EXS_TRANSPORT-$seen in
        verbs-no) echo "it worked, but not over an RDMA device"; return 1 ;;
        soft-yes) echo "it worked, but over an RDMA device, not the software RNIC"; return 1 ;;
    esac
}

# listens_by_device yes|no: a server of ours listens on an RDMA device, or does not. For
# clients that are done before over_device can look.
listens_by_device() {
    local seen=no
    if rdma resource show cm_id | grep 'LISTEN .*comm exs-' >/dev/null; then seen=yes; fi
    [ $seen = "$1" ] || { echo "a server on an RDMA device: $seen, expected: $1"; return 1; }
}

# failed_tests LOG: the names at the end of what a test binary has printed.
failed_tests() { awk '/^failures:$/ { n = 0 } /^    [^ ]/ { name[n++] = $1 } END { for (i = 0; i < n; i++) print name[i] }' "$1"; }

# once_more BINARY SECONDS LOG: runs each test that failed a second time, alone, as `make test` does. A
# test that passes then is reported as flaky, with what it said first. Fails if one fails again, or if no
# test is named.
once_more() {
    local name first again=$temp/again.log status=1
    while read -r name; do
        if ! within "$2" "$1" --show-output --exact "$name" >"$again" 2>&1 </dev/null; then
            echo "once more, alone:"
            cat "$again"
            return 1
        fi
        first=$(grep -F -A 1 "thread '$name'" "$3" | head -n 2 | tr '\n' ' ')
        echo "note: flaky: $name: passed at the second try; first: ${first:0:300}"
        status=0
    done < <(failed_tests "$3")
    return $status
}

# run_tests BINARY SECONDS [ARGUMENTS OF THE TEST RUNNER]: all tests of a test binary.
run_tests() {
    local binary=$RDMA_BIN/$1 limit=$2 status=0 log=$temp/tests.log
    [ -x "$binary" ] || { echo "there is no test binary $1: tests/tests/$1.rs is what it is built from"; return 1; }
    shift 2
    within "$limit" "$binary" --show-output "$@" >"$log" 2>&1 || status=$?
    # A binary that crashes or is not done in time prints no such line, and has no second try.
    if [ $status != 0 ] && grep -q '^test result: FAILED' "$log" && once_more "$binary" "$limit" "$log"; then
        status=0
    fi
    sed -n 's/^test result: /note: /p' "$log"
    # A test that lacks what it needs passes, and is counted as skipped. With one test at a time
    # its line comes behind the name of the test.
    sed -n 's/^\(test .* \.\.\. \)\?\(skipped\|skipped in part\|flaky\): /note: \2: /p' "$log" | sort -u
    if [ $status != 0 ]; then
        grep -v '^$\|^ok$\|skipped: \| \.\.\. ok$' "$log" | tail -n 200
        # So a test that did not end is told apart from a test that did not begin.
        [ $status != 124 ] || { echo "the tests that ended:"; grep -c ' \.\.\. ok$' "$log"; }
    fi
    return $status
}
