#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Seals and opens the rig's root.

# shellcheck disable=SC2154 # dracut sets moddir, initdir and systemdsystemunitdir

check() {
    return 255
}

depends() {
    echo crypt tpm2-tss systemd-pcrphase
}

install() {
    inst_multiple systemd-cryptenroll cp
    inst_simple "$moddir/rig-seal" /usr/bin/rig-seal
    inst_simple "$moddir/rig-seal.service" "$systemdsystemunitdir/rig-seal.service"
    mkdir -p "$initdir$systemdsystemunitdir/cryptsetup.target.wants"
    ln_r "$systemdsystemunitdir/rig-seal.service" "$systemdsystemunitdir/cryptsetup.target.wants/rig-seal.service"
    # The emulated machine is slow, and the key has no attacker.
    (umask 077 && printf rig > "$initdir/etc/rig-key")
}
