#!/usr/bin/env bash
# What users get: the Debian packages and `make install`, made of the real programs, installed into a
# root of their own, used, and removed again.
#
#   tests/scripts/package.sh [OUT]    OUT: where `make deb` has put the package (and is made if it has not)
#
# The root is given this machine's own list of packages, with their files. So dpkg itself says whether
# ours goes beside rdma-core and the rest: its dependencies, and files that two packages have.
# Nothing of this machine is changed. Exits with 77 where there is no dpkg, or no superuser.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
out=${1:-$target/deb}
cc=${CC:-cc}
say() { printf 'package: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

for tool in dpkg dpkg-deb pkg-config "$cc"; do
    command -v "$tool" >/dev/null || { say "skipped: there is no $tool here"; exit 77; }
done
[ "$(id -u)" = 0 ] || { say "skipped: only the superuser may install into a root of its own"; exit 77; }

make --no-print-directory -C "$top" deb
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
names=(libexs1 libexs-dev exs-tools) debs=()
for name in "${names[@]}"; do
    deb=$out/${name}_$version-1_$(dpkg --print-architecture).deb
    [ -f "$deb" ] || die "there is no $deb"
    debs+=("$deb")
done
if command -v lintian >/dev/null; then
    lintian --fail-on error --suppress-tags initial-upload-closes-no-bugs "${debs[@]}" 2>/dev/null ||
        die "lintian finds errors in the packages"
else
    say "skipped: there is no lintian here to look at the packages"
fi

work=$(mktemp -d --tmpdir="$target")
trap 'rm -rf "$work"' EXIT
root=$work/root
# The first C program of the book.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$top/docs/book/src/c/first-program.md" > "$work/hello.c"
[ -s "$work/hello.c" ] || die "the book has no program in C"

# use ROOT PREFIX LIBDIR: compiles that program the book's way against what is installed, linked
# with the shared and the static library, runs it, and the programs.
use() {
    local at=$1$2 lib=$1$3 flags way name
    pc() {
        PKG_CONFIG_LIBDIR=$lib/pkgconfig:$(pkg-config --variable pc_path pkg-config) PKG_CONFIG_SYSROOT_DIR=$sysroot PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 \
            PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 pkg-config "$@"
    }
    sysroot=$1
    [ "$(pc --modversion exs)" = "$version" ] || die "exs.pc has another version"
    for way in '' --static; do
        # shellcheck disable=SC2086 # no option, or one
        flags=$(pc $way --cflags --libs exs)
        if [ -n "$way" ]; then flags="-static $flags"; fi
        # shellcheck disable=SC2086 # several options
        "$cc" -std=gnu99 -Wall -Wextra -Wpedantic -Werror "$work/hello.c" $flags -o "$work/hello"
        [ "$(LD_LIBRARY_PATH=$lib timeout 300 "$work/hello")" = 'received: hello' ] ||
            die "the book's program says something else ($flags)"
    done
    for name in exs-cp exs-pingpong exs-perf exs-info exs-top exs-rdma-write; do
        "$at/bin/$name" --help >/dev/null || die "$name does not run"
    done
    "$at/bin/exs-info" >/dev/null || die "exs-info fails"
    timeout 300 "$at/bin/exs-pingpong" demo --iters 100 >/dev/null || die "exs-pingpong demo fails, or hangs"
    [ -s "$lib/libexs.a" ] && [ "$(readlink "$lib/libexs.so")" = libexs.so.1 ]
}

# ---- The package ------------------------------------------------------------------

mkdir -p "$root/var/lib" "$root/var/log"
cp -a /var/lib/dpkg "$root/var/lib/"
rm -f "$root"/var/lib/dpkg/lock* "$root/var/lib/dpkg/triggers/Lock"
# Of this package (should it be here) and of what is about to be done, nothing.
rm -rf "$root/var/lib/dpkg/updates" && mkdir "$root/var/lib/dpkg/updates"
into() { dpkg --root="$root" --log="$root/var/log/dpkg.log" "$@"; }
# ldconfig has no work in that root; it runs in real installations.
before=$(find "$root" -path "$root/var/lib/dpkg" -prune -o -print | sort)
into --purge "${names[@]}" >/dev/null 2>&1 || true
into --no-triggers --install "${debs[@]}" >/dev/null || die "dpkg does not install them"
for name in "${names[@]}"; do
    status=$(into --status "$name")
    case $status in
        *'Status: install ok installed'* | *'Status: install ok triggers-'*) ;;
        *) die "it is not wholly installed: $status" ;;
    esac
done
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || "$cc" -print-multiarch)
use "$root" /usr "/usr/lib/$multiarch"
# rdma-core is opened at run time, where it is there.
"$top/tests/scripts/needed.sh" "$root"/usr/bin/exs-* "$root/usr/lib/$multiarch"/libexs.so.*.*
for deb in "${debs[@]}"; do
    case $(dpkg-deb --field "$deb" Depends) in *ibverbs* | *rdmacm*) die "$deb depends on rdma-core" ;; esac
    case $deb in *libexs-dev*) continue ;; esac
    for name in libibverbs1 librdmacm1 ibverbs-providers; do
        case $(dpkg-deb --field "$deb" Recommends) in *"$name"*) ;; *) die "$deb does not recommend $name" ;; esac
    done
done
# The package names all libraries that the programs need, and no others.
needed=$({ find "$root/usr/bin" -name 'exs-*'; ls "$root/usr/lib/$multiarch"/libexs.so.*.*; } |
    xargs -n 1 ldd | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u)
depends=$(for deb in "${debs[@]}"; do dpkg-deb --field "$deb" Depends; done)
for file in $needed; do
    owner=$({ dpkg --search "$file" || dpkg --search "$(realpath "$file")" || dpkg --search "${file#/usr}"; } 2>/dev/null |
        sed -n '1s/:.*//p')
    case $owner in
        libc6 | libgcc-s1)
            case $depends in *"$owner"*) ;; *) die "$file is of $owner, which Depends does not name" ;; esac ;;
        *) die "$file is of '$owner': what has that to do with EXS?" ;;
    esac
done
into --no-triggers --purge "${names[@]}" >/dev/null
after=$(find "$root" -path "$root/var/lib/dpkg" -prune -o -print | grep -vx "$root/var/log/dpkg.log" | sort)
left=$(comm -13 <(printf '%s\n' "$before") <(printf '%s\n' "$after"))
[ -z "$left" ] || die "the packages have left behind: $left"
say "the packages install beside $(into --get-selections | grep -cw install) others, work, and go"

# ---- make install -----------------------------------------------------------------

make --no-print-directory -C "$top" install PREFIX=/opt/exs DESTDIR="$work/staged"
use "$work/staged" /opt/exs /opt/exs/lib
for page in man7/exs.7 man3/exs_send.3 man1/exs-cp.1 man1/exs-info.1; do
    [ -s "$work/staged/opt/exs/share/man/$page" ] || die "there is no $page"
done
say "make install: all is there, and works"
