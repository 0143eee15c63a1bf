#!/usr/bin/env bash
# Puts in place what demo, test or check need, and says what it does.
#
#   setup.sh demo|test|check|fuzz ...
#
# Debian packages come through apt-get (through sudo if not root), components
# through rustup. Nothing is asked, nothing is printed if nothing is missing.
# What cannot be had and is not vital costs the tests that need it: they say
# "skipped" and why. What is vital and cannot be had ends this with an error.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
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

install_packages() {
    [ "${#packages[@]}" -gt 0 ] || return 0
    local i list
    list=$(printf ', %s' "${reasons[@]}")
    list=${list:2}
    if ! has apt-get; then
        say "missing, and there is no apt-get to install it with: $list"
    elif [ "$(id -u)" != 0 ] && ! has sudo; then
        say "missing, and neither root nor sudo is there to install it: $list"
    else
        say "installing Debian packages: $list"
        # The lists may be absent or old; they are renewed only if need be.
        if apt install -y -q --no-install-recommends "${packages[@]}"; then return 0; fi
        say "apt-get install failed; once more after apt-get update"
        if apt update -q && apt install -y -q --no-install-recommends "${packages[@]}"; then return 0; fi
        say "apt-get could not install them"
    fi
    for i in "${losses[@]}"; do say "$i"; done
    case " ${packages[*]} " in *" gcc "* | *" libc6-dev "* | *" g++ "*)
        die "a C compiler is vital: install one and run this again" ;;
    esac
}

[ $# -gt 0 ] || die "usage: setup.sh demo|test|check|fuzz ..."
need_rust
need_linker
for part in "$@"; do
    case $part in
        demo) ;;
        test)
            want ip iproute2 "cuts the cable in a network namespace" "the tests in network namespaces are skipped"
            want unshare util-linux "runs tests in name spaces of their own" "the tests in network namespaces and on a full disk are skipped"
            want mount mount "gives a test a small full disk" "the tests on a full disk are skipped"
            ;;
        check)
            need_component rustfmt cargo fmt --version
            need_component clippy cargo clippy --version
            ;;
        fuzz) want c++ g++ "builds the fuzzing engine" "nothing can be fuzzed" ;;
        *) die "nothing is called '$part' here: demo, test, check, fuzz" ;;
    esac
done
install_packages
