package mcscert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Status is what was found.
type Status struct {
	At   time.Time
	Case Case
	// CA signs next, Leaf is served; nil: there is none.
	CA, Leaf       *x509.Certificate
	Bundle         []*x509.Certificate
	PointerConfigs []PointerConfig
	// Rival: another program renews the certificates, too.
	Rival bool
	// Hosts are those that the serving certificate should be valid for.
	Hosts []string
}

// Step is what one 'certs rotate' has done.
type Step string

// The steps, in the order in which a rotation takes them.
const (
	// StepCA: a new CA is in the bundle and the pointer configs. What is served is unchanged.
	StepCA Step = "CA"
	// StepServing: the new CA has signed what is served.
	StepServing Step = "Serving"
)

// ErrNotOurs states that another program renews the certificates.
var ErrNotOurs = errors.New("not the verifier's to renew")

// TooEarly states why the next step would fail machines.
type TooEarly struct{ Why string }

func (e *TooEarly) Error() string { return e.Why }

// Next returns the step of a rotation that an administrator takes next: a new CA, or a serving
// certificate that the newest CA signs if it has not done so. With force the second does not
// wait. Otherwise the error is a [*TooEarly] until [Publish] has passed and every known pointer
// config has the CA.
func (s Status) Next(now time.Time, force bool) (Step, error) {
	if s.CA == nil || s.Leaf == nil || s.Leaf.CheckSignatureFrom(s.CA) == nil {
		return StepCA, nil
	}
	if force {
		return StepServing, nil
	}
	if age := now.Sub(s.CA.NotBefore); age < Publish {
		return "", &TooEarly{fmt.Sprintf("the new CA is %v old: before it is %d hours old a machine may still be booting"+
			" that does not know it, or one whose clock is behind take it for one of the future",
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
			&TooEarly{"pointer configs that are somebody else's to change do not have the new CA, so bring the bundle there: " +
				strings.Join(lacking, ", ")}
	}
	return StepServing, nil
}
