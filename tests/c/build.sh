#!/usr/bin/env bash
# Builds the C programs of the tests against libexs.
#
#   tests/c/build.sh LIB OUT [asan]    LIB: what exs-ffi/build.sh has made
#
# OUT gets `conformance` and the single programs. With `asan` the C side has
# AddressSanitizer and UndefinedBehaviorSanitizer in it. CC names another compiler.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lib=$1 out=$2 how=${3-}
cc=${CC:-gcc}
cxx=${CXX:-g++}
flags=(-g -O1 -Wall -Wextra -Wpedantic -Werror -I"$here/../../exs-ffi/include" -pthread)
case $how in
    '') ;;
    asan) flags+=(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer) ;;
    *) echo "build.sh: there is no way '$how' to build" >&2; exit 2 ;;
esac
link=(-L"$lib" -Wl,-rpath,"$lib" -lexs)

mkdir -p "$out"
# A program whose sources are a directory.
suite() {
    local name=$1 objects=() jobs=() file object
    for file in "$here/$name"/*.c; do
        object=$out/$name-$(basename "$file" .c).o
        # SC2086 does not apply: the compiler may be a name with options.
        # shellcheck disable=SC2086
        $cc -std=gnu99 "${flags[@]}" -c "$file" -o "$object" &
        jobs+=($!)
        objects+=("$object")
        if [ ${#jobs[@]} = 2 ]; then wait "${jobs[0]}"; wait "${jobs[1]}"; jobs=(); fi
    done
    for job in ${jobs[@]+"${jobs[@]}"}; do wait "$job"; done
    # shellcheck disable=SC2086
    $cc "${flags[@]}" "${objects[@]}" -o "$out/$name" "${link[@]}"
    rm -f "${objects[@]}"
}
suite conformance
# -Wpedantic knows no expressions that are blocks.
flags+=(-Wno-pedantic)
suite differential
flags+=(-Wpedantic)

# Programs of their own, as a user writes them: only the names that ES-API has.
for file in "$here"/*.c; do
    [ -e "$file" ] || continue
    case $file in */smoke.c | */bulk.c | */roundtrip.c | */pairs.c) continue ;; esac # exs-ffi has tests of the one; bench.sh
    # shellcheck disable=SC2086
    $cc -std=gnu99 "${flags[@]}" "$file" -o "$out/$(basename "$file" .c)" "${link[@]}"
done
for file in "$here"/*.cc; do
    [ -e "$file" ] || continue
    # shellcheck disable=SC2086
    $cxx -std=c++11 "${flags[@]}" "$file" -o "$out/$(basename "$file" .cc)" "${link[@]}"
done
