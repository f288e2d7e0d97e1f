// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

func TestMachineInBothAPIs_HasOneRecord(t *testing.T) {
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

// A kubelet that the agent gave its certificate makes no request by which the record could join. Without a
// cloud controller the Node has no provider ID, so only its name shows the join (rule 11 of
// docs/security-rules.md). The record of the machine may come before or after the Node.
func TestAttack_T73_ANodeWithTheCertificateHasJoined(t *testing.T) {
	c := unconnected(t)
	m := object(1, 1, func(o map[string]any) { delete(o["spec"].(map[string]any), "providerID") })
	uid := string(m.GetUID())
	c.watching(t, machineAPIKind, "m").list(t, 8, m)
	nodes, own := c.watching(t, nodeKind, ""), c.watching(t, attestationKind, "m")
	node := func(name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": name, "resourceVersion": "9"}}}
	}
	put := func(version string, change func(status map[string]any)) {
		t.Helper()
		rec := roleRecord(uid, m.GetName(), "worker", "worker-0")
		rec.SetResourceVersion(version)
		status, _ := rec.Object["status"].(map[string]any)
		status["phase"], status["certificateRequest"] = "Fetched", map[string]any{"token": "t1"}
		change(status)
		own.receive(t, rec)
	}
	want := func(what string, step record.Step, node string) {
		t.Helper()
		if got, m := c.Compare(uid); got != step || m == nil || m.NodeRef != node {
			t.Errorf("%s: step %v, %+v", what, got, m)
		}
	}
	own.list(t, 8)
	put("9", func(map[string]any) {})
	want("no Node", record.StepNone, "")
	nodes.list(t, 9, node("worker-1"))
	want("another Node", record.StepNone, "")

	trigger := &c.Triggers.MachineRecord
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	if err := trigger.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	nodes.receive(t, node("worker-0"))
	one, _ := queue.Get()
	queue.Done(one)
	if one.Name != uid {
		t.Errorf("%q is reconciled", one.Name)
	}
	want("its Node", record.StepJoin, "worker-0")
	put("10", func(status map[string]any) { delete(status, "certificateRequest") })
	want("a kubelet's own request", record.StepUse, "worker-0")
	put("11", func(status map[string]any) { delete(status, "certificate") })
	want("it attested again", record.StepNone, "")
	put("12", func(status map[string]any) { status["phase"] = "Joined" })
	want("it joined, and its certificate is not recorded as used", record.StepUse, "worker-0")
	if l, _ := c.latch(uid); l.remembered() != (rule.Latch{Joined: true, Certificate: rule.UnusedCertificate}) {
		t.Errorf("%+v", l)
	}
	put("12", func(status map[string]any) {
		status["phase"], status["certificate"].(map[string]any)["used"] = "Joined", true
	})
	want("it joined", record.StepNone, "worker-0")
	if l, _ := c.latch(uid); l.remembered() != (rule.Latch{Joined: true, Certificate: rule.UsedCertificate}) {
		t.Errorf("a restore of etcd would lose %+v", l.remembered())
	}
	put("13", func(map[string]any) {})
	want("the record after its Node", record.StepJoin, "worker-0")
	nodes.remove(node("worker-0"))
	want("a Node that was deleted", record.StepNone, "")
}

// The API server's own clean-up may delete a record before the watch reports that its Machine was deleted.
func TestInventory_ReconcilesADeletedMachineWithoutARecord(t *testing.T) {
	trigger := &kube.Trigger{}
	ms := newMachines(machinesOptions{
		Registry: machine.NewRegistry(nil), Now: time.Now, Revocable: true, Trigger: trigger,
		Token: func(string, string) {}, RolesChanged: func() {}, Rejected: func(types.NamespacedName, bool) {},
	})
	machinerecord.New(machinerecord.Options{Trigger: trigger, Inventory: ms})
	name := types.NamespacedName{Namespace: "m", Name: "one"}
	ms.registry.PutMachine(machine.Machine{APIVersion: "machine.openshift.io/v1beta1", Namespace: "m", Name: "one",
		UID: "u", NodeRef: "n"})
	ms.latches["u"] = latch{key: key{"m", "u"}, joined: true, credentials: []string{"JTI=one"}, unrevoked: true}
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	if err := trigger.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	ms.dropAttestation(types.NamespacedName{Namespace: "m", Name: "u"})
	one, _ := queue.Get()
	queue.Done(one)
	ms.dropMachine("machine.openshift.io")(name)
	one, priority, _ := queue.GetWithPriority()
	if step, _ := ms.Compare(one.Name); one.Name != "u" || priority != kube.PriorityJoin || step != record.StepDelete {
		t.Errorf("%q with priority %d, step %v", one.Name, priority, step)
	}
	if all := ms.Orphaned("u"); len(all) != 1 || all[0].ID != "JTI=one" {
		t.Errorf("to be revoked: %v", all)
	}
}

// A Machine is deleted with its record while no replica leads. The next leader revokes its credentials.
func TestInventory_ANewLeaderReconcilesAMachineThatWasDeletedBefore(t *testing.T) {
	now := time.Now()
	ms := newMachines(machinesOptions{
		Registry: machine.NewRegistry(nil), Now: func() time.Time { return now }, Revocable: true, Trigger: &kube.Trigger{},
		Token: func(string, string) {}, RolesChanged: func() {}, Rejected: func(types.NamespacedName, bool) {},
	})
	for _, uid := range []string{"u", "exists"} {
		ms.latches[uid] = latch{key: key{"m", uid}, credentials: []string{"JTI=" + uid}, unrevoked: true}
		ms.dropAttestation(types.NamespacedName{Namespace: "m", Name: uid})
	}
	ms.registry.PutMachine(machine.Machine{APIVersion: "machine.openshift.io/v1beta1", Namespace: "m", Name: "one",
		UID: "exists", NodeRef: "n"}) // an administrator deleted its record
	if all := ms.OutOfLine(); !slices.Equal(all, []string{"u"}) {
		t.Errorf("to be reconciled: %q", all)
	}
	// A replica that never leads does not remember credentials that have expired.
	now = now.Add(24*time.Hour + time.Minute)
	if all := ms.OutOfLine(); len(all) > 0 {
		t.Errorf("to be reconciled after all credentials have expired: %q", all)
	}
	for i := range maxOrphaned + 1 {
		ms.orphan(fmt.Sprint(i), []string{"JTI=new"}, now)
	}
	if n := len(ms.OutOfLine()); n != maxOrphaned || len(ms.Orphaned("u")) > 0 {
		t.Errorf("%d Machines, %v of the first", n, ms.Orphaned("u"))
	}
}

// A quarantine ends with the object that demands it, and not with the next comparison of all Machines.
func TestInventory_ReconcilesAMachineWhoseQuarantineIsDeleted(t *testing.T) {
	trigger := &kube.Trigger{}
	ms := newMachines(machinesOptions{
		Registry: machine.NewRegistry(nil), Now: time.Now, Trigger: trigger, Token: func(string, string) {},
		RolesChanged: func() {}, Rejected: func(types.NamespacedName, bool) {},
	})
	ms.registry.PutMachine(machine.Machine{APIVersion: "machine.openshift.io/v1beta1", Namespace: "m", Name: "one",
		UID: "u"})
	e, err := machine.NewEnrollment(v1alpha1.MachineAttestation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "stop"},
		Spec: v1alpha1.MachineAttestationSpec{MachineRef: &v1alpha1.MachineReference{Namespace: "m", Name: "one"},
			Quarantined: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	ms.registry.PutEnrollment(e)
	ms.latches["u"] = latch{key: key{"m", "u"}, quarantined: true}
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	if err := trigger.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	ms.dropAttestation(types.NamespacedName{Namespace: "m", Name: "stop"})
	for deadline := time.Now().Add(time.Minute); queue.Len() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the Machine is not reconciled")
		}
	}
	one, _ := queue.Get()
	queue.Done(one)
	if step, _ := ms.Compare(one.Name); one.Name != "u" || step != record.StepRelease {
		t.Errorf("%q, step %v", one.Name, step)
	}
}

