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
${CC:-cc} -std=gnu99 -O2 -Wall -Wextra -I"$here/../../exs-ffi/include" "$here/bulk.c" \
    -o "$out/bulk" -L"$lib" -Wl,-rpath,"$lib" -lexs
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

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
            figure=$(timeout 60 "$out/bulk" $kind "$size" "$amount" "${ADDRESS:-127.0.0.1}") ||
                { echo "bench: $kind, $size bytes: it failed" >&2; exit 1; }
            all[$kind]+=$figure$'\n'
        done
    done
    printf '%s bytes, medians of %s, MB/s\n' "$size" "$rounds"
    for kind in "${kinds[@]}"; do
        case $kind in *unix) base="plain unix" ;; *) base="plain tcp" ;; esac
        awk -v kind="$kind" -v m="$(printf '%s' "${all[$kind]}" | median)" -v of="$base" \
            -v b="$(printf '%s' "${all[$base]}" | median)" \
            'BEGIN { printf "  %-11s %8.1f   %5.2f of %s\n", kind, m, m / b, of }'
    done
    unset all
done

${CC:-cc} -std=gnu99 -O2 -Wall -Wextra -I"$here/../../exs-ffi/include" "$here/roundtrip.c" \
    -o "$out/roundtrip" -L"$lib" -Wl,-rpath,"$lib" -lexs
declare -A trips=()
for ((round = 0; round < rounds; round++)); do
    for mode in recv poll epoll exs-epoll exs-wait qfd; do
        for kind in tcp soft shm; do
            figure=$(timeout 60 "$out/roundtrip" $mode $kind 5000 "${ADDRESS:-127.0.0.1}") ||
                { echo "bench: round trips by $mode, $kind: it failed" >&2; exit 1; }
            trips[$mode $kind]+=$figure$'\n'
        done
    done
done
printf 'round trips of 64 bytes, medians of %s, us\n' "$rounds"
for mode in recv poll epoll exs-epoll exs-wait qfd; do
    base=$(printf '%s' "${trips[$mode tcp]}" | median)
    for kind in tcp soft shm; do
        awk -v kind="$mode $kind" -v b="$base" -v m="$(printf '%s' "${trips[$mode $kind]}" | median)" \
            'BEGIN { printf "  %-11s %8.1f   %5.2f of %s\n", kind, m, m / b, "tcp" }'
    done
done

${CC:-cc} -std=gnu99 -O2 -Wall -Wextra -pthread -I"$here/../../exs-ffi/include" "$here/pairs.c" \
    -o "$out/pairs" -L"$lib" -Wl,-rpath,"$lib" -lexs
declare -A answers=()
for ((round = 0; round < rounds; round++)); do
    for pairs in 2 8 32 128; do
        for kind in tcp soft shm; do
            figure=$(timeout 60 "$out/pairs" $kind $pairs 1) ||
                { echo "bench: $pairs pairs of threads, $kind: it failed" >&2; exit 1; }
            answers[$pairs $kind]+=$figure$'\n'
        done
    done
done
printf 'pairs of threads, answers a second, medians of %s\n' "$rounds"
for pairs in 2 8 32 128; do
    base=$(printf '%s' "${answers[$pairs tcp]}" | median)
    for kind in tcp soft shm; do
        awk -v kind="$pairs $kind" -v b="$base" -v m="$(printf '%s' "${answers[$pairs $kind]}" | median)" \
            'BEGIN { printf "  %-11s %8.0f   %5.2f of %s\n", kind, m, m / b, "tcp" }'
    done
done
