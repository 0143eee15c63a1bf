#!/usr/bin/env bash
# cargo, but for the feature `verbs-link` (the libraries of rdma-core are linked, not opened), which
# not every machine can build: it needs rdma-core's headers, pkg-config, and libclang 14 or 15, as the
# generator of rdma-sys gives opaque structures with newer ones.
#
#   cargo.sh COMMAND ... --features a,verbs-link ...   as cargo; sets LIBCLANG_PATH, or takes
#                                                      `verbs-link` out and says so
#   cargo.sh --can-link                                status 0 if it can be built here; if not,
#                                                      says what is missing
#
# A LIBCLANG_PATH that is set already is believed. CARGO names another cargo.
set -euo pipefail

# Debian, Fedora, Arch and Alpine, in this order.
find_libclang() {
    [ -z "${LIBCLANG_PATH-}" ] || return 0
    local dir file
    for dir in /usr/lib/llvm-{14,15}/lib /usr/lib64/llvm{14,15}/lib /usr/lib/llvm{14,15}/lib; do
        for file in "$dir"/libclang.so* "$dir"/libclang-*.so*; do
            if [ -e "$file" ]; then
                export LIBCLANG_PATH=$dir
                return 0
            fi
        done
    done
    return 1
}

lacking=
if ! command -v pkg-config >/dev/null 2>&1; then
    lacking="pkg-config"
elif ! pkg-config --exists libibverbs librdmacm; then
    lacking="headers of libibverbs and librdmacm (Debian: libibverbs-dev, librdmacm-dev)"
elif ! find_libclang; then
    lacking="libclang 14 or 15 (Debian: libclang1-14, libclang-common-14-dev; LIBCLANG_PATH names the directory of one elsewhere)"
fi

if [ "${1-}" = --can-link ]; then
    [ -z "$lacking" ] || { printf 'missing: %s\n' "$lacking"; exit 1; }
    exit 0
fi

args=() dropped=no after_features=no
for arg in "$@"; do
    if [ $after_features = yes ] && [ -n "$lacking" ]; then
        kept=$(printf '%s' "$arg" | tr -s ', ' '\n' | grep -vx verbs-link | paste -sd,) || true
        [ "$kept" = "$arg" ] || dropped=yes
        arg=$kept
    fi
    after_features=no
    [ "$arg" != --features ] || after_features=yes
    args+=("$arg")
done
if [ $dropped = yes ]; then
    printf 'building without the feature verbs-link. Missing: %s\n' "$lacking" >&2
fi
exec "${CARGO:-cargo}" "${args[@]}"
