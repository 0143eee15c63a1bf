#!/usr/bin/env bash
# Regions over dma-bufs: what the kernel's devices say of them, and the whole way over a pretended
# adapter that takes them. A kernel with /dev/udmabuf has real ones.
# devices: each
# limit: 120
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

before=$(census)
check "what $device says of dma-bufs" run_tests dmabuf 50
if [ "$1" = rxe ]; then
    export EXS_TEST_ADAPTER=gpu
    check "dma-bufs on $device beside a GPU" run_tests dmabuf 50
    unset EXS_TEST_ADAPTER
fi
check "nothing is left of it" no_leaks "$before"
finish
