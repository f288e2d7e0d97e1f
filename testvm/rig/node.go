// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"regexp"
	"strings"
)

// PCR11 returns the value at the end of the machine: in the real root, or where a shell would have
// started. It is "" if the machine printed none, and "none" without a TPM.
func (n *Node) PCR11() string {
	for _, l := range n.lines() {
		if _, value, ok := strings.Cut(l, " pcr11="); ok && strings.HasPrefix(l, "rig: ") {
			return value
		}
	}
	return ""
}

// Token returns the node's own token, which the probe read before Ignition used it.
func (n *Node) Token() string {
	n.r.t.Helper()
	found := regexp.MustCompile(`Bearer (eyJ[A-Za-z0-9_.-]+)`).FindStringSubmatch(n.Probe())
	if found == nil {
		n.r.t.Fatalf("the probe saw no token (is rig.probe on the command line?)")
	}
	return found[1]
}

// WantProvisioned waits for the end and requires that Ignition's file existed when the real root
// started.
func (n *Node) WantProvisioned() {
	n.r.t.Helper()
	n.Wait()
	if !n.Said(`^rig: provisioned `) || !n.Said(`^rig: done`) {
		n.r.t.Fatalf("%s was not provisioned; it said last\n%s", n.name, n.tail())
	}
}

// WantOrder requires that systemd reported these units of the initramfs as started in this order.
func (n *Node) WantOrder(units ...string) {
	n.r.t.Helper()
	journal := n.Journal()
	at, before := 0, ""
	for _, unit := range units {
		line := regexp.MustCompile(`systemd\[1\]: (Started|Finished|Mounted) ` + regexp.QuoteMeta(unit) + `[. ]`)
		found := line.FindStringIndex(journal)
		switch {
		case found == nil:
			n.r.t.Fatalf("%s did not start", unit)
		case found[0] < at:
			n.r.t.Fatalf("%s started before %s", unit, before)
		}
		at, before = found[0], unit
	}
}

// WantEmergency waits for the end and requires that the machine ended at the emergency shell, with
// nothing of the config on its disk.
func (n *Node) WantEmergency() {
	n.r.t.Helper()
	n.Wait()
	if !n.Said(`^rig: emergency$`) {
		n.r.t.Fatalf("%s did not end in an emergency; it said last\n%s", n.name, n.tail())
	}
	if got := n.ReadFile("/etc/provisioned"); got != "" {
		n.r.t.Fatalf("%s has a provisioned file: %q", n.name, got)
	}
}