// It also ends if the object then names another Machine.
func TestInventory_ReconcilesAMachineWhoseQuarantineIsGivenToAnother(t *testing.T) {
	r := newRoleRig(t)
	one, other := object(1, 1, nil), object(2, 2, nil)
	r.watching(t, machineAPIKind, "m").list(t, 9, one, other)
	stop := func(version, machine string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
			"metadata": map[string]any{"namespace": "m", "name": "stop", "uid": "s", "resourceVersion": version},
			"spec":     map[string]any{"machineRef": map[string]any{"name": machine}, "quarantined": true},
		}}
	}
	attestations := r.watching(t, attestationKind, "m")
	attestations.list(t, 10, stop("10", one.GetName()))
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	if err := r.Triggers.MachineRecord.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	attestations.receive(t, stop("11", other.GetName()))
	requested := map[string]bool{}
	for deadline := time.Now().Add(time.Minute); len(requested) < 2 && time.Now().Before(deadline); {
		if queue.Len() == 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		request, _ := queue.Get()
		queue.Done(request)
		requested[request.Name] = true
	}
	if !requested[string(one.GetUID())] || !requested[string(other.GetUID())] {
		t.Errorf("requested %v", requested)
	}
}

// Records and Machines are read at the same time. A forged object may come after the record and before the Machine.
func TestInventory_DropsAForgedRecordReadBeforeItsMachine(t *testing.T) {
	c := unconnected(t)
	m := object(1, 1, nil)
	own := roleRecord(string(m.GetUID()), m.GetName(), "worker", "")
	forged := own.DeepCopy()
	forged.SetNamespace("own")
	_ = unstructured.SetNestedField(forged.Object, true, "status", "quarantined")
	c.watching(t, attestationKind, "m").list(t, 8, own)
	c.watching(t, attestationKind, "own").list(t, 8, forged)
	c.watching(t, machineAPIKind, "m").list(t, 8, m)
	if l, ok := c.latch(string(m.GetUID())); ok {
		t.Errorf("the latch of %v counts: %+v", l.key, l)
	}
	own.SetResourceVersion("9")
	c.watching(t, attestationKind, "m").receive(t, own)
	c.watching(t, machineAPIKind, "m").list(t, 9, object(1, 9, nil))
	if l, ok := c.latch(string(m.GetUID())); !ok || l.namespace != "m" {
		t.Errorf("the latch of the record does not count: %v, %+v", ok, l)
	}
}

