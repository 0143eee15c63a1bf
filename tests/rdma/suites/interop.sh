#!/usr/bin/env bash
# A machine without a device and one with an iWARP device: the software RNIC in one
# process, the kernel's siw in the other, either of them listening.
# devices: siw
# limit: 1400
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use siw

tree=$temp/tree
mkdir -p "$tree"
cp -r "$bed/../../exs/src" "$tree/"
head -c $((24 << 20)) /dev/urandom >"$tree/large"
: >"$tree/empty"

device_side=$EXS_TRANSPORT

# A server on the device listens there; what a client went by, it says itself.
serves_by() { if [ "$1" = verbs ]; then listens_by_device yes; else listens_by_device no; fi; }
went_by() { grep "$1" "$2" >/dev/null || { echo "the client did not go by $1:"; cat "$2"; return 1; }; }

copy() { # SERVER-TRANSPORT CLIENT-TRANSPORT LISTEN [CRC]
    export EXS_CRC=${4:-off}
    rm -rf "$temp/there" "$temp/back"
    mkdir "$temp/there" "$temp/back"
    serve env EXS_TRANSPORT="$1" "$RDMA_BIN/exs-cp" serve --allow-anonymous --listen "$3" "$temp/there"
    serves_by "$1"
    within 60 env EXS_TRANSPORT="$2" "$RDMA_BIN/exs-cp" put "$tree" "$at" >"$temp/out" 2>&1 || { cat "$temp/out"; return 1; }
    went_by "by $2" "$temp/out"
    diff -r "$tree" "$temp/there/tree"
    within 60 env EXS_TRANSPORT="$2" "$RDMA_BIN/exs-cp" get "$at" tree "$temp/back" >"$temp/out" 2>&1 || { cat "$temp/out"; return 1; }
    went_by "by $2" "$temp/out"
    diff -r "$tree" "$temp/back/tree"
    end "$server"
}

pingpong() { # SERVER-TRANSPORT CLIENT-TRANSPORT LISTEN ARGUMENTS...
    serve env EXS_TRANSPORT="$1" "$RDMA_BIN/exs-pingpong" --listen "$3"
    serves_by "$1"
    within 60 env EXS_TRANSPORT="$2" "$RDMA_BIN/exs-pingpong" "$at" "${@:4}" --json >"$temp/json"
    went_by "\"transport\":\"$2" "$temp/json"
    end "$server"
}

rdma_write() { # SERVER-TRANSPORT CLIENT-TRANSPORT
    serve env EXS_TRANSPORT="$1" "$RDMA_BIN/exs-rdma-write" serve --listen "$addr:0" --text "from the other kind" --once
    serves_by "$1"
    within 30 env EXS_TRANSPORT="$2" "$RDMA_BIN/exs-rdma-write" "$at" >"$temp/out"
    grep "from the other kind" "$temp/out" || { cat "$temp/out"; return 1; }
    until_true 10 gone "$server"
}

before=$(census)
for pair in "soft $device_side" "$device_side soft"; do
    read -r serves comes <<<"$pair"
    how="$comes connects to $serves"
    check "exs-cp there and back, $how" copy "$serves" "$comes" "$addr:0"
    check "exs-cp by IPv6, $how" copy "$serves" "$comes" "[$addr6]:0"
    check "exs-cp with CRC, $how" copy "$serves" "$comes" "$addr:0" on
    check "exs-pingpong, stream, $how" pingpong "$serves" "$comes" "$addr:0" --sweep --iters 20
    check "exs-pingpong, seqpacket, $how" pingpong "$serves" "$comes" "$addr:0" --sweep --iters 20 --socket seqpacket
    check "exs-pingpong with CRC, $how" pingpong "$serves" "$comes" "$addr:0" --iters 20 --crc
    check "exs-rdma-write, $how" rdma_write "$serves" "$comes"
done
# Below sockets: connecting, private data, READ, TERMINATE, and rping as the peer.
# Each group of tests in a process of its own: under UML page faults become slow, by and by, in
# a process that lives long and has much memory (minutes for a copy of some MiB).
for binary in "$RDMA_BIN"/interop*; do
    [ -x "$binary" ] || { check "tests of interoperation" run_tests interop 1000; continue; }
    name=$(basename "$binary")
    "$binary" --list 2>/dev/null | sed -n 's/: test$//p' >"$temp/tests.list" || true
    # A binary that cannot even tell its tests fails; it does not pass with none.
    [ -s "$temp/tests.list" ] || { check "$name, list of tests" false; continue; }
    mapfile -t groups < <(sed -n 's/::.*//p' "$temp/tests.list" | sort -u)
    for group in "${groups[@]}"; do
        mapfile -t tests < <(grep "^$group::" "$temp/tests.list")
        check "$name, $group" run_tests "$name" 500 --exact "${tests[@]}"
    done
    mapfile -t tests < <(grep -v :: "$temp/tests.list")
    [ ${#tests[@]} = 0 ] || check "$name" run_tests "$name" 500 --exact "${tests[@]}"
done
check "nothing is left of them" no_leaks "$before"
finish
