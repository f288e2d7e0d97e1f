package inventory

import (
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

// Fault is why an object cannot be used as it stands. Its last good state, if there is one, stays in force.
type Fault struct {
	About      events.Object
	Generation int64
	Text       string
}

// Policy is the state of an AttestationPolicy.
type Policy struct {
	// Object has the metadata and the status, and no spec. It must not be changed.
	Object *v1alpha1.AttestationPolicy
	// Fault is why it cannot be used, Clash how it contradicts another one; empty: neither.
	Fault, Clash string
	// NeverUsable: it was there and broken when the verifier started.
	NeverUsable bool
	// UnknownPools are pools that the cluster does not have.
	UnknownPools []string
}
