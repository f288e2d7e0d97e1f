// Package trust is every anchor that the verifier has for the clouds' documents
// and for certified AKs: embedded defaults, and what an administrator put in their
// place.
package trust

import (
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
)

// Trust is what is in force now. It is read only.
type Trust struct {
	AK tpm2.Roots
}
