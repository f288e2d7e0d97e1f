// SPDX-License-Identifier: Apache-2.0

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

// clockSkew is the tolerated difference between the clocks that write creation times.
const clockSkew = 10 * time.Second

// client checks a request for a client certificate. Checks marked * are made only with
// attestation. If a check marked + fails, the request is denied if it is Proven.
//
//   - credential*: a record has the request's credential, which has not expired
//     (CSRCredential). If the verifier made the request, attested replaces this check,
//     groups and newest: the record has this request, its machine attested the key, and
//     the token of that attestation is live (CSRCredential, CSRKeyChanged,
//     TokenSuperseded)
//   - limit: not too many requests of the same machine are pending, or of all machines
//     without attestation (CSRLimit)
//   - quarantine*: the machine's record is not quarantined (Quarantined)
//   - groups: exactly those of the node bootstrapper (CSRRequester)
//   - content+: O is only system:nodes, CN is a node's, there are no other names, the
//     usages are those of a client, and the lifetime is not less than an hour* (CSRContent)
//   - switch: the approval of client certificates is not disabled (CSRDisabled)
//   - owner*+: the machine whose credential made the request has the name
//     (CSROtherMachine). Until that machine has a name, this is unknown
//     (MachineNotFound), because a deleted Machine may have had the same name
//   - node: no Node has the name (CSRNodeExists)
//   - machine: exactly one Machine has the name as InternalDNS address, or one stand-in
//     has the name (MachineNotFound, MachineAmbiguous)
//   - joined: the Machine has no Node (MachineJoined), and is not being deleted*
//     (MachineDeleting)
//   - age: the request was made from 10 seconds before the Machine's creation to
//     MaxMachineAge after it, both exclusive (MachineTooOld)
//   - newest*: the machine made no later request with another key, since a kubelet that
//     does has discarded the earlier key (CSRLimit)
//   - key*: the record accepts the certificate: neither another key nor another name was
//     approved or attested (CSRKeyChanged, MachineJoined). A key on the record is
//     replaced if there never was a Node, and no request with it was approved. If there
//     was one, not even the same key is approved again. If no request with it exists
//     anymore, that is known for less than an hour. Because a client that may write
//     records can clear that key, no request for the name with another key may have been
//     approved since the Machine's creation. Exceptions are one other key while the
//     record's spec grants another attestation, and two keys of interrupted first boots,
//     for which the verifier made the requests
//   - enrollments*: no enrollment quarantines the machine (Quarantined). A quarantine
//     reaches the record some time after an administrator wrote it
//
// A stand-in has no age, because it is created long before its machine. The lifetime of
// the credential limits the time instead.
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
	if x.Attested {
		return x.attested()
	}
	id := x.r.CredentialID
	if id == "" {
		return x.check(name, reason.Deny(reason.CSRCredential, "the API server recorded no credential for the request"), "")
	}
	rec, err := x.w.RecordByCredential(x.ctx, id)
	switch {
	case err != nil:
		return x.check(name, unread(err, "read the record of the credential"), "")
	case rec == nil:
		return x.check(name, reason.Deny(reason.CSRCredential, "no record has the credential %.253q", id), "")
	}
	own, live := record.Credential(rec, id, x.now)
	if !live {
		return x.check(name, reason.Deny(reason.CSRCredential, "%s", expired(rec, id)), "")
	}
	x.record, x.RecordUID, x.Proven = rec, rec.Status.MachineUID, true
	return x.check(name, nil, "%s, made for %s, valid until %s", id, ofRecord(rec), own.Expiry.UTC().Format(time.RFC3339))
}

// expired describes why a credential of a record is no longer valid.
func expired(rec *v1alpha1.MachineAttestation, id string) string {
	for _, c := range rec.Status.Credentials {
		if c.ID == id {
			if c.Revoked {
				return fmt.Sprintf("the credential %.253q of %s was revoked", id, ofRecord(rec))
			}
			return fmt.Sprintf("the credential %.253q of %s expired at %s", id, ofRecord(rec),
				c.Expiry.UTC().Format(time.RFC3339))
		}
	}
	return fmt.Sprintf("the record of %s no longer has the credential %.253q", ofRecord(rec), id)
}

// ofRecord returns the name of a record's Machine as administrators know it. The
// record's own name is a UID.
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

// enrollments checks for quarantines that are not on a record yet. It is the last check,
// because it reads more than all others together.
func (x *run) enrollments() error {
	if !x.c.Attestation {
		return nil
	}
	return x.quarantinedBy(x.found, x.record)
}

