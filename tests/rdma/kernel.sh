#!/usr/bin/env bash
# Gets the kernel that the guests of the test bed run, once, into a cache, and
# prints which it is: "uml FILE" or "qemu DIRECTORY". Nothing is installed or
# loaded on this machine.
#
#   kernel.sh                               Debian's kernel under QEMU
#   RDMA_KERNEL=uml:FILE kernel.sh          a User Mode Linux with rxe and siw built in;
#                                           FILE is the program, or an .xz of it
#   RDMA_KERNEL_VERSION=6.1.0-40-amd64      another of Debian's kernels than its latest
#
# QEMU's bundle is made from Debian's packages, downloaded and unpacked: the image
# has rdma_rxe as a module but no siw, so siw.ko is built here from Debian's source.
# Takes about a minute and 225 MB of downloads; about 80 MB stay.
# Status 77: this machine cannot run such guests at all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/exs-rdma

say() { printf 'kernel: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The guest runs this machine's own programs.
[ "$(uname -m)" = x86_64 ] || { say "guests for $(uname -m) are not known here"; exit 77; }
mkdir -p "$cache"
# Two runs at once make it once.
lock() {
    exec 9>"$cache/lock"
    flock -n 9 || { say "waiting for another run that makes it"; flock 9; }
}

# --- a kernel of the user's own -------------------------------------------------
if [ -n "${RDMA_KERNEL-}" ] && [ "$RDMA_KERNEL" != qemu ]; then
    case $RDMA_KERNEL in uml:?*) ;; *) die "RDMA_KERNEL is qemu or uml:FILE, not '$RDMA_KERNEL'" ;; esac
    file=$(realpath "${RDMA_KERNEL#uml:}")
    [ -r "$file" ] || die "there is no $file"
    if [ "${file%.xz}" != "$file" ]; then
        packed=$file
        file=$cache/uml-$(cksum <"$packed" | cut -d' ' -f1)
        if [ ! -x "$file" ]; then
            lock
            xz -dc "$packed" >"$file.part"
            chmod +x "$file.part"
            mv "$file.part" "$file"
        fi
    fi
    printf 'uml %s\n' "$file"
    exit
fi

# --- QEMU: is it made already? ---------------------------------------------------
# Its name depends on the files that made it: another recipe, another bundle.
recipe=$(cat "$here/kernel.sh" "$here/initramfs.sh" "$here/tsc.c" | cksum | cut -d' ' -f1)
out=$cache/qemu-$recipe${RDMA_KERNEL_VERSION:+-$RDMA_KERNEL_VERSION}
made() {
    [ ! -e "$out/version" ] || { printf 'qemu %s\n' "$out"; exit; }
}
made
lock
made
for tool in apt-get dpkg modprobe depmod cpio xz strip make gcc busybox; do
    command -v "$tool" >/dev/null || die "there is no '$tool': run tests/scripts/setup.sh rdma (the packages are Debian's; elsewhere use RDMA_KERNEL=uml:FILE)"
done
! ldd "$(command -v busybox)" >/dev/null 2>&1 || die "busybox must be a static one (Debian: busybox-static)"

work=$cache/work
rm -rf "$work" "$out"
mkdir -p "$work/deb" "$work/unpacked" "$work/source" "$work/initrd"/{bin,proc,sys,dev,mnt,lib} "$out"
trap 'rm -rf "$work"' EXIT

