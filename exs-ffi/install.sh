#!/usr/bin/env bash
# Installs the C library: header, libraries, exs.pc, manual pages, and the programs.
#
#   exs-ffi/install.sh LIBS BINS    what build.sh made, and where the programs are
#
# PREFIX (/usr/local), DESTDIR (empty), LIBDIR (PREFIX/lib), INCLUDEDIR, MANDIR, BINDIR say
# where to.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libs=${1:?usage: install.sh LIBS BINS} bins=${2:?usage: install.sh LIBS BINS}
prefix=${PREFIX:-/usr/local} destdir=${DESTDIR-}
libdir=${LIBDIR:-$prefix/lib} includedir=${INCLUDEDIR:-$prefix/include}
mandir=${MANDIR:-$prefix/share/man} bindir=${BINDIR:-$prefix/bin}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)

install -d "$destdir$libdir/pkgconfig" "$destdir$includedir/sys" "$destdir$mandir" "$destdir$bindir"
install -m 644 "$here/include/sys/exs.h" "$destdir$includedir/sys/exs.h"
for lib in "$libs"/libexs.so.*.*; do
    install -m 755 "$lib" "$destdir$libdir/"
    strip --strip-unneeded "$destdir$libdir/$(basename "$lib")"
    ln -sf "$(basename "$lib")" "$destdir$libdir/libexs.so.1"
done
ln -sf libexs.so.1 "$destdir$libdir/libexs.so"
install -m 644 "$libs/libexs.a" "$destdir$libdir/"
strip --strip-debug "$destdir$libdir/libexs.a"

# Paths below the prefix follow it, so that the tree may be moved.
cat > "$destdir$libdir/pkgconfig/exs.pc" <<PC
prefix=$prefix
libdir=${libdir/#$prefix/\$\{prefix\}}
includedir=${includedir/#$prefix/\$\{prefix\}}

Name: exs
Description: Extended Sockets: asynchronous sockets over RDMA, or over a software RNIC
Version: $version
Libs: -L\${libdir} -lexs
$(cat "$libs/libexs.private")
Cflags: -I\${includedir}
PC

"$here/man.sh" "$destdir$mandir"
install -d "$destdir$mandir/man1"
for bin in exs-cp exs-pingpong exs-perf exs-info exs-top exs-rdma-write; do
    install -m 755 "$bins/$bin" "$destdir$bindir/"
    # The program makes its pages itself: of its options, and of its chapter in the book.
    "$bins/$bin" --man-pages "$destdir$mandir/man1"
done

# So that programs find the library at once; a staged tree is its packager's business.
if [ -z "$destdir" ] && [ "$(id -u)" = 0 ]; then ldconfig; fi
printf 'installed EXS %s into %s\n' "$version" "$destdir$prefix" >&2
