// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Attack T75: a server that does not admit this machine, or is no verifier, sends a time. Only the one
// that admits it, over the connection that TLS authenticated, reaches the clock.
func TestAttack_T75_OnlyTheVerifierThatAdmitsSetsTheClock(t *testing.T) {
	for name, c := range map[string]struct {
		v     *verifiertest.Verifier
		calls int
	}{
		"admits": {&verifiertest.Verifier{}, 1},
		"audits": {&verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_AUDIT}, 1},
		"is off": {&verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_OFF}, 0},
		"denies": {&verifiertest.Verifier{
			AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
				return nil, verifiertest.Denial(classEvidence, false)
			},
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			v := started(t, c.v)
			calls := 0
			before := time.Now().Truncate(time.Second) // the header has no fractions
			m.flow.Clock = func(served time.Time, chains [][]*x509.Certificate) {
				calls++
				if served.Before(before) || served.After(time.Now()) {
					t.Errorf("the server's time is %v", served)
				}
				if len(chains) != 1 || !chains[0][len(chains[0])-1].Equal(v.Authority) {
					t.Errorf("%d chains", len(chains))
				}
			}
			_, err := m.run(v)
			if calls != c.calls {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
	}
}
