#!/usr/bin/env bash
# Puts in place what demo, test or check need, and says what it does.
#
#   setup.sh demo|test|check|book|bench|fuzz|rdma ...
#
# book is mdBook, which cargo builds into the target directory (some minutes).
# bench is the neighbours that `make bench` measures beside EXS, each of which it can do
# without. rdma is what the test bed with kernel RDMA devices needs (tests/rdma/README.md).
#
# Debian packages come through apt-get (through sudo if not root), components
# through rustup. Nothing is asked, nothing is printed if nothing is missing.
# A missing package that is not vital costs the tests that need it: they say
# "skipped" and why. A missing package that is vital ends this with an error.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
MDBOOK=0.4.52
packages=()  # to be installed
reasons=()   # "package (what it is for)"
losses=()    # what is lost without them

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }
# Debian keeps some tools where an ordinary user's PATH does not look.
export PATH="$PATH:/usr/sbin:/sbin"

# want COMMAND PACKAGE PURPOSE LOSS
want() {
    has "$1" && return
    case " ${packages[*]-} " in *" $2 "*) ;; *)
        packages+=("$2")
        reasons+=("$2 ($3)") ;;
    esac
    losses+=("without '$1' (Debian package $2): $4")
}

# want_file FILE PACKAGE PURPOSE LOSS: for what is no command
want_file() {
    [ -e "$1" ] || want "file $1" "${@:2}"
}

need_rust() {
    has cargo || die "there is no cargo: install Rust from https://rustup.rs and run this again"
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$top/Cargo.toml")
    have=$(cargo --version | awk '{print $2}')
    if [ "$(printf '%s\n' "$wanted" "${have%%-*}" | sort -V | head -n 1)" != "$wanted" ]; then
        die "Rust $wanted or newer is needed, this is $have: run 'rustup update stable'"
    fi
}

need_linker() {
    has cc || has gcc || has clang || want cc gcc "links every Rust program" "nothing can be built"
    # A compiler without its headers and start files cannot link.
    if has dpkg && [ ! -e /usr/include/stdio.h ]; then
        want stdio.h libc6-dev "links every Rust program" "nothing can be built"
    fi
}

# need_component COMPONENT PROBE...
need_component() {
    local component=$1
    shift
    "$@" >/dev/null 2>&1 && return
    has rustup || die "there is no $component, and no rustup to get it with: install your system's package of it"
    say "adding $component to the Rust toolchain (rustup component add $component)"
    rustup component add "$component" || die "rustup could not add $component"
}

# Runs apt-get as root; without a terminal sudo must not ask for a password.
apt() {
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        if [ -t 0 ]; then sudo=(sudo); else sudo=(sudo -n); fi
    fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" </dev/null >&2
}

may_install() { has apt-get && { [ "$(id -u)" = 0 ] || has sudo; }; }

install_packages() {
    [ "${#packages[@]}" -gt 0 ] || return 0
    local i list
    list=$(printf ', %s' "${reasons[@]}")
    list=${list:2}
    if may_install; then
        say "installing Debian packages: $list"
        # The lists may be absent or old; they are renewed only if need be.
        if apt install -y -q --no-install-recommends "${packages[@]}"; then return 0; fi
        say "apt-get install failed; once more after apt-get update"
        if apt update -q && apt install -y -q --no-install-recommends "${packages[@]}"; then return 0; fi
        say "apt-get could not install them"
    else
        say "missing, and no apt-get, or neither root nor sudo, to install it with: $list"
    fi
    for i in "${losses[@]}"; do say "$i"; done
    case " ${packages[*]} " in *" gcc "* | *" libc6-dev "* | *" g++ "*)
        die "a C compiler is vital: install one and run this again" ;;
    esac
}

# What the feature `verbs-link` is built with, to compare the declarations of rdma-core's libraries
# with those of the headers. This is apart from what the others want: Debian 13 has no libclang as old
# as it must be, and apt-get installs all of a list or nothing.
install_link() {
    local lacking clang version
    if lacking=$("$top/tests/scripts/cargo.sh" --can-link); then return; fi
    clang=
    if may_install; then
        # A name that is unknown may be so because the lists are not there yet.
        knows libibverbs-dev || apt update -q || true
        for version in 15 14; do # 14 is the better tried
            if knows "libclang1-$version"; then clang="libclang1-$version libclang-common-$version-dev"; fi
        done
        if [ -n "$clang" ] || [ -n "${LIBCLANG_PATH-}" ]; then
            say "installing Debian packages: pkg-config, libibverbs-dev, librdmacm-dev${clang:+, ${clang/ /, }} (to compare declarations with the headers)"
            # shellcheck disable=SC2086 # two words
            if apt install -y -q --no-install-recommends pkg-config libibverbs-dev librdmacm-dev $clang &&
                lacking=$("$top/tests/scripts/cargo.sh" --can-link); then return; fi
        fi
    fi
    say "declarations are not compared with the headers of rdma-core; $lacking"
}

# mdBook is in no release of Debian that EXS supports, so cargo builds it.
install_mdbook() {
    local tools=${CARGO_TARGET_DIR:-$top/target}/tools
    if has mdbook || [ -x "$tools/bin/mdbook" ]; then return 0; fi
    say "building mdBook with cargo (some minutes, once)"
    cargo install mdbook --version "$MDBOOK" --locked --no-default-features --features search --root "$tools" ||
        die "cargo could not install mdbook $MDBOOK"
}

