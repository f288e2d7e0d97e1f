package cluster

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

func TestAMachineInBothAPIsHasOneRecordToSettle(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	c := newMachines(machinesOptions{Registry: machine.NewRegistry(nil), Now: now})
	put := func(manifest string) {
		t.Helper()
		in, problems := machine.Parse("m.yaml", []byte(manifest), at)
		if len(problems) > 0 || len(in.Machines) != 1 {
			t.Fatal(problems)
		}
		c.registry.PutMachine(in.Machines[0])
	}
	put(`apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {name: w, namespace: a, uid: uid-old, creationTimestamp: "2026-03-01T01:00:00Z"}
spec: {providerID: "aws:///z/i-1", authoritativeAPI: ClusterAPI}
`)
	put(`apiVersion: cluster.x-k8s.io/v1beta1
kind: Machine
metadata: {name: w, namespace: b, uid: uid-new, creationTimestamp: "2026-03-01T02:00:00Z"}
spec: {providerID: "aws:///z/i-1"}
`)
	for _, uid := range []string{"uid-old", "uid-new"} {
		if step, m := c.Compare(uid); step != record.StepCreate || m.UID != "uid-new" {
			t.Errorf("%s, before there is a record: %v, %v", uid, step, m)
		}
	}
	c.latches["uid-old"] = latch{}
	for _, uid := range []string{"uid-old", "uid-new"} {
		if step, _ := c.Compare(uid); step != record.StepNone {
			t.Errorf("%s: %v", uid, step)
		}
	}
	c.registry.PutNode("node-0", "aws:///z/i-1")
	for _, uid := range []string{"uid-old", "uid-new"} {
		if step, _ := c.Compare(uid); step != record.StepJoin {
			t.Errorf("%s, joined: %v", uid, step)
		}
	}
}
