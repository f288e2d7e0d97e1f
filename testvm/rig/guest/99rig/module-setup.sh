#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The rig's own part of the initramfs: files of a distribution, a second serial port for the
# journal, and observers that change nothing.

# shellcheck disable=SC2154 # dracut sets moddir, initdir and systemdsystemunitdir

check() {
    return 255
}

depends() {
    echo systemd
}

install() {
    inst_simple "$moddir/10-ether.network" /etc/systemd/network/10-ether.network
    # Debian's Ignition relabels files, and needs the tool for it.
    inst_simple "$moddir/setfiles" /usr/sbin/setfiles
    inst_multiple journalctl grep find cat head

    inst_simple "$moddir/rig-scan" /usr/bin/rig-scan
    inst_hook shutdown-emergency 10 "$moddir/emergency.sh"
    local unit
    for unit in rig-journal.service rig-probe.service; do
        inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    done
    mkdir -p "$initdir$systemdsystemunitdir/sysinit.target.wants" \
        "$initdir$systemdsystemunitdir/ignition-complete.target.wants"
    ln_r "$systemdsystemunitdir/rig-journal.service" "$systemdsystemunitdir/sysinit.target.wants/rig-journal.service"
    ln_r "$systemdsystemunitdir/rig-probe.service" "$systemdsystemunitdir/ignition-complete.target.wants/rig-probe.service"

    # The default limits of units and devices are 90 s. An emulated machine beside others has needed more.
    mkdir -p "$initdir/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultTimeoutStartSec=10min\nDefaultDeviceTimeoutSec=10min\n' \
        >"$initdir/etc/systemd/system.conf.d/rig.conf"

    # Each device event starts processes, which is slow under emulation. Terminals and devices that
    # no test uses are omitted.
    inst_simple "$moddir/coldplug.conf" "$systemdsystemunitdir/systemd-udev-trigger.service.d/50-rig.conf"

    # Every byte costs time under emulation, and more under OVMF, which hashes.
    rm -f -- "$initdir"/usr/lib/udev/hwdb.bin "$initdir"/lib/udev/hwdb.bin "$initdir"/etc/udev/hwdb.bin
    rm -rf -- "$initdir"/usr/lib/firmware "$initdir"/lib/firmware
    local drivers
    for drivers in "$initdir"/lib/modules/*/kernel/drivers; do
        find "$drivers/net" -mindepth 1 -maxdepth 1 ! -name 'virtio_net*' ! -name 'net_failover*' -exec rm -rf {} +
        rm -rf -- "$drivers/gpu" "$drivers/infiniband" "$drivers/hid" "$drivers/usb" "$drivers/nvme" "$drivers/ata"
    done
}
