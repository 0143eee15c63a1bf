#!/usr/bin/env bash
# Two builds of exs-pingpong in turn over the device, for one who changes the driver:
# RDMA_COMPARE="DIRECTORY DIRECTORY", each with the program. Notes the second's figures as a share of
# the first's; slowness fails nothing.
# devices: each
# kind: benchmark
# limit: 560
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
if [ -z "${RDMA_COMPARE-}" ]; then
    skip "two builds beside each other" "RDMA_COMPARE names no builds"
    finish
fi
"$bed/links.sh" one
use "$1"
read -r first second <<<"$RDMA_COMPARE"

# once DIRECTORY MODE SIZE: half a round trip in us, or messages in a second.
once() {
    serve "$1/exs-pingpong" --listen "$addr:0"
    over_device within 30 "$1/exs-pingpong" "$at" --json --mode "$2" --size "$3" >"$temp/json"
    grep -q "\"transport\":\"$EXS_TRANSPORT" "$temp/json"
    end "$server"
    sed -n 's/.*"\(p50\|messages_per_s\)":\([0-9.]*\).*/\2/p' "$temp/json"
}
median() { sort -g | awk '{ v[NR] = $1 } END { printf "%.1f", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

compare() { # MODE SIZE
    local turn a b
    : >"$temp/a"
    : >"$temp/b"
    for turn in $(seq "${RDMA_ROUNDS:-7}"); do
        # Each goes first in every second turn.
        if [ $((turn % 2)) = 1 ]; then once "$first" "$@" >>"$temp/a"; fi
        once "$second" "$@" >>"$temp/b"
        if [ $((turn % 2)) = 0 ]; then once "$first" "$@" >>"$temp/a"; fi
    done
    a=$(median <"$temp/a") b=$(median <"$temp/b")
    awk -v a="$a" -v b="$b" 'BEGIN { printf "note: %s, then %s (%.2f)\n", a, b, b / a }'
}

before=$(census)
for size in 64 4096; do check "half a round trip, $size bytes, us" compare lat $size; done
for size in 64 4096 65536 1048576; do check "messages a second, $size bytes" compare bw $size; done
check "nothing is left of it" no_leaks "$before"
finish
