// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm-tools/simulator"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

const (
	classEvidence = mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE
	classNotYet   = mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET
	classToken    = mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN
)

// machine is a node with a simulated TPM. Its pauses take no time.
type machine struct {
	t       *testing.T
	flow    *flow.Flow
	console bytes.Buffer
	slept   []time.Duration
	clock   time.Duration
	// onSleep runs during each pause.
	onSleep func()
	// most is how many pauses a flow may have.
	most int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	sim, err := simulator.Get()
	ok(t, err)
	t.Cleanup(func() { ok(t, sim.Close()) })
	keys, err := attester.Open(transport.FromReadWriter(sim), attester.Options{})
	ok(t, err)
	t.Cleanup(func() { ok(t, keys.Close()) })
	m := &machine{t: t, most: 100}
	m.flow = &flow.Flow{
		Console: &console.Console{Out: &m.console, Err: &m.console}, TPM: keys,
		Claims:  func(context.Context) []byte { return []byte(`{"hostname":"worker-0"}`) },
		Version: "test/1",
		Sleep: func(ctx context.Context, d time.Duration) error {
			m.slept = append(m.slept, d)
			m.clock += d
			if m.onSleep != nil {
				m.onSleep()
			}
			if len(m.slept) > m.most {
				return errors.New("it never ends")
			}
			return ctx.Err()
		},
		Since:   func() time.Duration { return m.clock },
		Offline: func(error) bool { return false },
	}
	return m
}

func (m *machine) run(v *verifiertest.Verifier) (*flow.Grant, error) {
	m.t.Helper()
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	return m.flow.Run(m.t.Context(), flow.Target{Origin: v.Origin, Pool: "worker", URL: v.Origin + "/config/worker"})
}

func started(t *testing.T, v *verifiertest.Verifier) *verifiertest.Verifier {
	t.Helper()
	v.Start(t)
	return v
}

func TestGrant(t *testing.T) {
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{PCRs: []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13}})
	m.flow.EventLog = func() ([]byte, error) { return []byte("log"), nil }
	g, err := m.run(v)
	ok(t, err)
	if string(g.Token.Expose()) != verifiertest.Token || string(g.Ticket.Expose()) != verifiertest.Ticket ||
		g.Machine != "default/worker-0" {
		t.Errorf("grant %+v", g)
	}
	if got := v.Claims(); !slices.Equal(got, []string{`{"hostname":"worker-0"}`}) {
		t.Errorf("claims %v", got)
	}
	if len(m.slept) != 0 {
		t.Errorf("paused %v", m.slept)
	}
	if out := m.console.String(); strings.Contains(out, verifiertest.Token) || strings.Contains(out, verifiertest.Ticket) {
		t.Errorf("a secret on the console:\n%s", out)
	}
}

// Each case ends the flow with an unchanged pointer config.
func TestUnchanged(t *testing.T) {
	deny := func(class mcsattestv1.DenialClass,
		temporary bool) func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
		return func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			return nil, verifiertest.Denial(class, temporary)
		}
	}
	for _, c := range []struct {
		name   string
		v      *verifiertest.Verifier
		why    string
		ticket string
		pauses int
	}{
		{"the pool's mode is Off", &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_OFF}, "mode is Off", "", 0},
		{"an audit grants without a token", &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_AUDIT}, "mode is Audit",
			verifiertest.Ticket, 0},
		{"a final denial under Audit", &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_AUDIT,
			AttestFunc: deny(classEvidence, false)}, "class evidence", "", 0},
		{"temporary denials under Audit", &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_AUDIT,
			AttestFunc: deny(classNotYet, true)}, "class not-yet", "", 2},
		{"a final denial with a pre-approved config",
			&verifiertest.Verifier{Change: preApproved, AttestFunc: deny(classEvidence, false)}, "pre-approved", "", 0},
		{"missing evidence under Audit", &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_AUDIT,
			Required: []mcsattestv1.EvidenceKind{3}}, "aws-sts", "", 0},
		{"no evidence is required", &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{}},
			"requires no evidence", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			_, err := m.run(started(t, c.v))
			var unchanged *flow.Unchanged
			if !errors.As(err, &unchanged) {
				t.Fatalf("error %v", err)
			}
			if !strings.Contains(unchanged.Why, c.why) || unchanged.NoVerifier || string(unchanged.Ticket.Expose()) != c.ticket {
				t.Errorf("unchanged: %+v", unchanged)
			}
			if len(m.slept) != c.pauses {
				t.Errorf("paused %v, want %d", m.slept, c.pauses)
			}
			if n := len(c.v.Tokens()); n != 0 {
				t.Errorf("the gate was asked %d times", n)
			}
		})
	}
}

