#!/usr/bin/env bash
# The programs, each as two processes: the same that a user starts.
# devices: each
# limit: 300
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

# A tree with small files and a large one, an empty one, a hole, a link.
tree=$temp/tree
mkdir -p "$tree"
cp -r "$bed/../../exs/src" "$bed/../../spec-notes" "$tree/"
head -c $((48 << 20)) /dev/urandom >"$tree/large"
: >"$tree/empty"
truncate -s 8M "$tree/hole"
ln -s large "$tree/link"
echo "a token for this run" >"$temp/token"

copy_both_ways() { # LISTEN
    rm -rf "$temp/there" "$temp/back"
    mkdir "$temp/there" "$temp/back"
    serve "$RDMA_BIN/exs-cp" serve --listen "$1" --token-file "$temp/token" "$temp/there"
    over_device within 60 "$RDMA_BIN/exs-cp" put --token-file "$temp/token" -j 2 "$tree" "$at"
    diff -r --no-dereference "$tree" "$temp/there/tree"
    over_device within 60 "$RDMA_BIN/exs-cp" get --token-file "$temp/token" "$at" tree "$temp/back"
    diff -r --no-dereference "$tree" "$temp/back/tree"
    end "$server"
}

# A client without the token moves nothing.
refuse_a_stranger() {
    rm -rf "$temp/there"
    mkdir "$temp/there"
    echo "another token than that" >"$temp/wrong"
    serve "$RDMA_BIN/exs-cp" serve --listen "$addr:0" --token-file "$temp/token" "$temp/there"
    status=0
    within 30 "$RDMA_BIN/exs-cp" put --token-file "$temp/wrong" "$tree/large" "$at" || status=$?
    [ "$status" = 3 ]
    [ -z "$(ls "$temp/there")" ]
    end "$server"
}

pingpong() { # LISTEN ARGUMENTS...
    serve "$RDMA_BIN/exs-pingpong" --listen "$1"
    shift
    over_device within 60 "$RDMA_BIN/exs-pingpong" "$at" --json "$@" | tee "$temp/json"
    grep -q "\"transport\":\"$EXS_TRANSPORT" "$temp/json" # with the device behind it
    end "$server"
}

# A wildcard listener is on every device; the client comes by one of them.
wildcard() {
    serve "$RDMA_BIN/exs-pingpong" --listen 0.0.0.0:0
    over_device within 60 "$RDMA_BIN/exs-pingpong" "$addr:${at##*:}" --iters 50
    end "$server"
}

rdma_write() { # LISTEN
    serve "$RDMA_BIN/exs-rdma-write" serve --listen "$1" --text "by the device itself" --once
    case $EXS_TRANSPORT in verbs) listens_by_device yes ;; soft) listens_by_device no ;; esac
    within 30 "$RDMA_BIN/exs-rdma-write" "$at" | tee "$temp/out"
    grep -q "by the device itself" "$temp/out"
    until_true 10 gone "$server"
}

# doctor STATUS ARGUMENTS...: exs-info --doctor ends with this status; what it said is in $temp/doctor.
doctor() {
    local wanted=$1 status=0
    shift
    within 60 "$RDMA_BIN/exs-info" --doctor --device "$device" "$@" >"$temp/doctor" || status=$?
    cat "$temp/doctor"
    [ "$status" = "$wanted" ] || { echo "status $status, not $wanted"; return 1; }
}
finds() { grep -E "^$1" "$temp/doctor" || { echo "no line: $1"; return 1; }; }

doctor_finds_nothing() {
    doctor 0
    finds "ok +port +$device port 1 is up"
    finds "ok +address +$device: .*$addr"
    if [ "$kind" = rxe ]; then finds "ok +mtu"; fi
    if [ "$EXS_TRANSPORT" = verbs ]; then finds "ok +self .* by verbs \($device\): 1 MiB there and back"; fi
}

doctor_connects() {
    serve "$RDMA_BIN/exs-info" --doctor --serve="$1"
    doctor 0 "$at"
    finds "ok +peer .* by $EXS_TRANSPORT.*: 1 MiB there and back"
    end "$server"
    # Nothing listens there any more.
    doctor 1 "$at"
    finds "FAULT +peer"
}

# The limits of a user, and an interface that has lost its addresses. The last check: they stay lost.
doctor_finds() {
    chmod a+rx "$temp" && : >"$temp/doctor" && chmod a+rw "$temp/doctor"
    local status=0
    setpriv --reuid=1000 --regid=1000 --clear-groups bash -c \
        "ulimit -l 49152 -n 256 && exec '$RDMA_BIN/exs-info' --doctor --device $device" >"$temp/doctor" || status=$?
    cat "$temp/doctor"
    [ "$status" = 3 ]
    finds "WARNING +memlock"
    finds "WARNING +nofile"
    local interface
    interface=$(ip -o addr show to "$addr" | awk '{ print $2 }')
    ip addr flush dev "$interface"
    doctor 3
    finds "WARNING +address +$device: no address"
}

before=$(census)
check "exs-cp of a tree, there and back" copy_both_ways "$addr:0"
check "exs-cp by IPv6" copy_both_ways "[$addr6]:0"
check "exs-cp refuses a wrong token" refuse_a_stranger
check "exs-pingpong, a stream" pingpong "$addr:0" --sweep --iters 50
check "exs-pingpong, seqpacket" pingpong "$addr:0" --sweep --iters 50 --socket seqpacket
check "exs-pingpong, spinning" pingpong "$addr:0" --iters 50 --wait busy
check "exs-pingpong, sleeping" pingpong "$addr:0" --iters 50 --wait notify
check "exs-pingpong by IPv6" pingpong "[$addr6]:0" --iters 50
check "exs-pingpong, listening on all addresses" wildcard
check "exs-rdma-write" rdma_write "$addr:0"
check "exs-info --doctor finds nothing wrong" doctor_finds_nothing
check "exs-info --doctor and a peer" doctor_connects "$addr:0"
check "exs-info --doctor finds limits and lost addresses" doctor_finds
check "nothing is left of them" no_leaks "$before"
finish
