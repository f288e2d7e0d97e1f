#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Adds the agent's archive to what an installed OSTree system boots (Fedora CoreOS, RHCOS), or
# removes it. The system's own initramfs does not change.
#
# The archive is stored as OSTree stores its own additional archives: in ostree/initramfs-overlays/
# of the boot file system, named by its SHA-256 digest. Each entry of the boot loader has one more
# line "initrd". OSTree fails if an entry names a file with another kind of name, and it deletes the
# archive when no entry names it.

set -eu

usage() {
    cat << USAGE
usage: boot.sh add|remove --boot FOLDER ARCHIVE...
       boot.sh add|remove --image FILE ARCHIVE...

Adds archives to what an installed OSTree system boots (Fedora CoreOS, RHCOS), or
removes them.

  --boot FOLDER   the boot file system, mounted and writable, such as /boot
  --image FILE    a raw disk image that no machine uses. Its boot file system is on
                  the partition named "boot". A changed copy replaces the image.
  ARCHIVE         mcs-attest-initramfs.cpio.zst, or an archive with settings

A second run changes nothing. After an error, everything is as it was before.
USAGE
}

fail() {
    echo "error: $1" >&2
    [ -z "${2:-}" ] || echo "hint: $2" >&2
    exit 1
}

# work is a folder of the boot file system, stage has the boot files of an image, and copy will
# replace the image. All of them exist only during a change.
work='' stage='' copy=''
cleanup() {
    status=$?
    trap - EXIT
    if [ -n "$work" ]; then
        for old in "$work/old"/*; do
            [ ! -e "$old" ] || mv -f -- "$old" "$entries/"
        done
        [ ! -e "$work/stored" ] || while read -r stored; do rm -f -- "$stored"; done < "$work/stored"
    fi
    rm -rf -- ${work:+"$work"} ${stage:+"$stage"} ${copy:+"$copy"}
    exit "$status"
}

overlay() {
    printf 'ostree/initramfs-overlays/%s.img' "$(sha256sum < "$1" | cut -d' ' -f1)"
}

# edit prints an entry with, or without, the archive whose path on the boot file system is given. If
# the entry is not one of OSTree, the status is 3.
# The entry's own initrd shows how the boot loader names that file system: "" or "/boot".
edit() {
    awk -v action="$action" -v overlay="/$2" '
        { lines[NR] = $0 }
        $1 == "initrd" && (at = index($2, "/ostree/")) {
            path = substr($2, 1, at - 1) overlay
            last = NR
            if ($2 == path) present = NR
        }
        END {
            if (!last) exit 3
            for (i = 1; i <= NR; i++) {
                if (action == "add" || i != present) print lines[i]
                if (action == "add" && i == last && !present) print "initrd " path
            }
        }' "$1"
}

# flush writes a boot file system's journal to its place, because GRUB does not read a journal. sync may only write
# the journal. Until the thaw no program can write to the file system, so this never freezes the one of the root.
flush() {
    sync -f "$1"
    case $(stat -f -c %T "$1") in ext* | xfs) ;; *) return 0 ;; esac
    for root in / /etc /sysroot; do
        [ "$(stat -c %d "$1")" != "$(stat -c %d "$root" 2> /dev/null)" ] || return 0
    done
    command -v fsfreeze > /dev/null || return 0
    trap '' HUP INT TERM
    if fsfreeze -f "$1" 2> /dev/null; then
        fsfreeze -u "$1" || { sleep 1 && fsfreeze -u "$1"; } ||
            echo "warning: if programs hang on $1, run: fsfreeze -u $1" >&2
    fi
    trap 'exit 1' HUP INT TERM
}

# change FOLDER ARCHIVE... changes a boot file system, and prints the path of each file that it
# stored or deleted.
change() {
    boot=$1
    shift
    entries=$boot/loader/entries new=''
    [ -d "$entries" ] || fail "$boot has no folder loader/entries" "FOLDER is the boot file system of an installed system"
    # On the same file system, where a rename replaces a file in one step.
    folder=$(LC_ALL=C mktemp -d "$boot/.mcs-attest.XXXXXX" 2>&1) || {
        hint=''
        case $folder in *Read-only*) hint="mount -o remount,rw $boot" ;; esac
        fail "cannot write to $boot: ${folder##*: }" "$hint"
    }
    work=$folder
    : > "$work/stored"
    mkdir "$work/old" "$work/new"

    for entry in "$entries"/*.conf; do
        grep -qs '^options.*[[:space:]]ostree=' "$entry" || continue
        new=$work/new/${entry##*/}
        # The owner, the mode and the SELinux label remain.
        cp -a -- "$entry" "$new"
        for archive; do
            edit "$new" "$(overlay "$archive")" > "$work/edited" || {
                [ $? -ne 3 ] || fail "$entry names no initrd below /ostree"
                fail "cannot edit $entry"
            }
            cat "$work/edited" > "$new"
        done
    done
    [ -n "$new" ] || fail "$entries has no entry of an OSTree system" "for others, see docs/initramfs.md"

    # An entry never names an archive that does not exist.
    [ "$action" = remove ] || for archive; do
        path=$(overlay "$archive")
        [ ! -e "$boot/$path" ] || continue
        mkdir -p "$boot/${path%/*}"
        cp -- "$archive" "$work/archive"
        sync "$work/archive"
        echo "$boot/$path" >> "$work/stored"
        mv -- "$work/archive" "$boot/$path"
        echo "$path"
    done
    for new in "$work/new"/*; do
        entry=$entries/${new##*/}
        ! cmp -s "$new" "$entry" || continue
        sync "$new"
        # Not directly into old: cleanup would restore an incomplete copy.
        cp -a -- "$entry" "$work/copy"
        mv -- "$work/copy" "$work/old/${entry##*/}"
        mv -f -- "$new" "$entry"
        echo "${entry#"$boot/"}"
    done
    # Before the old entries are deleted.
    sync "$entries"
    [ "$kind" != --boot ] || flush "$boot"

    folder=$work work=''
    rm -rf -- "$folder"
    [ "$action" = add ] || for archive; do
        path=$(overlay "$archive")
        [ -e "$boot/$path" ] || continue
        rm -- "$boot/$path"
        echo "$path"
    done
}

