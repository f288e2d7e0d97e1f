// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/noderole"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/noderoles"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// roleRig is an Inventory that the test feeds, with the controller of roles.
type roleRig struct {
	testing.TB
	*Inventory
	controller *noderoles.Reconciler
	status     *[]string // the list in the status
}

// newRoleRig has read everything but the pools, and no namespace of Machines holds one.
func newRoleRig(t testing.TB, listed ...string) roleRig {
	t.Helper()
	c := unconnected(t)
	for _, w := range c.sources() {
		if w.Kind.String() != poolKind.String() {
			w.list(t, 1)
		}
	}
	return roleRig{t, c, noderoles.New(noderoles.Options{
		Log: c.log, Now: c.o.Now, Limit: c.Limit(), Events: c.events, Inventory: c, Records: c.records,
		Trigger: &c.Triggers.NodeRoles, Report: func(int) {},
	}), &listed}
}

func (r roleRig) machine(n int, role, node string) *unstructured.Unstructured {
	return object(n, uint64(n)+1, func(o map[string]any) {
		o["metadata"].(map[string]any)["labels"] = map[string]any{"machine.openshift.io/cluster-api-machine-role": role}
		o["status"] = map[string]any{"nodeRef": map[string]any{"kind": "Node", "name": node}}
	})
}

func (r roleRig) pool(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
		"metadata": map[string]any{"name": name, "resourceVersion": "5"},
	}}
}

func (r roleRig) node(n int, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "resourceVersion": "6", "labels": map[string]any{labelMaster: ""}},
		"spec":     map[string]any{"providerID": fmt.Sprintf("aws:///us-east-1a/i-%017d", n)},
	}}
}

// listed is the list in the status after the roles were evaluated.
func (r roleRig) listed() []string {
	r.Helper()
	if _, err := r.controller.Reconcile(r.Context(), reconcile.Request{}); err != nil {
		r.Fatal(err)
	}
	if names, known := r.controller.ControlPlaneNodes(*r.status); known {
		*r.status = names
	}
	return *r.status
}

func (r roleRig) want(what string, names ...string) {
	r.Helper()
	if got := r.listed(); !slices.Equal(got, names) {
		r.Errorf("%s: the status lists %v, want %v", what, got, names)
	}
}

func forbiddenKind(k kind) error {
	return kerrors.NewForbidden(schema.GroupResource{Group: k.Group, Resource: k.Resource}, "",
		errors.New("no role allows it"))
}

func TestNodeRoles_ListStaysWhileThePoolsAreNotRead(t *testing.T) {
	r := newRoleRig(t, "master-0")
	pools := r.watching(t, poolKind, "")
	r.want("pools not read yet", "master-0")
	pools.Fail(forbiddenKind(poolKind))
	r.want("pools forbidden", "master-0")

	pools.list(t, 5, r.pool("master"))
	r.watching(t, machineAPIKind, "m").list(t, 9, r.machine(1, "master", "master-1"))
	r.want("pools read", "master-1")
	pools.Fail(forbiddenKind(poolKind))
	r.watching(t, machineAPIKind, "m").list(t, 9, r.machine(1, "master", "master-1"), r.machine(2, "master", "master-2"))
	r.want("pools read once, then forbidden", "master-1", "master-2")

	pools.Absent()
	r.want("the cluster has no pools")
}

func TestPoolsThatAreReadTriggerTheEvaluationOfRoles(t *testing.T) {
	r := newRoleRig(t)
	pools := r.watching(t, poolKind, "")
	master := types.NamespacedName{Name: "master"}
	for what, change := range map[string]func(){
		"a pool comes":           func() { pools.Put(&sources.Object{NamespacedName: master}) },
		"a pool goes":            func() { pools.Drop(master) },
		"all pools were read":    func() { pools.Listed() },
		"the kind is not served": func() { pools.Absent() },
	} {
		queue := priorityqueue.New[reconcile.Request]("roles")
		if err := r.Triggers.NodeRoles.Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		one, _ := queue.Get() // of the start
		queue.Done(one)
		change()
		asked := make(chan bool)
		go func() {
			_, stopped := queue.Get()
			asked <- !stopped
		}()
		select {
		case <-asked:
		case <-time.After(2 * time.Minute):
			t.Errorf("%s: the roles are not evaluated", what)
		}
		queue.ShutDown()
	}
}

