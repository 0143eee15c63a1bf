#!/usr/bin/env bash
# Several shards on one device: queues, connections and operations that cross.
# devices: each
# limit: 420
# shellcheck source=SCRIPTDIR/../lib.sh
. "$(dirname "$0")/../lib.sh"
"$bed/links.sh" one
use "$1"

before=$(census)
check "shards on $device" run_tests shards 400
check "nothing is left of them" no_leaks "$before"
finish
