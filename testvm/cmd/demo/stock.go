// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
	"github.com/mcs-attest/mcs-attest/testvm/stage"
)

// stock is the script of a boot image without the agent.
func stock(s *stage.Stage) {
	r := rig.New(s)
	s.Say("demo", "a machine boots an image whose initramfs does not have the agent, as a cluster manages it;")
	s.Say("demo", "it receives a config without secrets, attests in the real root,")
	s.Say("demo", "and Ignition applies the full config in its second boot")
	s.Rule("the cluster's side: a policy that accepts the real root, and a gate that serves the agent")
	c := r.StockImage()
	c.OnAudit = func(a rig.Audit) { s.Audit("verifier", a) }
	v := r.Verifier(c)
	v.Write("configs/worker.ign", rig.Config(content))
	_, spec, _ := strings.Cut(rig.StockPolicy, "\nspec:")
	s.Lines("policy", "spec:"+spec)

	s.Rule("a new machine is switched on: the stand-in for CoreOS, as the installer leaves it")
	tpm := r.NewTPM()
	disk := r.NewStockDisk(v.Pointer("worker"), nil)
	first := r.Boot(rig.VM{Name: "first", TPM: tpm, CoreOS: disk, OnLine: s.Console})
	first.WaitFor(`mcs-attest: .*; trying again in `)

	s.Rule("it waits with the pre-approved config; an administrator enrolls its TPM's key")
	v.Enroll("worker-0", "worker", tpm)
	first.WaitFor(`mcs-attest: .*; rebooting, so that Ignition applies it$`)
	first.Wait()

	s.Rule("its second boot: Ignition applies the full config from /boot")
	second := r.Boot(rig.VM{Name: "second", TPM: tpm, CoreOS: disk, OnLine: s.Console})
	second.WaitFor(`^rig: provisioned `)
	second.WaitFor(`^rig: another program$`)

	s.Rule("another program with root access tries to attest")
	second.WaitFor(`^mcs-attest: the machine keeps the pre-approved config and waits: `)
	v.WantAudit("attest", "denied", "PCRCapped")
	second.Kill()
	if second.Said(`^rig: left `) {
		s.Fatalf("the config is still in /boot")
	}
	s.Say("demo", "denied: the agent capped PCR 11, and the config is no longer in /boot")

	s.Rule("the cluster's record of it")
	s.Say("you", "$ mcs-attest-verifier status --config DIR/mcs-attest.yaml")
	s.Lines("verifier", v.Run("status"))
	v.WantRecord("worker-0", "Fetched")
}
