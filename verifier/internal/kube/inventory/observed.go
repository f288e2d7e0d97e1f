// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// observed is what the watches saw of records and Nodes beyond what attestation needs: for the web page, and nil
// without one. Nothing is granted on it. All methods work on nil.
type observed struct {
	mu      sync.Mutex
	records map[key]*v1alpha1.MachineAttestation
	ready   map[string]time.Time // since when a Node has been ready
}

func newObserved() *observed {
	return &observed{records: map[key]*v1alpha1.MachineAttestation{}, ready: map[string]time.Time{}}
}

// decode returns an object as it is kept; nil without a page, or if it cannot be decoded.
func (b *observed) decode(o client.Object) *v1alpha1.MachineAttestation {
	u, ok := o.(*unstructured.Unstructured)
	a := &v1alpha1.MachineAttestation{}
	if b == nil || !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, a) != nil {
		return nil
	}
	a.ManagedFields, a.Annotations, a.Status.Challenges, a.Status.Credentials = nil, nil, nil, nil
	return a
}

func (b *observed) put(n types.NamespacedName, a *v1alpha1.MachineAttestation) {
	if b == nil || a == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records[keyOf(n)] = a
}

func (b *observed) drop(n types.NamespacedName) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.records, keyOf(n))
}

// putNode keeps since when a Node has been ready; the zero time: it is not.
func (b *observed) putNode(name string, ready time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ready, name)
	if !ready.IsZero() {
		b.ready[name] = ready
	}
}

// State returns the output of status as the watches saw it last, with denials that the process remembers.
// [Options.Observe] must be set.
func (c *Inventory) State(ctx context.Context, denials []audit.Denial) (*admin.State, error) {
	b := c.Machines.observed
	if b == nil {
		return nil, errors.New("the inventory keeps no records")
	}
	index := c.registry.All()
	s := &admin.State{Time: c.o.Now().UTC(), Cluster: c.host, Denials: denials, Problems: c.Problems()}
	b.mu.Lock()
	byUID := map[string]*v1alpha1.MachineAttestation{}
	for k, a := range b.records {
		uid := cmp.Or(a.Status.MachineUID, string(a.UID))
		switch p := a.Status.Pending; {
		case mayRecord(a, uid) && !(p != nil && a.Spec.Pool == "" && a.Spec.MachineRef == nil):
			byUID[uid] = a
		case p != nil && k.namespace == c.config.Namespace:
			if ek, err := machine.ParseEKHash(p.EKSHA256); err == nil && index.Enrolled(ek) {
				continue // approved; it has not asked again yet
			}
			pending := store.PendingOf(a)
			pending.Claims = ""
			s.Pending = append(s.Pending, pending)
		}
	}
	for _, m := range index.Machines() {
		entry := admin.About(m, byUID[records.UID(m)])
		if ready, ok := b.ready[entry.Node()]; ok {
			entry.Ready = &ready
		}
		s.Machines = append(s.Machines, entry)
	}
	b.mu.Unlock()
	for uid, a := range byUID {
		if record.IsBreakGlass(uid) {
			s.Machines = append(s.Machines, admin.BreakGlass(a))
		}
	}
	s.Sort()
	slices.SortFunc(s.Pending, func(a, b store.Pending) int { return cmp.Compare(a.ID, b.ID) })
	if err := c.conditions(ctx, s); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("read the AttestationVerifier: %v", err))
	}
	return s, nil
}

// conditions adds the state of the verifier as a whole.
func (c *Inventory) conditions(ctx context.Context, s *admin.State) error {
	o, err := c.dynamic.Resource(v1alpha1.GroupVersion.WithResource("attestationverifiers")).
		Get(ctx, v1alpha1.VerifierName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	v := &v1alpha1.AttestationVerifier{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, v); err != nil {
		return err
	}
	s.Conditions, s.Holder = v.Status.Conditions, v.Status.Holder
	return nil
}
