#!/usr/bin/env bash
# A bulk sender in the way of ES-API (16 sends in flight, half of them awaited) over each
# transport, beside a loop of send(2): in turn, A B A B, medians, and ratios to the loop on
# the same kind of kernel socket (of EXS's own transports: to that over TCP).
#
#   tests/c/bench.sh LIB OUT [ROUNDS [MEGABYTES]]
#
# KINDS="exs verbs,..." adds others, ADDRESS is where to (127.0.0.1). Then round trips of 64 bytes
# of programs that wait in a receive, in poll(2), in epoll, and in epoll on a queue's descriptor:
# medians, and ratios to TCP waited for in the same way. Last, pairs of threads that block.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lib=$1 out=$2 rounds=${3:-11} megabytes=${4:-512}
mkdir -p "$out"

# Builds a program of this directory.
build() {
    ${CC:-cc} -std=gnu99 -O2 -Wall -Wextra -pthread -I"$here/../../exs-ffi/include" "$here/$1.c" \
        -o "$out/$1" -L"$lib" -Wl,-rpath,"$lib" -lexs
}
# figure KEY WHAT PROGRAM ARGUMENTS...: one more figure of KEY, which the program prints. WHAT says what
# has failed if it fails.
figure() {
    local key=$1 what=$2 got
    got=$(timeout 60 "$out/$3" "${@:4}") || { echo "bench: $what: it failed" >&2; exit 1; }
    all[$key]+=$got$'\n'
}
median() { printf '%s' "${all[$1]}" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
# row KEY BASE OF DIGITS: the median of KEY, and its ratio to that of BASE, which is called OF.
row() {
    awk -v kind="$1" -v m="$(median "$1")" -v b="$(median "$2")" -v of="$3" -v digits="$4" \
        'BEGIN { printf "  %-11s %8." digits "f   %5.2f of %s\n", kind, m, m / b, of }'
}

build bulk
kinds=("plain tcp" "exs tcp" "plain unix" "exs unix" "exs soft" "exs shm")
if [ -n "${KINDS-}" ]; then IFS=, read -ra kinds <<<"$KINDS"; fi
# Speed proves nothing of one run on one machine: what is compared ran in turn.
for size in ${SIZES:-64 1024 4096 65536 1048576}; do
    # As many small messages as take about as long.
    amount=$((size < 4096 && megabytes > size / 4 ? size / 4 : megabytes))
    declare -A all=()
    for ((round = 0; round < rounds; round++)); do
        for kind in "${kinds[@]}"; do
            # shellcheck disable=SC2086 # two words
            figure "$kind" "$kind, $size bytes" \
                bulk $kind "$size" "$amount" "${ADDRESS:-127.0.0.1}"
        done
    done
    printf '%s bytes, medians of %s, MB/s\n' "$size" "$rounds"
    for kind in "${kinds[@]}"; do
        case $kind in *unix) base="plain unix" ;; *) base="plain tcp" ;; esac
        row "$kind" "$base" "$base" 1
    done
    unset all
done

# beside_tcp WHAT DIGITS PROGRAM MODES ARGUMENTS...: the program in each of these modes over each transport,
# beside TCP in the same mode.
beside_tcp() {
    local what=$1 digits=$2 program=$3 modes=$4 mode kind round
    local -A all=()
    build "$program"
    for ((round = 0; round < rounds; round++)); do
        for mode in $modes; do
            for kind in tcp soft shm; do
                figure "$mode $kind" "$what: $mode, $kind" "$program" "$mode" $kind "${@:5}"
            done
        done
    done
    printf '%s, medians of %s\n' "$what" "$rounds"
    for mode in $modes; do
        for kind in tcp soft shm; do
            row "$mode $kind" "$mode tcp" tcp "$digits"
        done
    done
}

beside_tcp 'round trips of 64 bytes, us' 1 roundtrip 'recv poll epoll exs-epoll exs-wait qfd' 5000 \
    "${ADDRESS:-127.0.0.1}"
beside_tcp 'pairs of threads, answers a second' 0 pairs '2 8 32 128' 1
