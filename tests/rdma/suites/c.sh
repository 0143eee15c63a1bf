#!/usr/bin/env bash
# The C library by its conformance suite, over the device: the same cases as over the
# software RNIC, so a C program need not care what it runs on.
# devices: each
# limit: 500
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

# Linux 7.2's connection manager now and then does not let go of a connection on rxe: who
# destroys it waits inside of the kernel (cm_destroy_id) for about a minute. So a case that
# was "not done" there has one more try; whatever else fails, fails.
conformance() {
    local name
    within 270 "$RDMA_BIN/c/conformance" --transport "$EXS_TRANSPORT" >"$temp/cases" || true
    printf 'note: %s of %s cases\n' "$(grep -c '^ok ' "$temp/cases")" "$(sed -n 's/^1\.\.//p' "$temp/cases")"
    grep -v '^ok ' "$temp/cases" || true
    [ "$(grep -c '^\(not \)\?ok ' "$temp/cases")" = "$(sed -n 's/^1\.\.//p' "$temp/cases")" ] || { echo "it did not come to its end"; return 1; }
    grep -A1 '^not ok ' "$temp/cases" | grep '^# ' | grep -v '^# not done within' >"$temp/other" && return 1
    [ "$(grep -c '^not ok ' "$temp/cases")" -le 2 ] || return 1
    for name in $(awk '/^not ok / { print $(NF - 1) }' "$temp/cases"); do
        within 130 "$RDMA_BIN/c/conformance" --transport "$EXS_TRANSPORT" "$name" >"$temp/again" || { cat "$temp/again"; return 1; }
        echo "note: $name hung, and passed when it was run again"
    done
}

before=$(census)
check "the conformance suite in C" conformance
check "nothing is left of it" no_leaks "$before"
finish
