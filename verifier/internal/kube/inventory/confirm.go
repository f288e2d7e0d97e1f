// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// Confirmation reads a Machine again before a permanent denial, because the watched state may be old,
// and a permanent denial drops the node to its emergency shell (rule 12 of docs/security-rules.md). It
// costs a GET of the Machine, and one of its record, which has the grant. The enrollment that an administrator wrote
// may be a third object.
type Confirmation struct {
	Client   dynamic.Interface
	Machines *machine.Registry
	Timeout  time.Duration // 0 is 5 seconds
}

// Confirm returns nil if the Machine is unchanged. Otherwise, or if that is unknown, the error is
// temporary: at the next try, the registry has the new state.
func (c Confirmation) Confirm(ctx context.Context, m *machine.Machine) error {
	live, err := c.read(ctx, m)
	if err != nil {
		return err
	}
	found, _ := machine.FromObject(live)
	// Only the watch updates the registry: a late read must not restore an older state, or a deleted
	// Machine.
	for _, fresh := range found.Machines {
		if !c.Machines.HasMachine(fresh) {
			return outOfDate(m)
		}
	}
	for _, fresh := range found.Enrollments {
		if !c.Machines.HasEnrollment(fresh) {
			return outOfDate(m)
		}
	}
	if m.StandIn { // its object was read above
		return nil
	}
	at := records.Key(m)
	if err := c.confirmAttestation(ctx, m, at); err != nil {
		return err
	}
	if m.Enrollment == nil {
		return nil
	}
	// A Machine can also be enrolled by a BareMetalHost.
	by := client.ObjectKeyFromObject(m.Enrollment)
	if by == at || !c.Machines.HasAttestation(by.Namespace, by.Name) {
		return nil
	}
	return c.confirmAttestation(ctx, m, by)
}

// confirmAttestation is Confirm of a MachineAttestation of the Machine, which need not exist.
func (c Confirmation) confirmAttestation(ctx context.Context, m *machine.Machine, at client.ObjectKey) error {
	live, err := c.get(ctx, attestationsResource, at)
	if kerrors.IsNotFound(err) {
		if c.Machines.HasAttestation(at.Namespace, at.Name) {
			return outOfDate(m)
		}
		return nil
	}
	if err != nil {
		return reason.Wrap(reason.StoreUnavailable, err, "MachineAttestation %s of Machine %s", at, m)
	}
	found, _ := machine.FromObject(live.Object)
	for _, fresh := range found.Enrollments {
		if !c.Machines.HasEnrollment(fresh) {
			return outOfDate(m)
		}
	}
	return nil
}

// read returns the object of a Machine. Its error is temporary.
func (c Confirmation) read(ctx context.Context, m *machine.Machine) (map[string]any, error) {
	gv, err := schema.ParseGroupVersion(m.APIVersion)
	if err != nil {
		return nil, reason.Wrap(reason.StoreUnavailable, err, "Machine %s", m)
	}
	resource := gv.WithResource("machines")
	if m.StandIn {
		resource = attestationsResource
	}
	live, err := c.get(ctx, resource, client.ObjectKey{Namespace: m.Namespace, Name: m.Name})
	if kerrors.IsNotFound(err) {
		return nil, reason.Deny(reason.MachineNotFound, "Machine %s was deleted", m)
	}
	if err != nil {
		return nil, reason.Wrap(reason.StoreUnavailable, err, "Machine %s", m)
	}
	return live.Object, nil
}

func (c Confirmation) get(ctx context.Context, resource schema.GroupVersionResource,
	at client.ObjectKey) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, callTimeout))
	defer cancel()
	return c.Client.Resource(resource).Namespace(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
}

// NodeNames reads the names that the Node of a Machine may have. The registry does not have them.
func (c Confirmation) NodeNames(ctx context.Context, uid string) ([]string, error) {
	m, ok := c.Machines.ByUID(uid)
	if !ok {
		return nil, reason.Deny(reason.MachineNotFound, "Machine %s", uid)
	}
	if m.StandIn {
		return []string{m.Name}, nil
	}
	live, err := c.read(ctx, m)
	if err != nil {
		return nil, err
	}
	found, _ := machine.FromObject(live)
	for i := range found.Machines {
		if found.Machines[i].UID == m.UID { // of the authoritative object, if the Machine has a mirror
			return found.Machines[i].NodeNames(), nil
		}
	}
	return nil, outOfDate(m)
}

func outOfDate(m *machine.Machine) error {
	return reason.Deny(reason.StoreUnavailable, "the cached state of Machine %s is out of date", m)
}

// ConfirmUID is Confirm by UID. An unknown Machine needs no confirmation.
func (c Confirmation) ConfirmUID(ctx context.Context, uid string) error {
	m, ok := c.Machines.ByUID(uid)
	if !ok {
		return nil
	}
	return c.Confirm(ctx, m)
}
