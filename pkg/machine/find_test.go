package machine

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// THREATS T45, as far as the Machine goes: the token is shown after the node
// joined, after quarantine, for another pool.
func TestRedeemable(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   reason.Code
	}{
		"a Machine that attested":      {func(*world) {}, 0},
		"long after it was created":    {func(w *world) { w.rules.Now = modified.Add(1000 * time.Hour) }, 0},
		"the Machine is gone":          {func(w *world) { w.in.Machines = nil }, reason.MachineNotFound},
		"the Machine is being deleted": {func(w *world) { w.m.Deleting = true }, reason.MachineDeleting},
		"the Machine has joined":       {func(w *world) { w.m.NodeRef = "n" }, reason.MachineJoined},
		"another pool":                 {func(w *world) { w.rules.Pool = "master" }, reason.MachinePool},
		"quarantined": {func(w *world) {
			w.enrol(t, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true })
		}, reason.Quarantined},
		"joined, with a grant": {func(w *world) {
			w.m.NodeRef = "n"
			w.enrol(t, func(s *v1alpha1.MachineAttestationSpec) { s.Reattest = until(time.Hour) })
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			uid := w.m.UID
			c.change(w)
			err := index(t, w.in).Redeemable(uid, w.rules.Pool, w.rules.Now)
			if c.want == 0 && err != nil || c.want != 0 && (err == nil || reason.From(err).Code != c.want) {
				t.Errorf("%v, expected %v", err, c.want)
			}
		})
	}
}

// A denial belongs to the Machine that was proven, also when it may not attest;
// to none when the evidence does not fit it (DESIGN, section 19, rule 3).
func TestNamed(t *testing.T) {
	w := newWorld(t)
	w.m.NodeRef = "n"
	ix := index(t, w.in)
	if m := ix.Named(w.id, w.rules); m == nil || m.Name != "demo-worker-0" {
		t.Errorf("a Machine that has joined: %v", m)
	}
	w.id.EK = hash(t, ek3)
	if m := ix.Named(w.id, w.rules); m != nil {
		t.Errorf("another TPM in its instance: %v", m)
	}
	if !ix.Enrolled(hash(t, ek1)) || ix.Enrolled(hash(t, ek3)) || !ix.Known(w.m.UID) || ix.Known("") {
		t.Error("Enrolled or Known is wrong")
	}
}
