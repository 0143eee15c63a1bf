#!/usr/bin/env bash
# Side by side, in one run and in turn: exs-pingpong, perftest (what the device can
# do) and rstream (rsocket: other sockets over the same device); two processes each. For
# bandwidth announced.c as well: raw verbs whose receiver names each buffer first, as it
# must below any socket.
# Prints medians, and medians of the rounds' ratios, beside what EXS aims at. Slowness fails nothing here, as
# no figure of one run on one machine proves anything; what does not run does.
# devices: each
# limit: 600
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

rounds=${RDMA_ROUNDS:-5}

# Each prints one number, GB/s (of 10^9 bytes) or microseconds for half a round trip, of COUNT
# messages. (If these are few, the first touch of each of EXS's and rstream's buffers counts for much:
# perftest has one.)

exs() { # bw|lat SIZE COUNT
    # perftest spins, too, and rstream's latency; perftest keeps 128 messages in flight.
    local how=(--wait busy)
    [ "$1" = lat ] || how+=(--depth 32)
    serve "$RDMA_BIN/exs-pingpong" --listen "$addr:0" >/dev/null
    within 60 "$RDMA_BIN/exs-pingpong" "$at" --json --mode "$1" --size "$2" --iters "$3" "${how[@]}" >"$temp/json"
    end "$server"
    if [ "$1" = bw ]; then sed 's/.*"gbytes_per_s":\([0-9.e-]*\).*/\1/' "$temp/json"
    else sed 's/.*"p50":\([0-9.e-]*\).*/\1/' "$temp/json"; fi
}

# Both ends of a pair that is no server of ours: SERVER's port, then the two commands.
# Now and then a neighbour fails or stands still, which is said and says nothing of EXS.
pair() { # PORT SERVER-COMMAND CLIENT-COMMAND
    local try
    for try in 1 2 3; do
        if pair_once "$@"; then return; fi
        echo "note: failed (time $try): $3" >&2
        tail -n 3 "$temp/pair.client" "$temp/pair.server" >&2
    done
    return 1
}

pair_once() { # PORT SERVER-COMMAND CLIENT-COMMAND
    local other status=0
    # shellcheck disable=SC2086 # commands are words
    within 20 $2 >"$temp/pair.server" 2>&1 &
    other=$!
    await_rdma_listener "$1" || status=1
    # shellcheck disable=SC2086
    [ $status != 0 ] || within 20 $3 >"$temp/pair.client" 2>&1 || status=1
    [ $status = 0 ] || kill "$other" 2>/dev/null || true
    wait "$other" && [ $status = 0 ]
}

perftest() { # bw|lat SIZE COUNT
    local command="ib_write_bw --report_gbits" figure try
    [ "$1" = bw ] || command=ib_send_lat
    command="$command -d $device -R -F -s $2 -n $3"
    # Now and then it misjudges its own clock, and divides by zero.
    for try in 1 2 3; do
        pair 18515 "$command" "$command $addr" || return
        # bw: bytes, iterations, peak, average [Gb/s]; lat: ..., min, max, typical [us]
        if [ "$1" = bw ]; then figure=$(awk -v n="$2" '$1 == n { print $4 / 8 }' "$temp/pair.client")
        else figure=$(awk -v n="$2" '$1 == n { print $5 }' "$temp/pair.client"); fi
        case $figure in 0 | *inf* | *nan*) echo "note: perftest said $figure (time $try)" >&2 ;; *) break ;; esac
    done
    echo "$figure"
}

rsocket() { # bw|lat SIZE COUNT
    local shape="-S $2 -I 1 -C $3"
    [ "$1" = bw ] || shape="-S $2 -I $3 -C 1"
    pair 7471 "rstream -b $addr $shape" "rstream -s $addr $shape"
    # name bytes xfers iters total time Gb/sec usec/xfer
    if [ "$1" = bw ]; then tail -n 1 "$temp/pair.client" | awk '{ print $(NF - 1) / 8 }'
    else tail -n 1 "$temp/pair.client" | awk '{ print $NF }'; fi
}

