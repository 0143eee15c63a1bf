#!/usr/bin/env bash
# The contract of sockets, with the transport pinned to RDMA devices.
# devices: each
# limit: 900
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

before=$(census)
check "socket contract on $device" run_tests socket_contract_verbs 850
check "nothing is left of it" no_leaks "$before"
finish
