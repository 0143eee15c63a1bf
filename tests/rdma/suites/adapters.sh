#!/usr/bin/env bash
# The contract of sockets over pretended adapters: the device hides what such an adapter lacks, and
# refuses what it would refuse (exs/src/verbs/raw/profile.rs). RDMA_ADAPTERS names others.
# devices: each
# limit: 2400
# kind: long
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

for adapter in ${RDMA_ADAPTERS:-erdma smallest}; do
    before=$(census)
    export EXS_TEST_ADAPTER=$adapter
    check "socket contract on $device as $adapter" run_tests socket_contract_verbs 850
    unset EXS_TEST_ADAPTER
    check "nothing is left of $adapter" no_leaks "$before"
done
finish
