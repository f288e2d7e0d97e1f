// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The registry has the same results as an index of everything, after any changes: Machines
// that share instances and TPMs, mirrors, enrollments of all kinds. There are few names, so
// that collisions occur.
func TestRegistry_AgreesWithTheIndex(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		r := NewRegistry(nil)
		machines, enrollments, nodes := map[string]Machine{}, map[string]Enrollment{}, map[string]string{}
		for range 40 {
			switch rnd.IntN(8) {
			case 0:
				for k, m := range machines {
					r.DeleteMachine(m.group(), m.Namespace, m.Name)
					delete(machines, k)
					break
				}
			case 1:
				for k, e := range enrollments {
					if e.kind == kindHost {
						r.DeleteHost(e.Namespace, e.Name)
					} else {
						r.DeleteEnrollment(e.Namespace, e.Name)
					}
					delete(enrollments, k)
					break
				}
			case 2, 3:
				e := randomEnrollment(t, rnd)
				r.PutEnrollment(e)
				enrollments[e.Name] = e
			case 4:
				node, id := fmt.Sprint("node", rnd.IntN(3)), randomProvider(rnd)
				if rnd.IntN(2) == 0 {
					id = ""
				}
				r.PutNode(node, id)
				nodes[node] = id
			default:
				m := randomMachine(rnd)
				r.PutMachine(m)
				machines[m.APIVersion+m.Name] = m
			}
		}
		var all Manifests
		for _, m := range machines {
			m.NodeRef = joined(m.NodeRef, m.ProviderID, nodes)
			all.Machines = append(all.Machines, m)
		}
		for _, e := range enrollments {
			if e.Spec.MachineRef == nil {
				e.node = joined("", e.Spec.ExpectedProviderID, nodes)
			}
			all.Enrollments = append(all.Enrollments, e)
		}
		slices.SortFunc(all.Machines, func(a, b Machine) int { return len(a.UID) - len(b.UID) })
		ix, _ := NewIndex(all, nil)
		for range 50 {
			id := Identity{}
			if rnd.IntN(4) > 0 {
				id.EK = randomEK(rnd)
			}
			if rnd.IntN(2) == 0 {
				id.ProviderIDs = []string{randomProvider(rnd)}
			}
			if rnd.IntN(4) == 0 {
				id.MachineUID = randomUID(rnd)
			}
			rules := Rules{Pool: "worker", Now: modified, MaxAge: 2 * time.Hour, EKEnrolled: rnd.IntN(2) == 0}
			want, wantErr := ix.Match(id, rules)
			got, gotErr := r.Match(id, rules)
			if code(wantErr) != code(gotErr) || fmt.Sprint(want) != fmt.Sprint(got) {
				t.Fatalf("%+v: the index returns %v, %v; the registry %v, %v", id, want, wantErr, got, gotErr)
			}
			if a, b := ix.Enrolled(id.EK), r.Enrolled(id.EK); a != b {
				t.Fatalf("Enrolled: the index returns %v, the registry %v", a, b)
			}
			uid := randomUID(rnd)
			if a, b := ix.Known(uid), r.Known(uid); a != b {
				t.Fatalf("Known: the index returns %v, the registry %v", a, b)
			}
			if a, b := code(ix.Redeemable(uid, "worker", modified)), code(r.Redeemable(uid, "worker", modified)); a != b {
				t.Fatalf("Redeemable: the index returns %v, the registry %v", a, b)
			}
		}
	}
}

func code(err error) reason.Code {
	if err == nil {
		return 0
	}
	return reason.From(err).Code
}

func joined(ref, providerID string, nodes map[string]string) string {
	for _, id := range nodes {
		if ref == "" && id != "" && id == providerID {
			return "a node"
		}
	}
	return ref
}

func randomEK(rnd *rand.Rand) EKHash       { return EKHash{1, byte(rnd.IntN(5))} }
func randomProvider(rnd *rand.Rand) string { return fmt.Sprintf("aws:///z/i-%d", rnd.IntN(4)) }
func randomUID(rnd *rand.Rand) string      { return uids[rnd.IntN(len(uids))] }
func chance(rnd *rand.Rand, n int) bool    { return rnd.IntN(n) == 0 }
func ekText(h EKHash) string               { return hex.EncodeToString(h[:]) }
func uidOf(kind string, i int) string      { return fmt.Sprintf("%s-%d", kind, i) }