// The Node of a certificate is evidence of a role that its machine's pool does not have.
func TestRemovedCertificate_TriggersTheEvaluationOfRoles(t *testing.T) {
	r := newRoleRig(t)
	r.watching(t, poolKind, "").list(t, 5, r.pool("master"))
	m := r.machine(1, "worker", "")
	r.watching(t, machineAPIKind, "m").list(t, 6, m)
	r.watching(t, nodeKind, "").list(t, 7, r.node(9, "impostor"))
	records := r.watching(t, attestationKind, "m")
	records.list(t, 8, roleRecord(string(m.GetUID()), m.GetName(), "worker", "impostor"))
	evaluated := false
	r.Machines.o.RolesChanged = func() { evaluated = true }
	cleared := roleRecord(string(m.GetUID()), m.GetName(), "worker", "")
	cleared.SetResourceVersion("9")
	records.receive(t, cleared)
	if !evaluated {
		t.Error("only the next interval does")
	}
}

func TestNodeRoles_ForbiddenNamespaceStopsOnlyRemovals(t *testing.T) {
	r := newRoleRig(t, "hidden", "master-0")
	r.watching(t, poolKind, "").list(t, 5, r.pool("master"))
	r.watching(t, nodeKind, "").list(t, 7, r.node(2, "impostor"), r.node(9, "unknown"))
	r.watching(t, machineAPIKind, "m").list(t, 9, r.machine(1, "master", "master-1"), r.machine(2, "worker", "impostor"))
	hosts := r.watching(t, hostKind, "m")
	hosts.Fail(forbiddenKind(hostKind))
	r.want("forbidden", "hidden", "master-0", "master-1")
	if m := r.controller.Findings(); len(m) > 0 {
		t.Errorf("mismatches are reported: %v", m)
	}

	*r.status = []string{"hidden"}
	many := make([]*unstructured.Unstructured, noderole.MaxAllowed+1)
	for i := range many {
		many[i] = r.machine(i, "master", fmt.Sprintf("master-%03d", i))
	}
	r.watching(t, machineAPIKind, "m").list(t, 1000, many...)
	if got := r.listed(); len(got) != noderole.MaxAllowed || !slices.Contains(got, "hidden") {
		t.Errorf("too many Nodes: %d are listed, hidden %v", len(got), slices.Contains(got, "hidden"))
	}
}

func TestControlPlane_IsUnknownWhileThePoolsAreNotRead(t *testing.T) {
	r := newRoleRig(t)
	pools := r.watching(t, poolKind, "")
	want := func(what string, nodes int, known bool) {
		t.Helper()
		if all, ok := r.ControlPlane(); len(all) != nodes || ok != known {
			t.Errorf("%s: %d Nodes, known %v", what, len(all), ok)
		}
	}
	r.watching(t, nodeKind, "").list(t, 7, r.node(1, "master-0"))
	want("pools not read yet", 0, false)
	pools.Fail(forbiddenKind(poolKind))
	want("pools forbidden", 0, false)
	pools.list(t, 5, r.pool("master"))
	want("pools read", 1, true)
	pools.Fail(forbiddenKind(poolKind))
	want("pools read once, then forbidden", 1, true)
	pools.Absent()
	want("the cluster has no pools", 0, true)
}

// A Machine of the control plane that attested for another pool is of that pool.
func TestNodeRoles_TheRecordDecidesAlsoOverAPlannedMachine(t *testing.T) {
	r := newRoleRig(t)
	r.watching(t, poolKind, "").list(t, 5, r.pool("master"))
	m := r.machine(1, "master", "impostor")
	r.watching(t, machineAPIKind, "m").list(t, 9, m)
	r.watching(t, nodeKind, "").list(t, 7, r.node(1, "impostor"))
	uid := string(m.GetUID())
	r.watching(t, attestationKind, "m").list(t, 10, roleRecord(uid, m.GetName(), "worker", ""))
	in, _, known := r.NodeRoles()
	out := noderole.Evaluate(in)
	if !known || out.Mismatched[uid] != (noderole.Mismatch{Node: "impostor", Pool: "worker"}) || len(out.Allowed) > 0 {
		t.Errorf("known %t, %+v of %+v", known, out, in)
	}
}

// roleRecord is the record of a Machine, with the pool that it attested for and the Node of its certificate.
func roleRecord(uid, machine, pool, node string) *unstructured.Unstructured {
	status := map[string]any{"machineUID": uid, "pool": pool}
	if node != "" {
		status["certificate"] = map[string]any{"node": node}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"namespace": "m", "name": uid, "uid": "record-" + uid, "resourceVersion": "8"},
		"spec":     map[string]any{"machineRef": map[string]any{"name": machine}},
		"status":   status,
	}}
}

