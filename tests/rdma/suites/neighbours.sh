#!/usr/bin/env bash
# Side by side, in one run and in turn: exs-pingpong, perftest (what the device can
# do) and rstream (rsocket: other sockets over the same device); two processes each. For
# bandwidth announced.c as well: raw verbs whose receiver names each buffer first, as it
# must below any socket.
# Prints medians, and medians of the rounds' ratios, beside what EXS aims at. Slowness fails nothing here, as
# no figure of one run on one machine proves anything, nor does a neighbour that fails; what is ours and does not run does.
# devices: each
# kind: benchmark
# limit: 600
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

rounds=${RDMA_ROUNDS:-5}

# Each prints one number, GB/s (of 10^9 bytes) or microseconds for half a round trip, of COUNT
# messages. If these are few, the first touch of each of EXS's and rstream's buffers counts for much;
# perftest has a single buffer.

exs() { # bw|lat SIZE COUNT
    # perftest spins, too, and rstream's latency; perftest keeps 128 messages in flight.
    local how=(--wait busy)
    [ "$1" = lat ] || how+=(--depth 32)
    # `compare` asks for its status, so `set -e` means nothing in here.
    serve "$RDMA_BIN/exs-pingpong" --listen "$addr:0" >&2 || return
    within 60 "$RDMA_BIN/exs-pingpong" "$at" --json --mode "$1" --size "$2" --iters "$3" "${how[@]}" >"$temp/json" || return
    end "$server" >&2 || return
    if [ "$1" = bw ]; then sed 's/.*"gbytes_per_s":\([0-9.e-]*\).*/\1/' "$temp/json"
    else sed 's/.*"p50":\([0-9.e-]*\).*/\1/' "$temp/json"; fi
}

# Both ends of a pair that is no server of ours: SERVER's port, then the two commands.
# Now and then a neighbour fails or stands still, which is said and says nothing of EXS.
pair() { # PORT SERVER-COMMAND CLIENT-COMMAND
    local try
    for try in 1 2; do
        if pair_once "$@"; then return; fi
        echo "note: failed (time $try): $3" >&2
        tail -n 3 "$temp/pair.client" "$temp/pair.server" | sed 's/^/note:   /' >&2
    done
    return 1
}

pair_limit=60
pair_once() { # PORT SERVER-COMMAND CLIENT-COMMAND
    local other status=0
    : >"$temp/pair.client"
    # shellcheck disable=SC2086 # commands are words
    within $pair_limit $2 >"$temp/pair.server" 2>&1 &
    other=$!
    await_rdma_listener "$1" || status=1
    # shellcheck disable=SC2086
    [ $status != 0 ] || within $pair_limit $3 >"$temp/pair.client" 2>&1 || status=1
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
        case $figure in 0 | *inf* | *nan*) echo "note: perftest said $figure (time $try)" >&2 ;; *) echo "$figure"; return ;; esac
    done
    echo 0
}

rsocket() { # bw|lat SIZE COUNT
    local shape="-S $2 -I 1 -C $3"
    [ "$1" = bw ] || shape="-S $2 -I $3 -C 1"
    pair 7471 "rstream -b $addr $shape" "rstream -s $addr $shape" || return
    # name bytes xfers iters total time Gb/sec usec/xfer
    if [ "$1" = bw ]; then tail -n 1 "$temp/pair.client" | awk '{ print $(NF - 1) / 8 }'
    else tail -n 1 "$temp/pair.client" | awk '{ print $NF }'; fi
}

announced() { # bw SIZE COUNT
    pair 7472 "$RDMA_BIN/announced serve $addr 7472" "$RDMA_BIN/announced $addr 7472 $2 $3" || return
    cat "$temp/pair.client"
}

# A round in which a neighbour has measured nothing is a 0 in its list, and says nothing.
measured() { awk '$1 > 0' "$temp/$1"; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
# ratio WHO: EXS beside it, the median of what each round says: they follow each other.
ratio() { paste "$temp/exs" "$temp/$1" | awk '$2 > 0 { print $1 / $2 }' | median; }

# enough bw|lat SIZE MOST: as many messages as EXS takes two seconds for on this machine, by a trial.
enough() {
    local trial=$(($3 / 20)) figure
    figure=$(exs "$1" "$2" "$trial") || return
    awk -v what="$1" -v size="$2" -v figure="$figure" -v trial="$trial" -v most="$3" 'BEGIN {
        count = what == "bw" ? 2 * figure * 1e9 / size : 1e6 / figure
        if (count < trial) count = trial
        if (count > most) count = most
        printf "%d\n", count }'
}

# compare bw|lat SIZE MOST AIM-AGAINST-PERFTEST AIM-AGAINST-RSTREAM: of at most MOST messages
compare() {
    local who round count limit_is unit all=(exs perftest rsocket) out=' '
    if [ "$1" = bw ]; then limit_is="at least" unit=GB/s; all+=(announced)
    else limit_is="at most" unit=us; fi
    count=$(enough "$1" "$2" "$3")
    echo "note: $count messages, $rounds rounds"
    for who in "${all[@]}"; do : >"$temp/$who"; done
    for ((round = 0; round < rounds; round++)); do
        for who in "${all[@]}"; do
            case $out in *" $who "*) echo 0 >>"$temp/$who"; continue ;; esac
            "$who" "$1" "$2" "$count" >"$temp/figure" && grep '^[0-9.e-]\+$' "$temp/figure" >>"$temp/$who" && continue
            case $who in exs | announced) echo "$who gave no figure:"; cat "$temp/figure" "$temp/pair.client"; return 1 ;; esac
            # It is not asked again, as it may take its whole time to fail.
            echo "note: $who gave no figure in round $((round + 1)), and is left out from here on"
            out="$out$who "
            echo 0 >>"$temp/$who"
        done
    done
    awk -v e="$(measured exs | median)" -v p="$(measured perftest | median)" -v r="$(measured rsocket | median)" \
        -v ep="$(ratio perftest)" -v er="$(ratio rsocket)" \
        -v unit="$unit" -v is="$limit_is" -v ap="$4" -v ar="$5" '
        function beside(who, figure, ratio, aim) {
            if (figure == "") return who " none"
            return sprintf("%s %.4g (ratio %.2f, aim %s %s)", who, figure, ratio, is, aim)
        }
        BEGIN { printf "note: EXS %.4g %s, %s, %s\n", e, unit, beside("perftest", p, ep, ap), beside("rstream", r, er, ar) }'
    [ "$1" != bw ] || awk -v a="$(measured announced | median)" -v ea="$(ratio announced)" 'BEGIN {
        printf "note: raw verbs, each buffer announced and each write reported: %.4g GB/s (ratio of EXS %.2f)\n", a, ea }'
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
        printf '%s{"contender":"%s","samples":[%s]}' "$separator" "$name" "$(measured "$who" | paste -sd ,)"
        separator=,
    done
    echo "]}"
}

# Where things are fast this is a second's worth (elsewhere see `enough`). Messages of 64 KiB, and small ones,
# whose first few thousand are slower.
case $1-$RDMA_FACTOR in
    rxe-1) most=6000 small=40000 ;;
    siw-1) most=20000 small=40000 ;;
    *) most=1200 small=8000 ;;
esac
before=$(census)
if [ "$1" = siw ]; then copies=2 large=2; else copies=1.2 large=1; fi
check "bandwidth, 64 KiB" compare bw 65536 $most 0.95 $copies
check "bandwidth, 1 MiB" compare bw 1048576 $((most / 8)) 0.95 $large
check "latency, 64 bytes" compare lat 64 $small 1.15 1
check "nothing is left of them" no_leaks "$before"
finish
