#!/usr/bin/env bash
# Runs the tests in which threads meet under ThreadSanitizer, which sees data races that a plain
# run survives: the contract of sockets over the software RNIC and shared memory, with one shard
# and with several, shards, blocked threads that attend their connections, and threads that use
# each other's sockets and queues.
#
#   tsan.sh [--if-possible] [TEST [FILTER...]]     all of these, or one test binary
#
# The standard library is built again, instrumented: otherwise each of its locks and channels
# would be reported. That needs its source (rustup component add rust-src, or a download of
# it into the target directory) and the sanitizer's runtime, which the toolchain has. The stable
# compiler does it with RUSTC_BOOTSTRAP; nothing of the toolchain is changed. With --if-possible a
# missing part is said, and the status is 77 (skipped, as in automake).
#
# A report fails its test binary. None has to be suppressed: memory that a peer process writes is
# mapped twice in a test of one process, and the sanitizer takes the two mappings for two objects.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
lenient=no
if [ "${1-}" = --if-possible ]; then
    lenient=yes
    shift
fi

say() { printf 'tsan: %s\n' "$*" >&2; }
missing() {
    say "$*"
    if [ $lenient = yes ]; then say "skipped"; exit 77; fi
    exit 1
}

target=$(rustc -vV | sed -n 's/^host: //p')
release=$(rustc -vV | sed -n 's/^release: //p')
sysroot=$(rustc --print sysroot)
out=${CARGO_TARGET_DIR:-$top/target}/tsan
mkdir -p "$out"

# --- what it needs -------------------------------------------------------------------
compgen -G "$sysroot/lib/rustlib/$target/lib/librustc-*_rt.tsan.a" >/dev/null ||
    missing "Rust $release has no runtime of ThreadSanitizer for $target"

# source_of_std: prints the directory with the source of the standard library.
source_of_std() {
    local installed=$sysroot/lib/rustlib/src/rust/library name=rust-src-$release
    local unpacked=$out/$name/rust-src/lib/rustlib/src/rust/library
    if [ -e "$installed/Cargo.lock" ]; then echo "$installed" && return; fi
    if [ ! -e "$unpacked/Cargo.lock" ]; then
        local file=$out/$name.tar.xz url=https://static.rust-lang.org/dist/$name.tar.xz
        say "downloading $url"
        curl -sSf -o "$file" "$url" && curl -sSf -o "$file.sha256" "$url.sha256" || return
        # Some mirrors leave out the name behind the sum.
        if [ "$(head -c 64 "$file.sha256")" != "$(sha256sum "$file" | head -c 64)" ]; then
            say "$file is not what its checksum says"
            return 1
        fi
        tar -C "$out" -xf "$file" && rm "$file" "$file.sha256" || return
    fi
    echo "$unpacked"
}
library=$(source_of_std) || missing "the source of Rust $release's standard library is not there: run 'rustup component add rust-src'"

# --- the tests -----------------------------------------------------------------------
# Cargo has no other way to be told where the source of the standard library is.
export RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$library
export CARGO_TARGET_DIR=$out RUSTFLAGS="-Zsanitizer=thread ${RUSTFLAGS-}"
export TSAN_OPTIONS="exitcode=66 history_size=4 ${TSAN_OPTIONS-}"
cd "$top"
failed=()
# run SHARDS TEST [FILTER...]: SHARDS is how many the process may have. Without the feature `verbs`,
# as the sanitizer does not see what C libraries do.
run() {
    local shards=$1 name=$2
    shift 2
    say "$name, EXS_SHARDS=$shards: ${*:-all of it}"
    EXS_SHARDS=$shards "${CARGO:-cargo}" test --quiet ${CI:+--locked} -Zbuild-std --target "$target" -p exs-tests \
        --test "$name" -- "$@" || failed+=("$name, EXS_SHARDS=$shards")
}

for shards in 8 1; do
    if [ $# -gt 0 ]; then
        run $shards "$@"
        continue
    fi
    # IPv6 and CRC change nothing among threads.
    run $shards socket_contract soft_ipv4 shm_ipv4
    run $shards attend
    run $shards attend_queues
    run $shards queue_loops
    # Over shared memory, places of one mapping go from shard to shard. What orders their users is the peer,
    # which has a mapping of its own, and the sanitizer does not know that both are the same memory.
    run $shards brief_connections soft
    # It makes two.
    [ $shards = 1 ] || run $shards wait_elsewhere
    run $shards stress chaos threads
    # It needs several.
    [ $shards = 1 ] || run $shards shards
done
[ ${#failed[@]} = 0 ] || { say "failed: ${failed[*]}"; exit 1; }
