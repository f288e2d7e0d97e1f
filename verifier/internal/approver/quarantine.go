package approver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// readingCalls bounds one reading: it may take as long as this many calls of the API.
// A cluster of 100 000 machines has 200 pages.
const readingCalls = 12

// quarantines reads the objects that quarantine a machine. Any object may name any
// Machine, so all of them are read, and not what was watched: a watch may be behind.
// Decisions that are made at the same time share one reading. It is safe for concurrent
// use; the zero value is ready.
type quarantines struct {
	mu   sync.Mutex
	busy sync.Mutex // held during a reading
	next *reading   // has not begun yet; nil: there is none
}

// reading is one reading of all objects.
type reading struct {
	once   sync.Once
	found  []v1alpha1.MachineAttestation
	barred map[string]error // namespaces that the verifier may not read
	err    error
}

// read returns what a reading found that began after the call of read did.
func (q *quarantines) read(all func(*reading)) *reading {
	q.mu.Lock()
	if q.next == nil {
		q.next = new(reading)
	}
	mine := q.next
	q.mu.Unlock()
	q.busy.Lock()
	defer q.busy.Unlock()
	mine.once.Do(func() {
		q.mu.Lock()
		q.next = nil // a later caller may have seen what this reading misses
		q.mu.Unlock()
		all(mine)
	})
	return mine
}

// Quarantines implements [approver.World].
func (w *World) Quarantines(ctx context.Context, namespaces []string) ([]v1alpha1.MachineAttestation, error) {
	r := w.o.quarantines.read(func(r *reading) {
		// The reading is for others, too: it does not end with this caller.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readingCalls*w.o.Timeout)
		defer cancel()
		w.readQuarantines(ctx, r)
	})
	for _, namespace := range slices.Concat(namespaces, []string{w.o.Namespace, metav1.NamespaceAll}) {
		if err := r.barred[namespace]; err != nil {
			return nil, err
		}
	}
	return r.found, r.err
}

func (w *World) readQuarantines(ctx context.Context, r *reading) {
	namespaces := w.o.Namespaces
	if slices.Contains(namespaces, metav1.NamespaceAll) || slices.Contains(namespaces, "*") {
		namespaces = []string{metav1.NamespaceAll}
	}
	r.barred = map[string]error{}
	for _, namespace := range namespaces {
		for o := (metav1.ListOptions{Limit: 500}); ; {
			call, cancel := context.WithTimeout(ctx, w.o.Timeout)
			page, err := w.o.Dynamic.Resource(attestations).Namespace(namespace).List(call, o)
			cancel()
			if w.absent(ctx, namespace, err) {
				break
			}
			if err != nil {
				err = fmt.Errorf("list MachineAttestations in %q: %w", namespace, err)
				if kerrors.IsForbidden(err) {
					r.barred[namespace] = err
				} else {
					r.err = errors.Join(r.err, err)
				}
				break
			}
			for i := range page.Items {
				a, err := quarantine(&page.Items[i])
				r.err = errors.Join(r.err, err)
				if a != nil {
					r.found = append(r.found, *a)
				}
			}
			if o.Continue = page.GetContinue(); o.Continue == "" {
				break
			}
		}
	}
}

// quarantine is a MachineAttestation that quarantines a machine; nil if this one does not.
func quarantine(o *unstructured.Unstructured) (*v1alpha1.MachineAttestation, error) {
	if on, _, err := unstructured.NestedBool(o.Object, "spec", "quarantined"); err == nil && !on {
		return nil, nil
	}
	a := &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}}
	raw, err := json.Marshal(o.Object["spec"])
	if err == nil {
		err = json.Unmarshal(raw, &a.Spec)
	}
	if err != nil {
		return nil, fmt.Errorf("understand MachineAttestation %s/%s: %w", a.Namespace, a.Name, err)
	}
	return a, nil
}