// server starts a TLS server that is not a verifier.
func server(t *testing.T, max uint16, handler http.HandlerFunc) *verifiertest.Verifier {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{MaxVersion: max}
	s.StartTLS()
	t.Cleanup(s.Close)
	return &verifiertest.Verifier{Origin: s.URL, Authority: s.Certificate()}
}

func TestNotAVerifier(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, code := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		t.Run(fmt.Sprintf("a plain server that answers %d does not change the pointer config", code), func(t *testing.T) {
			_, err := newMachine(t).run(server(t, 0, status(code)))
			var unchanged *flow.Unchanged
			if !errors.As(err, &unchanged) || !unchanged.NoVerifier {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("a server without TLS 1.3 receives no request", func(t *testing.T) {
		asked := false
		_, err := newMachine(t).run(server(t, tls.VersionTLS12, func(http.ResponseWriter, *http.Request) { asked = true }))
		var unchanged *flow.Unchanged
		if !errors.As(err, &unchanged) || !unchanged.NoVerifier || asked {
			t.Errorf("error %v, asked %t", err, asked)
		}
	})
	for _, code := range []int{http.StatusFound, http.StatusForbidden, http.StatusTeapot} {
		t.Run(fmt.Sprintf("status %d is final", code), func(t *testing.T) {
			m := newMachine(t)
			_, err := m.run(server(t, 0, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://127.0.0.1:1/")
				w.WriteHeader(code)
			}))
			var unexpected *client.Unexpected
			if !errors.As(err, &unexpected) || unexpected.Status != code || len(m.slept) != 0 {
				t.Errorf("error %v after %v", err, m.slept)
			}
		})
	}
	for _, code := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprintf("status %d is retried indefinitely", code), func(t *testing.T) {
			m := newMachine(t)
			if _, err := m.run(server(t, 0, status(code))); err == nil || len(m.slept) <= 100 {
				t.Errorf("error %v after %d pauses", err, len(m.slept))
			}
			want := []time.Duration{1, 2, 4, 8, 15, 15}
			for i := range want {
				if m.slept[i] != want[i]*time.Second {
					t.Fatalf("pauses %v", m.slept[:len(want)])
				}
			}
			// At most one line a minute, not one for each attempt.
			if n := strings.Count(m.console.String(), "trying again"); n > 30 {
				t.Errorf("%d lines:\n%s", n, m.console.String())
			}
		})
	}
}

func TestUnknownMachineWaits(t *testing.T) {
	m := newMachine(t)
	v := &verifiertest.Verifier{}
	waits := 5
	v.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
		if waits--; waits >= 0 {
			return nil, verifiertest.Denial(classNotYet, true)
		}
		return nil, nil
	}
	_, err := m.run(started(t, v))
	ok(t, err)
	if len(m.slept) != 5 {
		t.Errorf("paused %v", m.slept)
	}
}

