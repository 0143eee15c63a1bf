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
type=$1 n=0
A() { ip netns exec A "$@"; }
B() { ip netns exec B "$@"; }

# A peer that is silent is asked each second, and dead after about five.
dead=$((4 + RDMA_FACTOR))
export EXS_KEEP_ALIVE=1 EXS_DEAD_AFTER=$dead EXS_CONNECT_TIMEOUT=$dead EXS_LINGER=2
# By then the application must know: the time itself, and a pause of the machine's.
patience=$((dead + 8 + 2 * RDMA_FACTOR))

sent() { A cat "/sys/class/net/vA$n/statistics/tx_bytes"; }
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

# ends_with_error PID LOG NAME: in time, of itself, and says why
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

# The server reports the connection's end, and goes on serving; or ends by itself if
# that was its only device.
server_noticed() {
    until_true "$((patience / RDMA_FACTOR + 1))" grep -q "^exs-pingpong: \($here:\|accept: the RDMA device\)" "$server_log" ||
        { echo "the server has not noticed after $patience s"; return 1; }
    echo "note: the server noticed after $(since_cut): $(grep -m 1 '^exs-pingpong: ' "$server_log")"
}

serves_again() {
    within 30 ip netns exec A "$RDMA_BIN/exs-pingpong" "$at" --iters 20 >/dev/null
}

# trouble CAUSE REMEDY SOCKET MODE SIZE: cause and remedy are functions
trouble() {
    start "$3" "$4" "$5"
    "$1"
    ends_with_error "$client" "$temp/client.log" "the client"
    server_noticed
    "$2"
    if [ "$1" != cut ] || connects_after_cut; then serves_again; fi
    end "$server"
}

cut() { ip -n A link set "vA$n" down; }
mend() {
    ip -n A link set "vA$n" up
    until_true 10 refused
}
# A closed port of TCP's tells that packets come and go again.
refused() { { A bash -c "echo >/dev/tcp/$there/9" 2>&1 || true; } | grep refused >/dev/null; }
# rxe's queue pair for connecting (GSI) stays in error after it has sent to an interface
# that is down: no program can connect by the device any more, and not even deleting
# it ends. That is the kernel's; so only what lived before is looked at.
connects_after_cut() { [ "$type" != rxe ]; }
lose() { A tc qdisc add dev "vA$n" root netem loss 100%; }
regain() { A tc qdisc del dev "vA$n" root; }

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

connect_without_an_answer() {
    lose
    cut_at=${EPOCHREALTIME/./}
    ip netns exec A "$RDMA_BIN/exs-pingpong" "$there:7471" --iters 1 >"$temp/client.log" 2>&1 &
    ends_with_error $! "$temp/client.log" "the client"
    regain
}

# delete_device A|B: while it is in use. The kernel waits until every program has let
# go of the device, so each has to, and without ending.
delete_device() {
    start stream bw 1m
    deleted=rd$1$n
    ip netns exec "$1" rdma link delete "$deleted" &
    local deleting=$!
    ends_with_error "$client" "$temp/client.log" "the client"
    server_noticed
    until_true "$((patience / RDMA_FACTOR + 1))" gone "$deleting" || {
        echo "$deleted is still held after $patience s; these have RDMA devices open:"
        find /proc/[0-9]*/fd -lname '*/dev/infiniband/*' -printf '%p %l\n' 2>/dev/null
        return 1
    }
    echo "note: the device was gone after $(since_cut)"
    end "$server"
}

# over_bad_cable RUNS NETEM...: a tree arrives whole, by at most RUNS runs of the
# same command; a run that does not come through says so, and the next goes on from there.
over_bad_cable() {
    local runs=0 may=$1
    shift
    # Slow is not dead: rxe waits long before it sends again.
    export EXS_DEAD_AFTER=60 EXS_KEEP_ALIVE=15
    A tc qdisc add dev "vA$n" root netem "$@"
    B tc qdisc add dev "vB$n" root netem "$@"
    rm -rf "$temp/there"
    mkdir "$temp/there"
    serve ip netns exec B "$RDMA_BIN/exs-cp" serve --allow-anonymous --listen "$there:0" "$temp/there"
    until over_device within 60 ip netns exec A "$RDMA_BIN/exs-cp" put "$bed/../../exs/src" "$temp/data" "$at" 2>"$temp/put.log"; do
        runs=$((runs + 1))
        cat "$temp/put.log"
        [ $runs -lt "$may" ] || return 1
        grep -q 'Run the same command again\|rdma_connect' "$temp/put.log" || return 1
    done
    [ $runs = 0 ] || echo "note: the connection broke $runs times"
    diff -r "$bed/../../exs/src" "$temp/there/src"
    cmp "$temp/data" "$temp/there/data"
    end "$server"
}

# on_a_cable NAME FUNCTION...: each check has a cable and devices of its own, as some
# do not survive it.
on_a_cable() {
    n=$((n + 1)) here=10.9.$((100 + n)).1 there=10.9.$((100 + n)).2
    "$bed/links.sh" two "$type" $n
    check "$1" clean "${@:2}"
    # In the background: it may never end, and a process that waits in the kernel heeds no signal.
    for side in A B; do ip netns exec $side rdma link delete "rd$side$n" 2>/dev/null & done
    until_true 3 eval "gone $!" || true
}

# The kernel gets back what it lent, but by a device that is gone.
clean() {
    local before deleted=none
    before=$(census)
    "$@"
    no_leaks "$(grep -v "^$deleted:" <<<"$before")"
}

head -c $((4 << 20)) /dev/urandom >"$temp/data"
on_a_cable "the cable is cut: stream, writing" trouble cut mend stream bw 1m
on_a_cable "the cable is cut: stream, to and fro" trouble cut mend stream lat 64
on_a_cable "the cable is cut: seqpacket" trouble cut mend seqpacket bw 64k
on_a_cable "all packets are lost" trouble lose regain stream bw 1m
on_a_cable "all packets are lost: seqpacket, to and fro" trouble lose regain seqpacket lat 64k
on_a_cable "connecting while all packets are lost" connect_without_an_answer
on_a_cable "the client is killed" kill_client
on_a_cable "the server is killed" kill_server
# rxe's connections do not survive losses for long, in any program: ib_write_bw and
# rstream break just so. Those of siw are TCP's, and do.
may=1
[ "$type" != rxe ] || may=20
on_a_cable "1 % of the packets is lost" over_bad_cable $may loss 1%
on_a_cable "the cable is long (5 ms)" over_bad_cable 1 delay 5ms
if [ "$EXS_TRANSPORT" = verbs ]; then
    on_a_cable "the client's device goes away" delete_device A
    on_a_cable "the server's device goes away" delete_device B
fi
finish