var uids = func() (all []string) {
	for _, kind := range []string{"m", "c", "e"} {
		for i := range 4 {
			all = append(all, uidOf(kind, i))
		}
	}
	return all
}()

func randomMachine(rnd *rand.Rand) Machine {
	i := rnd.IntN(4)
	m := Machine{APIVersion: groupMachineAPI + "/v1beta1", Kind: "Machine", Namespace: "ns", Name: fmt.Sprint("worker-",
		i), UID: uidOf("m", i), Created: modified, Pools: []string{"worker"}, authority: authorityMachineAPI}
	if chance(rnd, 3) {
		m.APIVersion, m.UID = groupClusterAPI+"/v1beta2", uidOf("c", i)
	} else if chance(rnd, 4) {
		m.authority = []string{authorityClusterAPI, "Migrating"}[rnd.IntN(2)]
	}
	if chance(rnd, 2) {
		m.ProviderID = randomProvider(rnd)
	}
	if chance(rnd, 3) {
		m.addEK(randomEK(rnd))
	}
	if chance(rnd, 3) {
		m.metal3 = fmt.Sprint("metal-", rnd.IntN(3))
	}
	m.Deleting, m.NodeRef = chance(rnd, 8), []string{"", "", "", "a node"}[rnd.IntN(4)]
	return m
}

func randomEnrollment(t *testing.T, rnd *rand.Rand) Enrollment {
	i := rnd.IntN(4)
	var a v1alpha1.MachineAttestation
	a.Namespace, a.Name, a.UID = "ns", fmt.Sprint("enrollment-", i), types.UID(uidOf("e", i))
	a.CreationTimestamp = metav1.NewTime(modified)
	if chance(rnd, 2) {
		a.Spec.MachineRef = &v1alpha1.MachineReference{Name: fmt.Sprint("worker-", rnd.IntN(4))}
		if chance(rnd, 3) {
			a.Spec.MachineRef.APIVersion = groupMachineAPI + "/v1beta1"
		}
	} else {
		a.Spec.Pool = "worker"
	}
	if chance(rnd, 3) || a.Spec.Pool != "" && chance(rnd, 2) {
		a.Spec.ExpectedProviderID = randomProvider(rnd)
	}
	if a.Spec.ExpectedProviderID == "" || chance(rnd, 2) {
		a.Spec.EKSHA256 = []string{ekText(randomEK(rnd))}
	}
	a.Spec.Quarantined = chance(rnd, 6)
	kind := ""
	if a.Spec.MachineRef != nil && chance(rnd, 2) {
		a.Spec.MachineRef = &v1alpha1.MachineReference{APIVersion: groupInfrastructure + "/v1beta1", Kind: kindMetal3Machine,
			Name: fmt.Sprint("metal-", rnd.IntN(3))}
		if !chance(rnd, 4) { // a MachineAttestation can name no Metal3Machine
			kind, a.Name = kindHost, fmt.Sprint("host-", i)
		}
	}
	e, err := NewEnrollment(a)
	if err != nil {
		t.Fatal(err)
	}
	e.kind = kind
	return e
}

