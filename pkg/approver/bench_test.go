// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"context"
	"fmt"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// flat is a cluster with many Machines and requests, in maps.
type flat struct {
	fakeCluster
	byName map[string]Machine
	byID   map[string]*v1alpha1.MachineAttestation
}

func (w *flat) Node(context.Context, string) (bool, error) { return false, nil }
func (w *flat) MachinesByInternalDNS(_ context.Context, name string) ([]Machine, error) {
	return []Machine{w.byName[name]}, nil
}
func (w *flat) RecordByCredential(_ context.Context, id string) (*v1alpha1.MachineAttestation, error) {
	return w.byID[id], nil
}
func (w *flat) Newer(context.Context, *Request, *v1alpha1.MachineAttestation) ([]*Request, error) {
	return nil, nil
}
func (w *flat) Quarantines(context.Context, []string) ([]v1alpha1.MachineAttestation, error) {
	return nil, nil
}
func (w *flat) Disabled(context.Context) (bool, error) { return false, nil }
func (w *flat) Load(context.Context, *Request, *v1alpha1.MachineAttestation) (Load, error) {
	return w.load, nil
}

// BenchmarkDecide measures a decision with 10 000 Machines and 1 000 pending requests, next
// to a cluster of ten. It does not include reading the API.
func BenchmarkDecide(b *testing.B) {
	for _, size := range []struct {
		name               string
		machines, requests int
	}{{"10 Machines, 1 request", 10, 1}, {"10000 Machines, 1000 requests", 10_000, 1_000}} {
		w := &flat{byName: map[string]Machine{}, byID: map[string]*v1alpha1.MachineAttestation{}}
		w.load = Load{Machines: size.machines, Pending: size.requests, Own: 1}
		requests := make([]certificatesv1.CertificateSigningRequest, 0, size.requests)
		for i := range size.machines {
			id := fmtID(i)
			w.byName[id] = machineOf(id, id)
			w.byID["JTI="+id] = recordOf(id, id, "JTI="+id)
			if i < size.requests {
				in := honest()
				in.template.Subject.CommonName = nodePrefix + id
				in.credential("JTI=" + id)
				in.csr.Name, in.csr.Spec.Request = id, requestPEM(&in.template, in.key)
				requests = append(requests, in.csr)
			}
		}
		b.Run(size.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				d := Decide(context.Background(), FromCSR(&requests[i%len(requests)]), w, Config{Attestation: true}, now)
				if d.Outcome != Approve {
					b.Fatal(d.Denial)
				}
				i++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
	// The peer: only parsing, with the check of the signature.
	in := honest()
	in.csr.Spec.Request = requestPEM(&in.template, in.key)
	b.Run("only parsing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if FromCSR(&in.csr).CSR == nil {
				b.Fatal("malformed")
			}
		}
	})
}

// The cost of a decision does not grow with the cluster: the number of calls is constant,
// and each call is one lookup. Only the approved requests and the quarantines cost more, and
// they are read only before an approval.
func TestDecide_CallsDoNotDependOnTheClusterSize(t *testing.T) {
	small, large := honest(), honest()
	for i := range 1000 {
		large.fake.records = append(large.fake.records, recordOf(fmtID(i), fmtID(i), "JTI="+fmtID(i)))
	}
	want(t, small.decide(), Approve, 0)
	want(t, large.decide(), Approve, 0)
	if !slices.Equal(small.fake.asked, large.fake.asked) || len(large.fake.asked) > 8 ||
		large.fake.asked[len(large.fake.asked)-1] != "Quarantines" {
		t.Errorf("asked %v and %v", small.fake.asked, large.fake.asked)
	}
}

func fmtID(i int) string { return fmt.Sprintf("worker-%05d", i) }
