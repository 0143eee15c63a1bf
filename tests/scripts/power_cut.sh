#!/usr/bin/env bash
# Cuts the power of a file system while exs-cp writes it, and after exs-cp has said "done".
#
#   power_cut.sh PROGRAM [--fs LIST] [--direction LIST] [--model LIST] [--moments N]
#
# --fs         of ext4, xfs, btrfs                  (default: all three)
# --direction  of put, get                          (default: both)
# --model      of kind, harsh                       (default: both)
# --moments    power cuts of each combination       (default: 20)
#
# A disk is an image file on an XFS file system. A clone of it (FICLONE) is the disk as a power
# cut leaves it, since the kernel makes the clone between two writes. Two models:
#
#   kind   every write that was issued is on the disk, flushed or not
#   harsh  what was not flushed is lost: the image lies on a second file system, of which the
#          cut keeps only what the flush of the disk (an fsync of the image) brought there
#
# Each moment is one run of exs-cp on the disk that the cut before it left: killed and cut, cut
# while it runs, or cut as soon as it has reported success. After each cut the disk is mounted
# again, and must show:
#   - under a final name never anything but the whole content;
#   - after success: every file, link and directory with its content, mode and time.
# Between two moments a byte of a partial or of a finished file is changed now and then, with
# its times put back. A last run must report that all is verified, and it must be the truth.
#
# Status 0: all well; 1: a fault, described; 77: cannot be done here, and why.
set -u

program=${1:?the exs-cp to try}
shift
fs_list=ext4,xfs,btrfs direction_list=put,get model_list=kind,harsh moments=20
while [ $# -gt 1 ]; do
    case $1 in
        --fs) fs_list=$2 ;;
        --direction) direction_list=$2 ;;
        --model) model_list=$2 ;;
        --moments) moments=$2 ;;
        *) echo "power_cut.sh: unknown option $1"; exit 2 ;;
    esac
    shift 2
done

export PATH="$PATH:/usr/sbin:/sbin"
skip() { echo "skipped: $*"; exit 77; }
# A file system that is left out is in the summary of the caller, too.
leave_out() {
    echo "skipped: $*"
    [ -z "${EXS_TEST_NOTES-}" ] || printf 'skipped in part\tpower cuts\t%s\n' "$*" >>"$EXS_TEST_NOTES"
}
[ "$(id -u)" = 0 ] || skip "power cuts need root, to mount images"
[ -x "$program" ] || skip "there is no program to try"
for tool in mkfs.xfs losetup mount umount; do
    command -v $tool >/dev/null || skip "power cuts need $tool"
done

W=$(mktemp -d) || exit 1
mounts=() server='' client=''

