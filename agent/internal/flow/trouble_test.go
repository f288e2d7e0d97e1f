// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

const (
	classUnavailable = mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE
	classChallenge   = mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE
)

// troubleLasts is how many rounds fail before the verifier recovers.
const troubleLasts = 20

func preApproved(c *mcsattestv1.ChallengeResponse) {
	c.Unattested = mcsattestv1.Unattested_UNATTESTED_PRE_APPROVED
}

// trouble is one way in which attestations fail for a while. Its handlers call failing once per
// round.
type trouble struct {
	name string
	set  func(m *machine, v *verifiertest.Verifier, failing func() bool)
}

func troubles() []trouble {
	attest := func(class mcsattestv1.DenialClass) func(*machine, *verifiertest.Verifier, func() bool) {
		return func(_ *machine, v *verifiertest.Verifier, failing func() bool) {
			v.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
				if failing() {
					return nil, verifiertest.Denial(class, true)
				}
				return nil, nil
			}
		}
	}
	// status answers path before the service does, like a load balancer.
	status := func(path string, code int) func(*machine, *verifiertest.Verifier, func() bool) {
		return func(_ *machine, v *verifiertest.Verifier, failing func() bool) {
			first := true
			v.Front = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, path) || path == "/Challenge" && first {
					first = false
					return false
				}
				if !failing() {
					return false
				}
				w.WriteHeader(code)
				return true
			}
			if path == "/Challenge" {
				// In its first round the machine learns that the server is a verifier.
				once := true
				v.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if once {
						once = false
						return nil, verifiertest.Denial(classUnavailable, true)
					}
					return nil, nil
				}
			}
		}
	}
	return []trouble{
		{"the verifier denies Attest because of a flood", attest(classUnavailable)},
		{"the machine is not ready", attest(classNotYet)},
		{"the challenge expires in the queue", attest(classChallenge)},
		{"the verifier denies Challenge and states the policy",
			func(_ *machine, v *verifiertest.Verifier, failing func() bool) {
				v.ChallengeFunc = func(*mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
					if !failing() {
						return nil, nil
					}
					err := connect.NewError(connect.CodeUnavailable, errors.New("denied"))
					detail, _ := connect.NewErrorDetail(&mcsattestv1.Denial{
						Class: classUnavailable, Temporary: true, Mode: mcsattestv1.Mode_MODE_ENFORCE,
						Unattested: mcsattestv1.Unattested_UNATTESTED_PRE_APPROVED,
					})
					err.AddDetail(detail)
					return nil, err
				}
			}},
		{"a load balancer has no backend for Attest", status("/Attest", http.StatusServiceUnavailable)},
		{"a load balancer times out", status("/Attest", http.StatusRequestTimeout)},
		{"a load balancer limits requests", status("/Attest", http.StatusTooManyRequests)},
		{"a load balancer has no route for Attest", status("/Attest", http.StatusNotFound)},
		{"a load balancer leads to a plain Machine Config Server", status("/Challenge", http.StatusNotFound)},
	}
}

// Attack T63: under Enforce a temporary failure never makes the agent continue without a token,
// even if the gate serves a pre-approved config to machines without one.
func TestAttack_T63_TemporaryTroubleNeverDowngradesAMachine(t *testing.T) {
	for _, c := range troubles() {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			v := &verifiertest.Verifier{Change: preApproved}
			rounds := 0
			c.set(m, v, func() bool { rounds++; return rounds <= troubleLasts })
			g, err := m.run(started(t, v))
			if err != nil || string(g.Token.Expose()) != verifiertest.Token {
				t.Fatalf("after %d failures: %v", rounds, err)
			}
			if rounds != troubleLasts+1 {
				t.Errorf("%d rounds", rounds)
			}
			for _, line := range strings.Split(m.console.String(), "\n") {
				if strings.Contains(line, "is unchanged") {
					t.Errorf("console: %s", line)
				}
			}
		})
	}
}

