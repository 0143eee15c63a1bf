#!/usr/bin/env bash
# The contracts over pretended adapters: the device hides what such an adapter lacks, and refuses what
# it would refuse (exs/src/verbs/raw/profile.rs). By default one adapter for each device, with the
# contract of sockets over IPv4: on rxe the least that EXS takes, on siw the adapter that differs from it
# most. RDMA_ADAPTERS names others, and adds the contract of an RNIC.
# devices: each
# limit: 2400
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

case $1 in
    rxe) usual=smallest ;;
    *) usual=erdma ;;
esac
for adapter in ${RDMA_ADAPTERS:-$usual}; do
    before=$(census)
    export EXS_TEST_ADAPTER=$adapter
    check "socket contract on $device as $adapter" run_tests socket_contract_verbs 850 --skip ipv6::
    check "an idle connection is small on $device as $adapter" run_tests idle_memory 300
    if [ -n "${RDMA_ADAPTERS-}" ]; then
        check "rnic contract on $device as $adapter" run_tests rnic_contract_verbs 400
    fi
    unset EXS_TEST_ADAPTER
    check "nothing is left of $adapter" no_leaks "$before"
done
finish
