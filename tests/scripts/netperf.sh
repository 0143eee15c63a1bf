#!/usr/bin/env bash
# netperf's test in the way of ES-API beside its TCP test, in turn over loopback.
#
#   netperf.sh DIR [PAIRS [SECONDS [SIZE...]]]    15 pairs of 1 second each for 64 and 1024 bytes
#
# DIR has netperf and netserver, built with libexs (docs/book/src/c/netperf.md says how). LD_LIBRARY_PATH names
# the directory of libexs.so if the system does not know it. For each size it prints the medians: the
# throughput, the CPU time of the netperf process for a message, and the ratio of a pair's throughputs.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
dir=$1 pairs=${2:-15} seconds=${3:-1}
shift $(($# < 3 ? $# : 3))
[ $# -gt 0 ] || set -- 64 1024
work=$(mktemp -d)
port=$((20000 + $$ % 20000))
"$dir/netserver" -D -4 -p "$port" -L 127.0.0.1 > /dev/null &
server=$!
trap 'kill $server; rm -rf "$work"' EXIT
until (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do
    kill -0 $server 2> /dev/null || { echo "netserver has ended: is port $port in use?" >&2; exit 1; }
done

# measure TEST SIZE: Mbit/s and ns of CPU time for a message
measure() {
    local TIMEFORMAT='%U %S' rate
    { time rate=$("$dir/netperf" -H 127.0.0.1 -p "$port" -t "$1" -l "$seconds" -P 0 -v 0 -- -m "$2"); } 2> "$work/time"
    awk -v rate="$rate" -v size="$2" -v seconds="$seconds" \
        '{ print rate, ($1 + $2) * 1e9 / (rate * 1e6 / 8 * seconds / size) }' "$work/time"
}

median() { sort -g | awk '{ v[NR] = $1 } END { printf fmt, NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }' fmt="$1"; }

for size in "$@"; do
    for ((i = 0; i < pairs; i++)); do
        tcp=$(measure TCP_STREAM "$size") exs=$(measure EXS_TCP_STREAM "$size")
        echo "$tcp $exs"
    done > "$work/pairs"
    # field EXPRESSION FORMAT: its median
    field() { awk "{ print $1 }" "$work/pairs" | median "$2"; }
    # shellcheck disable=SC2016 # fields of awk
    printf '%s bytes: TCP_STREAM %s Mbit/s %s ns, EXS_TCP_STREAM %s Mbit/s %s ns, ratio %s (%s to %s)\n' "$size" \
        "$(field '$1' %.0f)" "$(field '$2' %.0f)" "$(field '$3' %.0f)" "$(field '$4' %.0f)" "$(field '$3/$1' %.2f)" \
        "$(awk '{ print $3/$1 }' "$work/pairs" | sort -g | awk 'NR == 1 { printf "%.2f", $1 }')" \
        "$(awk '{ print $3/$1 }' "$work/pairs" | sort -g | awk '{ v = $1 } END { printf "%.2f", v }')"
done