func TestVerifierThatStartsLater(t *testing.T) {
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{})
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	port, err := freeport.Pick()
	ok(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	m.onSleep = func() {
		if len(m.slept) == 4 {
			relay(t, addr, strings.TrimPrefix(v.Origin, "https://"))
		}
	}
	g, err := m.flow.Run(t.Context(),
		flow.Target{Origin: "https://" + addr, Pool: "worker", URL: "https://" + addr + "/config/worker"})
	ok(t, err)
	if string(g.Token.Expose()) != verifiertest.Token || len(m.slept) != 4 {
		t.Errorf("grant %+v after the pauses %v", g, m.slept)
	}
}

// relay forwards the connections of an address, from now on.
func relay(t *testing.T, addr, to string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	ok(t, err)
	t.Cleanup(func() { _ = l.Close() })
	forward := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go forward(out, in)
			go forward(in, out)
		}
	}()
}

// A lease that arrives late costs at most one short pause, and the pauses for a server that does not
// answer start from the beginning.
func TestPausesAreShortWhileTheNetworkIsNotUp(t *testing.T) {
	const lease = time.Minute
	m := newMachine(t)
	v := started(t, &verifiertest.Verifier{})
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	target := flow.Target{Origin: "https://127.0.0.1:1", Pool: "worker", URL: "https://127.0.0.1:1/config/worker"}
	m.flow.Offline = func(error) bool { return m.clock < lease }
	ctx, cancel := context.WithCancel(t.Context())
	m.onSleep = func() {
		if m.clock > lease+5*time.Second {
			cancel()
		}
	}
	m.most = 200
	if _, err := m.flow.Run(ctx, target); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	var clock time.Duration
	var online []time.Duration
	for i, d := range m.slept {
		switch {
		case clock >= lease:
			online = append(online, d)
		case d < 100*time.Millisecond || d > time.Second, i == 0 && d >= 200*time.Millisecond:
			t.Errorf("pause %d without a network: %v", i, d)
		}
		clock += d
	}
	if !slices.Equal(online, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}) {
		t.Errorf("pauses with a network: %v", online)
	}
	if n := strings.Count(m.console.String(), "trying again"); n > 3 {
		t.Errorf("%d lines:\n%s", n, m.console.String())
	}
}

func TestFinalDenial(t *testing.T) {
	for _, c := range []struct {
		name string
		v    *verifiertest.Verifier
		is   func(error) bool
	}{
		{"of the evidence",
			&verifiertest.Verifier{AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
				return nil, verifiertest.Denial(classEvidence, false)
			}}, denied(classEvidence)},
		{"of the challenge",
			&verifiertest.Verifier{ChallengeFunc: func(*mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
				return nil, verifiertest.Denial(classEvidence, false)
			}}, denied(classEvidence)},
		{"a kind of evidence that this machine does not have",
			&verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{1, 4}}, func(err error) bool {
				var missing *flow.MissingEvidence
				return errors.As(err, &missing) && slices.Equal(missing.Kinds, []evidence.Kind{evidence.GCPIdentity})
			}},
		{"another origin in the response", &verifiertest.Verifier{Change: func(c *mcsattestv1.ChallengeResponse) {
			c.Origin = "https://other:22623"
		}}, hasText("for pool")},
		{"another pool in the response",
			&verifiertest.Verifier{Change: func(c *mcsattestv1.ChallengeResponse) { c.Pool = "master" }}, hasText("for pool")},
		{"an unknown binding",
			&verifiertest.Verifier{Change: func(c *mcsattestv1.ChallengeResponse) { c.Binding = 7 }}, hasText("binding mode")},
		{"a bank that the TPM does not have", &verifiertest.Verifier{Change: func(c *mcsattestv1.ChallengeResponse) {
			c.Tpm.Bank = 0x0012
		}}, hasText("no PCR bank")},
		{"a credential for another key", &verifiertest.Verifier{Change: func(c *mcsattestv1.ChallengeResponse) {
			c.Tpm.CredentialBlob[5] ^= 1
		}}, hasText("TPM")},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			_, err := m.run(started(t, c.v))
			if !c.is(err) {
				t.Errorf("error %v", err)
			}
			if len(m.slept) > 2 {
				t.Errorf("paused %v", m.slept)
			}
		})
	}
}