announced() { # bw SIZE COUNT
    pair 7472 "$RDMA_BIN/announced serve $addr 7472" "$RDMA_BIN/announced $addr 7472 $2 $3"
    cat "$temp/pair.client"
}

median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
# ratio WHO: EXS beside it, the median of what each round says: they follow each other. (A round
# in which perftest has measured nothing says nothing.)
ratio() { paste "$temp/exs" "$temp/$1" | awk '$2 > 0 { print $1 / $2 }' | median; }

# compare bw|lat SIZE COUNT AIM-AGAINST-PERFTEST AIM-AGAINST-RSTREAM
compare() {
    local who round limit_is unit all=(exs perftest rsocket)
    if [ "$1" = bw ]; then limit_is="at least" unit=GB/s; all+=(announced)
    else limit_is="at most" unit=us; fi
    for who in "${all[@]}"; do : >"$temp/$who"; done
    for ((round = 0; round < rounds; round++)); do
        for who in "${all[@]}"; do $who "$1" "$2" "$3" >>"$temp/$who"; done
    done
    for who in "${all[@]}"; do
        [ "$(grep -c '^[0-9.e-]\+$' "$temp/$who")" = "$rounds" ] || { echo "$who gave no figures:"; cat "$temp/$who" "$temp/pair.client"; return 1; }
    done
    awk -v e="$(median <"$temp/exs")" -v p="$(median <"$temp/perftest")" -v r="$(median <"$temp/rsocket")" \
        -v ep="$(ratio perftest)" -v er="$(ratio rsocket)" \
        -v unit="$unit" -v is="$limit_is" -v ap="$4" -v ar="$5" 'BEGIN {
        printf "note: EXS %.4g %s, perftest %.4g (ratio %.2f, aim %s %s), rstream %.4g (ratio %.2f, aim %s %s)\n",
            e, unit, p, ep, is, ap, r, er, is, ar }'
    [ "$1" != bw ] || awk -v a="$(median <"$temp/announced")" -v ea="$(ratio announced)" 'BEGIN {
        printf "note: raw verbs, each buffer announced and each write told of: %.4g GB/s (ratio of EXS %.2f)\n", a, ea }'
    for who in "${all[@]}"; do echo "note:   $who: $(tr '\n' ' ' <"$temp/$who")"; done
    json "$1" "$2" "${all[@]}"
}

# The same for exs-bench (--rdma-log), which reads it out of this suite's log.
json() { # bw|lat SIZE WHO...
    local who name separator=
    printf 'note: json {"device":"%s","test":"%s","size":%d,"entries":[' "$kind" "$1" "$2"
    for who in "${@:3}"; do
        case $who in
            exs) name="EXS verbs" ;;
            rsocket) name=rstream ;;
            announced) name="raw verbs, announced" ;;
            *) name=$who ;;
        esac
        printf '%s{"contender":"%s","samples":[%s]}' "$separator" "$name" "$(paste -sd , "$temp/$who")"
        separator=,
    done
    echo "]}"
}

# A second's worth, or about: an emulated processor moves a third of the bytes, and has five times
# as long for it. Messages of 64 KiB, and small ones, whose first few thousand are slower.
case $1-$RDMA_FACTOR in
    rxe-1) count=6000 small=40000 ;;
    siw-1) count=20000 small=40000 ;;
    *) count=1200 small=8000 ;;
esac
before=$(census)
if [ "$1" = siw ]; then copies=2 large=2; else copies=1.2 large=1; fi
check "bandwidth, 64 KiB" compare bw 65536 $count 0.95 $copies
check "bandwidth, 1 MiB" compare bw 1048576 $((count / 8)) 0.95 $large
check "latency, 64 bytes" compare lat 64 $small 1.15 1
check "nothing is left of them" no_leaks "$before"
finish
