#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A stand-in for the initramfs of Fedora CoreOS and RHCOS: its units by name, ordering and condition,
# from the lists of the tests of dracut/. A unit does nothing, unless a script here has its name.

# shellcheck disable=SC2154 # dracut sets moddir, initdir and systemdsystemunitdir

check() {
    return 255
}

depends() {
    echo systemd ignition network-manager ostree
}

# Each line is: unit, target that requires it or "-", directives.
install_units() {
    local unit target directives script
    while read -r unit target directives; do
        # NetworkManager and OSTree have brought their own.
        if [[ $unit == '#' || -e $initdir$systemdsystemunitdir/$unit ]]; then
            continue
        fi
        script=/usr/sbin/${unit%.service}
        {
            echo "[Unit]"
            directives=${directives// /$'\n'}
            echo "${directives//,/ }"
            echo "[Service]"
            echo "Type=oneshot"
            echo "RemainAfterExit=yes"
            if [[ -e $moddir/${unit%.service} ]]; then
                inst_simple "$moddir/${unit%.service}" "$script"
                echo "ExecStart=$script"
                echo "StandardOutput=journal+console"
            else
                echo "ExecStart=/bin/true"
            fi
        } > "$initdir$systemdsystemunitdir/$unit"
        if [[ $target != - ]]; then
            mkdir -p "$initdir$systemdsystemunitdir/$target.requires"
            ln_r "$systemdsystemunitdir/$unit" "$systemdsystemunitdir/$target.requires/$unit"
        fi
    done < "$moddir/units"
}

install() {
    inst_multiple cp mkdir mount sed true umount unshare
    install_units
    inst_simple "$moddir/coreos-diskful-generator" /usr/lib/systemd/system-generators/coreos-diskful-generator
}