# debugfs reports errors only as text, so change_image checks the result.
debug() {
    debugfs -w -f - "$1" > /dev/null 2>&1
}

change_image() {
    image=$1 missing=''
    shift
    for tool in sfdisk debugfs e2fsck; do
        command -v "$tool" > /dev/null || fail "$tool not found" "apt-get install fdisk e2fsprogs"
    done
    [ -f "$image" ] || fail "$image is not a file"
    # cp -a would copy a link, and the changes would go to the image itself.
    image=$(readlink -f -- "$image")
    # sfdisk before util-linux 2.35 does not print the sector size. For a file it then uses 512 bytes.
    offset=$(sfdisk --dump "$image" 2> /dev/null | awk -F '[:=, ]+' '
        BEGIN { size = 512 }
        $1 == "sector-size" { size = $2 }
        /name="boot"/ { for (i = 1; i < NF; i++) if ($i == "start") print $(i + 1) * size }')
    [ -n "$offset" ] || fail "$image has no partition named boot" "for another format: qemu-img convert -O raw"

    copy=$(mktemp "$image.XXXXXX")
    cp -a --reflink=auto --sparse=always -- "$image" "$copy"
    system="$copy?offset=$offset"
    e2fsck -fn "$system" > /dev/null 2>&1 || fail "the boot file system of $image is not a clean ext4" \
        "boot the image's machine once and shut it down, or use a new image"
    stage=$(mktemp -d)
    mkdir -p "$stage/boot/ostree" "$stage/read" "$stage/labels"
    debug "$system" << COMMANDS
rdump /loader /loader.0 /loader.1 $stage/boot
rdump /ostree/initramfs-overlays $stage/boot/ostree
COMMANDS
    [ -d "$stage/boot/ostree/initramfs-overlays" ] || missing=1
    change "$stage/boot" "$@" > "$stage/changed"
    [ -s "$stage/changed" ] || return 0
    [ -z "$missing" ] || echo "mkdir /ostree/initramfs-overlays" | debug "$system"

    while read -r path; do
        name=${path##*/} label=$stage/labels/${path##*/}
        # An archive is new, so it gets the label of its folder's neighbors.
        case $path in *.conf) like=/$path ;; *) like=/loader/entries ;; esac
        debug "$system" << COMMANDS
ea_get -f $label $like security.selinux
COMMANDS
        {
            echo "cd /${path%/*}"
            echo "rm $name"
            if [ -e "$stage/boot/$path" ]; then
                echo "write $stage/boot/$path $name"
                [ ! -s "$label" ] || echo "ea_set -f $label $name security.selinux"
            fi
            echo "dump $name $stage/read/$name"
        } | debug "$system"
        if [ -e "$stage/boot/$path" ]; then
            cmp -s "$stage/boot/$path" "$stage/read/$name" || fail "cannot write $path to the image" "is there enough space?"
        fi
    done < "$stage/changed"
    e2fsck -fn "$system" > /dev/null 2>&1 || fail "the changed boot file system of $image has errors"
    sync "$copy"
    mv -f -- "$copy" "$image"
    copy=''
    cat "$stage/changed"
}

not_initramfs() {
    fail "$1 is not an archive for an initramfs: a cpio archive, plain or compressed with zstd, xz or gzip" \
        "'make image' creates mcs-attest-initramfs.cpio.zst"
}

[ "${1:-}" != --help ] || {
    usage
    exit 0
}
[ $# -ge 4 ] || fail "too few arguments" "boot.sh --help"
action=$1 kind=$2 target=$3
shift 3
case $action in add | remove) ;; *) fail "unknown action $action" "boot.sh --help" ;; esac
for archive; do
    [ -f "$archive" ] || fail "$archive is not a file"
    case $(od -An -N6 -tx1 < "$archive" | tr -d ' \n') in
    28b52ffd* | fd377a585a00 | 303730373031) ;; # zstd, xz, cpio
    1f8b*) [ "$(gzip -dc < "$archive" 2> /dev/null | head -c 6)" = 070701 ] || not_initramfs "$archive" ;;
    *) not_initramfs "$archive" ;;
    esac
done
trap cleanup EXIT
trap 'exit 1' HUP INT TERM
case $kind in
--boot) change "$target" "$@" ;;
--image) change_image "$target" "$@" ;;
*) fail "unknown option $kind" "boot.sh --help" ;;
esac
