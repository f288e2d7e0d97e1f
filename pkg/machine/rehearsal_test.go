// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var someTicket = strings.Repeat("a", 64)

func ticket(hash string, d time.Duration) *v1alpha1.RehearsalTicket {
	return &v1alpha1.RehearsalTicket{TicketSHA256: hash, Until: metav1.NewTime(modified.Add(d))}
}

// A folder and a cluster find the Machine of a ticket alike.
func TestByTicket_FindsTheOneMachine(t *testing.T) {
	other := strings.Repeat("b", 64)
	for name, c := range map[string]struct {
		change func(*v1alpha1.MachineAttestation)
		more   bool // another Machine has the same ticket
		want   bool
	}{
		"valid": {func(a *v1alpha1.MachineAttestation) {}, false, true},
		"for an hour": {func(a *v1alpha1.MachineAttestation) {
			a.Spec.Rehearsal = ticket(someTicket, time.Hour)
		}, false, true},
		"expired": {func(a *v1alpha1.MachineAttestation) { a.Spec.Rehearsal = ticket(someTicket, 0) }, false, false},
		"for more than an hour": {func(a *v1alpha1.MachineAttestation) {
			a.Spec.Rehearsal = ticket(someTicket, time.Hour+time.Second)
		}, false, false},
		"another": {func(a *v1alpha1.MachineAttestation) {
			a.Spec.Rehearsal = ticket(other, time.Minute)
		}, false, false},
		"withdrawn":        {func(a *v1alpha1.MachineAttestation) { a.Spec.Rehearsal = nil }, false, false},
		"of two Machines":  {func(a *v1alpha1.MachineAttestation) {}, true, false},
		"of a missing one": {func(a *v1alpha1.MachineAttestation) { a.Spec.MachineRef.Name = "missing" }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.other(func(*Machine) {})
			w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Rehearsal = ticket(someTicket, time.Minute) })
			c.change(&w.in.Enrollments[0].MachineAttestation)
			if c.more {
				w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) {
					s.MachineRef.Name, s.Rehearsal = "demo-worker-1", ticket(someTicket, time.Minute)
				})
				w.in.Enrollments[1].Name = "host-8"
			}
			r := NewRegistry(nil)
			for _, m := range w.in.Machines {
				r.PutMachine(m)
			}
			for _, e := range w.in.Enrollments {
				r.PutEnrollment(e)
			}
			for where, m := range map[string]*Machine{
				"folder": index(t, w.in).ByTicket(someTicket, modified), "cluster": r.ByTicket(someTicket, modified),
			} {
				if (m != nil) != c.want || m != nil && m.Name != "demo-worker-0" {
					t.Errorf("%s: %v", where, m)
				}
			}
			for _, e := range w.in.Enrollments {
				r.DeleteEnrollment(e.Namespace, e.Name)
			}
			if m := r.ByTicket(someTicket, modified); m != nil {
				t.Errorf("after its deletion: %v", m)
			}
		})
	}
}

// A record with the result of a ticket no longer has the ticket.
func TestRegistry_AUsedTicketIsNoTicket(t *testing.T) {
	w := newFixture(t)
	w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Rehearsal = ticket(someTicket, time.Minute) })
	r, e := NewRegistry(nil), w.in.Enrollments[0]
	r.PutMachine(*w.m)
	r.PutEnrollment(e)
	if r.ByTicket(someTicket, modified) == nil {
		t.Fatal("the ticket is unknown")
	}
	e.Status.Rehearsal = &v1alpha1.RehearsalStatus{TicketSHA256: someTicket}
	r.PutEnrollment(e)
	if m := r.ByTicket(someTicket, modified); m != nil {
		t.Errorf("after its use: %v", m)
	}
	// Otherwise a live read would find the cached state outdated, and no machine could attest.
	if !r.HasEnrollment(e) {
		t.Error("after its use, the registry has another state")
	}
	e.Status.Rehearsal.TicketSHA256 = strings.Repeat("b", 64)
	r.PutEnrollment(e)
	if r.ByTicket(someTicket, modified) == nil {
		t.Error("the result of another ticket used this one")
	}
}

