#!/usr/bin/env bash
# The C library by its conformance suite, over the device: the same cases as over the
# software RNIC, so a C program need not care what it runs on.
# devices: each
# limit: 1200
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

# Every system call is dear here, so cases repeat less, and those that move gigabytes are left to
# `make nightly`.
options=(--slow --light)
[ -z "${EXS_TEST_FULL-}" ] || options=()

conformance() {
    local status=0
    within 1150 stdbuf -oL "$RDMA_BIN/c/conformance" "${options[@]}" --transport "$EXS_TRANSPORT" |
        while IFS= read -r line; do printf '%s\t%s\n' "$SECONDS" "$line"; done >"$temp/timed" || status=$?
    cut -f2- "$temp/timed" >"$temp/cases"
    # Where the time goes: a case ends some seconds after the one before it.
    awk -F'\t' '$1 - last > 4 { printf "note: %d s: %s\n", $1 - last, $2 } { last = $1 }' "$temp/timed"
    printf 'note: %s of %s cases\n' "$(grep -c '^ok ' "$temp/cases")" "$(sed -n 's/^1\.\.//p' "$temp/cases")"
    sed -n 's/^# less: \(.*\)/note: skipped in part: \1: it repeats less in a guest/p; s/^ok [0-9]* .* \([^ ]*\) [^ ]* # SKIP /note: skipped: \1: /p' "$temp/cases"
    grep -v '^ok \|^# less: ' "$temp/cases" || true
    return "$status"
}

before=$(census)
check "the conformance suite in C" conformance
check "nothing is left of it" no_leaks "$before"
finish
