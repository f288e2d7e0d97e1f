#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs the mcs-attest agent into an initramfs that has Ignition.
#
# The agent runs between ignition-fetch-offline and ignition-fetch. It gives Ignition a pointer
# config with the token, removes the token after the fetch, and caps PCR 11 before any code outside
# the initramfs runs. In a measured unified kernel image with systemd-pcrphase, systemd's
# leave-initrd replaces the cap.
#
# dracut/image.sh sources this file, too, with replacements for dracut's functions. So the appended
# archive contains exactly what dracut installs.

# shellcheck disable=SC2154 # dracut sets moddir, initdir and systemdsystemunitdir

# Only on request (add_dracutmodules+=" mcs-attest "): the installation of a package must not
# make a host's own initramfs attest.
check() {
    [[ -x "$moddir/mcs-attest-agent" ]] || require_binaries mcs-attest-agent || return 1
    return 255
}

# kexec-tools and kdump-utils build the initramfs of the crash kernel with the same configuration.
# That kernel has little memory, and Ignition and the agent must not run in it. dracut accepts the
# module, which then installs nothing.
for_kdump() {
    [[ ${IN_KDUMP:-} == 1 ]]
}

depends() {
    for_kdump || echo ignition
    echo systemd
}

# Some kernels have the drivers of TPMs on SPI and I2C as modules. The other modules are for
# config drives, which a host's own initramfs would omit: the CD-ROM drive with its
# controllers, and the file systems that the agent reads. A module may be built into the kernel.
installkernel() {
    for_kdump && return 0
    hostonly='' instmods '=drivers/char/tpm'
    hostonly='' instmods sr_mod cdrom ata_piix ahci virtio_blk virtio_scsi
    hostonly='' instmods isofs udf vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8
}

# The name sorts a drop-in after those of a distribution (10-, 20-).
install_drop_in() {
    local source="$1" unit
    shift
    for unit in "$@"; do
        inst_simple "$moddir/$source" "$systemdsystemunitdir/$unit.d/50-$source"
    done
}

install_wanted() {
    local unit="$1" where="$2"
    inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    mkdir -p "$initdir$systemdsystemunitdir/$where"
    ln_r "$systemdsystemunitdir/$unit" "$systemdsystemunitdir/$where/$unit"
}

install() {
    for_kdump && return 0
    if [[ -x "$moddir/mcs-attest-agent" ]]; then
        inst_simple "$moddir/mcs-attest-agent" /usr/bin/mcs-attest-agent
    else
        inst_binary mcs-attest-agent /usr/bin/mcs-attest-agent
    fi
    # The settings of the image, if they exist.
    inst_multiple -o /etc/mcs-attest/azure-token-resource /etc/mcs-attest/provisioning-token
    # The failure report contains the last log lines of the failed stage.
    inst_multiple -o journalctl

    # Only on first boots: the Ignition generator starts ignition-complete.target only then.
    install_wanted mcs-attest.service ignition-complete.target.requires
    install_wanted mcs-attest-scrub.service ignition-complete.target.requires
    # On every boot.
    install_wanted mcs-attest-cap.service initrd.target.wants
    install_wanted mcs-attest-leave.service initrd-switch-root.service.requires

    install_drop_in mcs-attest-phase.conf systemd-pcrphase-initrd.service
    install_drop_in mcs-attest-fetch.conf ignition-fetch.service
    install_drop_in mcs-attest-report.conf \
        ignition-fetch-offline.service \
        ignition-fetch.service \
        ignition-kargs.service \
        ignition-disks.service \
        ignition-mount.service \
        ignition-files.service
    install_drop_in mcs-attest-shell.conf \
        emergency.service \
        dracut-emergency.service \
        rescue.service \
        debug-shell.service \
        breakpoint-pre-udev.service \
        breakpoint-pre-basic.service \
        breakpoint-pre-mount.service \
        breakpoint-pre-switch-root.service
}