// The Machine of a rehearsal may have joined and may be old. Everything else counts as in an attestation.
func TestRehearsal_OnlyTheJoinAndTheAgeAreIgnored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture)
		attest reason.Code
		want   reason.Code
	}{
		"honest":   {func(*fixture) {}, 0, 0},
		"joined":   {func(w *fixture) { w.m.NodeRef = "node" }, reason.MachineJoined, 0},
		"too old":  {func(w *fixture) { w.rules.Now = modified.Add(999 * time.Hour) }, reason.MachineTooOld, 0},
		"deleting": {func(w *fixture) { w.m.Deleting = true }, reason.MachineDeleting, reason.MachineDeleting},
		"failed":   {func(w *fixture) { w.m.Phase = "Failed" }, reason.MachineDeleting, reason.MachineDeleting},
		"its pool": {func(w *fixture) { w.rules.Pool = "another" }, reason.MachinePool, reason.MachinePool},
		"its EK":   {func(w *fixture) { w.id.EK = EKHash{9} }, reason.EKNotEnrolled, reason.EKNotEnrolled},
		"two Machines have its instance": {func(w *fixture) {
			w.other(func(m *Machine) { m.ProviderID = instance })
		}, reason.MachineAmbiguous, reason.MachineAmbiguous},
	} {
		w := newFixture(t)
		c.change(w)
		w.m = &w.in.Machines[0]
		ix := index(t, w.in)
		own, ok := ix.ByUID(w.m.UID)
		if !ok {
			t.Fatal("no Machine")
		}
		for what, got := range map[string]func(Identity, Rules) (*Machine, error){
			"attest": ix.Match, "rehearse": Rehearsal{All: ix, Machine: own}.Match,
		} {
			want := c.attest
			if what == "rehearse" {
				want = c.want
			}
			m, err := got(w.id, w.rules)
			if d := reason.From(err); (d == nil) != (want == 0) || d != nil && d.Code != want || d == nil && m != own {
				t.Errorf("%s, %s: %v, %v, want %s", name, what, m, err, want)
			}
		}
	}
}

func TestAttack_T74_QuarantinedWouldFail(t *testing.T) {
	w := newFixture(t)
	w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true })
	ix := index(t, w.in)
	own, _ := ix.ByUID(w.m.UID)
	_, err := Rehearsal{All: ix, Machine: own}.Match(w.id, w.rules)
	if d := reason.From(err); d == nil || d.Code != reason.Quarantined {
		t.Errorf("%v", err)
	}
}

// For another Machine's identity, a rehearsal has the result of an identity that no Machine has.
func TestAttack_T74_AnotherMachinesIdentityMatchesNothing(t *testing.T) {
	w := newFixture(t)
	w.other(func(*Machine) {})
	ix := index(t, w.in)
	other, _ := ix.ByUID("other")
	rehearsal, none := Rehearsal{All: ix, Machine: other}, index(t, Manifests{})
	for name, id := range map[string]Identity{
		"its EK": {EK: w.id.EK}, "its instance": {ProviderIDs: w.id.ProviderIDs}, "both": w.id,
		"its record": {EK: w.id.EK, MachineUID: w.m.UID},
	} {
		if _, err := ix.Match(id, w.rules); err != nil && id.EK != (EKHash{}) {
			t.Errorf("%s, in an attestation: %v", name, err)
		}
		_, got := rehearsal.Match(id, w.rules)
		_, want := none.Match(id, w.rules)
		if got == nil || want == nil || got.Error() != want.Error() {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if m := rehearsal.Named(id, w.rules); m != nil {
			t.Errorf("%s names %s", name, m)
		}
	}
	// Even if a component was once that of the rehearsed Machine.
	own := *other
	own.EKSHA256 = []string{hex.EncodeToString(w.id.EK[:])}
	if m, err := (Rehearsal{All: ix, Machine: &own}).Match(w.id, w.rules); err == nil {
		t.Errorf("a rehearsal of %s matches %s", &own, m)
	}
	if rehearsal.Enrolled(w.id.EK) || !ix.Enrolled(w.id.EK) {
		t.Error("its EK is enrolled for the Machine of the rehearsal")
	}
}
