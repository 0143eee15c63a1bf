#!/usr/bin/env bash
# A bulk sender in the way of ES-API (16 sends in flight, half of them awaited) over each
# transport, beside a loop of send(2) over TCP: in turn, A B A B, medians and ratios.
#
#   tests/c/bench.sh LIB OUT [ROUNDS [MEGABYTES]]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lib=$1 out=$2 rounds=${3:-7} megabytes=${4:-512}
mkdir -p "$out"
${CC:-cc} -std=gnu99 -O2 -Wall -Wextra -I"$here/../../exs-ffi/include" "$here/bulk.c" \
    -o "$out/bulk" -L"$lib" -Wl,-rpath,"$lib" -lexs
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

kinds=("plain tcp" "exs tcp" "plain unix" "exs unix" "exs soft" "exs shm")
# Speed proves nothing of one run on one machine: what is compared ran in turn.
for size in 4096 65536 1048576; do
    declare -A all=()
    for ((round = 0; round < rounds; round++)); do
        for kind in "${kinds[@]}"; do
            # shellcheck disable=SC2086 # two words
            all[$kind]+=$(timeout 60 "$out/bulk" $kind "$size" "$megabytes")$'\n'
        done
    done
    base=$(printf '%s' "${all[plain tcp]}" | median)
    printf '\n%s bytes, medians of %s\n' "$size" "$rounds"
    for kind in "${kinds[@]}"; do
        m=$(printf '%s' "${all[$kind]}" | median)
        printf '  %-12s %9.1f MB/s   %5.2f of plain tcp\n' "$kind" "$m" \
            "$(awk -v a="$m" -v b="$base" 'BEGIN { print a / b }')"
    done
    unset all
done
