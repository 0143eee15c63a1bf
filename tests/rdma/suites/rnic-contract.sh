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
check "nothing is left of it" no_leaks "$before"
finish
