#!/usr/bin/env bash
# Makes exs/src/verbs/raw/abi/bindings.rs: the declarations of libibverbs and librdmacm that EXS uses,
# of those that the crate rdma-sys makes of the headers of rdma-core.
#
#   bindings.sh            writes the file
#   bindings.sh --check    compares it with a new one, for x86-64 and (where there are headers) for
#                          aarch64, and each layout in it with rdma-sys's
#
# Needs what the feature `verbs-link` needs. Status 77: this machine lacks it.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top"
file=exs/src/verbs/raw/abi/bindings.rs
target=${CARGO_TARGET_DIR:-$top/target}
say() { printf 'bindings: %s\n' "$*" >&2; }

if ! lacking=$(tests/scripts/cargo.sh --can-link); then
    say "skipped: $lacking"
    exit 77
fi
library() {
    local at
    at=$(ldconfig -p | sed -n "s/^[[:space:]]*$1 .*=> //p" | head -n 1)
    [ -n "$at" ] || { say "there is no $1"; exit 1; }
    printf '%s' "$at"
}
verbs=$(library libibverbs.so.1) cm=$(library librdmacm.so.1)

# Headers of the C library of aarch64 (Debian: libc6-dev-arm64-cross).
other=aarch64-linux-gnu

# declarations [CLANG-TARGET]: those of a build of rdma-sys, to $target/bindings.rs.
declarations() {
    local made out source
    made=$(BINDGEN_EXTRA_CLANG_ARGS=${1:+--target=$1 -isystem /usr/$1/include} CARGO_TARGET_DIR=$target/bindings${1:+-$1} \
        tests/scripts/cargo.sh check ${CI:+--locked} --quiet -p exs --features verbs-link --message-format=json)
    out=$(grep '"reason":"build-script-executed"' <<<"$made" | grep -F 'rdma-sys@' | grep -o '"out_dir":"[^"]*"' | cut -d'"' -f4)
    source=$(grep -o '"src_path":"[^"]*/rdma-sys-[^"]*/src/lib.rs"' <<<"$made" | head -n 1 | cut -d'"' -f4)
    CARGO_TARGET_DIR=$target/bindings cargo run ${CI:+--locked} --quiet --manifest-path tests/bindings/Cargo.toml -- \
        "$out/bindings.rs" "$(dirname "$source")/types.rs" exs/src/verbs/raw "$verbs" "$cm" |
        rustfmt --edition 2024 --config-path rustfmt.toml > "$target/bindings.rs"
}

case ${1-} in
    '')
        declarations
        mv "$target/bindings.rs" "$file"
        say "wrote $file"
        ;;
    --check)
        archs=('')
        if [ -d "/usr/$other/include" ]; then archs+=("$other"); else say "not for aarch64: there is no /usr/$other/include"; fi
        for arch in "${archs[@]}"; do
            declarations "$arch"
            if ! diff -u "$file" "$target/bindings.rs"; then
                say "$file is not what rdma-sys declares${arch:+ for $arch}: make bindings"
                exit 1
            fi
        done
        CARGO_TARGET_DIR=$target/bindings tests/scripts/cargo.sh test ${CI:+--locked} --quiet -p exs --lib \
            --features verbs-link,internals -- verbs::raw::abi
        say "$file is what rdma-sys declares"
        ;;
    *)
        say "usage: bindings.sh [--check]"
        exit 2
        ;;
esac
