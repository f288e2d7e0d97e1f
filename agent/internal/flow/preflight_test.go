// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// gate answers with the given statuses in turn, and then accepts the token.
func gate(codes ...int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead || len(codes) == 0 {
			return false
		}
		code := codes[0]
		codes = codes[1:]
		w.WriteHeader(code)
		return true
	}
}

func repeat(code, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = code
	}
	return out
}

func TestPreflight(t *testing.T) {
	for _, c := range []struct {
		name    string
		codes   []int
		attests int
		err     string // "" is success
	}{
		{"the gate accepts the token immediately", nil, 1, ""},
		{"503 is retried", []int{503, 502, 500}, 1, ""},
		{"503 for longer than half of the token's lifetime requests a new token", repeat(503, 26), 2, ""},
		{"a rejected token is replaced", []int{401}, 2, ""},
		{"three rejected tokens end the flow", repeat(401, 3), 3, "rejected 3 new tokens"},
		{"429 and 408 are retried", []int{429, 408}, 1, ""},
		{"400 to the first version does not concern the token", []int{400}, 1, ""},
		{"nor does 400 to each version", repeat(400, 3), 1, "no config in a version that this machine reads"},
		{"400 before an outage counts no more", []int{400, 400, 503, 400, 400}, 1, ""},
		{"404 counts as a rejection", repeat(404, 3), 3, "HTTP status 404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			attests := 0
			v := started(t, &verifiertest.Verifier{
				GateFunc: gate(c.codes...),
				AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					attests++
					return nil, nil
				},
			})
			_, err := m.run(v)
			if c.err == "" && err != nil || c.err != "" && !hasText(c.err)(err) {
				t.Errorf("error %v", err)
			}
			if attests != c.attests {
				t.Errorf("%d attestations, want %d", attests, c.attests)
			}
		})
	}
}

// Which version Ignition will request is unknown. The config may have only a new one: then the folder of a verifier
// denies an older one, and a Machine Config Server cannot convert it.
func TestPreflight_AsksForEachVersionOfIgnition(t *testing.T) {
	for name, code := range map[string]int{"denied": 400, "cannot be converted": 500, "not rendered": 503} {
		for _, only := range []string{"3.4.0", "3.5.0", "3.6.0"} {
			t.Run(name+" except in "+only, func(t *testing.T) {
				m := newMachine(t)
				v := started(t, &verifiertest.Verifier{GateFunc: func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != http.MethodHead ||
						r.Header.Get("Accept") == "application/vnd.coreos.ignition+json;version="+only+", */*;q=0.1" {
						return false
					}
					w.WriteHeader(code)
					return true
				}})
				if _, err := m.run(v); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A verifier denies the same evidence a second time if it is not bound to the challenge (package record). The gate
// may be unavailable for longer than half of the lifetime of the only token that such a machine gets.
func TestPreflight_TokenThatCannotBeReplacedIsUsedUntilItExpires(t *testing.T) {
	for _, c := range []struct {
		name   string
		codes  []int
		change func(*mcsattestv1.ChallengeResponse)
		err    string
	}{
		{"503 for longer than half of the lifetime", repeat(503, 30), nil, ""},
		{"the same with a pre-approved config", repeat(503, 30), preApproved, ""},
		{"503 for longer than the lifetime", repeat(503, 100), preApproved, "the gate answered HTTP status 503"},
		{"a rejected token, with a pre-approved config", []int{401}, preApproved, "denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			attests := 0
			v := started(t, &verifiertest.Verifier{
				GateFunc: gate(c.codes...), Change: c.change,
				AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if attests++; attests > 1 {
						return nil, verifiertest.Denial(classEvidence, false)
					}
					return nil, nil
				},
			})
			g, err := m.run(v)
			var unchanged *flow.Unchanged
			if c.err == "" && (err != nil || g == nil) || c.err != "" && !hasText(c.err)(err) || errors.As(err, &unchanged) {
				t.Errorf("error %v", err)
			}
			if attests != 2 {
				t.Errorf("%d attestations", attests)
			}
		})
	}
}

// Under Audit the gate serves every machine, so a denial never stops a boot.
func TestPreflight_AuditEndsTheWaitForAToken(t *testing.T) {
	m, attests, challenges := newMachine(t), 0, 0
	v := started(t, &verifiertest.Verifier{
		GateFunc: gate(repeat(503, 100)...),
		Change: func(c *mcsattestv1.ChallengeResponse) {
			if challenges++; challenges > 1 {
				c.Mode = mcsattestv1.Mode_MODE_AUDIT
			}
		},
		AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			if attests++; attests > 1 {
				return nil, verifiertest.Denial(classEvidence, false)
			}
			return nil, nil
		},
	})
	_, err := m.run(v)
	var unchanged *flow.Unchanged
	if !errors.As(err, &unchanged) || !unchanged.Open || attests != 2 {
		t.Errorf("error %v, %d attestations", err, attests)
	}
}

// The gate never redirects. If a server does, the agent does not send it the token.
func TestAttack_T56_RedirectDoesNotCarryTheToken(t *testing.T) {
	reached := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer elsewhere.Close()
	m := newMachine(t)
	if _, err := m.run(started(t, &verifiertest.Verifier{})); err != nil {
		t.Fatalf("valid case: %v", err)
	}
	v := started(t, &verifiertest.Verifier{Change: preApproved,
		GateFunc: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(http.StatusFound)
			return true
		}})
	_, err := m.run(v)
	var unchanged *flow.Unchanged
	if !hasText("redirect")(err) || errors.As(err, &unchanged) || reached {
		t.Errorf("error %v, reached %t", err, reached)
	}
}
