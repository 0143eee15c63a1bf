#!/usr/bin/env bash
# Makes the Debian packages of the C library and the programs.
#
#   exs-ffi/deb.sh LIBS BINS OUT    OUT/{libexs1,libexs-dev,exs-tools}_VERSION_ARCH.deb
#
# libexs1 is the shared library, libexs-dev what builds programs with it, exs-tools the programs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
libs=${1:?usage: deb.sh LIBS BINS OUT} bins=${2:?} out=${3:?}
command -v dpkg-deb >/dev/null || { echo "deb.sh: there is no dpkg-deb: this is no Debian" >&2; exit 1; }
upstream=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
version=$upstream-1
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || ${CC:-cc} -print-multiarch)
libdir=usr/lib/$multiarch
maintainer='The EXS authors <exs@example.org>'
# The time of the last change, so that the same sources make the same package.
when=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}

mkdir -p "$out"
work=$(mktemp -d --tmpdir="$out")
trap 'rm -rf "$work"' EXIT
DESTDIR=$work/all PREFIX=/usr LIBDIR=/$libdir "$here/install.sh" "$libs" "$bins"
for program in "$work"/all/usr/bin/*; do strip --strip-unneeded "$program" 2>/dev/null || true; done
find "$work/all/usr/share/man" -type f -exec gzip -9n {} +
# A link to a page that is compressed now.
find "$work/all/usr/share/man" -type l | while read -r link; do
    ln -s "$(readlink "$link").gz" "$link.gz"
    rm "$link"
done

# take PACKAGE PATH...: these files of the whole are the package's
take() {
    local package=$1 path
    shift
    for path in "$@"; do
        install -d "$work/$package/$(dirname "$path")"
        mv "$work/all/$path" "$work/$package/$path"
    done
}
mapfile -t runtime < <(cd "$work/all" && printf '%s\n' "$libdir"/libexs.so.*)
take libexs1 "${runtime[@]}"
# As Debian has it: a library is no program.
chmod 644 "$work/libexs1/$libdir"/libexs.so.*.*
take libexs-dev usr/include "$libdir/libexs.so" "$libdir/libexs.a" "$libdir/pkgconfig" \
    usr/share/man/man3 usr/share/man/man7
take exs-tools usr/bin usr/share/man/man1
left=$(find "$work/all" ! -type d)
[ -z "$left" ] || { echo "deb.sh: no package has $left" >&2; exit 1; }

# Each package has a copyright file and a changelog.
documents() {
    local doc=$work/$1/usr/share/doc/$1
    install -d "$doc"
    {
        printf 'exs (%s) unstable; urgency=medium\n\n  * Packages of EXS %s; changelog.gz beside this file has its changes.\n\n' "$version" "$upstream"
        printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$when")"
    } | gzip -9n > "$doc/changelog.Debian.gz"
    gzip -9nc "$top/CHANGELOG.md" > "$doc/changelog.gz"
    {
        cat <<'TEXT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: EXS
Source: https://github.com/exs-project/exs

Files: *
Copyright: 2026 The EXS authors
License: MIT or Apache-2.0

License: MIT
TEXT
        sed -n '/^Permission/,$p' "$top/LICENSE-MIT" | sed 's/^$/./; s/^/ /'
        cat <<'TEXT'

License: Apache-2.0
 On Debian systems, the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
TEXT
    } > "$doc/copyright"
}

# Packages that the ELF files of one need, by what they link with.
depends() {
    local elf glibc list
    # readelf fails for what is no program, and says all the same what the others need.
    elf=$(find "$work/$1" -type f \( -path '*/bin/*' -o -name '*.so.*' \) \
        -exec readelf --wide --dynamic --version-info {} + 2>/dev/null || true)
    glibc=$(printf '%s' "$elf" | { grep -o 'GLIBC_2\.[0-9]*' || true; } | sort -uV | tail -n 1)
    list="libc6${glibc:+ (>= ${glibc#GLIBC_})}"
    case $elf in *"[libgcc_s.so"*) list="$list, libgcc-s1" ;; esac
    case $elf in *"[libibverbs.so"* | *"[librdmacm.so"*) list="$list, libibverbs1, librdmacm1" ;; esac
    printf '%s' "$list"
}

# package NAME: the control file is what comes on standard input, without what all have alike
package() {
    local root=$work/$1
    documents "$1"
    install -d "$root/DEBIAN"
    {
        cat <<CONTROL
Package: $1
Source: exs
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Priority: optional
Homepage: https://github.com/exs-project/exs
CONTROL
        cat
    } > "$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
    find "$root" -exec touch -h -d "@$when" {} +
    chmod -R u+rwX,go+rX,go-w "$root"
    SOURCE_DATE_EPOCH=$when dpkg-deb --root-owner-group --build "$root" "$out/$1_${version}_$arch.deb" >&2
}

about=' Sockets whose operations end with events on a queue, over RDMA devices
 or, where there is none, over a software RNIC (user-space iWARP over TCP);
 and the same calls on ordinary kernel sockets.
 .'

install -d "$work/libexs1/DEBIAN"
echo 'activate-noawait ldconfig' > "$work/libexs1/DEBIAN/triggers"
# The interface of the library for packages that are built with it: its name, and its symbols.
echo "libexs 1 libexs1 (>= $upstream)" > "$work/libexs1/DEBIAN/shlibs"
{
    echo 'libexs.so.1 libexs1 #MINVER#'
    # shellcheck disable=SC2012 # one name, which is ours
    readelf --wide --dyn-syms "$(ls "$work/libexs1/$libdir"/libexs.so.*.* | head -n 1)" |
        awk '$7 != "UND" && $8 ~ /@@EXS_/ { sub(/@@/, "@", $8); print " " $8 }
             $7 == "ABS" && $8 ~ /^EXS_/ { print " " $8 "@" $8 }' |
        LC_ALL=C sort -u | sed "s/\$/ $upstream/"
} > "$work/libexs1/DEBIAN/symbols"
package libexs1 <<CONTROL
Section: libs
Multi-Arch: same
Depends: $(depends libexs1)
Recommends: libibverbs1, librdmacm1, ibverbs-providers
Description: Extended Sockets: asynchronous sockets over RDMA (library)
$about
 This package has the shared library.
CONTROL

rdma=
case $(cat "$libs/libexs.private") in *libibverbs*) rdma=', libibverbs-dev, librdmacm-dev, libnl-3-dev, libnl-route-3-dev' ;; esac
package libexs-dev <<CONTROL
Section: libdevel
Multi-Arch: same
Depends: libexs1 (= $version), libc6-dev$rdma
Description: Extended Sockets: asynchronous sockets over RDMA (development)
$about
 This package has the header, the static library, the file for pkg-config
 and the manual pages.
CONTROL

package exs-tools <<CONTROL
Section: net
Depends: $(depends exs-tools)
Recommends: libibverbs1, librdmacm1, ibverbs-providers
Description: Extended Sockets: asynchronous sockets over RDMA (programs)
$about
 This package has the programs: exs-cp copies files and trees, exs-pingpong
 and exs-perf measure, exs-info shows what a host has, exs-top what
 its processes do over EXS, and exs-rdma-write
 explains the first RDMA WRITE.
CONTROL
