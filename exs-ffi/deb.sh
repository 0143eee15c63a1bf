#!/usr/bin/env bash
# Makes a Debian package of the C library and the programs.
#
#   exs-ffi/deb.sh LIBS BINS OUT    OUT/exs_VERSION_ARCH.deb
#
# One package has both what runs programs and what builds them: they are small.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libs=${1:?usage: deb.sh LIBS BINS OUT} bins=${2:?} out=${3:?}
command -v dpkg-deb >/dev/null || { echo "deb.sh: there is no dpkg-deb: this is no Debian" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || ${CC:-cc} -print-multiarch)

mkdir -p "$out"
root=$(mktemp -d --tmpdir="$out")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
DESTDIR=$root PREFIX=/usr LIBDIR=/usr/lib/$multiarch "$here/install.sh" "$libs" "$bins"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
# A link to a page that is compressed now.
find "$root/usr/share/man" -type l | while read -r link; do
    ln -s "$(readlink "$link").gz" "$link.gz"
    rm "$link"
done
install -d "$root/usr/share/doc/exs"
install -m 644 "$here/../CHANGELOG.md" "$here/../LICENSE-MIT" "$here/../LICENSE-APACHE" "$root/usr/share/doc/exs/"
cat > "$root/usr/share/doc/exs/copyright" <<'TEXT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: EXS

Files: *
Copyright: The EXS authors
License: MIT or Apache-2.0
 The texts of both are beside this file: LICENSE-MIT, LICENSE-APACHE.
TEXT

# What the libraries and programs were linked against, by the packages that are here.
# (readelf fails for what is no program, and says all the same what the others need.)
elf() {
    find "$root/usr/bin" "$root/usr/lib" -type f ! -name '*.a' ! -name '*.pc' \
        -exec readelf --wide "$@" {} + 2>/dev/null || true
}
depends='libc6, libgcc-s1'
case $(elf --dynamic) in *"[libibverbs.so"*) depends="$depends, libibverbs1, librdmacm1" ;; esac
glibc=$(elf --version-info | { grep -o 'GLIBC_2\.[0-9]*' || true; } | sort -uV | tail -n 1)
depends=${depends/libc6/libc6 (>= ${glibc#GLIBC_})}

install -d "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<CONTROL
Package: exs
Version: $version
Architecture: $arch
Maintainer: The EXS authors <exs@example.org>
Section: libs
Priority: optional
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: $depends
Recommends: ibverbs-providers
Provides: libexs1 (= $version), libexs-dev (= $version)
Homepage: https://github.com/exs-project/exs
Description: Extended Sockets: asynchronous sockets over RDMA
 Sockets whose operations end with events on a queue, over RDMA devices or, where
 there is none, over a software RNIC (user-space iWARP over TCP); and the same calls
 on ordinary kernel sockets. The C library, its header and manual pages, and the
 programs exs-cp, exs-pingpong, exs-perf, exs-info and exs-rdma-write.
CONTROL
echo 'activate-noawait ldconfig' > "$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
chmod -R u+rwX,go+rX,go-w "$root"
dpkg-deb --root-owner-group --build "$root" "$out/exs_${version}_$arch.deb" >&2
