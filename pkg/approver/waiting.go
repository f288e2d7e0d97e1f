// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"cmp"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Keys of the index of requests; see [Config.IndexKeys].
const (
	// KeyCounted selects all requests that may count in [Load].Pending.
	KeyCounted = "counted"
	// KeyClient selects all undecided requests for a client certificate.
	KeyClient = "client"

	keyCredential = "credential/"
	keyUser       = "user/"
)

// IndexKeys returns the keys of a request in the index. It uses only the request's
// metadata, signer, user, groups, credential and conditions.
func (c Config) IndexKeys(in *certificatesv1.CertificateSigningRequest) (keys []string) {
	r := FromCSR(in)
	pending := r.Kind != "" && !r.Decided
	if _, _, ok := c.Pending(in); pending && c.Attestation || ok && !c.Attestation {
		keys = append(keys, KeyCounted)
	}
	if !pending {
		return keys
	}
	keys = append(keys, keyUser+r.Username)
	if r.Kind == Client {
		keys = append(keys, KeyClient)
		if r.CredentialID != "" {
			keys = append(keys, keyCredential+r.CredentialID)
		}
	}
	return keys
}

// OwnKeys returns the keys of the requests that [Load].Own counts: those that the
// record's credentials made, or without a record those of the same user.
func (r *Request) OwnKeys(rec *v1alpha1.MachineAttestation) (keys []string) {
	if rec == nil {
		return []string{keyUser + r.Username}
	}
	for _, c := range rec.Status.Credentials {
		keys = append(keys, keyCredential+c.ID)
	}
	return keys
}

// compareTo orders a request that was not parsed and r by their creation.
func (r *Request) compareTo(o *certificatesv1.CertificateSigningRequest) int {
	return cmp.Or(cmp.Compare(o.CreationTimestamp.Unix(), r.Created.Unix()), cmp.Compare(o.Name, r.Name))
}

// Own counts the requests of [Load].Own among all requests of the same machine or node.
// There may be very many, so it neither parses nor copies them.
func (r *Request) Own(all []*certificatesv1.CertificateSigningRequest, now time.Time) (n int) {
	since := now.Add(-Window).Unix()
	for _, o := range all {
		if o.CreationTimestamp.Unix() >= since && r.compareTo(o) >= 0 {
			n++
		}
	}
	return n
}

// Newer returns the names of the later requests of the same machine, newest first, at most
// limit. Like [Request.Own] it does not parse them.
func (r *Request) Newer(all []*certificatesv1.CertificateSigningRequest, limit int) (names []string) {
	newestFirst := func(a, b *certificatesv1.CertificateSigningRequest) int {
		return cmp.Or(cmp.Compare(b.CreationTimestamp.Unix(), a.CreationTimestamp.Unix()), cmp.Compare(b.Name, a.Name))
	}
	newer := make([]*certificatesv1.CertificateSigningRequest, 0, limit+1)
	for _, o := range all {
		if r.compareTo(o) <= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(newer, o, newestFirst)
		newer = slices.Insert(newer, i, o)
		newer = newer[:min(len(newer), limit)]
	}
	for _, o := range newer {
		names = append(names, o.Name)
	}
	return names
}

// CountPending counts the requests of [Load].Pending among those of [KeyCounted]. recorded
// reports whether a record has the credential.
func (c Config) CountPending(all []*certificatesv1.CertificateSigningRequest, recorded func(credential string) bool,
	now time.Time) (n int) {
	for i := range all {
		if !c.Attestation {
			if from, until, ok := c.Pending(all[i]); ok && now.After(from) && now.Before(until) {
				n++
			}
			continue
		}
		r := FromCSR(all[i])
		ours := r.Kind == Client && (r.CredentialID != "" && recorded(r.CredentialID) || c.issues(r))
		if r.Kind != "" && !r.Decided && !ours && r.Created.Unix() >= now.Add(-Window).Unix() {
			n++
		}
	}
	return n
}

// MayIssue denies another request of the verifier for a machine: CSRLimit. all are the requests of the
// cluster, of which it needs only the metadata, signer and user. Those that were decided count, too:
// a machine that may attest can attest many times with a new key.
func (c Config) MayIssue(machineUID string, all []certificatesv1.CertificateSigningRequest, now time.Time) error {
	n, most, since := 0, cmp.Or(c.PendingPerMachine, defaultPending), now.Add(-Window).Unix()
	for i := range all {
		if all[i].Spec.Username != c.Issuer || all[i].CreationTimestamp.Unix() < since {
			continue // another account's; do not parse it
		}
		if uid, ok := c.Issues(FromCSR(&all[i])); ok && uid == machineUID {
			n++
		}
	}
	if n >= most {
		return reason.Deny(reason.CSRLimit, "%d requests for machine %s were made since less than %v; at most %d may be",
			n, machineUID, Window, most)
	}
	return nil
}

// messageBytes is how much of an approval's message the cache keeps; it contains the approver's name.
const messageBytes = 100

// Trim returns the part of a request that a cache keeps: what [Config.IndexKeys] needs, and
// what identifies its owner and its approver. It omits the content.
func Trim(in *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	out := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name: in.Name, UID: in.UID, ResourceVersion: in.ResourceVersion, CreationTimestamp: in.CreationTimestamp,
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: in.Spec.SignerName, Username: in.Spec.Username},
	}
	if v := in.Spec.Extra[extraCredentialID]; len(v) > 0 {
		out.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: v}
	}
	if slices.Contains(in.Spec.Groups, nodesGroup) {
		out.Spec.Groups = []string{nodesGroup}
	}
	for _, c := range in.Status.Conditions {
		c.LastUpdateTime = metav1.Time{}
		if c.Type != certificatesv1.CertificateApproved {
			c.Message = ""
		}
		c.Message = c.Message[:min(len(c.Message), messageBytes)]
		out.Status.Conditions = append(out.Status.Conditions, c)
	}
	return out
}
