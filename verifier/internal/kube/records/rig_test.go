// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
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

// machine makes a Machine, which the watches have seen.
func (s *site) machine(name string) *machine.Machine {
	s.Helper()
	o := s.create(machines, s.namespace, map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{"name": name,
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"}},
		"spec": map[string]any{},
	})
	return s.watched(o)
}

// watched is what a watch does with an object.
func (s *site) watched(o *unstructured.Unstructured) *machine.Machine {
	s.Helper()
	in, problems := machine.FromObject(o.Object)
	if len(problems) > 0 {
		s.Fatal(problems)
	}
	for _, m := range in.Machines {
		s.known.PutMachine(m)
	}
	for _, e := range in.Enrollments {
		s.known.PutEnrollment(e)
	}
	m, ok := s.known.ByUID(string(o.GetUID()))
	if !ok {
		s.Fatalf("%s is not known", o.GetName())
	}
	return m
}

// remove deletes a Machine; the watches have not seen that.
func (s *site) remove(m *machine.Machine) {
	s.Helper()
	s.delete(machines, m.Namespace, m.Name)
}

// replica is one verifier's records, with its own connection to the API.
type replica struct {
	*records.Records
	*wire
}

func (s *site) replica(change ...func(*records.Options)) replica {
	s.Helper()
	w := &wire{calls: map[string]int{}}
	config := rest.CopyConfig(s.cluster.Admin())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { w.next = next; return w })
	config.QPS = -1
	client, err := records.NewClient(config)
	if err != nil {
		s.Fatal(err)
	}
	// Generous: only what is stopped on purpose runs into it.
	o := records.Options{Client: client, Namespace: s.own, Machine: s.known.ByUID, Log: slog.New(slog.DiscardHandler),
		Timeout: time.Minute}
	for _, f := range change {
		f(&o)
	}
	return replica{records.New(o), w}
}

func (s *site) replicas(n int) []replica {
	s.Helper()
	var all []replica
	for range n {
		all = append(all, s.replica())
	}
	return all
}

// wire is the connection to the API: it counts, and can be held up.
type wire struct {
	next http.RoundTripper

	mu    sync.Mutex
	calls map[string]int
	stop  func(*http.Request) // is called before a request goes out
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.calls[r.Method]++
	stop := w.stop
	w.mu.Unlock()
	if stop != nil {
		stop(r)
	}
	return w.next.RoundTrip(r)
}

// writes is how many requests changed something, and reads how many did not,
// since it was last asked.
func (w *wire) count() (writes, reads int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for method, n := range w.calls {
		if method == http.MethodGet {
			reads += n
		} else {
			writes += n
		}
	}
	clear(w.calls)
	return writes, reads
}

// hold stops the first request with this method and path until resume is called.
// It has arrived when held is closed.
func (w *wire) hold(method, path string) (held <-chan struct{}, resume func()) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop = func(r *http.Request) {
		if r.Method == method && strings.Contains(r.URL.Path, path) {
			once.Do(func() { close(arrived); <-goOn })
		}
	}
	return arrived, func() { close(goOn) }
}

func ek(n int) string { return fmt.Sprintf("%064x", n) }

// components as the service has them.
func components(id v1alpha1.RecordedIdentity) []string { return []string{"ek:" + id.EKSHA256} }

func alive(string) bool { return true }

func verdict(m *machine.Machine, id v1alpha1.RecordedIdentity, tokenID string, now time.Time) record.Attestation {
	return record.Attestation{
		Machine: m, Identity: id, Endorsement: v1alpha1.EndorsementEnrolled,
		Evidence: []v1alpha1.EvidenceSummary{{Kind: "tpm2", SHA256: strings.Repeat("ab", 32)}},
		Pool:     "worker", TokenID: tokenID, TokenExpiry: now.Add(10 * time.Minute), TokenUses: 3,
		TicketID: "ticket-" + tokenID, CorrelationID: "c-" + tokenID,
	}
}

func attest(r replica, m *machine.Machine, id v1alpha1.RecordedIdentity, tokenID string, now time.Time) error {
	return r.Attest(context.Background(), m.UID, components(id), alive,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Attest(rec, verdict(m, id, tokenID, now), now)
		})
}

// attested is an attestation that must succeed.
func (s *site) attested(r replica, m *machine.Machine, id v1alpha1.RecordedIdentity, tokenID string, now time.Time) {
	s.Helper()
	if err := attest(r, m, id, tokenID, now); err != nil {
		s.Fatal(err)
	}
}

func (s *site) record(r replica, uid string) *v1alpha1.MachineAttestation {
	s.Helper()
	rec, err := r.Record(s.Context(), uid)
	if err != nil {
		s.Fatal(err)
	}
	return rec
}

func (s *site) holder(r replica, id v1alpha1.RecordedIdentity) string {
	s.Helper()
	uid, err := r.Holder(s.Context(), components(id)[0])
	if err != nil {
		s.Fatal(err)
	}
	return uid
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

func waiting(n int) store.Pending {
	hash := fmt.Sprintf("%016x%048x", n, n)
	return store.Pending{ID: hash[:16], EKSHA256: hash, Pool: "worker", Source: "192.0.2.1"}
}

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
