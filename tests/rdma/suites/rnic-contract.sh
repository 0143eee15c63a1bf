#!/usr/bin/env bash
# The contract of an RNIC, kept by the driver for RDMA devices.
# devices: each
# limit: 420
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

before=$(census)
check "rnic contract on $device" run_tests rnic_contract_verbs 400
if [ "$1" = rxe ]; then
    # Room for packets of 1024 bytes.
    ip link set dummy0 mtu 1500
    check "a path MTU beyond the port's on $device" run_tests rnic_contract_verbs 60 --exact a_route_that_the_device_lacks each_mtu_that_fits
fi
check "nothing is left of it" no_leaks "$before"
finish
