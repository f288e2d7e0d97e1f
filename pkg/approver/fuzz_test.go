// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// For any request: attestation never leads to an approval that would not be given without
// it, and only a request that is Proven is denied.
func FuzzDecide(f *testing.F) {
	f.Add(requestPEM(&honest().template, ecKey()), uint32(0), credentialA, "worker-0")
	f.Add(requestPEM(&serving().template, ecKey()), uint32(1), "", "worker-0")
	f.Add(requestPEM(&stockServing().template, rsaKey()), uint32(0xff), "JTI=x", "test")
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"), uint32(2),
		credentialA, "a")
	f.Fuzz(func(t *testing.T, raw []byte, flags uint32, credential, name string) {
		made := func(attestation bool) *input {
			in := honest()
			if flags&1 != 0 {
				in = serving()
			}
			in.config.Attestation = attestation
			in.csr.Spec.Request = raw
			if raw == nil {
				in.csr.Spec.Request = []byte{}
			}
			in.credential(credential)
			in.fake.machines[flags>>1&1].Addresses[0].Address = name
			if flags&4 != 0 {
				in.fake.nodes = []string{name}
			}
			if flags&8 != 0 {
				in.fake.records = nil
			}
			if flags&16 != 0 {
				in.fake.machines[0].NodeRef = name
			}
			if flags&32 != 0 {
				in.csr.Spec.Usages = append(in.csr.Spec.Usages, certificatesv1.UsageAny)
			}
			if flags&64 != 0 {
				in.csr.Spec.Username = nodePrefix + name
			}
			return in
		}
		with, without := made(true).decide(), made(false).decide()
		if with.Outcome == Approve && without.Outcome != Approve {
			t.Errorf("approved with attestation, and without %s (%v)", without.Outcome, without.Denial)
		}
		if without.Outcome == Deny || with.Outcome == Deny && !with.Proven {
			t.Error("denied what proves nothing")
		}
		for _, d := range []*Decision{with, without} {
			if (d.Denial == nil) != (d.Outcome == Approve || d.Outcome == Ignore) || len(d.Checks) == 0 {
				t.Errorf("%+v", d)
			}
			if d.Outcome == Approve && (d.Node == "" || len(d.PublicKeySHA256) != 64 || d.Machine == nil) {
				t.Errorf("approved without a name, a key or a Machine: %+v", d)
			}
			if d.Outcome == Approve && d.Kind == Client && d.Machine.NodeRef != "" {
				t.Error("approved for a Machine that has joined")
			}
		}
	})
}

// FuzzFromCSR: no input panics, and none that exceeds the limits parses.
func FuzzFromCSR(f *testing.F) {
	f.Add(requestPEM(&honest().template, ecKey()))
	f.Add(requestPEM(&stockServing().template, rsaKey()))
	f.Add(encode(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := honest()
		in.csr.Spec.Request = raw
		r := FromCSR(&in.csr)
		if (r.CSR == nil) == (r.Malformed == nil) {
			t.Errorf("%v, %v", r.CSR, r.Malformed)
		}
		if r.CSR == nil {
			if r.Node() != "" || r.PublicKeySHA256 != "" || reason.From(r.Malformed).Code != reason.CSRMalformed {
				t.Errorf("%+v", r)
			}
			return
		}
		if len(raw) > MaxRequest ||
			len(r.CSR.DNSNames)+len(r.CSR.IPAddresses)+len(r.CSR.URIs)+len(r.CSR.EmailAddresses) > MaxNames {
			t.Error("larger than the limits")
		}
	})
}

// FuzzMachineFromObject: an API object may have any content.
func FuzzMachineFromObject(f *testing.F) {
	f.Add("machine.openshift.io/v1beta1", "Machine", "worker-0", "2026-01-01T00:00:00Z", "10.0.0.5")
	f.Add(v1alpha1.APIVersion, v1alpha1.KindMachineAttestation, "worker-0", "x", ",,")
	f.Fuzz(func(t *testing.T, apiVersion, kind, name, created, address string) {
		m, err := MachineFromObject(map[string]any{
			"apiVersion": apiVersion, "kind": kind,
			"metadata": map[string]any{"name": name, "creationTimestamp": created,
				"annotations": map[string]any{AnnotationAddresses: address}},
			"spec":   map[string]any{"pool": "worker"},
			"status": map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": address}}},
		})
		if (m == nil) == (err == nil) {
			t.Errorf("%v, %v", m, err)
		}
		if m != nil {
			_, _, _ = m.named(name), m.is(name), m.hasName(name)
		}
	})
}
