package inventory

import (
	"context"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Confirmation reads a Machine anew before it is told a final no: what was watched
// may be old, and a final no drops the node to its emergency shell (DESIGN, section
// 19, rule 12). It costs one GET, for a caller that proved to be that Machine.
type Confirmation struct {
	Client   dynamic.Interface
	Machines *machine.Registry
	Timeout  time.Duration // 0 is 5 seconds
}

// Confirm returns nil if the Machine is as it was known. Else, and if that cannot
// be said, the error is temporary: by the next try the registry knows.
func (c Confirmation) Confirm(ctx context.Context, m *machine.Machine) error {
	gv, err := schema.ParseGroupVersion(m.APIVersion)
	if err != nil {
		return reason.Wrap(reason.StoreUnavailable, err, "Machine %s", m)
	}
	resource := gv.WithResource("machines")
	if m.StandIn {
		resource = attestationsResource
	}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = callTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	live, err := c.Client.Resource(resource).Namespace(m.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return reason.Deny(reason.MachineNotFound, "Machine %s is gone", m)
	}
	if err != nil {
		return reason.Wrap(reason.StoreUnavailable, err, "Machine %s", m)
	}
	found, _ := machine.FromObject(live.Object)
	// The registry itself is only ever told by the watch: a read that was overtaken
	// must not put an older state, or a Machine that is gone, back into it.
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
	return nil
}

func outOfDate(m *machine.Machine) error {
	return reason.Deny(reason.StoreUnavailable, "what was known of Machine %s is out of date", m)
}

// ConfirmUID is Confirm by UID. One that is not known needs no confirmation.
func (c Confirmation) ConfirmUID(ctx context.Context, uid string) error {
	m, ok := c.Machines.ByUID(uid)
	if !ok {
		return nil
	}
	return c.Confirm(ctx, m)
}
