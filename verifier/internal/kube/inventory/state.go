// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

// Fault is the reason why an object cannot be used as it is. Its last good state, if any, stays in
// force.
type Fault struct {
	About      events.Object
	Generation int64
	Text       string
}

// Policy is the state of an AttestationPolicy.
type Policy struct {
	// Object has the metadata and the status, but no spec. Callers must not change it.
	Object *v1alpha1.AttestationPolicy
	// Fault is why the policy cannot be used. Clash is how it contradicts another one. Both are usually
	// empty.
	Fault, Clash string
	// NeverUsable means that the policy existed, and was broken, when the verifier started.
	NeverUsable bool
	// UnknownPools are the pools that the cluster does not have.
	UnknownPools []string
}