// quarantinedBy denies the request if an enrollment quarantines one of the machines.
func (x *run) quarantinedBy(machines []Machine, records ...*v1alpha1.MachineAttestation) error {
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
		return x.check(name, unread(err, "read the MachineAttestations"), "")
	}
	for i := range all {
		if quarantines(&all[i], machines, records) {
			return x.check(name, reason.Deny(reason.Quarantined, "by MachineAttestation %s/%s", all[i].Namespace, all[i].Name),
				"")
		}
	}
	return x.check(name, nil, "no enrollment quarantines the machine")
}

// quarantines reports whether an enrollment quarantines one of the machines: it refers to one
// of the objects, is one of them, or has the machine's EK or instance. The API of a
// machineRef is ignored, because one machine may have an object in both APIs.
func quarantines(e *v1alpha1.MachineAttestation, machines []Machine, records []*v1alpha1.MachineAttestation) bool {
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
	if x.Attested { // the user name is unique
		return nil
	}
	want, _ := x.c.bootstrapper(x.r.Username)
	var err error
	if !slices.Equal(sorted(x.r.Groups), sorted(want)) {
		err = reason.Deny(reason.CSRRequester, "the groups are %.253q; they must be %q", few(x.r.Groups), want)
	}
	return x.check("groups", err, "%s", strings.Join(want, ", "))
}

// sorted returns the set of the strings, sorted.
func sorted(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }

func (x *run) clientContent() error {
	err := x.subject()
	if err == nil {
		err = x.usages(clientUsages)
	}
	if csr := x.r.CSR; err == nil && len(csr.DNSNames)+len(csr.IPAddresses) > 0 {
		err = reason.Deny(reason.CSRContent, "the request has names or addresses (%.253q), but a client certificate has none",
			few(sans(csr.DNSNames, csr.IPAddresses)))
	}
	// Kubernetes deletes the request of a certificate that has ended, and with it the proof that it was approved.
	if l := x.r.Lifetime; err == nil && x.c.Attestation && !x.Attested && l != 0 && l < time.Hour {
		err = reason.Deny(reason.CSRContent, "the requested lifetime is %v; it must be at least an hour", l)
	}
	x.contradicts = err != nil && x.Proven
	return x.check("content", err, "CN %s%s", nodePrefix, x.Node)
}

func (x *run) disabled() error {
	off, err := x.w.Disabled(x.ctx)
	if err != nil {
		err = unread(err, "read the approver's switch")
	} else if off {
		err = reason.Deny(reason.CSRDisabled, "nodeClientCert.disabled is set")
	}
	return x.check("switch", err, "on")
}

// machine makes the checks owner, node, machine, joined and age.
func (x *run) machine() error {
	found, err := x.w.MachinesByInternalDNS(x.ctx, x.Node)
	if err != nil {
		return x.check("machine", unread(err, "read the Machines with the name %.253q", x.Node), "")
	}
	// The index that found them may be stale.
	found = slices.DeleteFunc(slices.Clone(found), func(m Machine) bool { return !m.named(x.Node) })
	x.found = found
	if err := x.owner(found); err != nil {
		return err
	}
	exists, err := x.w.Node(x.ctx, x.Node)
	if err != nil {
		err = unread(err, "read Node %.253q", x.Node)
	} else if exists {
		err = reason.Deny(reason.CSRNodeExists, "%s", x.Node)
	}
	if err := x.check("node", err, "no Node %s exists", x.Node); err != nil {
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
		err = reason.Deny(reason.MachineJoined, "%s %s is already Node %.253q", m.Kind, m, m.NodeRef)
	case m.Deleting && x.c.Attestation:
		err = reason.Deny(reason.MachineDeleting, "%s %s", m.Kind, m)
	}
	if err := x.check("joined", err, "%s has no Node", m); err != nil {
		return err
	}
	return x.age(m)
}

// owner checks that the machine that received the credential has the name in the
// request.
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
		err = unread(err, "read the Machine of %s/%s", x.record.Namespace, x.record.Name)
	case own == nil:
		err = reason.Deny(reason.MachineNotFound, "the name is that of %s %s, and the Machine of %s/%s does not exist",
			other.Kind, other, x.record.Namespace, x.record.Name)
	case own.named(x.Node):
		err = reason.Deny(reason.MachineAmbiguous, "the name is that of both %s %s and %s %s", other.Kind, other,
			own.Kind, own)
	case !own.hasInternalDNS():
		err = reason.Deny(reason.MachineNotFound,
			"the name is that of %s %s, but the credential is that of %s %s, which has no InternalDNS address yet", other.Kind,
			other, own.Kind, own)
	}
	if err != nil {
		return x.check("owner", err, "")
	}
	recorded := machine.NormalProviderID(x.record.Status.Identity.ProviderID)
	// While an instance migrates to Cluster API it has two Machines, and the request may be legitimate.
	x.contradicts = recorded == "" || recorded != machine.NormalProviderID(other.ProviderID)
	return x.check("owner", reason.Deny(reason.CSROtherMachine,
		"the name is that of %s %s, but the credential was made for %s", other.Kind, other, ofRecord(x.record)), "")
}

