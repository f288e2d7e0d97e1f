package approver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

// clockSkew is by how much the clocks that write creation times may differ.
const clockSkew = 10 * time.Second

// client checks a request for a client certificate. Those marked * are made with
// attestation alone; those marked + are what a request that proves whose it is
// (Proven) is denied for.
//
//   - credential*: a record has the request's credential, which has not ended
//     (CSRCredential)
//   - limit: not too many of the same machine wait, or without attestation of all
//     (CSRLimit)
//   - quarantine*: no administrator stopped the machine (Quarantined)
//   - groups: exactly those of the node bootstrapper (CSRRequester)
//   - content+: O is system:nodes alone, CN a node's, no other names, the usages a
//     client's (CSRContent)
//   - switch: the approval of client certificates is not switched off (CSRDisabled)
//   - owner*+: the name is that of the machine whose credential made the request
//     (CSROtherMachine). While the machine that received it has no name yet, this is
//     not known (MachineNotFound): one that is gone may have had the name before
//   - node: no Node has the name (CSRNodeExists)
//   - machine: exactly one Machine has the name as an InternalDNS address, or one
//     stand-in is called so (MachineNotFound, MachineAmbiguous)
//   - joined: the Machine has no Node yet (MachineJoined), and is not being deleted*
//     (MachineDeleting)
//   - age: the request was made from 10 seconds before the Machine's creation to
//     MaxMachineAge after it, both excluded (MachineTooOld)
//   - newest*: the machine has not asked again since with another key: a kubelet that
//     did has thrown this one away (CSRLimit)
//   - key*: the record takes the certificate: no other key, no other name was approved
//     or attested before (CSRKeyChanged, MachineJoined). A key on the record counts as
//     approved, unless no request with it was; with no Node either, it is replaced.
//     A client of the API that may write records can clear that key. So no request for
//     the name with another key may have been approved since the Machine was created,
//     or with one other key while the spec of the record grants another attestation
//   - enrollments*: no other object quarantines the machine (Quarantined). A quarantine
//     reaches the record a moment after an administrator wrote it
//
// A stand-in has no age: it is made long before its machine is. What bounds the time
// is the life of the credential.
func (x *run) client() error {
	for _, step := range []func() error{
		x.credential, x.limit, x.quarantine, x.groups, x.clientContent, x.disabled, x.machine, x.newest, x.key, x.enrollments,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (x *run) credential() error {
	const name = "credential"
	if !x.c.Attestation {
		x.skip(name, "attestation is off")
		return nil
	}
	id := x.r.CredentialID
	if id == "" {
		return x.check(name, reason.Deny(reason.CSRCredential, "the API server names no credential of the request"), "")
	}
	rec, err := x.w.RecordByCredential(x.ctx, id)
	switch {
	case err != nil:
		return x.check(name, unread(err, "reading the record of the credential"), "")
	case rec == nil:
		return x.check(name, reason.Deny(reason.CSRCredential, "no record has the credential %.253q", id), "")
	}
	own, live := record.Credential(rec, id, x.now)
	if !live {
		return x.check(name, reason.Deny(reason.CSRCredential, "%s", over(rec, id)), "")
	}
	x.record, x.RecordUID, x.Proven = rec, rec.Status.MachineUID, true
	return x.check(name, nil, "%s, made for %s, lasts until %s", id, ofRecord(rec), own.Expiry.UTC().Format(time.RFC3339))
}

// over says why a credential of a record counts no more.
func over(rec *v1alpha1.MachineAttestation, id string) string {
	for _, c := range rec.Status.Credentials {
		if c.ID == id {
			if c.Revoked {
				return fmt.Sprintf("the credential %.253q of %s was revoked", id, ofRecord(rec))
			}
			return fmt.Sprintf("the credential %.253q of %s ended at %s", id, ofRecord(rec), c.Expiry.UTC().Format(time.RFC3339))
		}
	}
	return fmt.Sprintf("the record of %s does not have the credential %.253q any more", ofRecord(rec), id)
}

// ofRecord names the Machine of a record as an administrator does: a record's own
// name is a UID.
func ofRecord(rec *v1alpha1.MachineAttestation) string {
	if ref := rec.Spec.MachineRef; ref != nil {
		return cmp.Or(ref.Namespace, rec.Namespace) + "/" + ref.Name
	}
	return rec.Namespace + "/" + rec.Name
}

func (x *run) quarantine() error {
	if !x.c.Attestation {
		return nil
	}
	var err error
	if x.record.Spec.Quarantined || x.record.Status.Quarantined {
		err = reason.Deny(reason.Quarantined, "%s", ofRecord(x.record))
	}
	return x.check("quarantine", err, "no")
}

// enrollments reads what quarantines a machine now. It is the last check: it reads
// more than all the others together.
func (x *run) enrollments() error {
	if !x.c.Attestation {
		return nil
	}
	machines := x.found
	if x.Machine != nil {
		machines = append(slices.Clone(machines), *x.Machine)
	}
	return x.stoppedBy(machines, x.record)
}

// stoppedBy denies what belongs to a machine that an enrollment quarantines.
func (x *run) stoppedBy(machines []Machine, records ...*v1alpha1.MachineAttestation) error {
	const name = "enrollments"
	var namespaces []string
	for i := range machines {
		namespaces = append(namespaces, machines[i].Namespace)
	}
	for _, rec := range records {
		if rec != nil {
			namespaces = append(namespaces, rec.Namespace)
		}
	}
	all, err := x.w.Quarantines(x.ctx, namespaces)
	if err != nil {
		return x.check(name, unread(err, "reading the MachineAttestations"), "")
	}
	for i := range all {
		if stops(&all[i], machines, records) {
			return x.check(name, reason.Deny(reason.Quarantined, "by MachineAttestation %s/%s", all[i].Namespace, all[i].Name),
				"")
		}
	}
	return x.check(name, nil, "none quarantines the machine")
}

// stops reports whether an enrollment quarantines a machine: it names one of its
// objects, is one of them, or names its TPM or its instance. The API of a machineRef is
// not compared: one machine may be an object of both APIs.
func stops(e *v1alpha1.MachineAttestation, machines []Machine, records []*v1alpha1.MachineAttestation) bool {
	if !e.Spec.Quarantined {
		return false
	}
	names := func(namespace, name string) bool {
		if ref := e.Spec.MachineRef; ref != nil {
			return cmp.Or(ref.Namespace, e.Namespace) == namespace && ref.Name == name
		}
		return e.Namespace == namespace && e.Name == name
	}
	instance := machine.NormalProviderID(e.Spec.ExpectedProviderID)
	is := func(providerID string) bool {
		return instance != "" && instance == machine.NormalProviderID(providerID)
	}
	for i := range machines {
		if m := &machines[i]; names(m.Namespace, m.Name) || is(m.ProviderID) {
			return true
		}
	}
	for _, rec := range records {
		if rec == nil {
			continue
		}
		namespace, name := rec.Namespace, rec.Name
		if ref := rec.Spec.MachineRef; ref != nil {
			namespace, name = cmp.Or(ref.Namespace, namespace), ref.Name
		}
		ek := rec.Status.Identity.EKSHA256
		if names(namespace, name) || is(rec.Status.Identity.ProviderID) ||
			ek != "" && slices.ContainsFunc(e.Spec.EKSHA256, func(s string) bool { return strings.EqualFold(s, ek) }) {
			return true
		}
	}
	return false
}

func (x *run) groups() error {
	want, _ := x.c.bootstrapper(x.r.Username)
	var err error
	if !slices.Equal(sorted(x.r.Groups), sorted(want)) {
		err = reason.Deny(reason.CSRRequester, "the groups are %.20q; they must be %q", x.r.Groups, want)
	}
	return x.check("groups", err, "%s", strings.Join(want, ", "))
}

// sorted is a set: what is there twice is there once.
func sorted(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }

func (x *run) clientContent() error {
	err := x.subject()
	if err == nil {
		err = x.usages(clientUsages)
	}
	if csr := x.r.CSR; err == nil && len(csr.DNSNames)+len(csr.IPAddresses) > 0 {
		err = reason.Deny(reason.CSRContent, "the request has names or addresses (%.5q); a client certificate has none",
			sans(csr.DNSNames, csr.IPAddresses))
	}
	x.contradicts = err != nil && x.Proven
	return x.check("content", err, "CN %s%s", nodePrefix, x.Node)
}

func (x *run) disabled() error {
	off, err := x.w.Disabled(x.ctx)
	if err != nil {
		err = unread(err, "reading the approver's switch")
	} else if off {
		err = reason.Deny(reason.CSRDisabled, "nodeClientCert.disabled is set")
	}
	return x.check("switch", err, "on")
}

// machine is owner, node, machine, joined and age.
func (x *run) machine() error {
	found, err := x.w.MachinesByInternalDNS(x.ctx, x.Node)
	if err != nil {
		return x.check("machine", unread(err, "reading the Machines with the name %.253q", x.Node), "")
	}
	// What leads to them may be older than they are.
	found = slices.DeleteFunc(slices.Clone(found), func(m Machine) bool { return !m.named(x.Node) })
	x.found = found
	if err := x.owner(found); err != nil {
		return err
	}
	exists, err := x.w.Node(x.ctx, x.Node)
	if err != nil {
		err = unread(err, "reading Node %.253q", x.Node)
	} else if exists {
		err = reason.Deny(reason.CSRNodeExists, "%s", x.Node)
	}
	if err := x.check("node", err, "there is no Node %s yet", x.Node); err != nil {
		return err
	}
	m, err := one(found)
	if m != nil {
		x.Machine = m
	} else if err == nil {
		err = reason.Deny(reason.MachineNotFound, "no Machine has the InternalDNS address %q", x.Node)
	}
	if err := x.check("machine", err, "%s", m); err != nil {
		return err
	}
	switch {
	case m.NodeRef != "":
		err = reason.Deny(reason.MachineJoined, "%s %s is Node %.253q", m.Kind, m, m.NodeRef)
	case m.Deleting && x.c.Attestation:
		err = reason.Deny(reason.MachineDeleting, "%s %s", m.Kind, m)
	}
	if err := x.check("joined", err, "%s has no Node yet", m); err != nil {
		return err
	}
	return x.age(m)
}

// owner is whether the name in the request is that of the machine which received
// the credential.
func (x *run) owner(found []Machine) error {
	if !x.c.Attestation || len(found) == 0 {
		return nil
	}
	for i := range found {
		if found[i].UID != "" && found[i].UID == x.RecordUID {
			return x.check("owner", nil, "the credential was made for %s", &found[i])
		}
	}
	other := &found[0]
	x.Machine = other
	own, err := x.w.MachineOf(x.ctx, x.record)
	switch {
	case err != nil:
		err = unread(err, "reading the Machine of %s/%s", x.record.Namespace, x.record.Name)
	case own == nil:
		err = reason.Deny(reason.MachineNotFound, "the name is that of %s %s; the Machine of %s/%s is not there", other.Kind,
			other, x.record.Namespace, x.record.Name)
	case own.named(x.Node):
		err = reason.Deny(reason.MachineAmbiguous, "the name is that of %s %s and of %s %s", other.Kind, other, own.Kind, own)
	case !own.hasInternalDNS():
		err = reason.Deny(reason.MachineNotFound,
			"the name is that of %s %s; %s %s, which the credential was made for, has no InternalDNS address yet", other.Kind,
			other, own.Kind, own)
	}
	if err != nil {
		return x.check("owner", err, "")
	}
	recorded := machine.NormalProviderID(x.record.Status.Identity.ProviderID)
	// An instance has two Machines while it moves to Cluster API: not a lie.
	x.contradicts = recorded == "" || recorded != machine.NormalProviderID(other.ProviderID)
	return x.check("owner", reason.Deny(reason.CSROtherMachine,
		"the name is that of %s %s, the credential was made for %s", other.Kind, other, ofRecord(x.record)), "")
}

func (x *run) age(m *Machine) error {
	if m.StandIn {
		x.skip("age", "a stand-in has none")
		return nil
	}
	after := x.r.Created.Sub(m.Created)
	var err error
	if after <= -clockSkew || after >= x.c.MaxMachineAge {
		err = reason.Deny(reason.MachineTooOld, "the request was made %v after %s %s was; from -%v to %v is allowed",
			after.Round(time.Second), m.Kind, m, clockSkew, x.c.MaxMachineAge)
	}
	return x.check("age", err, "the request was made %v after the Machine", after.Round(time.Second))
}

// newest is whether the machine waits for this request. A kubelet that asks again
// does so with a key of its own that it has just made, and nobody has the one before:
// that must not become the only key which the record takes.
func (x *run) newest() error {
	const name = "newest"
	if !x.c.Attestation {
		return nil
	}
	newer, err := x.w.Newer(x.ctx, x.r, x.record)
	if err != nil {
		return x.check(name, unread(err, "reading the newer requests of the machine"), "")
	}
	for _, n := range newer {
		if !x.mayReplace(n) {
			continue
		}
		if c := x.record.Status.Certificate; c != nil && c.PublicKeySHA256 == x.PublicKeySHA256 {
			approved, err := x.pinned()
			if err != nil {
				return x.check(name, err, "")
			}
			if approved {
				break // and it is the newer one that has no prospects
			}
		}
		return x.check(name, reason.Deny(reason.CSRLimit,
			"superseded: the machine has asked again since, with another key (%.253s); this one waits until that is decided",
			n.Name), "")
	}
	return x.check(name, nil, "the machine has not asked again since with another key")
}

// mayReplace is whether another request could be the machine's first in place of
// this one: what would be refused for its own content stands in nobody's way.
func (x *run) mayReplace(n *Request) bool {
	if n.Kind != Client || n.Decided || n.CSR == nil || n.Node() != x.Node || n.PublicKeySHA256 == x.PublicKeySHA256 {
		return false
	}
	if attested := x.record.Status.CSRKeySHA256; attested != "" && attested != n.PublicKeySHA256 {
		return false
	}
	_, live := record.Credential(x.record, n.CredentialID, x.now)
	_, ours := x.c.bootstrapper(n.Username)
	its := &run{Decision: &Decision{Node: n.Node()}, r: n, c: x.c}
	return live && ours && its.groups() == nil && its.clientContent() == nil
}

// pinned is whether a request with the key on the record was approved.
func (x *run) pinned() (bool, error) {
	all, err := x.w.Pinned(x.ctx, x.record)
	if err != nil {
		return false, unread(err, "looking for the request that was approved before")
	}
	return slices.ContainsFunc(all, func(r *Request) bool { return r.Approved }), nil
}

// key asks the record itself, which is asked again when the approval is written.
func (x *run) key() error {
	if !x.c.Attestation {
		return nil
	}
	c := x.Certificate(x.r.Name)
	_, err := record.Approve(x.record, c, x.now)
	how := "the first of this machine"
	switch s := x.record.Status; {
	case s.Certificate != nil && s.Certificate.PublicKeySHA256 != c.PublicKeySHA256:
		was := s.Certificate.PublicKeySHA256
		if _, may := record.Reapprove(x.record, was, c, x.now); may != nil {
			break // it would not even if that one had never been approved
		}
		approved, unread := x.pinned()
		if unread != nil {
			err = unread
		} else if !approved {
			err, x.Replaces = nil, was
			how = fmt.Sprintf("in place of %s, whose request %.253s nobody approved", was, s.Certificate.Request)
		}
	case s.Certificate != nil:
		how = "approved before"
	case s.CSRKeySHA256 != "":
		how = "the one that was attested"
	}
	if err == nil {
		err = x.issued()
	}
	return x.check("key", err, "%s", how)
}