// Attack T63: after a verifier answered under Enforce, a response that no verifier sends never
// makes the agent continue without a token.
func TestAttack_T63_ResponseOfAnotherServerDoesNotDowngradeAMachine(t *testing.T) {
	for _, code := range []int{http.StatusFound, http.StatusForbidden, http.StatusTeapot} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			m := newMachine(t)
			v := &verifiertest.Verifier{Change: preApproved, Front: func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/Attest") {
					return false
				}
				w.WriteHeader(code)
				return true
			}}
			_, err := m.run(started(t, v))
			var unchanged *flow.Unchanged
			var unexpected *client.Unexpected
			if errors.As(err, &unchanged) || !errors.As(err, &unexpected) || unexpected.Status != code {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Attack T63: an overloaded metadata service stops the boot, as it does without a pre-approved
// config. CoreOS then reboots, and the machine attests.
func TestAttack_T63_AnOverloadedMetadataServiceDoesNotDowngradeAMachine(t *testing.T) {
	busy := &metadata.Fault{Cloud: "AWS", What: "the thing", Problem: "too many requests", Temporary: true}
	m := newMachine(t)
	m.flow.Cloud = &fakeCloud{err: busy, times: -1}
	_, err := m.run(started(t, &verifiertest.Verifier{Change: preApproved,
		Required: proto(evidence.TPM2, evidence.AWSIID)}))
	var unchanged *flow.Unchanged
	if errors.As(err, &unchanged) || !errors.Is(err, busy) || len(m.slept) != 7 {
		t.Errorf("error %v after %v", err, m.slept)
	}
}

// Attack T63: a TPM that fails stops the boot, too. A machine without one, or whose TPM rejects a command for good,
// continues with its pre-approved config.
func TestAttack_T63_ATPMThatDoesNotAnswerDoesNotDowngradeAMachine(t *testing.T) {
	for _, c := range []struct {
		err  error
		open bool
	}{
		{tpmdev.ErrTimeout, false}, {fmt.Errorf("%w: %w", tpmdev.ErrFailed, syscall.EIO), false},
		{tpm2.TPMRCFailure, false}, {tpm2.TPMRCRetry, false},
		{tpmdev.ErrAbsent, true}, {tpm2.TPMRCHierarchy, true}, {attester.ErrEndorsementOwned, true},
	} {
		for name, set := range map[string]func(*machine){
			"at the start":       func(m *machine) { m.flow.TPM, m.flow.NoTPM = nil, c.err },
			"in the attestation": func(m *machine) { m.flow.TPM = deadTPM{m.flow.TPM, c.err} },
		} {
			t.Run(name+": "+c.err.Error(), func(t *testing.T) {
				m := newMachine(t)
				set(m)
				_, err := m.run(started(t, &verifiertest.Verifier{Change: preApproved}))
				var unchanged *flow.Unchanged
				if errors.As(err, &unchanged) != c.open || !errors.Is(err, c.err) {
					t.Errorf("error %v", err)
				}
			})
		}
	}
}

// deadTPM fails each quote.
type deadTPM struct {
	flow.TPM
	err error
}

func (d deadTPM) Attest(attester.Challenge, transcript.Hash) (*attester.Evidence, error) {
	return nil, d.err
}

// The console distinguishes a verifier with problems from a machine that is not ready, and has a
// hint for each.
func TestWaiting_HintsWhoMustAct(t *testing.T) {
	for _, c := range []struct {
		class         mcsattestv1.DenialClass
		message, hint string
	}{
		{classNotYet, "this machine is not ready", "run 'mcs-attest-verifier explain c0ffee' on the cluster"},
		{classUnavailable, "the verifier limits requests, or cannot decide", "no action is needed on this machine"},
		{classChallenge, "the challenge can no longer be used", "no action is needed on this machine"},
	} {
		t.Run(c.class.String(), func(t *testing.T) {
			m := newMachine(t)
			n := 0
			_, err := m.run(started(t,
				&verifiertest.Verifier{AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if n++; n <= 2 {
						return nil, verifiertest.Denial(c.class, true)
					}
					return nil, nil
				}}))
			ok(t, err)
			out := m.console.String()
			for _, want := range []string{c.message, "; trying again in 1s\nhint: ", c.hint, "explain c0ffee"} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not on the console:\n%s", want, out)
				}
			}
		})
	}
}

// challenges returns a response for each Challenge. If policyless is true for the number of the
// request, the response is the denial without a policy that a verifier under load sends.
func challenges(policyless func(n int) bool) func(*mcsattestv1.ChallengeRequest) (
	*mcsattestv1.ChallengeResponse, error) {
	n := 0
	return func(*mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
		if n++; policyless(n) {
			return nil, verifiertest.Denial(classUnavailable, true)
		}
		return nil, nil
	}
}

func denyAttest(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
	return nil, verifiertest.Denial(classUnavailable, true)
}

// Rule 14 of docs/security-rules.md: under Audit, denials without a policy count once the mode is
// known.
func TestDenialsWithoutAPolicyCountUnderAudit(t *testing.T) {
	m := newMachine(t)
	_, err := m.run(started(t, &verifiertest.Verifier{
		Mode: mcsattestv1.Mode_MODE_AUDIT, AttestFunc: denyAttest,
		ChallengeFunc: challenges(func(n int) bool { return n > 1 }),
	}))
	var unchanged *flow.Unchanged
	if !errors.As(err, &unchanged) || !strings.Contains(unchanged.Why, "mode is Audit") || len(m.slept) != 2 {
		t.Errorf("error %v after %d pauses", err, len(m.slept))
	}
}

// Attack T63: a flood of denials without a policy never counts as Audit.
func TestAttack_T63_DenialsWithoutAPolicyNeverDowngradeAMachine(t *testing.T) {
	for name, policyless := range map[string]func(n int) bool{
		"before the mode is known": func(n int) bool { return n <= troubleLasts },
		"after the mode is known":  func(n int) bool { return n > 1 && n <= troubleLasts },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			once := true
			g, err := m.run(started(t, &verifiertest.Verifier{
				Change: preApproved, ChallengeFunc: challenges(policyless),
				AttestFunc: func(r *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if once {
						once = false
						return denyAttest(r)
					}
					return nil, nil
				},
			}))
			if err != nil || string(g.Token.Expose()) != verifiertest.Token || len(m.slept) < troubleLasts {
				t.Errorf("error %v after %d pauses", err, len(m.slept))
			}
		})
	}
}

// A denial without a policy does not state that the pool enforces. If a plain Machine Config Server
// answers next, the pointer config stays unchanged.
func TestDenialWithoutAPolicyDoesNotStateTheMode(t *testing.T) {
	m := newMachine(t)
	n := 0
	_, err := m.run(started(t, &verifiertest.Verifier{
		ChallengeFunc: challenges(func(int) bool { return true }),
		Front: func(w http.ResponseWriter, _ *http.Request) bool {
			if n++; n == 1 {
				return false
			}
			w.WriteHeader(http.StatusNotFound)
			return true
		},
	}))
	var unchanged *flow.Unchanged
	if !errors.As(err, &unchanged) || !unchanged.NoVerifier || len(m.slept) != 1 {
		t.Errorf("error %v after %d pauses", err, len(m.slept))
	}
}