unmount_all() {
    local i
    for ((i = ${#mounts[@]} - 1; i >= 0; i--)); do umount "${mounts[i]}" 2>/dev/null || umount -l "${mounts[i]}"; done
    mounts=()
}
finish() {
    [ -z "$client" ] || kill -KILL "$client" 2>/dev/null
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null
    wait 2>/dev/null
    unmount_all
    umount "$W/base" 2>/dev/null
    rm -rf "$W"
}
trap finish EXIT
trap 'exit 1' INT TERM
fault() { echo "FAULT: $*"; exit 1; }

# mount_image IMAGE DIRECTORY: the kernel replays its journal here.
mount_image() {
    mkdir -p "$2"
    mount -o loop "$1" "$2" || return 1
    mounts+=("$2")
}

mkdir "$W/base"
truncate -s 6G "$W/base.img"
mkfs.xfs -q -m reflink=1 "$W/base.img" 2>/dev/null || skip "mkfs.xfs cannot make a file system with clones"
mount -o loop "$W/base.img" "$W/base" 2>/dev/null || skip "this kernel cannot mount XFS from a loop device"

# The source: small files, files of one chunk and of several, a sparse one, links, directories.
make_source() {
    local i src=$W/src
    mkdir -p "$src/d/e/f" "$src/empty"
    for i in $(seq 1 24); do head -c $((i * 700)) /dev/urandom > "$src/d/small$i"; done
    for i in $(seq 1 6); do head -c 1500000 /dev/urandom > "$src/d/e/middle$i"; done
    head -c 14000000 /dev/urandom > "$src/d/e/f/large"
    truncate -s 24M "$src/sparse"
    for i in 0 9 17; do
        head -c 5000 /dev/urandom | dd of="$src/sparse" bs=1M seek=$i conv=notrunc status=none
    done
    : > "$src/d/nothing"
    ln -s ../nowhere "$src/d/link"
    chmod 640 "$src/d/small3"
    find "$src" -depth -exec touch -h -d '2020-02-02 02:02:02.123456789' {} +
}
make_source
# Names of the files, relative.
mapfile -t files < <(cd "$W/src" && find . -type f)

# new_disk FS MODEL: an empty one. disk: the image that is cut. Mounted at $W/disk.
new_disk() {
    local fs=$1 model=$2 image
    rm -f "$W/base/disk.img" "$W/base/now.img"
    if [ "$model" = harsh ]; then
        truncate -s 1G "$W/base/disk.img"
        mkfs.xfs -q "$W/base/disk.img" >/dev/null
        mount_image "$W/base/disk.img" "$W/under" || fault "the lower file system cannot be mounted"
        image=$W/under/inner.img
    else
        image=$W/base/disk.img
    fi
    case $fs in
        ext4) truncate -s 128M "$image"; mkfs.ext4 -q "$image" ;;
        xfs) truncate -s 320M "$image"; mkfs.xfs -q "$image" ;;
        btrfs) truncate -s 256M "$image"; mkfs.btrfs -q -m single "$image" ;;
    esac >/dev/null || fault "mkfs of $fs"
    if [ "$model" = harsh ]; then sync -f "$image"; fi
    mount_image "$image" "$W/disk" || return 1
    mkdir -p "$W/disk/to"
    sync -f "$W/disk"
    sync -f "$image"
}

# cut: the power goes out now. `come_back` mounts the disk as the cut left it.
cut() {
    cp --reflink=always "$W/base/disk.img" "$W/base/now.img" || fault "no clone could be made"
}
come_back() {
    local model=$1
    unmount_all
    mv "$W/base/now.img" "$W/base/disk.img"
    if [ "$model" = harsh ]; then
        mount_image "$W/base/disk.img" "$W/under" || fault "the lower file system is broken"
        mount_image "$W/under/inner.img" "$W/disk" || fault "the file system is broken"
    else
        mount_image "$W/base/disk.img" "$W/disk" || fault "the file system is broken"
    fi
}

# start DIRECTION: a server, and a client that copies the source onto the disk.
start() {
    local from=$W/disk/to address=
    [ "$1" = put ] || from=$W
    : > "$W/server.log"
    "$program" serve "$from" --listen 127.0.0.1:0 2> "$W/server.log" > /dev/null &
    server=$!
    while [ -z "$address" ]; do
        kill -0 $server 2>/dev/null || fault "the server ended: $(cat "$W/server.log")"
        address=$(sed -n 's/.* on \([0-9.:]*\) .*/\1/p' "$W/server.log")
    done
    if [ "$1" = put ]; then
        "$program" put "$W/src" "$address" --json > "$W/said" 2> "$W/client.log" &
    else
        "$program" get "$address" src "$W/disk/to" --json > "$W/said" 2> "$W/client.log" &
    fi
    client=$!
}
stop() {
    [ -z "$client" ] || { kill -KILL "$client"; wait "$client"; } 2>/dev/null
    kill -KILL "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    client='' server=''
}
# await_progress N: until N files have their names, or the client has ended.
await_progress() {
    while kill -0 "$client" 2>/dev/null; do
        [ "$(find "$W/disk/to" -type f ! -name '.*' 2>/dev/null | wc -l)" -lt "$1" ] || return 0
    done
}