// A BareMetalHost enrolls the TPM of the Machine that consumes it (status row E12). MAC
// address and serial number are ignored.
func TestBareMetalHost_EnrollsItsConsumer(t *testing.T) {
	object := func(change func(o map[string]any)) map[string]any {
		o := map[string]any{
			"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
			"metadata": map[string]any{"namespace": "ns", "name": "rack7", "uid": "h",
				"annotations": map[string]any{v1alpha1.AnnotationEKSHA256: ek1}},
			"spec": map[string]any{"bootMACAddress": "52:54:00:00:00:01",
				"consumerRef": map[string]any{"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "namespace": "ns",
					"name": "worker-1"}},
		}
		change(o)
		return o
	}
	in, problems := FromObject(object(func(map[string]any) {}))
	if len(problems) > 0 || len(in.Enrollments) != 1 {
		t.Fatalf("%v %v", in, problems)
	}
	r := NewRegistry(nil)
	r.PutMachine(Machine{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "ns", Name: "worker-1",
		UID: "u", Created: modified, Pools: []string{"worker"}})
	r.PutEnrollment(in.Enrollments[0])
	id, rules := Identity{EK: hash(t, ek1)}, Rules{Pool: "worker", Now: modified, MaxAge: time.Hour, EKEnrolled: true}
	if m, err := r.Match(id, rules); err != nil || m.UID != "u" {
		t.Fatalf("%v, %v", m, err)
	}
	r.DeleteHost("ns", "rack7")
	if _, err := r.Match(id, rules); code(err) != reason.EKNotEnrolled {
		t.Errorf("the host was deleted: %v", err)
	}
	in, problems = FromObject(object(func(o map[string]any) {
		delete(o["spec"].(map[string]any)["consumerRef"].(map[string]any), "kind")
	}))
	if len(problems) > 0 || len(in.Enrollments) != 1 {
		t.Errorf("a consumer without a kind, which is a Machine: %v %v", in, problems)
	}
	for what, change := range map[string]func(o map[string]any){
		"the consumer has no name": func(o map[string]any) {
			delete(o["spec"].(map[string]any)["consumerRef"].(map[string]any), "name")
		},
		"the consumer is another infrastructure object": func(o map[string]any) {
			ref := o["spec"].(map[string]any)["consumerRef"].(map[string]any)
			ref["apiVersion"], ref["kind"] = groupInfrastructure+"/v1beta1", "Metal3Cluster"
		},
		"it has no consumer": func(o map[string]any) { delete(o["spec"].(map[string]any), "consumerRef") },
		"the consumer is no Machine": func(o map[string]any) {
			o["spec"].(map[string]any)["consumerRef"].(map[string]any)["kind"] = "HostClaim"
		},
		"the consumer is a Metal3Machine of another API group": func(o map[string]any) {
			o["spec"].(map[string]any)["consumerRef"].(map[string]any)["kind"] = "Metal3Machine"
		},
		"no EK": func(o map[string]any) { delete(o["metadata"].(map[string]any), "annotations") },
	} {
		if in, problems := FromObject(object(change)); len(in.Enrollments) > 0 || len(problems) > 0 {
			t.Errorf("%s: %v %v", what, in, problems)
		}
	}
	if _, problems := FromObject(object(func(o map[string]any) {
		o["metadata"].(map[string]any)["annotations"].(map[string]any)[v1alpha1.AnnotationEKSHA256] = "rubbish"
	})); len(problems) == 0 {
		t.Error("an annotation that is no hash was taken")
	}
}

// In Cluster API a Metal3Machine consumes the host, and a Machine's infrastructureRef names
// that Metal3Machine (status row E12). Both versions of the API write the reference.
func TestBareMetalHost_EnrollsTheMachineOfItsMetal3Machine(t *testing.T) {
	const infrastructure = "infrastructure.cluster.x-k8s.io"
	parsed := func(o map[string]any) Manifests {
		t.Helper()
		in, problems := FromObject(o)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return in
	}
	// Each object has a name of its own, so that only the references connect them.
	machine := func(r *Registry, name, version string, ref map[string]any) {
		t.Helper()
		in := parsed(map[string]any{"apiVersion": "cluster.x-k8s.io/" + version, "kind": "Machine",
			"metadata": map[string]any{"namespace": "ns", "name": name, "uid": "uid-of-" + name,
				"creationTimestamp": modified.Format(time.RFC3339)},
			"spec": map[string]any{"clusterName": "c", "infrastructureRef": ref}})
		r.PutMachine(in.Machines[0])
	}
	ref := func(change func(o map[string]any)) map[string]any {
		o := map[string]any{"apiGroup": infrastructure, "kind": "Metal3Machine", "name": "metal-1"}
		if change != nil {
			change(o)
		}
		return o
	}
	host := parsed(map[string]any{"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
		"metadata": map[string]any{"namespace": "ns", "name": "rack7", "uid": "h",
			"annotations": map[string]any{v1alpha1.AnnotationEKSHA256: ek1}},
		"spec": map[string]any{"consumerRef": map[string]any{"apiVersion": infrastructure + "/v1beta1",
			"kind": "Metal3Machine", "namespace": "ns", "name": "metal-1"}}})
	if len(host.Enrollments) != 1 {
		t.Fatal("the host enrolls nothing")
	}
	id, rules := Identity{EK: hash(t, ek1)}, Rules{Pool: "worker", Now: modified, MaxAge: time.Hour, EKEnrolled: true}
	matched := func(r *Registry) (string, reason.Code) {
		m, err := r.Match(id, rules)
		if err != nil {
			return "", code(err)
		}
		return m.Name, 0
	}
	for name, v := range map[string]struct {
		version string
		ref     map[string]any
		want    string
	}{
		"v1beta2": {"v1beta2", ref(nil), "worker-1"},
		"v1beta1": {"v1beta1", map[string]any{"apiVersion": infrastructure + "/v1beta1", "kind": "Metal3Machine",
			"namespace": "ns", "name": "metal-1"}, "worker-1"},
		"another Metal3Machine":       {"v1beta2", ref(func(o map[string]any) { o["name"] = "metal-2" }), ""},
		"of another namespace":        {"v1beta1", ref(func(o map[string]any) { o["namespace"] = "other" }), ""},
		"of another API group":        {"v1beta2", ref(func(o map[string]any) { o["apiGroup"] = "example.com" }), ""},
		"another kind with that name": {"v1beta2", ref(func(o map[string]any) { o["kind"] = "OpenStackMachine" }), ""},
		"no infrastructure":           {"v1beta2", map[string]any{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(nil)
			r.PutEnrollment(host.Enrollments[0])
			machine(r, "worker-1", v.version, v.ref)
			if got, why := matched(r); got != v.want || (why == 0) != (v.want != "") {
				t.Errorf("matched %q, %v", got, why)
			}
		})
	}

	// Two Machines that name one Metal3Machine: the host is neither's.
	r := NewRegistry(nil)
	r.PutEnrollment(host.Enrollments[0])
	machine(r, "worker-1", "v1beta2", ref(nil))
	machine(r, "worker-2", "v1beta2", ref(nil))
	if got, why := matched(r); got != "" {
		t.Errorf("two Machines: matched %q, %v", got, why)
	}
	r.DeleteMachine("cluster.x-k8s.io", "ns", "worker-1")
	if got, why := matched(r); got != "worker-2" {
		t.Errorf("the other one was deleted: matched %q, %v", got, why)
	}
	machine(r, "worker-2", "v1beta2", ref(func(o map[string]any) { o["name"] = "metal-2" }))
	if got, _ := matched(r); got != "" {
		t.Errorf("the Machine has another Metal3Machine: matched %q", got)
	}
	// A host without a Machine is enrolled, so that its machine waits.
	if _, why := matched(r); why != reason.MachineNotFound {
		t.Errorf("denied as %v", why)
	}
}

