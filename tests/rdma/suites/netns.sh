#!/usr/bin/env bash
# Two hosts (network namespaces) with a device each, joined by a cable, and what
# befalls them: every process ends in its configured time, or what it moves arrives
# whole; and the kernel gets back all that it lent.
# devices: each
# limit: 420
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"

if [ "$1" = rxe ] && [ "$RDMA_RELEASE" -lt 7 ]; then
    # The sockets of older rxe are in the first namespace, whatever that of the device.
    skip "two namespaces with rxe" "needs Linux 7, this is $(uname -r) (RDMA_KERNEL=uml:FILE)"
    finish
fi
"$bed/links.sh" two "$1"
there=10.9.1.2
A() { ip netns exec A "$@"; }
B() { ip netns exec B "$@"; }

# A peer that is silent is asked each second, and dead after five.
dead=$((5 * RDMA_FACTOR))
export EXS_KEEP_ALIVE=1 EXS_DEAD_AFTER=$dead EXS_CONNECT_TIMEOUT=$dead EXS_LINGER=2
# By then the application must know: the time itself, and a pause of the machine's.
patience=$((dead + 10))

sent() { A cat /sys/class/net/vA/statistics/tx_bytes; }
flows() { [ "$(sent)" -gt $(("$1" + $2)) ]; }

# start SOCKET MODE SIZE: a server in B and a client in A that never ends by itself,
# in the middle of their work: a quarter of a MiB has passed since it began.
start() {
    serve ip netns exec B "$RDMA_BIN/exs-pingpong" --listen "$there:0"
    local before
    before=$(sent)
    ip netns exec A "$RDMA_BIN/exs-pingpong" "$at" --socket "$1" --mode "$2" --size "$3" \
        --iters 100000000 >"$temp/client.log" 2>&1 </dev/null &
    client=$!
    until_true 20 flows "$before" 262144 || { cat "$temp/client.log"; echo "nothing flows"; return 1; }
    if [ "$EXS_TRANSPORT" = verbs ]; then has_qp; fi
    cut_at=${EPOCHREALTIME/./}
}

since_cut() { printf '%d.%d s' $(((${EPOCHREALTIME/./} - cut_at) / 1000000)) $(((${EPOCHREALTIME/./} - cut_at) / 100000 % 10)); }

# ends_with_error PID LOG WHO: in time, of itself, and says why
ends_with_error() {
    local status=0
    # Not until_true: the time is what is looked at, so a slow guest gets no more of it.
    timeout -k 1 "$patience" tail --pid="$1" -f /dev/null || {
        echo "$3 hangs: still there after $patience s"
        cat "/proc/$1/wchan" "/proc/$1/stack" 2>/dev/null || true
        cat "$2"
        return 1
    }
    wait "$1" || status=$?
    echo "note: $3 ended after $(since_cut): $(tail -n 1 "$2")"
    [ "$status" != 0 ] || { echo "$3 ended without an error"; return 1; }
    # 139 and the like are no way to say it.
    [ "$status" -lt 128 ] || { echo "$3 ended by signal $((status - 128))"; return 1; }
}

# The server reports the connection's end, and goes on serving.
server_noticed() {
    until_true "$patience" grep -q '^exs-pingpong: .*10\.9\.1\.1' "$server_log" ||
        { echo "the server has not noticed after $patience s"; return 1; }
    echo "note: the server noticed after $(since_cut): $(grep -m 1 '^exs-pingpong: ' "$server_log")"
}

serves_again() {
    within 30 ip netns exec A "$RDMA_BIN/exs-pingpong" "$at" --iters 20 >/dev/null
}

# trouble CAUSE REMEDY SOCKET MODE SIZE: cause and remedy are commands
trouble() {
    start "$3" "$4" "$5"
    eval "$1"
    ends_with_error "$client" "$temp/client.log" "the client"
    server_noticed
    eval "$2"
    serves_again
    end "$server"
}

cut="ip -n A link set vA down"
mend="ip -n A link set vA up && reachable"
lose="A tc qdisc add dev vA root netem loss 100%"
find="A tc qdisc del dev vA root"
# IPv6 addresses go with the link; IPv4 is what is used here.
reachable() { until_true 10 refused; }
refused() { { A bash -c "echo >/dev/tcp/$there/9" 2>&1 || true; } | grep refused >/dev/null; }

kill_client() {
    start stream bw 1m
    kill -9 "$client"
    wait "$client" 2>/dev/null || true
    server_noticed
    serves_again
    end "$server"
}

kill_server() {
    start stream bw 1m
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    ends_with_error "$client" "$temp/client.log" "the client"
}

connect_to_nobody() {
    eval "$lose"
    cut_at=${EPOCHREALTIME/./}
    ip netns exec A "$RDMA_BIN/exs-pingpong" "$there:7471" --iters 1 >"$temp/client.log" 2>&1 &
    ends_with_error $! "$temp/client.log" "the client"
    eval "$find"
}

# delete_device A|B: while it is in use. The client ends; so does the server's
# connection, and if the device was the server's, nobody can reach it any more.
delete_device() {
    start stream bw 1m
    within 30 ip netns exec "$1" rdma link delete "rd$1"
    ends_with_error "$client" "$temp/client.log" "the client"
    server_noticed
    end "$server"
    ip netns exec "$1" rdma link add "rd$1" type "$2" netdev "v$1"
}

# over_bad_cable NETEM...: a tree arrives whole
over_bad_cable() {
    A tc qdisc add dev vA root netem "$@"
    B tc qdisc add dev vB root netem "$@"
    mkdir -p "$temp/there"
    serve ip netns exec B "$RDMA_BIN/exs-cp" serve --allow-anonymous --listen "$there:0" "$temp/there"
    EXS_DEAD_AFTER=60 over_device within 60 ip netns exec A "$RDMA_BIN/exs-cp" put "$bed/../../exs/src" "$temp/data" "$at"
    diff -r "$bed/../../exs/src" "$temp/there/src"
    cmp "$temp/data" "$temp/there/data"
    end "$server"
    A tc qdisc del dev vA root
    B tc qdisc del dev vB root
    rm -rf "$temp/there"
}

head -c $((4 << 20)) /dev/urandom >"$temp/data"
before=$(census)
check "the cable is cut: stream, writing" trouble "$cut" "$mend" stream bw 1m
check "the cable is cut: stream, to and fro" trouble "$cut" "$mend" stream lat 64
check "the cable is cut: seqpacket" trouble "$cut" "$mend" seqpacket bw 64k
check "all packets are lost" trouble "$lose" "$find" stream bw 1m
check "connecting while all packets are lost" connect_to_nobody
check "the client is killed" kill_client
check "the server is killed" kill_server
check "1 % of the packets is lost" over_bad_cable loss 1%
check "the cable is long (5 ms)" over_bad_cable delay 5ms
if [ "$EXS_TRANSPORT" = verbs ]; then
    check "the client's device goes away" delete_device A "$1"
    check "the server's device goes away" delete_device B "$1"
fi
check "nothing is left of them" no_leaks "$before"
finish