# check_names: under a final name nothing but the whole content.
check_names() {
    local file
    for file in "${files[@]}"; do
        [ ! -e "$W/disk/to/src/$file" ] && continue
        cmp -s "$W/src/$file" "$W/disk/to/src/$file" ||
            fault "$1: '$file' has its name and another content ($(stat -c '%s bytes, %b blocks, %y' "$W/disk/to/src/$file"))"
    done
}
state() { (cd "$1" && find . -printf '%p %y %m %T@ %l\n' | sort); }
check_all() {
    check_names "$1"
    diff <(state "$W/src") <(state "$W/disk/to/src") > "$W/diff" ||
        fault "$1: what was reported as done is not there: $(head -n 5 "$W/diff")"
}

# spoil FILE: changes a byte, and puts the times back.
spoil() {
    touch -r "$1" "$W/times"
    printf '\x5a\xa5\x5a' | dd of="$1" bs=1 seek=3000 conv=notrunc status=none
    touch -r "$W/times" "$1"
    sync -f "$1"
}

one() {
    local fs=$1 direction=$2 model=$3 n here part spoilt=0 done=0 killed=0 running=0
    command -v "mkfs.$fs" >/dev/null || { leave_out "no mkfs.$fs"; return 0; }
    new_disk "$fs" "$model" || { unmount_all; leave_out "this kernel cannot mount $fs"; return 0; }
    for n in $(seq 1 "$moments"); do
        here="$fs $direction $model, moment $n"
        start "$direction"
        case $((n % 3)) in
            0) # to its end
                wait "$client"; code=$?; client=''
                cut
                [ $code = 0 ] || fault "$here: status $code: $(cat "$W/client.log" "$W/said")"
                done=$((done + 1)) ;;
            1) # killed, both sides
                await_progress $((1 + n * 7 % 31))
                kill -KILL "$client" "$server" 2>/dev/null
                cut
                killed=$((killed + 1)) ;;
            2) # while it runs
                await_progress $((1 + n * 11 % 31))
                cut
                running=$((running + 1)) ;;
        esac
        stop
        come_back "$model"
        if [ $((n % 3)) = 0 ]; then
            check_all "$here, after success"
            # The next one begins afresh, or finds a file that is not what it seems.
            if [ $((n % 2)) = 0 ]; then rm -rf "$W/disk/to/src"; else
                spoil "$W/disk/to/src/d/e/middle2"
                rm "$W/disk/to/src/d/e/f/large"
                spoilt=$((spoilt + 1))
                # That file is wrong until it is compared, so compare it now.
                start "$direction"
                wait "$client"; client=''
                stop
                check_all "$here, after a changed byte"
                rm -rf "$W/disk/to/src"
            fi
        else
            check_names "$here"
            part=$(find "$W/disk/to" -name '.*.exs-part' -size +3 | head -n 1)
            if [ -n "$part" ]; then spoil "$part"; spoilt=$((spoilt + 1)); fi
        fi
    done
    start "$direction"
    wait "$client"; code=$?; client=''
    stop
    here="$fs $direction $model, the last run"
    [ $code = 0 ] && grep -q '"verified":true' "$W/said" || fault "$here: $(cat "$W/client.log" "$W/said")"
    check_all "$here"
    [ "$(find "$W/disk/to" -name '.*' | wc -l)" = 0 ] || fault "$here: unfinished files are left"
    unmount_all
    echo "well: $fs $direction $model: $moments cuts ($done after success, $running while it ran, $killed after a kill), $spoilt bytes changed"
}

for fs in ${fs_list//,/ }; do
    for direction in ${direction_list//,/ }; do
        for model in ${model_list//,/ }; do
            one "$fs" "$direction" "$model"
        done
    done
done
