#!/usr/bin/env bash
# In a guest: makes the RDMA devices.
#
#   links.sh one        rxe0 on 10.9.0.1 and fd09::1, siw0 on 10.9.2.1 and fd09:2::1
#   links.sh two TYPE [N]   namespaces A and B joined by a cable (a veth pair), a
#                       device of TYPE (rxe, siw) in each: rdAN on vAN, 10.9.(100+N).1
#                       and fd09:N::1, and rdBN on vBN, with 2 at the end. N is 1; more
#                       cables between the same namespaces have other numbers.
#
# Lessons learnt the hard way:
# - rxe takes no loopback device, siw is not reliable on it: a dummy for each.
# - The addresses come first, as rxe makes its GID 1 from what it finds.
# - The mode of the RDMA subsystem stays "shared": neither kind of device can be
#   moved, so each is made inside its namespace. Both are listed in both; the
#   connection manager tells them apart by address. rxe needs Linux 7 for this.
# - The cable's ends need different indexes, or a wildcard listener of siw's, which
#   goes by the index, is bound to the wrong one.
# - siw makes a frame of each TCP segment: a large MTU makes it ten times faster.
#   4200 holds an rxe packet of 4096 bytes.
# - The first resolving of an address waits for its whole time limit, unless the
#   neighbour is known already.
set -euo pipefail
export PATH=$PATH:/sbin:/usr/sbin

addresses() { # DEVICE V4 V6 [NAMESPACE]
    local ip=(ip ${4:+-n "$4"})
    "${ip[@]}" addr add "$2/24" dev "$1"
    # Without duplicate detection, so that it can be used at once.
    "${ip[@]}" addr add "$3/64" dev "$1" nodad
    "${ip[@]}" link set "$1" up
}

case ${1-} in
    one)
        for n in 0 1; do
            # A dummy driver that is built in has made dummy0 itself.
            ip link add "dummy$n" type dummy 2>/dev/null || true
            ip link set "dummy$n" mtu 4200
        done
        ip link set dummy1 mtu 65000
        addresses dummy0 10.9.0.1 fd09::1
        addresses dummy1 10.9.2.1 fd09:2::1
        rdma link add rxe0 type rxe netdev dummy0
        rdma link add siw0 type siw netdev dummy1
        ;;
    two)
        n=${3:-1}
        net=10.9.$((100 + n))
        mtu=4200
        [ "$2" != siw ] || mtu=65000
        if [ ! -e /run/netns/A ]; then
            for side in A B; do
                ip netns add $side
                ip -n $side link set lo up
            done
        fi
        ip link add "vA$n" index $((1000 + n)) mtu $mtu netns A type veth \
            peer name "vB$n" index $((2000 + n)) mtu $mtu netns B
        addresses "vA$n" "$net.1" "fd09:$n::1" A
        addresses "vB$n" "$net.2" "fd09:$n::2" B
        for side in A B; do
            ip netns exec $side rdma link add "rd$side$n" type "$2" netdev "v$side$n"
        done
        # A datagram to a closed port makes the kernel look for the neighbour.
        ip netns exec A bash -c "echo >/dev/udp/$net.2/9; echo >/dev/udp/fd09:$n::2/9"
        ip netns exec B bash -c "echo >/dev/udp/$net.1/9; echo >/dev/udp/fd09:$n::1/9"
        for _ in {1..50}; do
            ip -n A neigh show dev "vA$n" | grep 'FAILED\|INCOMPLETE' >/dev/null || break
            sleep 0.1
        done
        ;;
    *) echo "usage: links.sh one | two rxe|siw [N]" >&2; exit 2 ;;
esac
