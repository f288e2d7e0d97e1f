// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"encoding/pem"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

const (
	issuedPrefix = "mcs-attest-"
	// keyDigits is how much of the key's hash is in a request's name.
	keyDigits = 16
)

// Name returns the name of the request that the verifier makes for a machine: the UID of
// its Machine, and the hash of its attested key in hexadecimal. A request's name is
// immutable, and the same request always has the same name.
func Name(machineUID, keySHA256 string) string {
	return issuedPrefix + machineUID + "-" + keySHA256[:min(len(keySHA256), keyDigits)]
}

// Issues returns the UID of the Machine for which the verifier made a request, or false for
// any other request. It does not read the content.
func (c Config) Issues(r *Request) (machineUID string, ok bool) {
	if !c.issues(r) {
		return "", false
	}
	name, ok := strings.CutPrefix(r.Name, issuedPrefix)
	if i := strings.LastIndexByte(name, '-'); ok && i > 0 {
		return name[:i], true
	}
	return "", false
}

func (c Config) issues(r *Request) bool {
	return c.Attestation && c.Issuer != "" && r.Kind == Client && r.Username == c.Issuer
}

// attested checks a request that the verifier made. The controller created it, but the
// process that serves machines wrote its content, so the content counts as untrusted.
func (x *run) attested() error {
	const name = "attested"
	uid, ok := x.c.Issues(x.r)
	if !ok || x.r.Name != Name(uid, x.PublicKeySHA256) {
		return x.check(name, reason.Deny(reason.CSRCredential, "the name %.253q is not that of a machine and this key",
			x.r.Name), "")
	}
	rec, err := x.w.RecordByMachine(x.ctx, uid)
	switch {
	case err != nil:
		return x.check(name, unread(err, "read the record of the machine"), "")
	case rec == nil || rec.Status.MachineUID != uid:
		return x.check(name, reason.Deny(reason.CSRCredential, "no record belongs to the machine %.80q", uid), "")
	}
	x.record, x.RecordUID = rec, uid
	if err := record.Requested(rec, x.PublicKeySHA256, x.now); err != nil {
		return x.check(name, err, "")
	}
	x.Proven = true
	return x.check(name, nil, "%s attested this key", ofRecord(rec))
}

// NewRequest returns the certificate signing request for a machine that requested its node's
// certificate, with the given lifetime. The record's request is untrusted. NewRequest checks
// all that does not depend on the cluster, so that the verifier creates no other request.
func NewRequest(rec *v1alpha1.MachineAttestation, lifetime time.Duration,
	now time.Time) (*certificatesv1.CertificateSigningRequest, error) {
	if rec == nil || rec.Status.CertificateRequest == nil {
		return nil, reason.Deny(reason.CSRCredential, "the machine has requested no certificate")
	}
	seconds := int32(lifetime.Seconds())
	out := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: slices.Clone(clientUsages),
		ExpirationSeconds: &seconds,
		Request:           pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: rec.Status.CertificateRequest.Request}),
	}}
	r := FromCSR(out)
	if r.CSR == nil {
		return nil, r.Malformed
	}
	x := &run{Decision: &Decision{Node: r.Node(), PublicKeySHA256: r.PublicKeySHA256}, r: r}
	if err := x.clientContent(); err != nil {
		return nil, err
	}
	out.Name = Name(rec.Status.MachineUID, r.PublicKeySHA256)
	if _, err := record.Certify(rec, x.Certificate(out.Name), now); err != nil {
		return nil, err
	}
	return out, nil
}
