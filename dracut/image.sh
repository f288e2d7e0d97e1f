#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packages the agent in the two forms that can be installed on a node:
#
#   mcs-attest-initramfs.cpio.zst   appended to a stock initramfs with Ignition
#                                   (PXE: another initrd; or cat)
#   mcs-attest-dracut.tar.gz        the dracut module, for an image build that
#                                   creates its own initramfs: `make install`
#
# Usage: image.sh AGENT OUTPUT-FOLDER
#
# The archive contains what dracut would install: the module's own install() runs here with
# replacements for dracut's functions. Both files depend only on their inputs, not on the time or
# the builder. SOURCE_DATE_EPOCH sets the time of the contents.

set -euo pipefail

if [[ $# -ne 2 ]]; then
    echo "usage: image.sh AGENT OUTPUT-FOLDER" >&2
    exit 2
fi
for tool in cpio zstd tar; do
    if ! command -v "$tool" > /dev/null; then
        echo "error: $tool not found" >&2
        echo "hint: apt-get install cpio zstd tar" >&2
        exit 1
    fi
done
umask 022
here=$(cd "$(dirname "$0")" && pwd)
agent=$(realpath -- "$1")
mkdir -p -- "$2"
output=$(realpath -- "$2")
epoch="@${SOURCE_DATE_EPOCH:-0}"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/module" "$work/root"
cp -- "$here"/90mcs-attest/* "$work/module/"
install -m 0755 -- "$agent" "$work/module/mcs-attest-agent"

# Replacements for dracut's functions. The units are not in /lib: a top-level lib/, lib64/, bin/ or
# sbin/ in an appended archive replaces the symbolic links of a merged /usr, and services fail.
# shellcheck disable=SC2034 # module-setup.sh reads it
systemdsystemunitdir=/usr/lib/systemd/system
moddir=$work/module
initdir=$work/root
inst_simple() {
    local mode=0644
    [[ -x $1 ]] && mode=0755
    command install -D -m "$mode" -- "$1" "$initdir$2"
}
# Optional files come from the stock initramfs or are missing.
inst_multiple() { :; }
ln_r() { ln -sfnr -- "$initdir$1" "$initdir$2"; }

# shellcheck source=90mcs-attest/module-setup.sh
. "$moddir/module-setup.sh"
install
find "$initdir" -exec touch --no-dereference --date="$epoch" {} +
(cd "$initdir" && find . -mindepth 1 -print0 | LC_ALL=C sort -z |
    cpio --null --create --format=newc --owner=0:0 --reproducible --quiet) |
    zstd --quiet -19 --force -o "$output/mcs-attest-initramfs.cpio.zst"

mkdir "$work/mcs-attest"
cp -r -- "$here/90mcs-attest" "$here/root" "$here/Makefile" "$here/50-mcs-attest.conf" "$here/boot.sh" \
    "$work/mcs-attest/"
command install -m 0755 -- "$agent" "$work/mcs-attest/mcs-attest-agent"
tar --create --directory="$work" --sort=name --mtime="$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --format=gnu mcs-attest | gzip --no-name --best > "$output/mcs-attest-dracut.tar.gz"

ls -l -- "$output/mcs-attest-initramfs.cpio.zst" "$output/mcs-attest-dracut.tar.gz"
