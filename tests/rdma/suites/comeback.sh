#!/usr/bin/env bash
# A device is removed and made again while a program uses it: the program goes on with
# the new one, and keeps nothing of the old.
# devices: each
# limit: 60
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

netdev=$(rdma link show "$device/1" | grep -o 'netdev [^ ]*' | cut -d' ' -f2)
export EXS_TEST_RDMA_RELINK="${device%%[0-9]*} $netdev"
before=$(census)
check "$device comes back" run_tests comeback 50
check "nothing is left of it" no_leaks "$before"
finish