// The verifier's record, and a status by a newer verifier, are neither an enrollment nor a
// problem.
func TestFromObject_IgnoresTheStatus(t *testing.T) {
	in, problems := FromObject(map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"namespace": "ns", "name": "u"},
		"spec":     map[string]any{"machineRef": map[string]any{"name": "worker-1"}},
		"status":   map[string]any{"fieldOfTomorrow": true},
	})
	if len(problems) > 0 || len(in.Enrollments) != 1 || !in.Enrollments[0].empty() {
		t.Errorf("%v %v", in, problems)
	}
	in, problems = FromObject(map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"namespace": "ns", "name": v1alpha1.PendingPrefix + "0011223344556677"},
	})
	if len(problems) > 0 || len(in.Enrollments) != 0 {
		t.Errorf("one that waits: %v %v", in, problems)
	}
}

// What is not JSON is a problem, never half an object.
func TestFromObject_ReportsTheFault(t *testing.T) {
	in, problems := FromObject(map[string]any{"apiVersion": groupMachineAPI + "/v1beta1", "kind": "Machine",
		"metadata": map[string]any{"name": "m"}, "spec": math.NaN()})
	if len(in.Machines) > 0 || len(problems) != 1 || !strings.Contains(problems[0].What, "convert to JSON") {
		t.Errorf("%v %v", in, problems)
	}
	_, err := NewEnrollment(v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}})
	if err == nil || !strings.Contains(err.Error(), "MachineAttestation ns/e: spec: neither machineRef nor pool") {
		t.Errorf("%v", err)
	}
}

