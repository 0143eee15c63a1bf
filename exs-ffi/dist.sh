#!/usr/bin/env bash
# Makes the tarball of a release: programs, library, header, manual pages and licences, for any
# distribution. It may be unpacked anywhere.
#
#   exs-ffi/dist.sh LIBS BINS OUT    OUT/exs-VERSION-MACHINE-linux-LIBC.tar.gz
#
# LIBS is what build.sh made, BINS has the programs. The same files make the same tarball, byte for
# byte: names are in order, and times are those of the last change (SOURCE_DATE_EPOCH). `make dist` also
# keeps the paths of this machine out of what it compiles.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
libs=${1:?usage: dist.sh LIBS BINS OUT} bins=${2:?} out=${3:?}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
# What the library was built for: 'aarch64' and 'gnu'.
machine=$(readelf --file-header "$libs"/libexs.so.*.* | sed -n 's/^ *Machine: *//p')
case $machine in
    *X86-64*) machine=x86_64 ;;
    AArch64) machine=aarch64 ;;
    *) echo "dist.sh: a machine without a name here: $machine" >&2; exit 1 ;;
esac
case $(readelf --dynamic --wide "$libs"/libexs.so.*.*) in *'[libc.so.6]'*) libc=gnu ;; *) libc=musl ;; esac
name=exs-$version-$machine-linux-$libc
when=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}

mkdir -p "$out"
work=$(mktemp -d --tmpdir="$out")
trap 'rm -rf "$work"' EXIT
root=$work/$name
DESTDIR=$root PREFIX=/ BINDIR=/bin LIBDIR=/lib INCLUDEDIR=/include MANDIR=/share/man "$here/install.sh" "$libs" "$bins" 2>/dev/null
# pkg-config finds the rest from where the file is.
# shellcheck disable=SC2016 # pkg-config's variables
sed -i -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' -e 's|^libdir=.*|libdir=${prefix}/lib|' \
    -e 's|^includedir=.*|includedir=${prefix}/include|' "$root/lib/pkgconfig/exs.pc"
strip --strip-unneeded "$root"/bin/*
install -m 644 "$top/LICENSE-MIT" "$top/LICENSE-APACHE" "$top/CHANGELOG.md" "$root/"
# The oldest glibc that has all that is used.
glibc=$(readelf --version-info --wide "$root"/bin/* "$root"/lib/libexs.so.*.* | { grep -o 'GLIBC_2\.[0-9]*' || true; } | sort -uV | tail -n 1)
cat >"$root/README.md" <<TEXT
# EXS $version for Linux on $machine

Programs in \`bin\`, the C library in \`lib\` and \`include\`, manual pages in \`share/man\`.
They need ${glibc:+glibc ${glibc#GLIBC_} or newer, and }libgcc_s. RDMA devices are used where the host has some and
rdma-core's libraries; nothing else needs them.

Use it where it is:

    export PATH=\$PWD/bin:\$PATH MANPATH=\$PWD/share/man:
    exs-info --doctor
    cc \$(PKG_CONFIG_PATH=\$PWD/lib/pkgconfig pkg-config --cflags --libs exs) program.c -Wl,-rpath,\$PWD/lib

or for all users: \`cp -r bin lib include share /usr/local/ && ldconfig\`.

Licence: MIT (LICENSE-MIT) or Apache-2.0 (LICENSE-APACHE), at your choice. CHANGELOG.md says what is new.
Sources and documentation: <https://github.com/exs-project/exs>
TEXT
chmod -R u+rwX,go+rX,go-w "$root"
tar --create --sort=name --mtime="@$when" --owner=0 --group=0 --numeric-owner --format=ustar \
    --directory "$work" "$name" | gzip -9n >"$work/$name.tar.gz"
mv -f "$work/$name.tar.gz" "$out/"
printf '%s\n' "$out/$name.tar.gz"