// A restore may raise the revision. Then only an older object shows it.
func TestAttack_T58_ALiveReadOfARestoredRecordShowsTheRestore(t *testing.T) {
	m := object(1, 1, nil)
	live := roleRecord(string(m.GetUID()), m.GetName(), "worker", "")
	live.SetOwnerReferences([]metav1.OwnerReference{{UID: m.GetUID(), Name: m.GetName(), Kind: m.GetKind(),
		APIVersion: m.GetAPIVersion()}})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(live)
	}))
	defer api.Close()
	c, err := New(&rest.Config{Host: api.URL}, config.Kubernetes{Namespace: "own", MachineNamespaces: []string{"m"}},
		Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.watching(t, machineAPIKind, "m").list(t, 8, m)
	cached := live.DeepCopy()
	cached.SetResourceVersion("8")
	c.watching(t, attestationKind, "m").list(t, 8, cached)
	for _, version := range []string{"9", "8"} {
		live.SetResourceVersion(version)
		if _, err := c.Records().Record(t.Context(), string(m.GetUID())); err != nil || c.guard.Epoch() != 0 {
			t.Errorf("version %s: %v, %d restores", version, err, c.guard.Epoch())
		}
	}
	live.SetResourceVersion("7")
	_, err = c.Records().Record(t.Context(), string(m.GetUID()))
	if !errors.Is(err, store.ErrRestored) || c.guard.Epoch() != 1 {
		t.Errorf("an earlier version: %v, %d restores", err, c.guard.Epoch())
	}
}

// Any object with a status could take the place of a Machine's record, and its quarantine with it.
func TestInventory_LatchesOnlyTheRecordNamedByItsMachine(t *testing.T) {
	c := unconnected(t)
	records := c.watching(t, attestationKind, "m")
	version := uint64(10)
	object := func(name, uid, machineUID, machine string, quarantined bool) *unstructured.Unstructured {
		o := roleRecord(machineUID, machine, "worker", "")
		o.SetName(name)
		o.SetUID(types.UID(uid))
		_ = unstructured.SetNestedField(o.Object, quarantined, "status", "quarantined")
		if machine == "" {
			o.Object["spec"] = map[string]any{"pool": "worker", "expectedProviderID": "aws:///z/i-stand-in"}
		}
		return o
	}
	want := func(what string, uids ...string) {
		t.Helper()
		c.Machines.mu.Lock()
		defer c.Machines.mu.Unlock()
		if got := slices.Sorted(maps.Keys(c.latches)); !slices.Equal(got, uids) {
			t.Errorf("%s: latches of %v, want %v", what, got, uids)
		}
		if l, ok := c.latches["u"]; ok && !l.quarantined {
			t.Errorf("%s: the quarantine is lost", what)
		}
	}
	list := func(all ...*unstructured.Unstructured) {
		t.Helper()
		version++
		for _, o := range all {
			o.SetResourceVersion(strconv.FormatUint(version, 10))
		}
		records.list(t, version, all...)
	}
	own := func() *unstructured.Unstructured { return object("u", "object", "u", "one", true) }
	list(own())
	want("the Machine's own record", "u")
	list(own(), object("enrollment", "other", "u", "one", false))
	want("an enrollment with the UID of the Machine", "u")
	list(own(), object("enrollment", "other", "made-up", "one", false))
	want("an enrollment with another UID", "u")

	standIn := func(uid, machineUID string) *unstructured.Unstructured {
		return object("stand-in", uid, machineUID, "", false)
	}
	list(own(), standIn("first", "first"), object("first", "forged", "first", "one", false))
	want("an object that is named by the UID of a stand-in", "first", "u")
	if l, _ := c.latch("first"); l.name != "stand-in" {
		t.Errorf("the latch of the stand-in is that of %s", l.name)
	}
	list(own(), standIn("second", "u"))
	want("a stand-in that was created again", "second", "u")
	list(own())
	want("a stand-in that was deleted", "u")
	list(own(), object("break-glass-b", "token", record.BreakGlassUID("b"), "one", false))
	want("a break-glass token", record.BreakGlassUID("b"), "u")
}
