// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

var (
	machines     = schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}
	attestations = v1alpha1.GroupVersion.WithResource("machineattestations")
	claims       = v1alpha1.GroupVersion.WithResource("identityclaims")
	namespaces   = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// site is a cluster's part that belongs to one test: a namespace with Machines,
// another for the verifier, and what a watch would know of the Machines.
type site struct {
	testing.TB
	cluster   *cluster.Cluster
	admin     dynamic.Interface
	namespace string // of the Machines
	own       string // of the verifier
	known     *machine.Registry
	now       func() time.Time
}

var prepared sync.Once

// newSite is in the cluster that all tests share, or in one of the test's own.
func newSite(t testing.TB, own ...*cluster.Cluster) *site {
	t.Helper()
	var c *cluster.Cluster
	if len(own) > 0 {
		c = own[0]
		c.InstallOpenShift(t)
		c.InstallOwn(t)
	} else {
		c = cluster.StartShared(t)
		prepared.Do(func() { c.InstallOpenShift(t); c.InstallOwn(t) })
	}
	admin, err := dynamic.NewForConfig(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("t-%08x", rand.Uint32())
	at := time.Now().Truncate(time.Second)
	s := &site{TB: t, cluster: c, admin: admin, namespace: id + "-machines", own: id + "-verifier",
		known: machine.NewRegistry(nil), now: func() time.Time { return at }}
	for _, name := range []string{s.namespace, s.own} {
		s.create(namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": name}})
	}
	return s
}

func (s *site) in(resource schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return s.admin.Resource(resource)
	}
	return s.admin.Resource(resource).Namespace(namespace)
}

func (s *site) create(resource schema.GroupVersionResource, namespace string,
	object map[string]any) *unstructured.Unstructured {
	s.Helper()
	o, err := s.in(resource, namespace).Create(context.Background(), &unstructured.Unstructured{Object: object},
		metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return o
}

func (s *site) get(resource schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	s.Helper()
	o, err := s.in(resource, namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return o
}

func (s *site) list(resource schema.GroupVersionResource, namespace string) []unstructured.Unstructured {
	s.Helper()
	l, err := s.in(resource, namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return l.Items
}

func (s *site) delete(resource schema.GroupVersionResource, namespace, name string) {
	s.Helper()
	if err := s.in(resource, namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

// patch is what an administrator does to an object's spec, or a status.
func (s *site) patch(resource schema.GroupVersionResource, namespace, name, merge string, sub ...string) {
	s.Helper()
	if _, err := s.in(resource, namespace).Patch(context.Background(), name, types.MergePatchType, []byte(merge),
		metav1.PatchOptions{}, sub...); err != nil {
		s.Fatal(err)
	}
}

func ek(n int) string { return fmt.Sprintf("%064x", n) }

func verdict(m *machine.Machine, id v1alpha1.RecordedIdentity, tokenID string, now time.Time) record.Attestation {
	return record.Attestation{
		Machine: m, Identity: id, Endorsement: v1alpha1.EndorsementEnrolled,
		Evidence: []v1alpha1.EvidenceSummary{{Kind: "tpm2", SHA256: strings.Repeat("ab", 32)}},
		Pool:     "worker", TokenID: tokenID, TokenExpiry: now.Add(10 * time.Minute), TokenUses: 3,
		TicketID: "ticket-" + tokenID, CorrelationID: "c-" + tokenID,
	}
}

func attest(r *records.Records, m *machine.Machine, id v1alpha1.RecordedIdentity, tokenID string, now time.Time) error {
	return r.Attest(context.Background(), m.UID, []string{"ek:" + id.EKSHA256}, func(string) bool { return true },
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Attest(rec, verdict(m, id, tokenID, now), now)
		})
}

// unique keeps the identities of tests apart: claims belong to the whole cluster.
func unique() v1alpha1.RecordedIdentity {
	var b [32]byte
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return v1alpha1.RecordedIdentity{EKSHA256: hex.EncodeToString(b[:])}
}

func denied(t testing.TB, err error, want reason.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := reason.From(err).Code; got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
}
