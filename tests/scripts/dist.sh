#!/usr/bin/env bash
# The tarball of a release: the same bytes each time, and complete. It is unpacked into a root of its own,
# which has nothing but the C library and libgcc_s beside it, and used there.
#
#   tests/scripts/dist.sh [LIBS BINS]    LIBS, BINS: where the library and the programs are; without them
#                                        `make lib tools` builds what is not built yet
#
# Then the image of the book's chapter on containers: the same root with the files of the packages that its
# Containerfile installs. EXS finds rdma-core's libraries there.
# Exits with 77 where there is no superuser or no namespaces. Nothing of this machine is changed.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
libs=${1:-$target/lib} bins=${2:-$target/release}
cc=${CC:-cc}
say() { printf 'dist: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
[ "$(id -u)" = 0 ] || { say "skipped: only the superuser may change the root"; exit 77; }
unshare --mount --net --pid --fork true 2>/dev/null || { say "skipped: there are no namespaces here"; exit 77; }

[ $# != 0 ] || make --no-print-directory -C "$top" lib tools

# git does not answer to the superuser where the tree is another user's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d --tmpdir="$target")
trap 'rm -rf "$work"' EXIT

# ---- The tarball ------------------------------------------------------------------

tarball=$("$top/exs-ffi/dist.sh" "$libs" "$bins" "$work/one")
# Another user's settings, another day.
again=$(umask 077; TZ=Pacific/Auckland LC_ALL=C "$top/exs-ffi/dist.sh" "$libs" "$bins" "$work/two")
cmp "$tarball" "$again" || die "the same files make another tarball"
name=$(basename "$tarball" .tar.gz)
root=$work/root
mkdir "$root"
tar -xzf "$tarball" -C "$root"
[ "$(cd "$root" && echo *)" = "$name" ] || die "the tarball has more than $name"
for file in README.md LICENSE-MIT LICENSE-APACHE CHANGELOG.md include/sys/exs.h lib/libexs.so lib/libexs.a \
    lib/pkgconfig/exs.pc share/man/man1/exs-cp.1 share/man/man1/exs-info.1 share/man/man7/exs.7 share/man/man3/exs_send.3; do
    [ -s "$root/$name/$file" ] || die "the tarball has no $file"
done
grep -q 'glibc 2\.[0-9]* or newer' "$root/$name/README.md" || die "its README does not say what it needs"
wrong=$(find "$root/$name" ! -type l -perm /022; find "$root/$name" -xtype l)
[ -z "$wrong" ] || die "these are open to all, or lead nowhere: $wrong"
"$top/tests/scripts/needed.sh" "$root/$name"/bin/* "$root/$name"/lib/libexs.so.*.*

# A program in C, the README's way.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$top/docs/book/src/c/first-program.md" >"$work/hello.c"
flags=$(PKG_CONFIG_PATH=$root/$name/lib/pkgconfig pkg-config --cflags --libs exs)
# shellcheck disable=SC2086 # several options
"$cc" -std=gnu99 "$work/hello.c" $flags "-Wl,-rpath,/$name/lib" -o "$root/hello"

# ---- A root with nothing else -------------------------------------------------------

# add ROOT FILE...: copies files of this machine to the same places.
add() {
    local to=$1 file
    shift
    for file; do
        # What a link leads to, under the link's name; the loader looks for names.
        install -D "$(realpath "$file")" "$to$file"
    done
}
# The loader of programs has its place in /lib64 or /lib.
mapfile -t needed < <(ldd "$root/$name"/bin/* "$root/hello" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p' |
    grep -v "^$root" | sort -u)
add "$root" "${needed[@]}"
mkdir -p "$root"/{proc,dev,tmp}
# within ROOT COMMAND...: runs it there, in a network of its own.
within() {
    local root=$1
    shift
    # shellcheck disable=SC2016 # for the shell inside
    timeout 300 unshare --mount --net --pid --fork --propagation private bash -c '
        mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" &&
        ip link set lo up && exec chroot "$0" "$@"' "$root" "$@"
}
run() { within "$root" "$@"; }
for program in exs-cp exs-info exs-perf exs-pingpong exs-rdma-write exs-top; do
    run "/$name/bin/$program" --version >/dev/null || die "$program does not start"
done
[ "$(run /hello)" = 'received: hello' ] || die "the book's program in C says something else"
run "/$name/bin/exs-cp" demo --tree "/$name/share" >/dev/null || die "exs-cp does not copy"
run "/$name/bin/exs-pingpong" demo --iters 100 >/dev/null || die "exs-pingpong does not run"
# 3 is a host with warnings, such as a low limit.
status=0
run "/$name/bin/exs-info" --doctor >"$work/doctor" || status=$?
case $status in 0 | 3) ;; *) cat "$work/doctor" >&2; die "exs-info --doctor finds faults" ;; esac
verbs() { run "/$name/bin/exs-info" --json | grep -o '"name":"verbs",.*'; }
case $(verbs) in *'libibverbs.so.1 cannot be used'*) ;; *) die "a root without rdma-core has it: $(verbs)" ;; esac
say "$name.tar.gz: the same twice; complete and at work in a root with ${#needed[@]} other files"

# ---- The image of the book --------------------------------------------------------

page=$top/docs/book/src/guide/containers.md
if command -v python3 >/dev/null && python3 -c 'import yaml' 2>/dev/null; then
    python3 - "$page" <<'PY' || die "the book's YAML is not that of Kubernetes"
import re, sys, yaml
blocks = re.findall(r"^```yaml\n(.*?)^```", open(sys.argv[1]).read(), re.M | re.S)
assert len(blocks) >= 2, "too few"
for block in blocks:
    for pod in yaml.safe_load_all(block):
        assert pod["apiVersion"] == "v1" and pod["kind"] == "Pod" and pod["metadata"]["name"], pod
        spec = pod["spec"]
        mounts = {v["name"] for v in spec.get("volumes", [])}
        for container in spec["containers"]:
            assert container["name"] and container["image"], container
            assert {m["name"] for m in container.get("volumeMounts", [])} <= mounts, container
            resources = container.get("resources", {})
            # Kubernetes takes devices and hugepages only where requests and limits are the same.
            for key, value in resources.get("limits", {}).items():
                if "/" in key or key.startswith("hugepages"):
                    assert resources.get("requests", {}).get(key, value) == value, key
PY
else
    say "skipped: there is no python3 with yaml to read the book's pods with"
fi
# shellcheck disable=SC2016 # the fences of Markdown
packages=$(sed -n '/^```dockerfile$/,/^```$/s/.*--no-install-recommends *\(.*[^ \\]\) *\\*$/\1/p' "$page")
[ -n "$packages" ] || die "the book's Containerfile installs nothing"
for package in $packages; do
    if ! dpkg-query --listfiles "$package" >/dev/null 2>&1; then
        say "skipped: the package $package is not here, so the image of the book is not tried"
        exit 0
    fi
done
# The packages that these need, too, and of all of them the files.
# shellcheck disable=SC2086 # several packages
mapfile -t closure < <(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances $packages | grep -E '^[a-z0-9][a-z0-9.+-]*$' | sort -u)
dpkg-query --listfiles "${closure[@]}" | sort -u | while read -r file; do
    case $file in /usr/share/* | /etc/init.d/*) continue ;; esac
    if [ -f "$file" ]; then echo "$file"; fi
done >"$work/files"
mapfile -t files <"$work/files"
add "$root" "${files[@]}"
case $(verbs) in
    *'this host has no RDMA device'*) ;;
    *'cannot be used'*) die "in the image of the book EXS finds no rdma-core: $(verbs)" ;;
esac
run "/$name/bin/exs-cp" demo --tree "/$name/share" >/dev/null || die "exs-cp does not copy in the image of the book"
say "the book's image (${packages// /, }): EXS finds rdma-core there"