clang_sanitizes() {
    has clang && echo 'int main(void) { return 0; }' | clang -fsanitize=address,undefined -x c - -o /dev/null 2>/dev/null
}

knows() { apt-cache show "$1" >/dev/null 2>&1; }

[ $# -gt 0 ] || die "usage: setup.sh demo|test|check|book|bench|fuzz|rdma ..."
link=no book=no
need_rust
need_linker
for part in "$@"; do
    case $part in
        demo)
            want objcopy binutils "makes one object of the C library" "the C library cannot be built"
            ;;
        test)
            want ip iproute2 "cuts the cable in a network namespace" "the tests in network namespaces are skipped"
            want unshare util-linux "runs tests in name spaces of their own" "the tests in network namespaces and on a full disk are skipped"
            want objcopy binutils "makes one object of the C library" "the C library is not built"
            want g++ g++ "compiles the header as C++" "the header is not tried as C++"
            want clang clang "compiles header and examples with a second compiler" "they are tried with gcc only"
            want curl curl "asks the HTTP server among the examples in C" "that server is not tried"
            want gcc gcc "builds the C tests with sanitizers" "the C library is not tested"
            # Where no package has this name, clang brings its sanitizers along.
            if ! clang_sanitizes && knows libclang-rt-dev; then
                want clang-sanitizers libclang-rt-dev "gives clang its sanitizers" "gcc builds the C tests with sanitizers"
            fi
            want valgrind valgrind "looks for leaks of the C library" "nothing looks for leaks of the C library"
            want strace strace "counts the system calls of small sends" "they are not counted"
            want lintian lintian "looks at the Debian packages" "nothing looks at the Debian packages"
            want musl-gcc musl-tools "is a compiler for another C library" "it is not tried that such a compiler is refused"
            want mandoc mandoc "checks the manual pages" "the manual pages are not checked"
            want mount mount "gives a test a small full disk" "the tests on a full disk and of power cuts are skipped"
            want mkfs.ext4 e2fsprogs "makes disks for power cuts" "power cuts of ext4 are not tried"
            want mkfs.xfs xfsprogs "makes disks for power cuts" "no power cuts are tried"
            want mkfs.btrfs btrfs-progs "makes disks for power cuts" "power cuts of btrfs are not tried"
            ;;
        check)
            link=yes
            need_component rustfmt cargo fmt --version
            need_component clippy cargo clippy --version
            want python3 python3 "counts phrases that are hard to read" "they are not counted"
            ;;
        book)
            want python3 python3 "assembles the book" "the book cannot be built"
            book=yes
            ;;
        bench)
            want ucx_perftest ucx-utils "UCX, over TCP and shared memory" "UCX is not measured"
            want fi_pingpong libfabric-bin "libfabric, over TCP and shared memory" "libfabric is not measured"
            want iperf3 iperf3 "what plain TCP carries" "iperf3 is not measured"
            want sockperf sockperf "how fast plain TCP answers" "sockperf is not measured"
            want rsync rsync "copies files, beside exs-cp" "rsync is not measured"
            want scp openssh-client "copies files, beside exs-cp" "scp is not measured"
            want sshd openssh-server "serves scp, on loopback" "scp is not measured"
            ;;
        fuzz) want c++ g++ "builds the fuzzing engine" "nothing can be fuzzed" ;;
        rdma)
            want_file /usr/include/rdma/rdma_cma.h librdmacm-dev "compiles the neighbour of the start-up" "there is nothing to compare with"
            want_file /usr/include/infiniband/verbs.h libibverbs-dev "compiles the neighbour of the start-up" "there is nothing to compare with"
            want rdma iproute2 "makes the RDMA devices and the namespaces" "there are no RDMA devices"
            want busybox busybox-static "starts the guest" "no guest starts"
            want ibv_devinfo ibverbs-utils "looks at RDMA devices" "the tools of rdma-core are not tried"
            want rping rdmacm-utils "rping tries the devices, rstream (rsocket) is the neighbour to compare with" "no guest can be tried"
            want ib_write_bw perftest "measures what a device can do" "there is nothing to compare with"
            want_file /usr/lib/*/libibverbs/librxe-*.so ibverbs-providers "drives rxe and siw from user space" "programs see no RDMA device"
            # A kernel of one's own (RDMA_KERNEL=uml:...) needs none of these.
            case ${RDMA_KERNEL-} in uml:*) ;; *)
                want qemu-system-x86_64 qemu-system-x86 "boots the guest, in software" "no guest starts (or set RDMA_KERNEL=uml:PATH)"
                want cpio cpio "packs the guest's first files" "no guest can be made"
                want modprobe kmod "lists the modules that the guest loads" "no guest can be made"
                want xz xz-utils "unpacks kernel and modules" "no guest can be made"
                want strip binutils "makes the modules small" "no guest can be made"
                ;;
            esac
            ;;
        *) die "nothing is called '$part' here: demo, test, check, book, bench, fuzz, rdma" ;;
    esac
done
install_packages
# sshd keeps an empty directory there, which only the service's own start makes.
case " $* " in *" bench "*)
    if [ "$(id -u)" = 0 ] && has sshd && [ ! -e /run/sshd ]; then
        say "making /run/sshd, which sshd wants"
        install -d -m 0755 /run/sshd
    fi ;;
esac
[ $link = no ] || install_link
[ $book = no ] || install_mdbook
