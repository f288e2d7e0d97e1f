// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Attack T45, the Machine's part: the token is presented after the join, during a
// quarantine, or for another pool.
func TestRedeemable(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture)
		want   reason.Code
	}{
		"a Machine that attested":      {func(*fixture) {}, 0},
		"long after it was created":    {func(w *fixture) { w.rules.Now = modified.Add(1000 * time.Hour) }, 0},
		"the Machine was deleted":      {func(w *fixture) { w.in.Machines = nil }, reason.MachineNotFound},
		"the Machine is being deleted": {func(w *fixture) { w.m.Deleting = true }, reason.MachineDeleting},
		"the Machine has failed":       {func(w *fixture) { w.m.Phase = "Failed" }, reason.MachineDeleting},
		"the Machine has joined":       {func(w *fixture) { w.m.NodeRef = "n" }, reason.MachineJoined},
		"another pool":                 {func(w *fixture) { w.rules.Pool = "master" }, reason.MachinePool},
		"quarantined": {func(w *fixture) {
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true })
		}, reason.Quarantined},
		"joined, with a grant": {func(w *fixture) {
			w.m.NodeRef = "n"
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(time.Hour) })
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			uid := w.m.UID
			c.change(w)
			err := index(t, w.in).Redeemable(uid, w.rules.Pool, w.rules.Now)
			if c.want == 0 && err != nil || c.want != 0 && (err == nil || reason.From(err).Code != c.want) {
				t.Errorf("%v, expected %v", err, c.want)
			}
		})
	}
}

// A denial is noted for the proven Machine, even if it may not attest, but for none if the
// evidence contradicts it (rule 3 of docs/security-rules.md).
func TestNamed(t *testing.T) {
	w := newFixture(t)
	w.m.NodeRef = "n"
	ix := index(t, w.in)
	if m := ix.Named(w.id, w.rules); m == nil || m.Name != "demo-worker-0" {
		t.Errorf("a Machine that has joined: %v", m)
	}
	if m := ix.Named(Identity{EK: hash(t, ek3)}, w.rules); m != nil {
		t.Errorf("an unknown TPM: %v", m)
	}
	w.id.EK = hash(t, ek3)
	if m := ix.Named(w.id, w.rules); m != nil {
		t.Errorf("another TPM in its instance: %v", m)
	}
	if !ix.Enrolled(hash(t, ek1)) || ix.Enrolled(hash(t, ek3)) || !ix.Known(w.m.UID) || ix.Known("") {
		t.Error("Enrolled or Known is wrong")
	}
}
