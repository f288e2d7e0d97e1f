// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Status is the state of the certificates.
type Status struct {
	At   time.Time
	Case Case
	// CA signs next and Leaf is served; both may be nil.
	CA, Leaf       *x509.Certificate
	Bundle         []*x509.Certificate
	PointerConfigs []PointerConfig
	// Rival reports that another program also renews the certificates.
	Rival bool
	// Abandoned reports that the machine-config-operator made the CA, and that it does not renew, because no MachineSets
	// exist.
	Abandoned bool
	// Hosts are those for which the serving certificate should be valid.
	Hosts []string
}

// Step is a step of 'certs rotate'.
type Step string

// The steps of a rotation, in order.
const (
	// StepCA adds a new CA to the bundle and the pointer configs. The served certificate is unchanged.
	StepCA Step = "CA"
	// StepServing signs the served certificate with the new CA.
	StepServing Step = "Serving"
)

// ErrNotOurs means that another program renews the certificates.
var ErrNotOurs = errors.New("the verifier does not renew these certificates")

// TooEarly is the error of a step that would fail machines.
type TooEarly struct{ Why string }

func (e *TooEarly) Error() string { return e.Why }

// Force says which caution of a rotation an administrator gives up.
type Force struct {
	// CA takes StepCA also if the newest CA has not signed the served certificate. After a theft of its key, it must not.
	CA bool
	// Serving takes StepServing immediately.
	Serving bool
}

// Next returns the next step of a rotation: StepCA, or StepServing if the newest CA has not
// signed the served certificate. Without force, StepServing requires that [Publish] has
// passed and that every known pointer config has the CA. Otherwise the error is a [*TooEarly].
func (s Status) Next(now time.Time, force Force) (Step, error) {
	if force.CA || s.CA == nil || s.Leaf == nil || s.Leaf.CheckSignatureFrom(s.CA) == nil {
		return StepCA, nil
	}
	if force.Serving {
		return StepServing, nil
	}
	if age := now.Sub(s.CA.NotBefore); age < Publish {
		return "", &TooEarly{fmt.Sprintf("the new CA is %v old: until it is %d hours old, a machine may still boot that "+
			"does not know it, or a machine whose clock is behind may consider it not yet valid",
			age.Round(time.Second), int(Publish.Hours()))}
	}
	var failed, lacking []string
	for _, p := range s.PointerConfigs {
		if p.Failed {
			failed = append(failed, p.Name)
		} else if p.Lacks {
			lacking = append(lacking, p.Name)
		}
	}
	if len(failed) > 0 {
		return "", &TooEarly{"pointer configs do not have the new CA: " + strings.Join(failed, ", ")}
	}
	if len(lacking) > 0 {
		return "",
			&TooEarly{"pointer configs that a third party manages do not have the new CA; add the bundle to them: " +
				strings.Join(lacking, ", ")}
	}
	return StepServing, nil
}
