#!/usr/bin/env bash
# Runs one command in a guest whose kernel has RDMA devices, over this machine's own
# files: the guest sees / read-only under an overlay that is thrown away. It has no
# network but its own.
#
#   guest.sh [-t SECONDS] [-w DIR]... [-c CPUS] [-m MEMORY] [-l CONSOLE] -- COMMAND...
#
#   -t  the command's time limit (600)    -w  DIR may be written to, from inside
#   -c  processors (2)                    -m  memory (3G)
#   -l  where the console's text goes
#
# COMMAND is a line of bash; it runs as root in this directory with this PATH. Its
# output comes as it is written (both streams as one), its status is this one's,
# but for 124: it was not done in time; and 125: the guest died. A guest that dies is
# tried again once (and twice, if it did not even start), with a line that says so;
# a command that fails is not.
#
# RDMA_KERNEL chooses the kernel, see kernel.sh. No path here may have a space or colon.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { printf 'guest: %s\n' "$*" >&2; }

limit=600 cpus=2 memory=3G console='' writable=()
while getopts t:w:c:m:l: option; do
    case $option in
        t) limit=$OPTARG ;;
        w) writable+=("$(realpath "$OPTARG")") ;;
        c) cpus=$OPTARG ;;
        m) memory=$OPTARG ;;
        l) console=$(realpath "$OPTARG") ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { say "usage: guest.sh [-t SECONDS] [-w DIR]... -- COMMAND"; exit 2; }

read -r kind kernel <<<"$("$here/kernel.sh")"
[ -n "$kernel" ] || exit 1
# The guest's first program. Without it the kernel panics, and its console says no more.
[ -x /bin/busybox ] || { say "there is no /bin/busybox: run tests/scripts/setup.sh rdma"; exit 1; }

# Not in memory that the guest cannot see: its /dev and /run are its own.
dir=$(mktemp -d -p /tmp)
[ -n "$console" ] || console=$dir/console
running=''
# The guest is more than one process: its whole group ends.
cleanup() {
    [ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

{
    printf 'cd %q\nexport PATH=%q HOME=%q TERM=dumb\n' "$PWD" "$PATH" "$HOME"
    printf '%s\n' "$*"
} >"$dir/command"
writable=("$dir" "${writable[@]}")
arguments="exs.kind=$kind exs.dir=$dir exs.limit=$limit exs.rw=$(IFS=: && echo "${writable[*]}")"
arguments="$arguments panic=-1 loglevel=5"

# UML keeps its memory in a file, and dies if the file system cannot hold it.
uml_home() {
    local free
    free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1) || free=0
    if [ "${free:-0}" -gt 3500000 ]; then echo /dev/shm; else echo /tmp; fi
}

start_uml() {
    awk -v n="$cpus" '/^processor/ { seen++ } seen <= n' /proc/cpuinfo >"$dir/cpuinfo"
    # shellcheck disable=SC2086 # arguments are words
    TMPDIR=$(uml_home) setsid "$kernel" mem="$memory" ncpus="$cpus" seccomp=auto uml_dir="$dir" \
        root=/dev/root rootfstype=hostfs rootflags=/ ro init="$here/init.sh" \
        con=null con0=null,fd:1 $arguments </dev/null >"$console" 2>&1 &
    running=$!
    # Ends, having read the rest, when the guest has ended.
    tail -q -n +1 -s 0.1 -f --pid="$running" "$dir/output" 2>/dev/null &
}

start_qemu() {
    local shares=(-fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"
        -device "virtio-9p-pci,fsdev=root,mount_tag=root") number=0 path
    for path in "${writable[@]}"; do
        shares+=(-fsdev "local,id=rw$number,path=$path,security_model=none,multidevs=remap"
            -device "virtio-9p-pci,fsdev=rw$number,mount_tag=rw$number")
        number=$((number + 1))
    done
    # KVM is never asked for: it may be there and not work. The calibration of the
    # clocks is handed in, see tsc.c.
    setsid qemu-system-x86_64 -M q35 -accel tcg,thread=multi,tb-size=512 -cpu max,la57=off \
        -smp "$cpus" -m "$memory" -nodefaults -no-user-config -display none -no-reboot -nic none \
        -kernel "$kernel/vmlinux" -initrd "$kernel/initrd.cpio" \
        -append "console=ttyS0 mitigations=off nokaslr no5lvl tsc=reliable tsc_early_khz=$("$kernel/tsc") no_timer_check rcupdate.rcu_expedited=1 cryptomgr.notests exs.here=$here $arguments" \
        -serial "file:$console" \
        -device virtio-serial-pci -chardev stdio,id=out,signal=off -device virtconsole,chardev=out \
        "${shares[@]}" </dev/null &
    running=$!
}

# Waits for the guest. It watches its command's time itself; if it does not even do
# that, it hangs.
await() {
    local deadline=$((SECONDS + limit + 60))
    while kill -0 "$running" 2>/dev/null; do
        if [ $SECONDS -ge $deadline ]; then
            say "the guest hangs: not off $((limit + 60)) s after it was started"
            kill -KILL -- "-$running" 2>/dev/null || true
            break
        fi
        sleep 0.1
    done
    { wait || true; } 2>/dev/null # for tail as well; and how it ended is said below
    running=''
}

deaths=0
while true; do
    rm -f "$dir/started" "$dir/status"
    : >"$dir/output"
    : >"$console"
    "start_$kind"
    await
    if [ -s "$dir/status" ]; then exit "$(cat "$dir/status")"; fi
    deaths=$((deaths + 1))
    if [ -e "$dir/started" ]; then state="died while it ran the command" most=2; else state="did not start" most=3; fi
    say "the guest $state (time $deaths); its console ends with:"
    tail -n 25 "$console" | tr -d '\r' | sed 's/^/guest|  /' >&2
    [ $deaths -lt $most ] || exit 125
    say "once more"
done
