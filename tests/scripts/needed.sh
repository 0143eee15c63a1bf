#!/usr/bin/env bash
# Fails if a program or a shared library needs (DT_NEEDED) more than the C library and libgcc_s.
#
#   tests/scripts/needed.sh FILE...
set -euo pipefail

for file; do
    libraries=$(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p')
    # libm, libdl, libpthread and the loader are files of glibc.
    others=$(grep -vE '^(lib(c|m|dl|pthread|rt|gcc_s)\.so\.[0-9]+|ld-linux-.*\.so\.[0-9]+)$' <<<"$libraries" || true)
    [ -n "$libraries" ] || { echo "$file has no dynamic section" >&2; exit 1; }
    [ -z "$others" ] || { echo "$file needs ${others//$'\n'/, }" >&2; exit 1; }
done
