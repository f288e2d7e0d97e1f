// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// listTimeout bounds one list of all objects. A cluster of 100 000 machines has 200 pages.
const listTimeout = time.Minute

// quarantines lists the objects that quarantine a machine. Any object may name any Machine, so it lists all
// objects, and it lists them live because a cache may be stale. Concurrent decisions share a list. It is safe for
// concurrent use.
type quarantines struct {
	busy *semaphore.Weighted // held while a list is in progress
	mu   sync.Mutex
	next *quarantineList
}

// quarantineList is the result of one list of all objects.
type quarantineList struct {
	once   sync.Once
	found  []v1alpha1.MachineAttestation
	barred map[string]error // by namespace that the verifier may not read
	err    error
}

// list returns the result of a list that started after the call of list.
func (q *quarantines) list(ctx context.Context, all func(*quarantineList)) (*quarantineList, error) {
	q.mu.Lock()
	if q.next == nil {
		q.next = new(quarantineList)
	}
	mine := q.next
	q.mu.Unlock()
	if err := q.busy.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for another list: %w", err)
	}
	defer q.busy.Release(1)
	mine.once.Do(func() {
		q.mu.Lock()
		q.next = nil // this list may miss what a later caller wrote
		q.mu.Unlock()
		all(mine)
	})
	return mine, nil
}

// Quarantines implements [approver.Cluster].
func (r *Reader) Quarantines(ctx context.Context, namespaces []string) ([]v1alpha1.MachineAttestation, error) {
	l, err := r.quarantines.list(ctx, func(l *quarantineList) {
		// Other callers use the list as well, so it does not end with this caller's context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
		defer cancel()
		l.fill(ctx, r.live, r.o.Namespaces)
	})
	if err != nil {
		return nil, err
	}
	for _, namespace := range slices.Concat(namespaces, []string{r.o.Namespace, ""}) {
		if err := l.barred[namespace]; err != nil {
			return nil, err
		}
	}
	return l.found, l.err
}

func (l *quarantineList) fill(ctx context.Context, api live, namespaces []string) {
	l.barred = map[string]error{}
	for _, namespace := range namespaces {
		err := eachPage(ctx, api, newAttestations, func(page *unstructured.UnstructuredList) error {
			for i := range page.Items {
				if err := l.add(&page.Items[i]); err != nil {
					return err
				}
			}
			return nil
		}, client.InNamespace(namespace))
		switch {
		case err == nil || api.absent(ctx, namespace, err):
		case kerrors.IsForbidden(err):
			l.barred[namespace] = fmt.Errorf("namespace %q: %w", namespace, err)
		default:
			l.err = errors.Join(l.err, fmt.Errorf("namespace %q: %w", namespace, err))
		}
	}
}

// add adds an object that quarantines a machine. It decodes only the fields that identify the machine, so another
// field that cannot be decoded does not matter.
func (l *quarantineList) add(o *unstructured.Unstructured) error {
	if on, _, err := unstructured.NestedBool(o.Object, "spec", "quarantined"); err == nil && !on {
		return nil
	}
	var in struct {
		Spec struct {
			Quarantined        bool                       `json:"quarantined"`
			MachineRef         *v1alpha1.MachineReference `json:"machineRef"`
			EKSHA256           []string                   `json:"ekSHA256"`
			ExpectedProviderID string                     `json:"expectedProviderID"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &in); err != nil {
		return fmt.Errorf("decode MachineAttestation %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	l.found = append(l.found, v1alpha1.MachineAttestation{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()},
		Spec: v1alpha1.MachineAttestationSpec{Quarantined: in.Spec.Quarantined, MachineRef: in.Spec.MachineRef,
			EKSHA256: in.Spec.EKSHA256, ExpectedProviderID: in.Spec.ExpectedProviderID},
	})
	return nil
}

// counted is the number of pending requests at one time.
type counted struct {
	busy *semaphore.Weighted
	at   time.Time
	n    int
}

// countAge is the maximum age of the count of pending requests in a decision. Without it, each of many requests
// would cause a count of all of them.
const countAge = time.Second

// get returns the count. It reuses a count that is younger than countAge.
func (c *counted) get(ctx context.Context, count func() (int, error)) (int, error) {
	if err := c.busy.Acquire(ctx, 1); err != nil {
		return 0, fmt.Errorf("wait for another count: %w", err)
	}
	defer c.busy.Release(1)
	if now := time.Now(); c.at.IsZero() || now.Sub(c.at) > countAge {
		n, err := count()
		if err != nil {
			return 0, err
		}
		c.at, c.n = now, n
	}
	return c.n, nil
}
