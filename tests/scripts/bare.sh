#!/usr/bin/env bash
# A machine without rdma-core builds everything, and runs it: in a mount namespace in which rdma-core's headers
# and libraries, libclang, clang and pkg-config are not there, and without a network, the programs and the C
# library are built from nothing, `make demo` runs, and what was built needs the C library and libgcc_s only.
#
#   tests/scripts/bare.sh
#
# The target directory is empty at first, so that the build scripts of all dependencies run there, too.
# What is built is not optimised: that takes a minute in place of ten.
# Exits with 77 where there is no superuser or no mount namespace. Nothing of this machine is changed.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top"
say() { printf 'bare: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

if [ "${1-}" != --inside ]; then
    [ "$(id -u)" = 0 ] || { say "skipped: only the superuser may hide files"; exit 77; }
    unshare --mount --net true 2>/dev/null || { say "skipped: there are no mount and network namespaces here"; exit 77; }
    "${CARGO:-cargo}" fetch --quiet --locked
    target=${CARGO_TARGET_DIR:-$top/target}
    mkdir -p "$target"
    work=$(mktemp -d --tmpdir="$target")
    trap 'rm -rf "$work"' EXIT
    WORK=$work unshare --mount --net --propagation private "$0" --inside
    exit
fi

# ---- What is not there --------------------------------------------------------------

ip link set lo up
# A layer above /usr, in which files can be removed: those below stay.
# shellcheck disable=SC2153 # of the call above
mkdir "$WORK/layer"
mount -t tmpfs tmpfs "$WORK/layer"
mkdir "$WORK/layer/upper" "$WORK/layer/work"
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$WORK/layer/upper,workdir=$WORK/layer/work" /usr || {
    say "skipped: the kernel has no overlay file system"
    exit 77
}
shopt -s nullglob
# rdma-core's headers, what builds programs with its libraries, and the libraries themselves.
rm -rf /usr/{,local/}include/{infiniband,rdma} /usr/{lib{,64}{,/*-linux-*},share}/pkgconfig/{libibverbs,librdmacm}.pc \
    /usr/lib{,64}{,/*-linux-*}/{libibverbs,librdmacm}.*
# clang with its libraries, bindgen and pkg-config.
rm -rf /usr/lib{,64}/{llvm*,clang} /usr/lib{,64}{,/*-linux-*}/libclang*
IFS=: read -ra path <<<"$PATH"
for dir in "${path[@]}"; do
    for file in "$dir"/{clang,clang++,clang-*,clang++-*,bindgen,llvm-config*,pkg-config,pkgconf,*-pkg-config,*-pkgconf}; do
        [ -e "$file" ] || continue
        case $file in /usr/* | /bin/*) rm -f "$file" ;; *) die "$file cannot be hidden: take its directory out of PATH" ;; esac
    done
done
unset LIBCLANG_PATH CLANG_PATH LLVM_CONFIG_PATH PKG_CONFIG_PATH BINDGEN_EXTRA_CLANG_ARGS
for name in clang pkg-config pkgconf bindgen llvm-config; do
    if command -v "$name" >/dev/null; then die "$name is still there"; fi
done
if echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1; then die "the headers of libibverbs are still there"; fi
if tests/scripts/cargo.sh --can-link >/dev/null; then die "all that rdma-sys needs is still there"; fi

# ---- What is built ------------------------------------------------------------------

export CARGO_TARGET_DIR=$WORK/target CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 \
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
mkdir "$WORK/tree"
cp README.md Cargo.lock "$WORK/tree/"
make --no-print-directory CI=true demo DEMO_ARGS="--tree $WORK/tree" >"$WORK/demo" || die "make demo fails"
make --no-print-directory CI=true lib tools >"$WORK/built" || die "make lib tools fails"

# ---- What that needs ----------------------------------------------------------------

built=("$CARGO_TARGET_DIR"/release/exs-{cp,info,perf,pingpong,rdma-write} "$CARGO_TARGET_DIR"/lib/libexs.so.*.*)
for file in "${built[@]}"; do
    [ -f "$file" ] || die "$file was not built"
    tests/scripts/needed.sh "$file"
done
# The feature is there all the same: only libraries are asked for, and only at run time.
"$CARGO_TARGET_DIR/release/exs-info" --json >"$WORK/info" 2>/dev/null || true
grep -q '"name":"verbs","built_in":true' "$WORK/info" || die "exs-info was built without RDMA devices: $(cat "$WORK/info")"
say "without headers, clang and pkg-config: make demo runs, and ${#built[@]} files need the C library and libgcc_s only"
