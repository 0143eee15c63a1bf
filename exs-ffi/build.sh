#!/usr/bin/env bash
# Builds libexs.so and libexs.a from the crate: the C compiler links what cargo made,
# so that the names, versions and dependencies are those of a C library.
#
#   exs-ffi/build.sh [OUT]    into OUT (default: the target directory's lib/)
#
# CC names another compiler, CARGO another cargo; FEATURES (default: verbs) what cargo builds
# with, PROFILE (default: release) how. SANITIZE is for the tests: options for the compiler, as
# "-fsanitize=address".
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
cc=${CC:-cc}
profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-$top/target}
# The interface's version; the package's is Cargo.toml's. A change that breaks programs
# gives a new first number, a change that adds functions a new second.
abi=1.0.0
soname=libexs.so.${abi%%.*}

log() { [ -n "${QUIET-}" ] || printf 'libexs: %s\n' "$*" >&2; }

# The C library that programs are built with. Both compilers must build for the same one.
rust_target=${TARGET:-${CARGO_BUILD_TARGET-}}
[ -n "$rust_target" ] || rust_target=$(rustc -vV | sed -n 's/^host: //p')
case $rust_target in *musl*) libc=musl ;; *) libc=glibc ;; esac
# shellcheck disable=SC2086 # a compiler and its options
cc_libc=$(printf '#include <features.h>\n#ifdef __GLIBC__\nglibc\n#else\nmusl\n#endif\n' | $cc -E -P - | tail -n 1)
if [ "$cc_libc" != "$libc" ]; then
    log "$cc builds for $cc_libc, and cargo for $rust_target: they must be the same. For a library for musl:"
    log "  rustup target add x86_64-unknown-linux-musl"
    log "  TARGET=x86_64-unknown-linux-musl CC=musl-gcc $0"
    exit 1
fi
host=$(rustc -vV | sed -n 's/^host: //p')
if [ "$rust_target" != "$host" ] && [ ! -d "$(rustc --print sysroot)/lib/rustlib/$rust_target" ]; then
    log "the Rust toolchain has no standard library for $rust_target: rustup target add $rust_target"
    exit 1
fi

features=${FEATURES-verbs}
# With `verbs` the library opens rdma-core's when it looks for devices.
case $features in *verbs-link*) rdma=(-lrdmacm -libverbs) ;; *) rdma=() ;; esac
# The code that unwinds the stack. GCC's needs glibc, so for musl it comes with the Rust toolchain.
case $libc in
    musl) unwind=("$(rustc --print sysroot)/lib/rustlib/$rust_target/lib/self-contained/libunwind.a") ;;
    *) unwind=(-lgcc_s) ;;
esac

# Cargo's own name for the development profile's directory is another one.
case $profile in dev) dir=debug ;; *) dir=$profile ;; esac
target_option=()
if [ "$rust_target" != "$host" ]; then target_option=(--target "$rust_target"); fi
(cd "$top" && "$top/tests/scripts/cargo.sh" rustc ${CI:+--locked} --quiet --profile "$profile" \
    ${target_option[@]+"${target_option[@]}"} -p exs-ffi --lib --crate-type staticlib \
    --no-default-features --features "$features")
rust=$target/${target_option[1]-}/$dir/libexs_ffi.a
out=${1:-$target/lib}
mkdir -p "$out"
work=$(mktemp -d --tmpdir="$out")
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2086 # several options, or none
$cc -std=c99 -O2 -fPIC -Wall -Wextra -Wpedantic ${SANITIZE-} -I"$here/include" \
    -c "$here/c/variadic.c" -o "$work/variadic.o"

# All that the exported functions need, and no more, as one object: what no function
# of the header needs is left where it is.
names=$(sed -n 's/^[^ ].*[ *]\(exs_[a-z_]*\)(.*/\1/p' "$here/include/sys/exs.h" | sort -u)
needed=()
for name in $names; do needed+=(-u "$name"); done
ld -r --gc-sections "${needed[@]}" -o "$work/all.o" "$work/variadic.o" "$rust"
# Only the header's names stay visible, and what the standard library uses where the C
# library has it (weak references). Names of what was left out stay in the object as if they
# were needed: they go. So does the bitcode that rustc leaves beside the code for its own
# linker, as the plugins of other linkers stumble over it.
undefined() { readelf --symbols --wide "$work/all.o" | awk -v is="$1" '$5 == is && $7 == "UND" && $8 { print $8 }'; }
{ echo 'exs_*'; undefined WEAK; } > "$work/keep"
gone=()
for name in $(undefined LOCAL); do gone+=(--strip-symbol="$name"); done
objcopy --wildcard --keep-global-symbols="$work/keep" ${gone[@]+"${gone[@]}"} \
    --remove-section=.llvmbc --remove-section=.llvmcmd "$work/all.o" "$work/exs.o"

rm -f "$work/libexs.a"
ar rcsD "$work/libexs.a" "$work/exs.o"

# Its threads run until the process ends, and so does what it does then: dlclose(3) must not
# take their code away.
# shellcheck disable=SC2086
$cc -shared -o "$work/libexs.so.$abi" "$work/exs.o" ${SANITIZE-} \
    -Wl,-soname,"$soname" -Wl,--version-script,"$here/c/exs.map" -Wl,-z,defs -Wl,-z,relro \
    -Wl,-z,now -Wl,-z,nodelete -Wl,--as-needed ${rdma[@]+"${rdma[@]}"} "${unwind[@]}" -lm -lpthread -ldl -lc

# Moved into place when all is done, so that a program that uses the old ones is not disturbed.
mv -f "$work/libexs.a" "$work/libexs.so.$abi" "$out/"
ln -sf "libexs.so.$abi" "$out/$soname"
ln -sf "$soname" "$out/libexs.so"
# For programs that link libexs.a: the packages of pkg-config that it needs, and libraries.
case $features in *verbs-link*) needs='librdmacm, libibverbs' ;; *) needs= ;; esac
[ $libc = musl ] || unwind=(-lgcc_eh)
printf 'Requires.private: %s\nLibs.private: %s -lm -lpthread -ldl -lc\n' "$needs" "${unwind[*]}" > "$out/libexs.private"
log "$out/libexs.so.$abi, $out/libexs.a"