func (x *run) age(m *Machine) error {
	if m.StandIn {
		x.skip("age", "a stand-in has none")
		return nil
	}
	after := x.r.Created.Sub(m.Created)
	var err error
	if after <= -clockSkew || after >= x.c.MaxMachineAge {
		err = reason.Deny(reason.MachineTooOld, "the request was made %v after %s %s was created; allowed is -%v to %v",
			after.Round(time.Second), m.Kind, m, clockSkew, x.c.MaxMachineAge)
	}
	return x.check("age", err, "the request was made %v after the Machine was created", after.Round(time.Second))
}

// newest checks that the machine still waits for this request. A kubelet that makes a
// new request creates a new key and discards the old one. The record must not pin a
// discarded key.
func (x *run) newest() error {
	const name = "newest"
	if !x.c.Attestation || x.Attested { // a record has one request of its machine
		return nil
	}
	newer, err := x.w.Newer(x.ctx, x.r, x.record)
	if err != nil {
		return x.check(name, unread(err, "read the newer requests of the machine"), "")
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
			if approved != "" {
				break // the newer request cannot be approved
			}
		}
		return x.check(name, reason.Deny(reason.CSRLimit,
			"superseded by a newer request of the machine, with another key (%.253s), which must be decided first",
			n.Name), "")
	}
	return x.check(name, nil, "the machine made no newer request with another key")
}

// mayReplace reports whether another request could be approved as the machine's first
// in place of this one. A request with content that would be refused does not count.
func (x *run) mayReplace(n *Request) bool {
	if n.Kind != Client || n.Decided || n.Node() != x.Node || n.PublicKeySHA256 == x.PublicKeySHA256 {
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

// kept is the time after the record of an approval for which the approved request surely exists. Kubernetes deletes it
// an hour after the approval, and clocks may differ.
const kept = 55 * time.Minute

// pinned returns why no other key may replace that on the record, or "" if no request with it was approved. A client
// with the machine's credential can make a copy of a request. So only one that is older than the approval shows that.
func (x *run) pinned() (string, error) {
	c := x.record.Status.Certificate
	if c.Used {
		return "its Node existed", nil
	}
	all, err := x.w.Pinned(x.ctx, x.record)
	if err != nil {
		return "", unread(err, "find the request that was approved before")
	}
	older := false
	for _, r := range all {
		if r.Approved {
			return "its request is approved", nil
		}
		older = older || r.Created.Before(c.Approved.Add(clockSkew))
	}
	if !older && x.now.Sub(c.Approved.Time) > kept {
		return "Kubernetes may have deleted its approved request", nil
	}
	return "", nil
}

// key checks that the record accepts the key. The check is repeated when the approval is recorded.
func (x *run) key() error {
	if !x.c.Attestation {
		return nil
	}
	c := x.Certificate(x.r.Name)
	_, err := record.Approve(x.record, c, x.now)
	if x.Attested {
		_, err = record.Certify(x.record, c, x.now)
	}
	how := "the first of this machine"
	switch s := x.record.Status; {
	case x.Attested:
		how = "the attested one"
	case s.Certificate != nil && s.Certificate.PublicKeySHA256 != c.PublicKeySHA256:
		was := s.Certificate.PublicKeySHA256
		if _, may := record.Reapprove(x.record, was, c, x.now); may != nil {
			break // denied also if that key was never approved
		}
		switch approved, unread := x.pinned(); {
		case unread != nil:
			err = unread
		case approved != "":
			err = reason.Deny(reason.CSRKeyChanged, "the record has a certificate for node %s and the key %s, and %s",
				c.Node, was, approved)
		default:
			err, x.Replaces = nil, was
			how = fmt.Sprintf("in place of %s, whose request %.253s was not approved", was, s.Certificate.Request)
		}
	case s.Certificate != nil:
		how = "already approved"
	case s.CSRKeySHA256 != "":
		how = "the attested one"
	}
	// After a restore of etcd neither the Machine nor a Node may show that the machine joined.
	if c := x.record.Status.Certificate; err == nil && c != nil && c.Used {
		err = reason.Deny(reason.MachineJoined, "a certificate for the key %s was issued, since its Node %.253s existed",
			c.PublicKeySHA256, c.Node)
	}
	if err == nil {
		err = x.issued()
	}
	return x.check("key", err, "%s", how)
}
