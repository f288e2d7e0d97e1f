#!/bin/bash
# The mcs-attest agent in an initramfs that has Ignition.
#
# The agent runs between ignition-fetch-offline and ignition-fetch, hands
# Ignition a pointer config with the token, takes the token away again after
# the fetch, and caps PCR 11 before anything but the initramfs can run.
#
# dracut/image.sh sources this file too, with stand-ins for dracut's own
# functions, so that the appended archive holds exactly what dracut installs.

# shellcheck disable=SC2154 # dracut sets moddir, initdir and systemdsystemunitdir

# Only on request (add_dracutmodules+=" mcs-attest "): a host's own initramfs
# should not start to attest because a package was installed.
check() {
    [[ -x "$moddir/mcs-attest-agent" ]] || require_binaries mcs-attest-agent || return 1
    return 255
}

depends() {
    echo systemd ignition
}

# TPMs on SPI and I2C have their drivers as modules in some kernels. The rest is
# for config drives, which a host's own initramfs would leave out: the CD-ROM
# drive and what virtual machines attach it to, and the file systems that the
# agent reads. A kernel that has one of them built in has no such module.
installkernel() {
    hostonly='' instmods '=drivers/char/tpm'
    hostonly='' instmods sr_mod cdrom ata_piix ahci virtio_blk virtio_scsi
    hostonly='' instmods isofs udf vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8
}

# A drop-in named so that a distribution's own (10-, 20-) come first.
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
    if [[ -x "$moddir/mcs-attest-agent" ]]; then
        inst_simple "$moddir/mcs-attest-agent" /usr/bin/mcs-attest-agent
    else
        inst_binary mcs-attest-agent /usr/bin/mcs-attest-agent
    fi
    # The settings of the image, if it has any.
    inst_multiple -o /etc/mcs-attest/azure-token-resource /etc/mcs-attest/provisioning-token
    # The failure report quotes the failed stage's own last lines.
    inst_multiple -o journalctl

    # First boots only: the Ignition generator starts ignition-complete.target
    # on those alone.
    install_wanted mcs-attest.service ignition-complete.target.requires
    install_wanted mcs-attest-scrub.service ignition-complete.target.requires
    # Every boot.
    install_wanted mcs-attest-cap.service initrd.target.wants

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
        debug-shell.service
}
