#!/usr/bin/env bash
# What crates.io would get: the packages exs, exs-ffi and exs-tools, and what `cargo install` makes of them.
#
#   tests/scripts/crates.sh
#
# cargo packs the three of this tree. They are unpacked outside of it, where they have nothing but
# their own files and the locked dependencies, and exs-tools is installed from there: so all three
# compile. Nothing is fetched, nothing is sent. Where crates.io answers, `cargo publish --dry-run` looks
# at the packages, too. Exits with 77 where cargo is older than 1.90, which packs one package at a time.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top"
cargo=${CARGO:-cargo}
packages=(exs exs-ffi exs-tools)
programs=(exs-cp exs-info exs-perf exs-pingpong exs-rdma-write exs-top)
say() { printf 'crates: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

have=$($cargo --version | awk '{ print $2 }')
if [ "$(printf '1.90\n%s\n' "${have%%-*}" | sort -V | head -n 1)" != 1.90 ]; then
    say "skipped: cargo $have cannot pack packages that depend on each other; 1.90 can"
    exit 77
fi
# A directory of its own: the workspace's has programs of the same names.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target}/crates
export CARGO_TARGET_DIR CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
chosen=()
for package in "${packages[@]}"; do chosen+=(-p "$package"); done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ---- The packages -----------------------------------------------------------------

# `--locked`: they get the versions of this tree's Cargo.lock.
$cargo fetch --quiet --locked
$cargo package --quiet --no-verify --allow-dirty --offline --locked "${chosen[@]}" 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
# Tests and exs-bench are left out, and cargo says so of each. Anything else is news.
if grep -vE 'is not included in the published package$' "$work/said" >&2; then die "cargo has more to say"; fi
has() { grep -qx -- "$2" "$work/$1.list" || die "$1 has no $2"; }
for package in "${packages[@]}"; do
    tar -xzf "$CARGO_TARGET_DIR/package/$package-$version.crate" -C "$work"
    (cd "$work/$package-$version" && find . -type f -printf '%P\n') >"$work/$package.list"
    for file in Cargo.toml Cargo.lock README.md LICENSE-MIT LICENSE-APACHE src/lib.rs; do has "$package" $file; done
    if grep -E '^(tests|src/bin/exs-bench)/|\.sh$' "$work/$package.list"; then die "$package has files that are this repository's own"; fi
    [ -z "$(find "$work/$package-$version" -type l)" ] || die "$package has links"
    for key in description license repository readme keywords categories rust-version; do
        grep -q "^$key = " "$work/$package-$version/Cargo.toml" || die "$package has no $key"
    done
done
has exs guide/quick-start.md
has exs-ffi include/sys/exs.h
has exs-tools chapters/exs-cp.md

# ---- Each feature of exs by itself, as programs choose them -------------------------

features=$(sed -n '/^\[features\]/,/^\[[^f]/s/^\([a-z-]*\) = \[.*/\1/p' "$work/exs-$version/Cargo.toml" | grep -vxE 'default|internals|verbs-link')
[ -n "$features" ] || die "exs has no features"
for feature in $features; do
    env -C "$work/exs-$version" "$cargo" check --quiet --lib --no-default-features --features "$feature" --offline --locked 2>"$work/said" ||
        { cat "$work/said" >&2; die "exs does not build with the feature $feature alone"; }
done

# ---- What cargo install makes of them ---------------------------------------------

# exs and exs-ffi come from beside, as they are not on crates.io yet. The lock file is that of the
# package but for this; `--locked` refuses any other version of anything.
install=(env -C "$work/exs-tools-$version" "$cargo" install --quiet --path . --root "$work/installed" --debug --offline --locked)
for package in exs exs-ffi; do
    install+=(--config "patch.crates-io.$package.path='$work/$package-$version'")
done
awk '/^name = / { own = ($3 == "\"exs\"" || $3 == "\"exs-ffi\"") } !(own && /^(source|checksum) = /)' \
    "$work/exs-tools-$version/Cargo.lock" >"$work/lock"
mv "$work/lock" "$work/exs-tools-$version/Cargo.lock"
"${install[@]}" 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
[ "$(cd "$work/installed/bin" && echo *)" = "${programs[*]}" ] || die "cargo install gives other programs: $(ls "$work/installed/bin")"
for program in "${programs[@]}"; do
    [ "$("$work/installed/bin/$program" --version)" = "$program $version" ] || die "$program --version says something else"
    "$work/installed/bin/$program" --man-pages "$work" || die "$program writes no manual page"
    [ -s "$work/$program.1" ] || die "$program has no manual page"
done
mkdir "$work/tree"
cp "$work"/*.1 "$work/tree/"
"$work/installed/bin/exs-cp" demo --tree "$work/tree" >/dev/null || die "exs-cp of the package does not copy"
say "${packages[*]} $version: all that they need is in them, and cargo install gives ${programs[*]}"

# ---- docs.rs ----------------------------------------------------------------------

# As docs.rs does it: the features of the manifest, and with --cfg docsrs. Its compiler is a nightly one,
# for whose features RUSTC_BOOTSTRAP stands in.
features=$(sed -n '/^\[package.metadata.docs.rs\]/,/^$/s/^ *features = \[\(.*\)\]/\1/p' exs/Cargo.toml | tr -d '" ')
[ -n "$features" ] || die "exs says nothing to docs.rs"
rm -rf "$CARGO_TARGET_DIR/doc"
RUSTC_BOOTSTRAP=1 RUSTDOCFLAGS="--cfg docsrs -D warnings" \
    $cargo doc --quiet --offline --locked --no-deps -p exs --features "$features"
badges() { grep -rlE "Available on <strong>[^.]*<code>$1</code>" "$CARGO_TARGET_DIR/doc/exs" | wc -l; }
[ "$(badges bytes)" != 0 ] || die "docs.rs would not say what the feature bytes brings"
[ "$(badges internals)" = 0 ] || die "docs.rs would send programs to the feature internals"

# ---- crates.io --------------------------------------------------------------------

if timeout 120 "$cargo" publish --quiet --dry-run --no-verify --allow-dirty --locked "${chosen[@]}" 2>"$work/said"; then
    say "crates.io would take them"
elif grep -q 'already exists' "$work/said"; then
    say "crates.io has version $version already"
elif grep -qiE 'could not (connect|resolve)|timed? ?out|network|failed to (fetch|download|query)|spurious' "$work/said" || [ ! -s "$work/said" ]; then
    say "skipped: crates.io does not answer here, so it is not asked"
else
    cat "$work/said" >&2
    die "crates.io would not take them"
fi
