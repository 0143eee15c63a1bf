#!/bin/busybox sh
# shellcheck shell=dash
# The first program of a guest under QEMU: loads the modules, mounts this
# machine's / read-only, and goes on with init.sh from there. It is packed into
# the bundle that kernel.sh makes, so what may change often is not here.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
    $b insmod "/lib/$module" || echo "exs: cannot load $module" >/dev/kmsg
done </lib/order
for word in $($b cat /proc/cmdline); do
    case $word in exs.here=*) here=${word#*=} ;; esac
done
$b mkdir -p /mnt/lo
$b mount -t 9p -o ro,cache=loose,version=9p2000.L,trans=virtio,msize=512000 root /mnt/lo
exec $b sh "/mnt/lo$here/init.sh"
