#!/bin/busybox sh
# shellcheck shell=dash
# The first program of a guest under UML, the second under QEMU: lays a throw-away
# overlay over the host's files, mounts the writable directories at their own
# paths, runs DIR/command with a time limit, leaves its status in DIR/status and
# switches the guest off. The kernel's arguments say the rest: exs.kind=uml|qemu,
# exs.dir=DIR, exs.limit=SECONDS, exs.rw=A:B:C (directories; the first is DIR).
b=/bin/busybox
# Not looked at first: under UML the host's own /proc shows through until then.
$b mount -t proc proc /proc 2>/dev/null
for word in $($b cat /proc/cmdline); do
    value=${word#*=}
    case $word in
        exs.kind=*) kind=$value ;;
        exs.dir=*) dir=$value ;;
        exs.limit=*) limit=$value ;;
        exs.rw=*) rw=$value ;;
    esac
done
# Only the console can be told, and there is no use in going on.
die() {
    echo "exs: $*" >/dev/kmsg
    $b poweroff -f
}

if [ "$kind" = uml ]; then
    $b mount -t tmpfs -o size=75% top /mnt
    $b mkdir /mnt/lo
    $b mount -t hostfs -o / none /mnt/lo || die "no hostfs"
fi
$b mkdir -p /mnt/up /mnt/root
$b mount -t tmpfs -o size=75% up /mnt/up
$b mkdir /mnt/up/files /mnt/up/work
# Inode numbers of the host's are of no use here, and 9p's do not fit.
options=lowerdir=/mnt/lo,upperdir=/mnt/up/files,workdir=/mnt/up/work
[ "$kind" = uml ] || options=$options,index=off,xino=off
$b mount -t overlay -o "$options" root /mnt/root || die "no overlay"
new=/mnt/root
$b mount -t proc proc $new/proc
$b mount -t sysfs sys $new/sys
$b mount -t devtmpfs dev $new/dev
$b mkdir -p $new/dev/pts $new/dev/shm
# What udev would make.
$b ln -s /proc/self/fd $new/dev/fd
$b ln -s fd/0 $new/dev/stdin
$b ln -s fd/1 $new/dev/stdout
$b ln -s fd/2 $new/dev/stderr
$b mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts $new/dev/pts
$b mount -t tmpfs -o mode=1777 tmpfs $new/dev/shm
$b mount -t tmpfs -o mode=755 tmpfs $new/run
# A broken kernel must stop: only then does guest.sh see it as dead.
echo 1 >/proc/sys/kernel/panic_on_oops

number=0
for path in $(echo "$rw" | $b tr : ' '); do
    $b mkdir -p "$new$path"
    if [ "$kind" = uml ]; then
        $b mount -t hostfs -o "$path" none "$new$path" || die "no hostfs for $path"
    else
        $b mount -t 9p -o cache=mmap,version=9p2000.L,trans=virtio,msize=512000 "rw$number" "$new$path" ||
            die "no 9p for $path"
    fi
    number=$((number + 1))
done
# perftest looks for the processor's MHz, which UML's own file lacks.
[ "$kind" = qemu ] || $b mount --bind "$new$dir/cpuinfo" $new/proc/cpuinfo
$b ip link set lo up
$b hostname exs-guest
# Registered memory is locked memory.
ulimit -l unlimited
ulimit -n 65536

: >"$new$dir/started"
echo "exs: the command starts" >/dev/kmsg
if [ "$kind" = uml ]; then
    # Read live by guest.sh; hostfs writes through.
    exec 3>"$new$dir/output"
else
    exec 3>$new/dev/hvc0
    $b stty -opost <$new/dev/hvc0
fi
$b chroot $new /usr/bin/timeout -k 5 "$limit" /bin/bash "$dir/command" </dev/null >&3 2>&1
status=$?
# timeout itself is killed along with what it has to kill by force.
[ $status != 137 ] || status=124
if [ $status = 124 ]; then
    {
        echo "guest: not done within $limit s; what was running, and what waits in the kernel:"
        $b ps -o pid,ppid,stat,args | $b grep -v '\[' | $b tail -n 30
        echo w >$new/proc/sysrq-trigger
        $b dmesg | $b sed '1,/exs: the command starts/d' | $b tail -n 60
    } >&3 2>&1
fi
echo $status >"$new$dir/status"
exec 3>&-
$b sync
$b poweroff -f