// The process that attests machines can change the status of each record.
func TestNodeRoles_ARecordGivesNoControlPlaneRole(t *testing.T) {
	r := newRoleRig(t)
	r.watching(t, poolKind, "").list(t, 5, r.pool("master"))
	worker, master := r.machine(1, "worker", ""), r.machine(2, "master", "master-0")
	delete(worker.Object, "status")
	r.watching(t, machineAPIKind, "m").list(t, 9, worker, master)
	r.watching(t, attestationKind, "m").list(t, 10,
		roleRecord(string(worker.GetUID()), worker.GetName(), "master", "of-a-worker"),
		roleRecord(string(master.GetUID()), master.GetName(), "master", "of-a-master"),
		roleRecord("unknown", "unknown", "master", "of-an-unknown-machine"))
	r.want("forged records of the pool master", "master-0")

	r.watching(t, nodeKind, "").list(t, 11, r.node(1, "impostor"))
	in, _, _ := r.NodeRoles()
	if out := noderole.Evaluate(in); out.Mismatched[string(worker.GetUID())].Node != "impostor" {
		t.Errorf("a forged pool hides the role of a worker: %+v", out)
	}
}

// What a record says of one Machine does not count against the Node of another one.
func TestNodeRoles_ARecordCannotClaimAnotherMachinesNode(t *testing.T) {
	r := newRoleRig(t)
	r.watching(t, poolKind, "").list(t, 5, r.pool("master"))
	worker, master := r.machine(1, "worker", "impostor"), r.machine(2, "master", "master-0")
	r.watching(t, machineAPIKind, "m").list(t, 9, worker, master)
	nodes := r.watching(t, nodeKind, "")
	nodes.list(t, 10, r.node(2, "master-0"), r.node(9, "impostor"))
	r.watching(t, attestationKind, "m").list(t, 11,
		roleRecord(string(worker.GetUID()), worker.GetName(), "worker", "master-0"),
		roleRecord("unknown", "unknown", "worker", "master-0"))
	in, _, _ := r.NodeRoles()
	out := noderole.Evaluate(in)
	if !slices.Equal(out.Allowed, []string{"master-0"}) {
		t.Errorf("forged certificates for the Node of another Machine: %v is allowed", out.Allowed)
	}
	if len(out.Mismatched) != 1 || out.Mismatched[string(worker.GetUID())].Node != "impostor" {
		t.Errorf("a forged certificate hides the Node of a worker: %+v", out)
	}
}

// A machine in both Machine APIs has one record, which the older object names. The Node of the other object counts for
// that record, or the controller would set and clear its condition without end.
func TestNodeRoles_AMachineInBothAPIsIsReportedOnItsRecord(t *testing.T) {
	r := newRoleRig(t)
	r.watching(t, poolKind, "").list(t, 5, r.pool("master"))
	older, mirror := r.machine(1, "worker", ""), r.machine(2, "worker", "impostor")
	delete(older.Object, "status")
	older.Object["spec"].(map[string]any)["authoritativeAPI"] = "ClusterAPI"
	mirror.SetAPIVersion("cluster.x-k8s.io/v1beta1")
	mirror.SetName(older.GetName())
	mirror.SetCreationTimestamp(metav1.NewTime(older.GetCreationTimestamp().Add(time.Hour)))
	mirror.Object["spec"] = map[string]any{"providerID": older.Object["spec"].(map[string]any)["providerID"]}
	r.watching(t, machineAPIKind, "m").list(t, 9, older)
	r.watching(t, clusterAPIKind, "m").list(t, 10, mirror)
	r.watching(t, nodeKind, "").list(t, 7, r.node(1, "impostor"))
	uid := string(older.GetUID())
	record := roleRecord(uid, older.GetName(), "worker", "")
	record.Object["status"].(map[string]any)["conditions"] = []any{
		map[string]any{"type": v1alpha1.ConditionRoleMismatch, "status": "True"}}
	r.watching(t, attestationKind, "m").list(t, 11, record)
	in, reported, known := r.NodeRoles()
	out := noderole.Evaluate(in)
	if !known || !slices.Equal(reported, []string{uid}) || len(out.Mismatched) != 1 ||
		out.Mismatched[uid] != (noderole.Mismatch{Node: "impostor", Pool: "worker"}) {
		t.Errorf("known %t, reported %v, %+v of %+v", known, reported, out, in)
	}
}
