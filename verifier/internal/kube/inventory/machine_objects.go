// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/noderole"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// compactMachine reduces a Machine to the fields that attestation needs. If its annotations cannot be
// used, it keeps the other fields.
func compactMachine(o client.Object) (any, []manifest.Problem) {
	found, problems := machine.FromObject(fields(o))
	if len(found.Machines) == 0 {
		problems = orProblem(problems, "no Machine")
		if m, ok := machine.FromUnannotated(fields(o)); ok {
			return m, problems
		}
		return nil, problems
	}
	return found.Machines[0], problems
}

// fields returns the fields of an object of the verifier's own kinds or of the kinds of Machines, as in
// the API. They are not decoded before, because the parser for files parses them: it rejects fields of
// a newer version, which a decoder drops.
func fields(o client.Object) map[string]any {
	u, _ := o.(*unstructured.Unstructured)
	return u.Object
}

func orProblem(problems []manifest.Problem, what string) []manifest.Problem {
	if manifest.Failed(problems) {
		return problems
	}
	return append(problems, manifest.Problem{What: what})
}

func (ms *Machines) putMachine(o *sources.Object) []manifest.Problem {
	if m, ok := o.Value.(machine.Machine); ok {
		m.Namespace, m.Name = o.Namespace, o.Name // shares one copy of each
		if m, ok = ms.o.Admit(m); !ok {
			group, _, _ := strings.Cut(m.APIVersion, "/")
			ms.dropMachine(group)(o.NamespacedName)
			return o.Problems
		}
		ms.registry.PutMachine(m)
		ms.dropMisplaced(m.UID)
		ms.nameIndex.put(&m)
		ms.plan(plannedOf(&m))
		ms.o.Trigger.Enqueue(kube.PriorityChange, kube.Request(m.UID))
	}
	return o.Problems
}

// advanceMachine updates a Machine whose annotations cannot be used, so that it does not seem to wait
// for its first boot after it has joined or was deleted.
func (ms *Machines) advanceMachine(o *sources.Object) bool {
	m, ok := o.Value.(machine.Machine)
	if !ok {
		return false
	}
	m.Namespace, m.Name = o.Namespace, o.Name
	if m, ok = ms.o.Admit(m); !ok {
		return false
	}
	ms.nameIndex.put(&m)
	ms.plan(plannedOf(&m))
	ms.o.Trigger.Enqueue(kube.PriorityChange, kube.Request(m.UID))
	return ms.registry.Advance(m)
}

func (ms *Machines) dropMachine(group string) func(types.NamespacedName) {
	return func(n types.NamespacedName) {
		k := keyOf(n)
		uid := ms.registry.DeleteMachine(group, k.namespace, k.name)
		ms.nameIndex.drop(group, k)
		ms.plan(plannedKey{group, k}, nil)
		// The API server's garbage collector often deletes the record soon.
		if uid != "" {
			ms.o.Trigger.EnqueueAfter(time.Second, kube.PriorityChange, kube.Request(uid))
		}
	}
}

// nothing is the value of an object that can be used but has no content.
type nothing struct{}

func compactEnrollment(o client.Object) (any, []manifest.Problem) {
	found, problems := machine.FromObject(fields(o))
	switch {
	case manifest.Failed(problems):
		return nil, problems
	case len(found.Enrollments) == 0:
		return nothing{}, problems
	}
	return found.Enrollments[0], problems
}

func (ms *Machines) putHost(o *sources.Object) []manifest.Problem {
	e, ok := o.Value.(machine.Enrollment)
	if ok {
		e, ok = ms.o.AdmitEnrollment(e)
	}
	if ok {
		ms.registry.PutEnrollment(e)
	} else {
		ms.registry.DeleteHost(o.Namespace, o.Name)
	}
	return o.Problems
}

func (ms *Machines) dropHost(n types.NamespacedName) { ms.registry.DeleteHost(n.Namespace, n.Name) }

// attestation is a MachineAttestation: the administrator's part, and the recorded state that is needed
// to compare the record with its Machine.
type attestation struct {
	enrollment *machine.Enrollment // nil if it waits for approval
	uid        string              // of the Machine whose record it is; "" if it is not a record
	latch      latch
	condition  bool                         // its condition Accepted is not True
	tokenID    string                       // of the attestation token that the machine may use
	whole      *v1alpha1.MachineAttestation // nil unless it is kept
}

// readAttestation is compactAttestation, with the whole object if the web page shows it.
func (ms *Machines) readAttestation(o client.Object) (any, []manifest.Problem) {
	value, problems := compactAttestation(o)
	if a, ok := value.(attestation); ok {
		a.whole = ms.observed.decode(o)
		value = a
	}
	return value, problems
}

