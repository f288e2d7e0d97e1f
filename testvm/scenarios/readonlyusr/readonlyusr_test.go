// SPDX-License-Identifier: Apache-2.0

// Package readonlyusr boots with a read-only /usr in the initramfs, the default of systemd 256 and
// later.
package readonlyusr

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const unit = `[Unit]
DefaultDependencies=no
Before=basic.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mount --bind /usr /usr
ExecStart=/usr/bin/mount -o remount,bind,ro /usr
ExecStart=/bin/sh -c '(echo > /usr/written) || echo "rig: /usr is read-only" > /dev/console'
`

const dropIn = "[Unit]\nRequires=rig-read-only-usr.service\n"

func TestNothingIsWrittenToUsr(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Extra: map[string]string{
		"usr/lib/systemd/system/rig-read-only-usr.service":  unit,
		"usr/lib/systemd/system/basic.target.d/50-rig.conf": dropIn,
	}}})
	node.WantProvisioned()
	if !node.Said(`^rig: /usr is read-only`) {
		t.Error("/usr could be written to")
	}
	v.WantRecord("worker-0", "Fetched")
}
