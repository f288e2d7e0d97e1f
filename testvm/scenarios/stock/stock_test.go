// SPDX-License-Identifier: Apache-2.0

// Package stock boots an image without the agent: the stand-in for CoreOS as it is installed. The
// machine receives the pre-approved config, attests in the real root, and Ignition applies the full
// config in its second boot.
package stock

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const policy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  unattested: PreApproved
  stage: RealRoot
`

// The rig's real root has no systemd, so these scripts do what it would do: mount /boot read-only,
// start the agent's unit, and unmount /boot before a reboot. In the second boot another program with
// root access then tries to attest.
const (
	realRoot = `#!/bin/sh
busybox=/bin/busybox
agent=/usr/local/bin/mcs-attest-agent-x86-64
state=/etc/mcs-attest/firstboot/config
for link in /sys/class/net/e*; do
    $busybox ip link set "${link##*/}" up
    $busybox ip address add 10.0.2.15/24 dev "${link##*/}" 2> /dev/null
done
$busybox mount -o ro /dev/disk/by-label/boot /boot
export PATH=/etc/rig-bin:$PATH PLATFORM_ID=metal
echo "rig: the unit starts"
$agent firstboot
echo "rig: the unit ended with $?"
for file in /boot/ignition/config.ign /boot/ignition.firstboot; do
    [ ! -e $file ] || echo "rig: left $file"
done
/bin/rig-look after /run /etc
if [ "$(cat $state)" = whole ]; then
    echo "rig: another program"
    echo pre-approved > $state
    rm -rf /run/mcs-attest
    $agent firstboot
fi
`
	systemctl = `#!/bin/sh
echo "rig: systemctl $*"
/bin/busybox umount /boot
sync
/bin/busybox reboot -f
`
)

// preApproved returns the pre-approved config, in which every byte is public.
func preApproved(t *testing.T) string {
	t.Helper()
	var files []any
	for path, content := range map[string]string{"/etc/rig-again": realRoot, "/etc/rig-bin/systemctl": systemctl} {
		files = append(files, map[string]any{"path": path, "mode": 0o755, "overwrite": true, "contents": map[string]any{
			"source": "data:;base64," + base64.StdEncoding.EncodeToString([]byte(content))}})
	}
	raw, err := json.Marshal(map[string]any{"ignition": map[string]any{"version": "3.2.0"},
		"storage": map[string]any{"files": files}})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestAttack_T72_StockImageAttestsInTheRealRootAndNothingAfterIt(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	agent, err := os.ReadFile(r.Agent())
	if err != nil {
		t.Fatal(err)
	}
	v := r.Verifier(rig.VerifierConfig{
		Policy: policy, Extra: "\nagents: {folder: agents, architectures: [amd64]}\n",
		Files: map[string]string{
			"agents/mcs-attest-agent-amd64":   string(agent),
			"configs/worker.pre-approved.ign": preApproved(t),
		},
	})
	tpm, other := r.NewTPM(), r.NewTPM()
	v.Enroll("worker-1", "worker", other)
	disk := r.NewCoreOSDisk(v.Pointer("worker"))

	// With a TPM that is not the machine's, it keeps the pre-approved config, says so, and waits.
	first := r.Boot(rig.VM{Name: "first", TPM: tpm, CoreOS: disk})
	first.WaitFor(`^rig: not provisioned`)
	first.WaitFor(`^mcs-attest: .*; trying again in `)
	v.WantAudit("attest", "denied", "EKNotEnrolled")
	v.WantAudit("fetch", "pre-approved", "")
	v.WantNoAudit("fetch", "allowed", "")
	v.Enroll("worker-0", "worker", tpm)
	first.WaitFor(`^mcs-attest: capped PCR 11`)
	first.WaitFor(`^rig: systemctl --no-block reboot$`)
	first.Wait()
	v.WantAudit("attest", "allowed", "")

	second := r.Boot(rig.VM{Name: "second", TPM: tpm, CoreOS: disk})
	second.WaitFor(`^rig: provisioned for worker`)
	second.WaitFor(`^mcs-attest: capped PCR 11`)
	second.WaitFor(`^rig: the unit ended with 0$`)
	second.WaitFor(`^rig: another program$`)
	second.WaitFor(`^mcs-attest: the machine keeps the pre-approved config and waits: `)
	v.WantAudit("attest", "denied", "PCRCapped")
	second.Kill()
	if second.Said(`^rig: left `) {
		t.Errorf("the config or the flag is still in /boot:\n%s", second.Console())
	}
	for _, node := range []*rig.Node{first, second} {
		if left := node.TokensLeft(); len(left) > 0 {
			t.Errorf("a token was left in %s", strings.Join(left, ", "))
		}
	}
	v.WantRecord("worker-0", "Fetched")
}