func compactAttestation(o client.Object) (any, []manifest.Problem) {
	object := fields(o)
	found, problems := machine.FromObject(object)
	if manifest.Failed(problems) {
		return unusableOf(o), problems
	}
	var a attestation
	if len(found.Enrollments) > 0 {
		a.enrollment = &found.Enrollments[0]
	}
	status, _, _ := unstructured.NestedMap(object, "status")
	a.latch.joined = status["phase"] == string(v1alpha1.PhaseJoined)
	a.latch.quarantined, _ = status["quarantined"].(bool)
	if s, ok := status["grantUsed"].(string); ok {
		if until, err := time.Parse(time.RFC3339, s); err == nil {
			n, _ := status["grantAttestations"].(int64)
			a.latch.grant = &grant{until, int32(min(n, 1<<20))}
		}
	}
	if uid, _ := status["machineUID"].(string); mayRecord(o, uid) {
		a.uid = uid
	}
	if a.uid == "" {
		// The record was created in advance, and nothing was recorded yet.
		for _, owner := range o.GetOwnerReferences() {
			if string(owner.UID) == o.GetName() {
				a.uid = o.GetName()
			}
		}
	}
	a.tokenID, a.latch.requests = tokenOf(status), requests(status)
	a.latch.pool, _ = status["pool"].(string)
	a.latch.node, _, _ = unstructured.NestedString(status, "certificate", "node")
	a.latch.used, _, _ = unstructured.NestedBool(status, "certificate", "used")
	_, requested := status["certificateRequest"].(map[string]any)
	a.latch.certified = requested && a.latch.node != ""
	a.latch.credentials, a.latch.unrevoked = liveCredentials(status, time.Now())
	if rehearsal, ok := status["rehearsal"].(map[string]any); ok {
		text, _ := rehearsal["time"].(string)
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			a.latch.rehearsed, a.latch.failed = at.Unix(), rehearsal["passed"] != true
		}
	}
	conditions, _ := status["conditions"].([]any)
	for _, x := range conditions {
		m, _ := x.(map[string]any)
		switch {
		case m["type"] == v1alpha1.ConditionAccepted && m["status"] != "True":
			a.condition = true
		case m["type"] == restore.ConditionQuarantined && m["status"] == "True" && m["reason"] == restore.Reason:
			a.latch.restored = true
		case m["type"] == v1alpha1.ConditionRoleMismatch && m["status"] == "True":
			a.latch.mismatch = true
		}
	}
	return a, problems
}

// mayRecord reports whether an object can be the record of a UID. The processes that attest machines
// can change each status, so only the object's name or its own UID count.
func mayRecord(o client.Object, uid string) bool {
	return uid == o.GetName() || uid == string(o.GetUID()) ||
		record.IsBreakGlass(uid) && o.GetName() == "break-glass-"+strings.TrimPrefix(uid, record.BreakGlassUID(""))
}

// mayStop identifies the Machine that an unusable MachineAttestation may quarantine.
type mayStop struct {
	none    bool
	machine key // the zero value means any Machine
}

// unusableOf returns the Machine that an unusable MachineAttestation may quarantine.
func unusableOf(o client.Object) mayStop {
	on, _, err := unstructured.NestedBool(fields(o), "spec", "quarantined")
	if err == nil && !on {
		return mayStop{none: true}
	}
	ref, named, err := unstructured.NestedMap(fields(o), "spec", "machineRef")
	switch {
	case err != nil:
		return mayStop{}
	case !named: // the object stands in for a Machine
		return mayStop{machine: key{o.GetNamespace(), o.GetName()}}
	}
	name, _ := ref["name"].(string)
	namespace, _ := ref["namespace"].(string)
	if name == "" {
		return mayStop{}
	}
	return mayStop{machine: key{cmp.Or(namespace, o.GetNamespace()), name}}
}

// tokenOf returns the id of the attestation token of a machine that attested, has not joined and is not quarantined.
func tokenOf(status map[string]any) string {
	phase, _ := status["phase"].(string)
	quarantined, _ := status["quarantined"].(bool)
	if quarantined || phase != string(v1alpha1.PhaseAttested) && phase != string(v1alpha1.PhaseFetched) {
		return ""
	}
	id, _, _ := unstructured.NestedString(status, "token", "id")
	return id
}

// requests reports whether a machine requested its node's certificate and has not received it.
func requests(status map[string]any) bool {
	_, requested := status["certificateRequest"].(map[string]any)
	issued, _, _ := unstructured.NestedString(status, "certificate", "issued")
	return requested && issued == ""
}

// liveCredentials returns the ids of the bootstrap credentials that have not expired, and whether any
// of them was not revoked.
func liveCredentials(status map[string]any, now time.Time) (ids []string, unrevoked bool) {
	all, _ := status["credentials"].([]any)
	for _, x := range all {
		m, _ := x.(map[string]any)
		id, _ := m["id"].(string)
		ends, _ := m["expiry"].(string)
		if at, err := time.Parse(time.RFC3339, ends); id != "" && err == nil && now.Before(at) {
			ids = append(ids, id)
			revoked, _ := m["revoked"].(bool)
			unrevoked = unrevoked || !revoked
		}
	}
	return ids, unrevoked
}

