#!/usr/bin/env bash
# The devices themselves, by programs that are not ours: what fails here is the test
# bed's, or the kernel's.
# devices: both
# limit: 180
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one

rping_works() {
    within 20 rping -s -a "$addr" -C 20 &
    await_rdma_listener 7174
    within 20 rping -c -a "$addr" -C 20
    wait $!
}

rsockets_work() {
    within 30 rstream -b "$addr" -T b -S 65536 -C 50 -I 1 &
    await_rdma_listener 7471
    within 30 rstream -s "$addr" -T b -S 65536 -C 50 -I 1
    wait $!
}

perftest_works() {
    within 30 ib_write_bw -d "$device" -R -F -s 65536 -n 50 &
    await_rdma_listener 18515
    within 30 ib_write_bw -d "$device" -R -F -s 65536 -n 50 "$addr"
    wait $!
}

active() { ibv_devinfo -d "$device" | grep PORT_ACTIVE >/dev/null; }

for type in rxe siw; do
    use $type
    before=$(census)
    check "$device is active" active
    check "rping on $device" rping_works
    check "rstream on $device" rsockets_work
    check "ib_write_bw on $device" perftest_works
    check "nothing is left of them" no_leaks "$before"
done
finish
