// SPDX-License-Identifier: Apache-2.0

// Package accepted tests the main case: a new machine proves which Machine it is, and Ignition
// provisions it.
package accepted

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// readOnlyUsr makes /usr read-only in the initramfs, which is the default of systemd 256 and later.
const readOnlyUsr = `[Unit]
DefaultDependencies=no
Before=basic.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mount --bind /usr /usr
ExecStart=/usr/bin/mount -o remount,bind,ro /usr
ExecStart=/bin/sh -c '(echo > /usr/written) || echo "rig: /usr is read-only" > /dev/console'
`

const requireReadOnlyUsr = "[Unit]\nRequires=rig-read-only-usr.service\n"

func TestEnrolledMachineIsProvisioned(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	extra := r.WatchMemory()
	extra["usr/lib/systemd/system/rig-read-only-usr.service"] = readOnlyUsr
	extra["usr/lib/systemd/system/basic.target.d/50-rig.conf"] = requireReadOnlyUsr
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Extra: extra}})
	node.WantProvisioned()
	if !node.Said(`^rig: /usr is read-only`) {
		t.Error("/usr could be written to")
	}

	// The agent shares the memory of the initramfs with Ignition, also on small machines.
	if got := node.AgentMemory(); got > 16<<20 {
		t.Errorf("the agent used %d bytes of memory", got)
	} else {
		t.Logf("the agent's largest resident set has %d bytes", got)
	}
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Errorf("the disk holds %q", got)
	}
	node.WantNoTokensLeft()
	v.WantAudit("attest", "allowed", "")
	v.WantAudit("fetch", "allowed", "")
	rec := v.WantRecord("worker-0", "Fetched")
	if rec.Record.Endorsement != "enrolled" || rec.Record.Token == nil || rec.Record.Token.Uses != 1 {
		t.Errorf("the record has %+v", rec.Record)
	}
	if code, _ := v.Get("/config/worker", ""); code != 401 {
		t.Errorf("a caller without a token received %d", code)
	}
}