func (ms *Machines) putAttestation(o *sources.Object) []manifest.Problem {
	a, ok := o.Value.(attestation)
	if !ok {
		return o.Problems
	}
	ms.observed.put(o.NamespacedName, a.whole)
	at := keyOf(o.NamespacedName)
	if a.enrollment != nil {
		if e, ok := ms.o.AdmitEnrollment(*a.enrollment); ok {
			a.enrollment = &e
		} else {
			a.enrollment = nil
		}
	}
	var former *v1alpha1.MachineReference
	if a.enrollment != nil {
		former = ms.registry.PutEnrollment(*a.enrollment)
	} else {
		former = ms.registry.DeleteEnrollment(o.Namespace, o.Name)
	}
	a.latch.key, a.latch.pool = at, ms.intern(a.latch.pool)
	uid := a.uid
	standIn := a.enrollment != nil && a.enrollment.Spec.MachineRef == nil
	var next *planned
	if standIn && a.enrollment.Spec.Pool == noderole.Pool {
		next = &planned{o.UID, []string{o.Name}}
	}
	ms.plan(plannedKey{v1alpha1.GroupVersion.Group, at}, next)
	if standIn {
		uid = o.UID // a stand-in is its own record
	}
	if uid == o.Name { // as for most records
		uid = o.Name // shares one copy of the text
	}
	if uid != "" && ms.misplaced(uid, at) {
		uid = ""
	}
	if uid != "" {
		ms.mu.Lock()
		if former, ok := ms.latchOf(at); ok && former != uid {
			ms.dropLatch(former)
		}
		before := ms.latches[uid]
		ms.replaceCredentials(uid, before.credentials, a.latch.credentials)
		ms.latches[uid] = a.latch
		if uid != o.Name {
			ms.otherNames[at] = uid
		}
		ms.mu.Unlock()
		isPlanned, isNode := ms.controlPlane.has(uid, a.latch.node)
		_, wasNode := ms.controlPlane.has(uid, before.node)
		if before.pool != a.latch.pool && (isPlanned || a.latch.pool == noderole.Pool) ||
			before.node != a.latch.node && a.latch.pool == noderole.Pool ||
			isNode || wasNode || before.mismatch != a.latch.mismatch {
			ms.o.RolesChanged()
		}
		ms.o.Recorded(uid, a.latch)
		ms.o.Trigger.Enqueue(kube.PriorityChange, kube.Request(uid))
		ms.o.Token(uid, a.tokenID)
		if a.latch.requests {
			ms.o.Requested(uid)
		}
	}
	ms.o.Rejected(o.NamespacedName, a.condition)
	var ref *v1alpha1.MachineReference
	if a.enrollment != nil {
		ref = a.enrollment.Spec.MachineRef
	}
	if ref != nil && uid == "" {
		ms.enrolled(ref)
	}
	if former != nil && (ref == nil || *former != *ref) {
		ms.enrolled(former) // its quarantine or grant is no longer in force
	}
	return o.Problems
}

func (ms *Machines) dropAttestation(n types.NamespacedName) {
	ms.observed.drop(n)
	ms.o.Rejected(n, false)
	k := keyOf(n)
	ref := ms.registry.DeleteEnrollment(k.namespace, k.name)
	ms.plan(plannedKey{v1alpha1.GroupVersion.Group, k}, nil)
	if uid, ok := ms.dropRecord(k); ok {
		ms.o.Trigger.Enqueue(kube.PriorityChange, kube.Request(uid))
		ms.o.Token(uid, "")
	}
	if ref != nil { // its quarantine or grant is no longer in force
		ms.enrolled(ref)
	}
}

// latchOf returns the UID of the latch that was read from an object. The caller holds the lock.
func (ms *Machines) latchOf(k key) (uid string, ok bool) {
	if uid, ok = ms.otherNames[k]; !ok {
		uid = k.name
	}
	return uid, ms.latches[uid].key == k
}

// dropLatch deletes a latch. The caller holds the lock.
func (ms *Machines) dropLatch(uid string) {
	l := ms.latches[uid]
	ms.replaceCredentials(uid, l.credentials, nil)
	if ms.o.Revocable && l.unrevoked {
		ms.orphan(uid, l.credentials, ms.o.Now())
	}
	delete(ms.latches, uid)
	delete(ms.otherNames, l.key)
}

// dropRecord deletes a record that was deleted, and returns the UID of its Machine.
func (ms *Machines) dropRecord(k key) (uid string, ok bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if uid, ok = ms.latchOf(k); ok {
		ms.dropLatch(uid)
	}
	return uid, ok
}

// enrolled requests a comparison of the records of the Machines that an enrollment names.
func (ms *Machines) enrolled(ref *v1alpha1.MachineReference) {
	if !ms.o.Trigger.Running() {
		return
	}
	for _, m := range ms.registry.ByName(ref.Namespace, ref.Name) {
		ms.o.Trigger.Enqueue(kube.PriorityChange, kube.Request(m.UID))
	}
}
