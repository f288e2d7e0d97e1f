// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"io/fs"
	"os"
	"path"
	"strings"
)

// StockPolicy accepts machines whose boot image does not have the agent.
const StockPolicy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  unattested: PreApproved
  stage: RealRoot
`

// StockImage returns the configuration of a verifier that serves the agent, and an empty pre-approved
// config, to which the verifier adds it.
func (r *Rig) StockImage() VerifierConfig {
	r.t.Helper()
	agent, err := os.ReadFile(r.Agent())
	r.fatal(err, "agent")
	return VerifierConfig{
		Policy: StockPolicy, Extra: "\nagents: {folder: agents, architectures: [amd64]}\n",
		Files: map[string]string{
			"agents/mcs-attest-agent-amd64":   string(agent),
			"configs/worker.pre-approved.ign": `{"ignition":{"version":"3.2.0"}}`,
		},
	}
}

// stockSystem is the system of the initramfs without the units of the initramfs.
const stockSystem = `
	zstd -dcq "$1" | cpio --extract --make-directories --quiet --nonmatching 'dev/*'
	find . -mindepth 1 -maxdepth 1 ! -name etc ! -name usr -exec rm -rf {} +
	cd etc
	rm -rf systemd/system os-release initrd-release machine-id shadow gshadow
	cd ../usr/lib
	rm -rf modules os-release initrd-release systemd/system-generators
	cd systemd/system
	rm -rf coreos-* dbus.* default.target dracut-* ignition-* initrd-* initrd.* multi-user.target.wants nm-* \
		ostree-* rhcos-* rig-journal.service rig-probe.service
	ln -s multi-user.target default.target
	cd ../../../..
	ln -sf ../lib/systemd/systemd usr/sbin/init
	mv etc usr/`

// NewStockDisk is like [Rig.NewCoreOSDisk], with systemd in the real root. With a kubelet it becomes a Node,
// if its config has a kubelet.service that starts it.
func (r *Rig) NewStockDisk(pointer []byte, kubelet *Kubelet) *CoreOSDisk {
	r.t.Helper()
	root := coreOSRoot{size: 255, script: stockSystem, programs: map[string]string{}, files: map[string]string{
		// As on CoreOS, no unit is enabled without a config.
		"lib/systemd/system-preset/99-default.preset": "disable *\n",
		// The journal has these lines, which would break those of others. A busy host is slow.
		"lib/systemd/system.conf.d/rig.conf": "[Manager]\nShowStatus=no\n" +
			"DefaultTimeoutStartSec=infinity\nDefaultDeviceTimeoutSec=infinity\n",
		"lib/systemd/system/multi-user.target.d/rig.conf": "[Unit]\nWants=boot.mount rig-network.service " +
			"coreos-ignition-firstboot-complete.service rig-later-journal.service rig-jobs.service rig-again.service " +
			"systemd-user-sessions.service\n",
	}}
	memory := ""
	if kubelet != nil {
		root.size += 128
		memory = kubeletMemory
		for name, program := range kubelet.programs() {
			root.programs[strings.TrimPrefix(name, "usr/")] = program
		}
	}
	reporting := r.rootFiles()
	for _, name := range []string{"etc/os-release", "etc/selinux/config", "etc/shadow"} {
		root.files[name] = reporting[name]
	}
	units, err := fs.ReadDir(guestFiles, "guest/stock")
	r.fatal(err, "guest files")
	for _, e := range units {
		content, err := guestFiles.ReadFile("guest/stock/" + e.Name())
		r.fatal(err, "guest files")
		to := "bin/"
		if path.Ext(e.Name()) != "" {
			to = "lib/systemd/system/"
		}
		root.files[to+e.Name()] = string(content)
	}
	disk := r.newCoreOSDisk(pointer, root)
	disk.memory = memory
	return disk
}