// A Machine whose annotations became invalid keeps its progress: what it may do only shrinks.
func TestRegistry_Advance(t *testing.T) {
	object := func(with func(o map[string]any)) map[string]any {
		o := map[string]any{"apiVersion": groupMachineAPI + "/v1beta1", "kind": "Machine",
			"metadata": map[string]any{"namespace": "ns", "name": "worker-0", "uid": "u",
				"annotations": map[string]any{v1alpha1.AnnotationEKSHA256: "rubbish"}},
			"status": map[string]any{"phase": "Provisioned"}}
		with(o)
		return o
	}
	known := Machine{APIVersion: groupMachineAPI + "/v1beta1", Kind: "Machine", Namespace: "ns", Name: "worker-0",
		UID: "u", Phase: "Provisioned", Pools: []string{"worker"}}
	deleting, joined := known, known
	deleting.Deleting, joined.NodeRef, joined.Phase = true, "node-0", "Running"
	for name, c := range map[string]struct {
		before Machine
		later  func(o map[string]any)
		want   *Machine // nil: not in the registry
	}{
		"nothing happened": {known, func(map[string]any) {}, &known},
		"it is being deleted": {known, func(o map[string]any) {
			o["metadata"].(map[string]any)["deletionTimestamp"] = modified.Format(time.RFC3339)
		}, &deleting},
		"it was being deleted": {deleting, func(map[string]any) {}, &deleting},
		"it joined": {known, func(o map[string]any) {
			o["status"] = map[string]any{"nodeRef": map[string]any{"name": "node-0"}, "phase": "Running"}
		}, &joined},
		"its reference is empty": {joined, func(map[string]any) {}, &joined},
		"it was created again": {known, func(o map[string]any) {
			o["metadata"].(map[string]any)["uid"] = "another"
		}, nil},
		"another Machine": {known, func(o map[string]any) { o["metadata"].(map[string]any)["name"] = "worker-1" }, &known},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(c.later)
			later, ok := FromUnannotated(o)
			if !ok || len(later.EKSHA256) > 0 || o["metadata"].(map[string]any)["annotations"] == nil {
				t.Fatalf("%+v, %v; the object %v", later, ok, o)
			}
			r := NewRegistry(nil)
			r.PutMachine(c.before)
			if has := r.Advance(later); has != (c.want != nil && later.Name == "worker-0") {
				t.Errorf("the registry has it: %v", has)
			}
			if c.want == nil && r.Len() != 0 || c.want != nil && !r.HasMachine(*c.want) {
				t.Errorf("%d Machines, %v", r.Len(), r.ByName("ns", "worker-0"))
			}
		})
	}
	for name, o := range map[string]map[string]any{
		"no metadata":  {"apiVersion": groupMachineAPI + "/v1beta1", "kind": "Machine"},
		"another kind": {"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s"}},
		"no Machine":   {"apiVersion": "metal3.io/v1alpha1", "kind": kindHost, "metadata": map[string]any{"name": "h"}},
	} {
		if m, ok := FromUnannotated(o); ok {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// The registry returns what it was given, and no longer what was deleted.
func TestRegistry_Contents(t *testing.T) {
	m := Machine{APIVersion: groupMachineAPI + "/v1beta1", Kind: "Machine", Namespace: "ns", Name: "worker-0", UID: "u",
		Created: time.Unix(1, 2), Undated: true, Deleting: true, Phase: "Provisioned", NodeRef: "node-0",
		ProviderID: "azure:///X", Pools: []string{"infra", "worker"}, EKSHA256: []string{ek1, ek2},
		UserDataSecret: "s", authority: authorityMachineAPI, metal3: "metal-0"}
	never := m
	never.Name, never.UID, never.Created, never.NodeRef, never.ProviderID = "worker-1", "u1", time.Time{}, "", ""
	e, err := NewEnrollment(v1alpha1.MachineAttestation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rack-0", UID: "e", ResourceVersion: "1"},
		Spec:       v1alpha1.MachineAttestationSpec{Pool: "worker", EKSHA256: []string{ek3}},
		Status:     v1alpha1.MachineAttestationStatus{Pool: "worker"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRegistry(nil)
	contents := func() (machines []Machine, enrollments []string) {
		r.Each(func(m Machine) { machines = append(machines, m) },
			func(e *Enrollment) { enrollments = append(enrollments, e.Name+e.Status.Pool+e.ResourceVersion) })
		slices.SortFunc(machines, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
		return machines, enrollments
	}
	r.PutMachine(m)
	r.PutMachine(never)
	r.PutEnrollment(e)
	machines, enrollments := contents()
	if !reflect.DeepEqual(machines, []Machine{m, never}) || !slices.Equal(enrollments, []string{"rack-0"}) {
		t.Errorf("Each: %+v %v", machines, enrollments)
	}
	if all := r.All().Machines(); len(all) != 3 || r.Len() != 2 {
		t.Errorf("All: %v, Len %d", all, r.Len())
	}
	uids := r.UIDs()
	if slices.Sort(uids); !slices.Equal(uids, []string{"e", "u", "u1"}) {
		t.Errorf("UIDs: %v", uids)
	}
	for name, uid := range map[string]string{"worker-0": "u", "worker-1": "u1", "rack-0": "e", "worker-2": ""} {
		found := r.ByName("ns", name)
		if len(found) == 1 && found[0].UID != uid || (len(found) == 0) != (uid == "") {
			t.Errorf("ByName %s: %v", name, found)
		}
	}
	every := func(string) bool { return true }
	if got := r.WithNodes(every); !maps.Equal(got, map[string]string{"u": "node-0"}) {
		t.Errorf("WithNodes: %v", got)
	}
	if got := r.WithNodes(func(node string) bool { return node == "node-1" }); len(got) != 0 {
		t.Errorf("WithNodes, another: %v", got)
	}
	changed := m
	changed.Pools = []string{"worker"}
	if !r.HasMachine(m) || !r.HasMachine(never) || r.HasMachine(changed) {
		t.Error("HasMachine of what it has, or of another state")
	}
	newer := e // a status is no change
	newer.Status.Pool, newer.ResourceVersion = "infra", "2"
	if !r.HasEnrollment(e) || !r.HasEnrollment(newer) ||
		r.HasEnrollment(e.WithSpec(v1alpha1.MachineAttestationSpec{Pool: "infra", EKSHA256: []string{ek3}})) {
		t.Error("HasEnrollment of what it has, or of another state")
	}
	r.DeleteMachine(m.group(), "ns", "worker-0")
	r.DeleteEnrollment("ns", "rack-0")
	if machines, enrollments = contents(); len(machines) != 1 || len(enrollments) != 0 ||
		r.HasMachine(m) || r.HasEnrollment(e) || len(r.ByName("ns", "rack-0")) != 0 {
		t.Errorf("after a deletion: %v %v", machines, enrollments)
	}
}

// An object that adds nothing to its Machine is not stored, but one that only restricts is.
func TestRegistry_EmptyEnrollments(t *testing.T) {
	type spec = v1alpha1.MachineAttestationSpec
	ref := &v1alpha1.MachineReference{Namespace: "ns", Name: "worker-0"}
	put := func(s spec) (*Registry, Enrollment) {
		r := NewRegistry(nil)
		e, err := NewEnrollment(v1alpha1.MachineAttestation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e", UID: "e"},
			Spec:       spec{MachineRef: ref, EKSHA256: []string{ek1}}})
		if err != nil {
			t.Fatal(err)
		}
		r.PutEnrollment(e)
		e = e.WithSpec(s)
		r.PutEnrollment(e)
		if r.Enrolled(hash(t, ek1)) {
			t.Errorf("%+v: the former EK is enrolled", s)
		}
		return r, e
	}
	for name, c := range map[string]struct {
		spec   spec
		stored int
	}{
		"a record without enrollment": {spec{MachineRef: ref}, 0},
		"an EK":                       {spec{MachineRef: ref, EKSHA256: []string{ek2}}, 1},
		"an instance":                 {spec{MachineRef: ref, ExpectedProviderID: instance}, 1},
		"a quarantine":                {spec{MachineRef: ref, Quarantined: true}, 1},
		"a grant":                     {spec{MachineRef: ref, Reattest: until(time.Hour)}, 1},
		"a stand-in":                  {spec{Pool: "worker"}, 1},
	} {
		r, e := put(c.spec)
		stored := 0
		r.Each(func(Machine) {}, func(*Enrollment) { stored++ })
		if stored != c.stored || !r.HasEnrollment(e) || r.Enrolled(hash(t, ek2)) != (name == "an EK") {
			t.Errorf("%s: %d are stored, it has it: %v", name, stored, r.HasEnrollment(e))
		}
	}
	r, quarantine := put(spec{MachineRef: ref, Quarantined: true})
	if NewRegistry(nil).HasEnrollment(quarantine) || r.HasEnrollment(quarantine.WithSpec(spec{MachineRef: ref})) {
		t.Error("an empty registry has a quarantine, or another one has its end")
	}
}

// An enrollment that is found in two ways applies once.
func TestRegistry_FindsAnEnrollmentOnce(t *testing.T) {
	w := newFixture(t)
	r := NewRegistry(nil)
	r.PutMachine(*w.m)
	w.enroll(t, func(s *v1alpha1.MachineAttestationSpec) { s.ExpectedProviderID = instance })
	r.PutEnrollment(w.in.Enrollments[0])
	if m, _ := r.All().ByUID(w.m.UID); len(m.expected) != 1 {
		t.Errorf("it expects %q", m.expected)
	}
}

func TestRegistry_Nodes(t *testing.T) {
	r := NewRegistry(nil)
	m := Machine{APIVersion: groupMachineAPI + "/v1beta1", Kind: "Machine", Namespace: "ns", Name: "worker-0", UID: "u",
		ProviderID: "azure:///X"}
	r.PutMachine(m)
	r.PutNode("node-0", "")
	r.PutNode("node-1", "azure:///x")
	if m, _ := r.ByUID("u"); !r.HasNode("node-0") || !r.HasNode("node-1") || r.Nodes() != 2 || m.NodeRef != "node-1" {
		t.Errorf("%d Nodes, the Machine's is %q", r.Nodes(), m.NodeRef)
	}
	r.DeleteNode("node-1")
	r.DeleteNode("node-1")
	if m, _ := r.ByUID("u"); r.HasNode("node-1") || r.Nodes() != 1 || m.NodeRef != "" {
		t.Errorf("%d Nodes, the Machine's is %q", r.Nodes(), m.NodeRef)
	}
}

// Equal fields of many Machines need the memory of one, and unequal ones do not add up.
func TestRegistry_SharesFields(t *testing.T) {
	r := NewRegistry(nil)
	for i := range 10_001 {
		m := Machine{APIVersion: groupMachineAPI + "/v1beta1", Namespace: "ns", Name: fmt.Sprint(i), UID: fmt.Sprint(i),
			UserDataSecret: fmt.Sprint(i / 2)}
		r.PutMachine(m)
	}
	shared := func(i int) *sharedFields {
		return r.machines[name{groupMachineAPI, "ns", fmt.Sprint(i)}].sharedFields
	}
	if shared(0) != shared(1) || shared(1) == shared(2) {
		t.Error("equal fields are stored twice, or unequal ones once")
	}
	for i := range 10_001 {
		r.PutMachine(Machine{APIVersion: groupMachineAPI + "/v1beta1", Namespace: "ns", Name: "x", Phase: fmt.Sprint(i)})
	}
	if len(r.shared) != 10_000 {
		t.Errorf("%d entries", len(r.shared))
	}
}

func BenchmarkRegistryMatch(b *testing.B) {
	for _, n := range []int{10, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := NewRegistry(nil)
			for i := range n {
				m := Machine{APIVersion: groupMachineAPI + "/v1beta1", Kind: "Machine", Namespace: "openshift-machine-api",
					Name: fmt.Sprintf("worker-%06d", i), UID: fmt.Sprintf("%036d", i), Created: modified, Pools: []string{"worker"},
					ProviderID: fmt.Sprintf("aws:///us-east-1a/i-%017x", i)}
				m.addEK(EKHash{1, byte(i >> 16), byte(i >> 8), byte(i)})
				r.PutMachine(m)
			}
			rules := Rules{Pool: "worker", Now: modified, MaxAge: time.Hour, EKEnrolled: true}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 7919) % n
				if _, err := r.Match(Identity{EK: EKHash{1, byte(i >> 16), byte(i >> 8), byte(i)}}, rules); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The memory of one Machine among 100 000, and of one that has joined and has a Node.
func BenchmarkRegistryMemory(b *testing.B) {
	const n = 100_000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		r := NewRegistry(nil)
		for i := range n {
			name := fmt.Sprintf("cluster-abcde-worker-us-east-1a-%05d", i)
			m := Machine{
				APIVersion: groupMachineAPI + "/v1beta1", Kind: "Machine", Namespace: "openshift-machine-api", Name: name,
				UID: fmt.Sprintf("%036d", i), Created: modified,
				Phase: "Running", NodeRef: name + ".ec2.internal", Pools: []string{"worker"},
				ProviderID:  fmt.Sprintf("aws:///us-east-1a/i-%017x", i),
				InternalDNS: []string{name + ".ec2.internal"}, Addresses: []string{fmt.Sprint("10.0.0.", i)},
				UserDataSecret: "worker-user-data", authority: authorityMachineAPI,
			}
			m.addEK(EKHash{1, byte(i >> 16), byte(i >> 8), byte(i)})
			r.PutMachine(m)
			r.PutNode(m.NodeRef, m.ProviderID)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(r)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/Machine")
}
