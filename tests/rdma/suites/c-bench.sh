#!/usr/bin/env bash
# A bulk sender in C in the way of ES-API, over the device, beside plain send() over TCP by the same
# interface: `make bench-c` with RDMA devices. Ratios for the README; slowness fails nothing.
# devices: each
# kind: benchmark
# limit: 300
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

compare() { # SIZE
    SIZES=$1 ADDRESS=$addr KINDS="plain tcp,exs tcp,exs soft,exs $EXS_TRANSPORT" EXS_DEVICE=$device \
        within 90 tests/c/bench.sh "$RDMA_BIN/c/lib" "$temp/bench" "${RDMA_ROUNDS:-3}" $((64 / RDMA_FACTOR)) |
        sed 's/^/note: /'
}

before=$(census)
for size in 4096 65536 1048576; do
    check "bulk sender in C, $size bytes" compare "$size"
done
check "nothing is left of it" no_leaks "$before"
finish