// Section 7 of the contract: a final denial of Challenge without a mode counts as one under Enforce, also if
// an earlier challenge had another mode.
func TestFinalDenial_WithoutAModeStopsAfterAnAudit(t *testing.T) {
	m := newMachine(t)
	challenges := 0
	_, err := m.run(started(t, &verifiertest.Verifier{
		Mode: mcsattestv1.Mode_MODE_AUDIT,
		ChallengeFunc: func(*mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
			if challenges++; challenges == 1 {
				return nil, nil
			}
			return nil, verifiertest.Denial(classEvidence, false)
		},
		AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			return nil, verifiertest.Denial(classNotYet, true)
		},
	}))
	var unchanged *flow.Unchanged
	if errors.As(err, &unchanged) || !denied(classEvidence)(err) || challenges != 2 {
		t.Errorf("%d challenges, error %v", challenges, err)
	}
}

func denied(class mcsattestv1.DenialClass) func(error) bool {
	return func(err error) bool {
		var d *client.Denied
		return errors.As(err, &d) && d.Class == class && strings.Contains(err.Error(), "c0ffee")
	}
}

func hasText(text string) func(error) bool {
	return func(err error) bool { return err != nil && strings.Contains(err.Error(), text) }
}

func TestNoTPM(t *testing.T) {
	m := newMachine(t)
	m.flow.TPM, m.flow.NoTPM = nil, errors.New("there is none")
	_, err := m.run(started(t, &verifiertest.Verifier{}))
	if !denied(classEvidence)(err) || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("error %v", err)
	}
}

// While the agent waits for its network or the cluster, a TPM may appear whose driver loads late.
func TestTPMThatAppearsLate(t *testing.T) {
	m := newMachine(t)
	late, opened := m.flow.TPM, 0
	m.flow.TPM, m.flow.NoTPM = nil, tpmdev.ErrAbsent
	m.flow.OpenTPM = func() (flow.TPM, error) {
		if opened++; opened < 3 {
			return nil, tpmdev.ErrAbsent
		}
		return late, nil
	}
	n := 0
	g, err := m.run(started(t, &verifiertest.Verifier{ChallengeFunc: challenges(func(int) bool { n++; return n < 4 })}))
	ok(t, err)
	if opened != 3 || g.Token.Empty() {
		t.Errorf("opened %d times, token %v", opened, g.Token)
	}
}

// Each command to a TPM that hangs takes minutes, so it is not opened in each round.
func TestTPMThatHangs_IsOpenedOnce(t *testing.T) {
	m := newMachine(t)
	opened := 0
	m.flow.TPM, m.flow.NoTPM = nil, tpmdev.ErrAbsent
	m.flow.OpenTPM = func() (flow.TPM, error) { opened++; return nil, tpmdev.ErrTimeout }
	n := 0
	_, err := m.run(started(t, &verifiertest.Verifier{ChallengeFunc: challenges(func(int) bool { n++; return n < 4 })}))
	if opened != 1 || !errors.Is(err, tpmdev.ErrTimeout) {
		t.Errorf("opened %d times: %v", opened, err)
	}
}

// Attack T25: Challenge and Attest use one connection. If it ends in between, the agent starts over
// and does not continue on another connection.
func TestAttack_T25_ConnectionCutBetweenChallengeAndAttest(t *testing.T) {
	m := newMachine(t)
	v := &verifiertest.Verifier{}
	cuts, attests := 2, 0
	v.Change = func(*mcsattestv1.ChallengeResponse) {
		if cuts--; cuts >= 0 {
			panic(http.ErrAbortHandler)
		}
	}
	v.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
		attests++
		return nil, nil
	}
	_, err := m.run(started(t, v))
	ok(t, err)
	if len(m.slept) != 2 || attests != 1 {
		t.Errorf("%d pauses, %d attests", len(m.slept), attests)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
