// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

// compared returns a Machine as in an inventory.
func compared(t *testing.T, quarantined bool, change func(*machine.Machine)) *machine.Machine {
	t.Helper()
	r := machine.NewRegistry(nil)
	r.PutMachine(machine.Machine{APIVersion: "machine.openshift.io/v1beta1", Namespace: "m", Name: "one", UID: "u"})
	e, err := machine.NewEnrollment(v1alpha1.MachineAttestation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "stop"},
		Spec: v1alpha1.MachineAttestationSpec{MachineRef: &v1alpha1.MachineReference{Namespace: "m", Name: "one"},
			Quarantined: quarantined},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.PutEnrollment(e)
	m, _ := r.ByUID("u")
	if m == nil || m.Quarantined() != quarantined {
		t.Fatalf("quarantined: %+v", m)
	}
	if change != nil {
		change(m)
	}
	return m
}

func TestCompare(t *testing.T) {
	now := time.Now()
	joined := func(m *machine.Machine) { m.NodeRef = "node" }
	recorded := record.State{Exists: true}
	for _, c := range []struct {
		name        string
		state       record.State
		deleted     bool
		quarantined bool
		change      func(*machine.Machine)
		want        record.Step
	}{
		{name: "a new Machine", want: record.StepCreate},
		{name: "a new Machine that is quarantined", quarantined: true, want: record.StepQuarantine},
		{name: "a Node from the start", change: joined, want: record.StepNone},
		{name: "a stand-in is its own record", change: func(m *machine.Machine) { m.StandIn = true }, want: record.StepNone},
		{name: "a Machine that is being deleted", change: func(m *machine.Machine) { m.Deleting = true },
			want: record.StepNone},
		{name: "in line", state: recorded, want: record.StepNone},
		{name: "deleted", state: recorded, deleted: true, want: record.StepDelete},
		{name: "quarantined", state: recorded, quarantined: true, want: record.StepQuarantine},
		{name: "quarantined with credentials", state: record.State{Exists: true, Quarantined: true, Unrevoked: true},
			quarantined: true, want: record.StepRevoke},
		{name: "a restored quarantine with restored credentials", state: record.State{Exists: true, Quarantined: true,
			Restored: true, Unrevoked: true}, want: record.StepRevoke},
		{name: "a release with credentials", state: record.State{Exists: true, Quarantined: true, Unrevoked: true},
			want: record.StepRelease},
		{name: "credentials of a machine that is not quarantined", state: record.State{Exists: true, Unrevoked: true},
			want: record.StepNone},
		{name: "quarantined and in line", state: record.State{Exists: true, Quarantined: true}, quarantined: true,
			want: record.StepNone},
		{name: "released", state: record.State{Exists: true, Quarantined: true}, want: record.StepRelease},
		{name: "quarantined since a restore", state: record.State{Exists: true, Quarantined: true, Restored: true},
			want: record.StepNone},
		{name: "demanded again since a restore", state: record.State{Exists: true, Quarantined: true, Restored: true},
			quarantined: true, want: record.StepRestate},
		{name: "joined", state: recorded, change: joined, want: record.StepJoin},
		{name: "joined and in line", state: record.State{Exists: true, Joined: true}, change: joined, want: record.StepNone},
		{name: "joined with a grant", state: recorded, change: func(m *machine.Machine) {
			joined(m)
			m.Enrollment = &v1alpha1.MachineAttestation{}
			m.Enrollment.Spec.Reattest = &v1alpha1.ReattestGrant{Until: metav1.NewTime(now.Add(time.Hour))}
		}, want: record.StepNone},
		{name: "the Node of its certificate exists", state: record.State{Exists: true, Arrived: true}, want: record.StepJoin},
		{name: "the Node of its certificate exists, with a grant", state: record.State{Exists: true, Arrived: true},
			change: func(m *machine.Machine) {
				joined(m)
				m.Enrollment = &v1alpha1.MachineAttestation{}
				m.Enrollment.Spec.Reattest = &v1alpha1.ReattestGrant{Until: metav1.NewTime(now.Add(time.Hour))}
			}, want: record.StepJoin},
		{name: "the Node of its certificate exists, in line", state: record.State{Exists: true, Arrived: true, Joined: true},
			want: record.StepNone},
		{name: "the Node of its certificate is not recorded", state: record.State{Exists: true, Joined: true, Used: true},
			want: record.StepUse},
		{name: "the Node of its certificate is not recorded, and a join", state: record.State{Exists: true, Used: true},
			change: joined, want: record.StepJoin},
		{name: "the Node of its certificate is not recorded, and a quarantine to release",
			state: record.State{Exists: true, Quarantined: true, Used: true}, want: record.StepRelease},
		{name: "the Node of its certificate is not recorded, and a quarantine that is required again",
			state:       record.State{Exists: true, Quarantined: true, Restored: true, Used: true},
			quarantined: true, want: record.StepRestate},
		{name: "joined, and a quarantine to release", state: record.State{Exists: true, Quarantined: true}, change: joined,
			want: record.StepJoin},
		{name: "joined and quarantined", state: recorded, quarantined: true, change: joined, want: record.StepQuarantine},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m *machine.Machine
			if !c.deleted {
				m = compared(t, c.quarantined, c.change)
			}
			if got := record.Compare(c.state, m, now); got != c.want {
				t.Errorf("step %d, want %d", got, c.want)
			}
		})
	}
}
