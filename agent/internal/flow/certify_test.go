// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

const (
	optional = mcsattestv1.NodeCertificate_NODE_CERTIFICATE_OPTIONAL
	required = mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED
)

// carried attests with a pointer config that can carry the node's certificate.
func (m *machine) carried(v *verifiertest.Verifier) (*flow.Grant, error) {
	m.t.Helper()
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	return m.flow.Run(m.t.Context(), flow.Target{Origin: v.Origin, Pool: "worker", URL: v.Origin + "/config/worker",
		Certificate: true})
}

func TestCertify_ReturnsTheNodesCertificate(t *testing.T) {
	for _, c := range []struct {
		names    []string
		hostname string
		want     string
	}{
		{[]string{"worker-0"}, "", "system:node:worker-0"},
		{[]string{"w.c.p.internal", "w"}, "w", "system:node:w"},
	} {
		t.Run(c.want, func(t *testing.T) {
			m := newMachine(t)
			m.flow.Hostname = func() string { return c.hostname }
			v := started(t, &verifiertest.Verifier{NodeCertificate: required, Nodes: c.names})
			g, err := m.carried(v)
			ok(t, err)
			pair, err := tls.X509KeyPair(g.NodePair.Expose(), g.NodePair.Expose())
			ok(t, err)
			if got := pair.Leaf.Subject.CommonName; got != c.want || len(v.Keys()) != 1 || len(v.Keys()[0]) != 32 {
				t.Errorf("%s, attested keys %x", got, v.Keys())
			}
			if out := m.console.String(); strings.Contains(out, "PRIVATE") || !strings.Contains(out, "node's certificate") {
				t.Errorf("console:\n%s", out)
			}
		})
	}
}

// A host name from DHCP arrives after the address.
func TestCertify_WaitsForTheNameOfTheHost(t *testing.T) {
	for name, after := range map[string]time.Duration{"it comes": 30 * time.Second, "it does not": time.Hour} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.flow.Hostname = func() string {
				if m.clock < after {
					return "localhost"
				}
				return "w"
			}
			g, err := m.carried(started(t, &verifiertest.Verifier{NodeCertificate: required,
				Nodes: []string{"w.c.p.internal", "w"}}))
			if after == time.Hour {
				if err == nil || !strings.Contains(err.Error(), `its host name is "localhost"`) || m.clock < 3*time.Minute ||
					m.clock > 4*time.Minute {
					t.Errorf("after %v: %v", m.clock, err)
				}
				return
			}
			ok(t, err)
			if g.NodePair.Empty() {
				t.Error("there is no certificate")
			}
		})
	}
}

// No hash is sent to a verifier that did not ask for one: it would accept no other key of the kubelet.
func TestCertify_OnlyIfTheVerifierAsks(t *testing.T) {
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{})
	g, err := m.carried(v)
	ok(t, err)
	if !g.NodePair.Empty() || len(v.Keys()[0]) != 0 {
		t.Errorf("a key was attested: %x", v.Keys())
	}
}

func TestCertify_OnlyIfThePointerConfigCanCarryIt(t *testing.T) {
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{NodeCertificate: optional, Nodes: []string{"worker-0"}})
	g, err := m.run(v)
	ok(t, err)
	if !g.NodePair.Empty() || len(v.Keys()[0]) != 0 {
		t.Errorf("a key was attested: %x", v.Keys())
	}
}

func TestCertify_WithoutANameContinuesWithTheToken(t *testing.T) {
	for name, v := range map[string]*verifiertest.Verifier{
		"no name yet": {CertifyFunc: func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
			return nil, verifiertest.Denial(classNotYet, true)
		}},
		"names that are not this host's": {Nodes: []string{"a", "b"}},
		"a final denial": {CertifyFunc: func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
			return nil, verifiertest.Denial(classEvidence, false)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			v.NodeCertificate = optional
			g, err := m.carried(started(t, v))
			ok(t, err)
			if !g.NodePair.Empty() || g.Token.Empty() {
				t.Error("the grant has a pair, or no token")
			}
			if keys := v.Keys(); len(keys) != 2 || len(keys[0]) != 32 || len(keys[1]) != 0 {
				t.Errorf("attested keys %x", keys)
			}
			if m.clock > 4*time.Minute || v.CertifyFunc == nil && m.clock > 10*time.Second {
				t.Errorf("it took %v", m.clock)
			}
		})
	}
}

func TestCertify_WaitsForARequiredCertificate(t *testing.T) {
	m := newMachine(t)
	calls := 0
	v := started(t, &verifiertest.Verifier{NodeCertificate: required, Nodes: []string{"worker-0"},
		CertifyFunc: func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
			if calls++; calls < 20 {
				return nil, verifiertest.Denial(classNotYet, true)
			}
			return nil, nil
		}})
	g, err := m.carried(v)
	ok(t, err)
	if g.NodePair.Empty() || len(v.Keys()) != 1 {
		t.Errorf("%d attestations", len(v.Keys()))
	}
}

func TestCertify_PrintsWhyTheClusterRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		why  mcsattestv1.Reason
		want string
	}{
		"a reason": {mcsattestv1.Reason_REASON_CSR_NODE_EXISTS, "class not-yet, CSRNodeExists, correlation id c0ffee); " +
			"trying again in 1s\nhint: " + reason.CSRNodeExists.Info().Hint + "\n"},
		"the reason of a newer verifier": {9999, "class not-yet, Reason9999, correlation id c0ffee); trying again in 1s\n" +
			"hint: run 'mcs-attest-verifier explain c0ffee' on the cluster to see what is missing\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			calls := 0
			v := started(t, &verifiertest.Verifier{NodeCertificate: required, Nodes: []string{"worker-0"},
				CertifyFunc: func(r *mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
					if calls++; calls < 5 && len(r.GetCsr()) > 0 {
						return nil, verifiertest.Refusal(c.why)
					}
					return nil, nil
				}})
			_, err := m.carried(v)
			ok(t, err)
			if out := m.console.String(); strings.Count(out, c.want) != 1 {
				t.Errorf("console:\n%s", out)
			}
		})
	}
}

func TestCertify_ADenialOfARequiredCertificateIsFinal(t *testing.T) {
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{NodeCertificate: required,
		CertifyFunc: func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
			return nil, verifiertest.Denial(classEvidence, false)
		}})
	if _, err := m.carried(v); err == nil {
		t.Error("a final denial of a required certificate was ignored")
	}
}

// The token may have expired, or the load balancer may have chosen a verifier without this call. The machine
// did attest, so neither ends its boot, nor its wait for an optional certificate.
func TestCertify_AttestsAgainIfTheTicketIsOfNoUse(t *testing.T) {
	invalid := func() (*mcsattestv1.CertifyResponse, error) { return nil, verifiertest.Denial(classToken, false) }
	for _, mode := range []mcsattestv1.NodeCertificate{optional, required} {
		for name, c := range map[string]struct {
			deny   func() (*mcsattestv1.CertifyResponse, error)
			status int
		}{
			"the ticket is not valid": {deny: invalid},
			"HTTP 404":                {status: http.StatusNotFound},
			"HTTP 403":                {status: http.StatusForbidden},
		} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				m := newMachine(t)
				failed := false
				once := func(may bool) bool {
					now := may && !failed
					failed = failed || now
					return now
				}
				v := started(t, &verifiertest.Verifier{NodeCertificate: mode, Nodes: []string{"worker-0"},
					CertifyFunc: func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
						if once(c.deny != nil) {
							return c.deny()
						}
						return nil, nil
					},
					Front: func(w http.ResponseWriter, r *http.Request) bool {
						if !once(c.status != 0 && strings.HasSuffix(r.URL.Path, "/Certify")) {
							return false
						}
						w.WriteHeader(c.status)
						return true
					}})
				g, err := m.carried(v)
				ok(t, err)
				if keys := v.Keys(); g.NodePair.Empty() || len(keys) != 2 || !bytes.Equal(keys[0], keys[1]) {
					t.Errorf("attested keys %x", keys)
				}
			})
		}
	}
}

// Each round ends early, so no single round lasts as long as the wait.
func TestCertify_WaitsNoLongerInManyRounds(t *testing.T) {
	for name, deny := range map[string]func() error{
		"the connection ends":     func() error { panic("the connection ends") },
		"the ticket is not valid": func() error { return verifiertest.Denial(classToken, false) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			v := started(t, &verifiertest.Verifier{NodeCertificate: optional, Nodes: []string{"worker-0"},
				CertifyFunc: func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
					return nil, deny()
				}})
			g, err := m.carried(v)
			ok(t, err)
			if !g.NodePair.Empty() || m.clock < 3*time.Minute || m.clock > 4*time.Minute {
				t.Errorf("it took %v", m.clock)
			}
		})
	}
}

// The cluster approves few keys of one machine, so all rounds of one boot have the same key and request.
func TestCertify_KeepsItsKey(t *testing.T) {
	m := newMachine(t)
	var requests [][]byte
	v := &verifiertest.Verifier{NodeCertificate: required, Nodes: []string{"worker-0"}}
	v.CertifyFunc = func(r *mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
		if len(r.GetCsr()) > 0 {
			requests = append(requests, r.GetCsr())
			if len(requests) == 1 {
				panic("the connection ends")
			}
		}
		return nil, nil
	}
	_, err := m.carried(started(t, v))
	ok(t, err)
	if len(requests) != 2 || !slices.Equal(requests[0], requests[1]) || !bytes.Equal(v.Keys()[0], v.Keys()[1]) {
		t.Errorf("%d requests, keys %x", len(requests), v.Keys())
	}
}

// A certificate for another key or name is not given to the kubelet.
func TestAttack_T73_TheAgentChecksItsCertificate(t *testing.T) {
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{NodeCertificate: required, Nodes: []string{"worker-0"},
		CertifyFunc: func(r *mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
			if len(r.GetCsr()) == 0 {
				return nil, nil
			}
			return &mcsattestv1.CertifyResponse{Certificates: [][]byte{foreign}}, nil
		}})
	foreign = v.Authority.Raw
	if _, err := m.carried(v); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("%v", err)
	}
}

var foreign []byte