# --- 1. Debian's packages, unpacked ----------------------------------------------
latest() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: linux-image-\([0-9].*\)/\1/p' | head -n 1; }
fetch() {
    version=${RDMA_KERNEL_VERSION:-$(latest)}
    [ -n "$version" ] || return 1
    # Names differ between 6.1 and later kernels.
    case $version in
        6.1.0-*) source=linux-source-6.1 kbuild=linux-kbuild-6.1 ;;
        *) source=linux-source-$(cut -d. -f1,2 <<<"$version") kbuild=linux-kbuild-${version%-amd64} ;;
    esac
    say "downloading Debian's kernel $version (to look at, not to install)"
    (cd "$work/deb" && apt-get -q -o APT::Sandbox::User=root download "linux-image-$version" \
        "linux-headers-$version" "linux-headers-${version%-amd64}-common" "$kbuild" "$source") >&2
}
if ! fetch; then
    say "not with the package lists that are here: apt-get update"
    # shellcheck disable=SC2046 # a word or none
    $([ "$(id -u)" = 0 ] || echo sudo -n) apt-get update -q >&2 || true
    fetch || die "apt-get has no kernel to download; needs Debian, or RDMA_KERNEL=uml:FILE"
fi
for deb in "$work"/deb/*.deb; do
    case $deb in *linux-source*) ;; *) dpkg -x "$deb" "$work/unpacked" ;; esac
done
modules=$work/unpacked/lib/modules/$version
[ -d "$modules" ] || modules=$work/unpacked/usr/lib/modules/$version

# --- 2. siw.ko --------------------------------------------------------------------
say "building siw.ko"
dpkg --fsys-tarfile "$work"/deb/linux-source-*.deb | tar -xOf - "./usr/src/$source.tar.xz" |
    tar -xJf - -C "$work/source" --strip-components=1 \
        "$source/drivers/infiniband/sw/siw" "$source/scripts/extract-vmlinux"
siw=$work/source/drivers/infiniband/sw/siw
headers=$work/unpacked/usr/src/linux-headers-$version
# The package expects itself in /usr/src.
sed -i "s,^include /usr/src,include $work/unpacked/usr/src," "$headers/Makefile"
# Without BTF, which would need pahole and the whole vmlinux.
make -C "$headers" M="$siw" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= \
    -j"$(nproc)" modules >"$work/siw.log" 2>&1 || { tail -n 20 "$work/siw.log" >&2; die "siw.ko does not build"; }
mkdir -p "$modules/extra"
cp "$siw/siw.ko" "$modules/extra/"
depmod -b "${modules%/lib/modules/*}" "$version"

# --- 3. the first files of the guest: busybox, the modules in their order ----------
# crc32_generic is what rxe asks the kernel for by name; netem makes bad cables.
for module in virtio_pci virtio_console 9pnet_virtio 9p overlay veth dummy sch_netem \
    crc32_generic crc32_pclmul rdma_rxe siw rdma_ucm ib_uverbs; do
    modprobe -d "${modules%/lib/modules/*}" -S "$version" --ignore-install --show-depends "$module" 2>/dev/null |
        awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' >"$work/order"
while read -r file; do
    name=$(basename "$file")
    name=${name%.ko*}.ko
    # Unpacked here, as the guest's processor is emulated.
    case $file in *.xz) xz -dc "$file" ;; *.zst) zstd -dcq "$file" ;; *) cat "$file" ;; esac >"$work/initrd/lib/$name"
    echo "$name"
done <"$work/order" >"$work/initrd/lib/order"
for module in 9p overlay rdma_rxe siw; do
    grep -qx "$module.ko" "$work/initrd/lib/order" || die "Debian's kernel $version has no module $module"
done
strip -g "$work"/initrd/lib/*.ko
cp "$(command -v busybox)" "$work/initrd/bin/busybox"
cp "$here/initramfs.sh" "$work/initrd/init"
chmod +x "$work/initrd/init"
(cd "$work/initrd" && find . | cpio -o -H newc --quiet -R 0:0) >"$out/initrd.cpio"

# --- 4. the kernel itself, unpacked for the same reason -----------------------------
sh "$work/source/scripts/extract-vmlinux" "$work/unpacked/boot/vmlinuz-$version" >"$out/vmlinux" 2>/dev/null || die "there is no vmlinux in vmlinuz-$version"
gcc -O1 -o "$out/tsc" "$here/tsc.c"

echo "$version" >"$out/version" # the last: a bundle without it is made anew
say "ready: $out"
printf 'qemu %s\n' "$out"
