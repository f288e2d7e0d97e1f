// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// attested is a verifier with one machine that has just attested.
func attested(t *testing.T) (*verifier, *node, *mcsattestv1.AttestResponse) {
	t.Helper()
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal("honest:", err)
	}
	return v, n, res
}

func (v *verifier) wantFetch(what, path, bearer string, want int) {
	v.t.Helper()
	if code, _, body := v.fetch(http.MethodGet, path, bearer); code != want {
		v.t.Errorf("%s: %d %q, want %d", what, code, body, want)
	} else if code != http.StatusOK && strings.Contains(body, "secret") {
		v.t.Errorf("%s: a refusal holds the config", what)
	}
}

func TestAttack_T16_RequestsThatAreTooLarge(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	for name, change := range map[string]func(*mcsattestv1.ChallengeRequest){
		"a chain of 1000 certificates": func(r *mcsattestv1.ChallengeRequest) { r.Tpm.EkCertificates = make([][]byte, 1000) },
		"a certificate of 100 kB": func(r *mcsattestv1.ChallengeRequest) {
			r.Tpm.EkCertificates = [][]byte{make([]byte, 100<<10)}
		},
		"a public area of 100 kB": func(r *mcsattestv1.ChallengeRequest) { r.Tpm.EkPublic = make([]byte, 100<<10) },
		"an AK of 100 kB":         func(r *mcsattestv1.ChallengeRequest) { r.Tpm.AkPublic = make([]byte, 100<<10) },
		"100 000 banks":           func(r *mcsattestv1.ChallengeRequest) { r.Tpm.Banks = make([]uint32, 100000) },
		"a pool of 100 kB":        func(r *mcsattestv1.ChallengeRequest) { r.Pool = strings.Repeat("w", 100<<10) },
		"an origin of 100 kB":     func(r *mcsattestv1.ChallengeRequest) { r.Origin = strings.Repeat("w", 100<<10) },
		"a body of 1 MB":          func(r *mcsattestv1.ChallengeRequest) { r.AgentVersion = strings.Repeat("w", 1<<20) },
	} {
		n.connect()
		n.changeChallenge = change
		if err := n.ask(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// 200 MB over a raw connection: cut off early, not read to its end.
	conn, err := tls.Dial("tcp", v.addr, &tls.Config{RootCAs: v.roots, ServerName: "mcs.test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /mcsattest.v1.Attestation/Attest HTTP/1.1\r\nHost: x\r\n"+
		"Content-Type: application/proto\r\nContent-Length: %d\r\n\r\n", 200<<20)
	chunk, sent := make([]byte, 64<<10), 0
	for sent < 200<<20 {
		if err := conn.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		k, err := conn.Write(chunk)
		sent += k
		if err != nil {
			break
		}
	}
	if sent > 20<<20 {
		t.Errorf("the verifier read %d MB of a body of 200 MB", sent>>20)
	}
}

func TestAttack_T44_KeysRotatedInMidConversation(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	ev := n.evidence()
	if err := rotateKeys(t, v.config, false, v.now()); err != nil {
		t.Fatal(err)
	}
	v.reloadKeys()
	res, err := n.send(ev)
	if err != nil {
		t.Fatal("an ordinary rotation lost a challenge in flight:", err)
	}
	v.wantFetch("after an ordinary rotation", "/config/worker", res.GetToken(), http.StatusOK)
	v.advance(later)
	n.connect()
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	ev = n.evidence()
	if err := rotateKeys(t, v.config, true, v.now()); err != nil {
		t.Fatal(err)
	}
	v.reloadKeys()
	if _, err := n.send(ev); err == nil {
		t.Fatal("a challenge under a dropped key was accepted")
	} else if !denialOf(t, err).GetTemporary() {
		t.Error("an unknown key is temporary: the agent asks again")
	}
	v.wantReason("ChallengeKeyUnknown")
	v.wantFetch("a token of a dropped key", "/config/worker", res.GetToken(), http.StatusServiceUnavailable)
}

func (v *verifier) reloadKeys() {
	v.t.Helper()
	if _, err := v.standalone().Tokens.Refresh(); err != nil {
		v.t.Fatal(err)
	}
	if _, err := v.standalone().Seals.Refresh(); err != nil {
		v.t.Fatal(err)
	}
}

func TestAttack_T45_TokenUsedFiftyTimesConcurrently(t *testing.T) {
	v, _, res := attested(t)
	v.freeze() // so that the limit gives no more than its burst, however long this takes
	var served, refused, limited atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			switch code, _, body := v.fetch(http.MethodGet, "/config/worker", res.GetToken()); code {
			case http.StatusOK:
				if body != fullConfig {
					t.Error("half a config was served")
				}
				served.Add(1)
			case http.StatusUnauthorized:
				refused.Add(1)
			case http.StatusServiceUnavailable: // above the rate limit of the token
				limited.Add(1)
			default:
				t.Errorf("status %d", code)
			}
		})
	}
	wg.Wait()
	if served.Load() != 3 || refused.Load() != 7 || limited.Load() != 40 {
		t.Errorf("served %d, refused %d, limited %d; want 3, 7 and 40", served.Load(), refused.Load(), limited.Load())
	}
	if uses := v.machine("m1").Record.Token.Uses; uses != 3 {
		t.Errorf("%d uses recorded", uses)
	}
}

func TestAttack_T45_TokenForAnotherPoolExpiredSupersededOrForged(t *testing.T) {
	v, n, res := attested(t)
	token := res.GetToken()
	v.wantFetch("another pool", "/config/master", token, http.StatusForbidden)
	v.wantFetch("another pool behind ours", "/config/worker/master", token, http.StatusForbidden)
	v.wantFetch("another pool, escaped", "/config/worker%2fmaster", token, http.StatusForbidden)
	v.wantFetch("forged", "/config/worker", token[:len(token)-4]+"AAAA", http.StatusUnauthorized)
	v.wantFetch("empty", "/config/worker", "x", http.StatusUnauthorized)
	if code, _, _ := v.fetch(http.MethodHead, "/config/worker", token); code != http.StatusOK {
		t.Errorf("HEAD with the token: %d", code)
	}
	if uses := v.machine("m1").Record.Token.Uses; uses != 0 {
		t.Errorf("refusals and HEAD took %d uses", uses)
	}
	v.advance(later)
	again, err := n.again()
	if err != nil {
		t.Fatal(err)
	}
	v.wantFetch("superseded", "/config/worker", token, http.StatusUnauthorized)
	v.wantFetch("the newer one", "/config/worker", again.GetToken(), http.StatusOK)
	v.phase("m1", v1alpha1.PhaseJoined)
	v.wantFetch("after the join", "/config/worker", again.GetToken(), http.StatusUnauthorized)
	v.wantReason("MachineJoined")
	v.phase("m1", v1alpha1.PhaseFetched)
	v.wantFetch("without the join", "/config/worker", again.GetToken(), http.StatusOK)
	v.advance(11 * time.Minute)
	v.wantFetch("expired", "/config/worker", again.GetToken(), http.StatusUnauthorized)
}

// phase changes only the phase of a record. The steps that record a join also remove the token.
func (v *verifier) phase(name string, phase v1alpha1.Phase) {
	v.t.Helper()
	err := v.server.Records().Session(v.machine(name).UID).Update(v.t.Context(),
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next := rec.DeepCopy()
			next.Status.Phase = phase
			return next, nil
		})
	if err != nil {
		v.t.Fatal(err)
	}
}

func TestAttack_T45_TokenAfterTheMachineWasDeleted(t *testing.T) {
	v, _, res := attested(t)
	if code, _, _ := v.fetch(http.MethodHead, "/config/worker", res.GetToken()); code != http.StatusOK {
		t.Fatal("honest:", code)
	}
	if err := v.remove("attestations/m1.yaml"); err != nil {
		t.Fatal(err)
	}
	v.wantFetch("after its Machine was deleted", "/config/worker", res.GetToken(), http.StatusServiceUnavailable)
}

func TestAttack_T46_NoSecretInAnyLogRecordOrMetric(t *testing.T) {
	v, n, res := attested(t)
	v.wantFetch("honest", "/config/worker", res.GetToken(), http.StatusOK)
	// A token in the URL opens nothing and is not logged either.
	v.wantFetch("in the URL", "/config/worker?token="+res.GetToken(), "", http.StatusUnauthorized)
	v.wantFetch("in the path", "/config/"+res.GetToken(), "", http.StatusServiceUnavailable)
	v.advance(later)
	n.pool = "master"
	if _, err := n.again(); err == nil {
		t.Fatal("a worker got master")
	}
	var text bytes.Buffer
	rec := newResponse()
	v.server.Metrics.Handler().ServeHTTP(rec, mustRequest(t, "/metrics"))
	if err := env.Encode(&text, v.state(), env.JSON); err != nil {
		t.Fatal(err)
	}
	if err := machine.Explain(&text, env.Verifier, v.state(), "m1"); err != nil {
		t.Fatal(err)
	}
	text.Write(rec.body.Bytes())
	text.WriteString(v.log.everything())
	for name, secret := range map[string]string{
		"the token": res.GetToken(), "its signature": res.GetToken()[strings.LastIndex(res.GetToken(), ".")+1:],
		"the report ticket": res.GetReportTicket(), "the config": "full-config-secret",
	} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("%s is in a log, record, metric or in status", name)
		}
	}
	if !strings.Contains(text.String(), "mcs_attest_decisions_total") {
		t.Error("the metrics are missing: nothing was searched")
	}
}

type response struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func newResponse() *response                    { return &response{header: http.Header{}, code: http.StatusOK} }
func (r *response) Header() http.Header         { return r.header }
func (r *response) WriteHeader(code int)        { r.code = code }
func (r *response) Write(p []byte) (int, error) { return r.body.Write(p) }

func mustRequest(t *testing.T, path string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAttack_T47_UpstreamsThatWouldProvisionNothing(t *testing.T) {
	var behave atomic.Value
	behave.Store(func(w http.ResponseWriter) { _, _ = io.WriteString(w, fullConfig) })
	v := newVerifier(t, func(dir string) {
		upstream := upstreamServer(t, dir, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Error("the token reached the Machine Config Server")
			}
			behave.Load().(func(http.ResponseWriter))(w)
		})
		if err := os.WriteFile(filepath.Join(dir, "mcs-attest.yaml"),
			[]byte("origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 10000\nupstreamName: mcs.test\nupstream: https://"+
				upstream+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(http.ResponseWriter){
		"an empty 200": func(http.ResponseWriter) {},
		"a 204":        func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"a redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://evil/")
			w.WriteHeader(http.StatusFound)
		},
		"a 404":                  func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"a 500":                  func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"garbage":                func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>login</html>") },
		"JSON that is no config": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"kind":"Status"}`) },
		"half a config":          func(w http.ResponseWriter) { _, _ = io.WriteString(w, fullConfig[:len(fullConfig)/2]) },
		"a shorter body than announced": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(fullConfig)+10))
			_, _ = io.WriteString(w, fullConfig)
		},
		"a newer spec version": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, strings.Replace(fullConfig, "3.2.0", "3.6.0", 1))
		},
		"a compressed body": func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b")
		},
	} {
		behave.Store(f)
		v.advance(time.Second) // the rate limit of the token
		code, h, body := v.fetch(http.MethodGet, "/config/worker", res.GetToken())
		if code != http.StatusServiceUnavailable || h.Get("Location") != "" || strings.Contains(body, "full-config") {
			t.Errorf("%s became %d %q", name, code, body)
		}
	}
	if uses := v.machine("m1").Record.Token.Uses; uses != 0 {
		t.Errorf("answers that failed took %d uses", uses)
	}
	behave.Store(func(w http.ResponseWriter) { _, _ = io.WriteString(w, fullConfig) })
	v.wantFetch("a good one at last", "/config/worker", res.GetToken(), http.StatusOK)
}

// upstreamServer is a Machine Config Server with the folder's own certificate.
func upstreamServer(t *testing.T, dir string, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() {
		_ = srv.ServeTLS(l, filepath.Join(dir, "tls", "tls.crt"), filepath.Join(dir, "tls", "tls.key"))
	}()
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String()
}

func TestAttack_T49_AnonymousCallersMakeTheVerifierWriteNothing(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	before, err := os.ReadFile(filepath.Join(v.dir, "state", "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for i := range 300 {
		n.connect()
		switch i % 3 {
		case 0: // a genuine challenge, and evidence that proves nothing enrolled
			if _, err := n.attest(); err == nil {
				t.Fatal("accepted")
			}
		case 1:
			if _, err := n.send(&mcsattestv1.AttestRequest{Sealed: []byte("x")}); err == nil {
				t.Fatal("accepted")
			}
		case 2:
			v.wantFetch("anonymous", "/config/worker", "", http.StatusUnauthorized)
		}
	}
	for range 2000 {
		v.fetch(http.MethodGet, "/config/worker", "")
	}
	after, err := os.ReadFile(filepath.Join(v.dir, "state", "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the record database changed")
	}
	// A budget for callers that answered a challenge, and one for all others: the burst
	// of all sources, the share of this source, and ten lines a second.
	bound := 2 * (100 + 25 + 10.1*time.Since(start).Seconds())
	if lines := strings.Count(v.log.everything(), `"log":"audit"`); float64(lines) > bound {
		t.Errorf("%d audit lines for 2300 knocks, more than %.0f", lines, bound)
	}
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.again(); err != nil {
		t.Error("honest, afterwards:", err)
	}
}

func TestAttack_T51_IdleConnectionsAndFloodsDoNotBlockOthers(t *testing.T) {
	v := newVerifier(t, func(dir string) {
		text := "origins: [\"" + testOrigin + "\"]\nmaxConnections: 40\nrequestsPerSecond: 20\n"
		if err := os.WriteFile(filepath.Join(dir, "mcs-attest.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	// One source holds all the connections it may have, and says nothing.
	var idle []net.Conn
	for range 40 {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}).Dial("tcp", v.addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	defer func() {
		for _, c := range idle {
			_ = c.Close()
		}
	}()
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal("another source is shut out by idle connections:", err)
	}
	v.freeze()
	// A flood from our own address, as behind one NAT, is limited. The machine with
	// a token is served during the flood, and attests again during it.
	limited := false
	for range 200 {
		if code, _, _ := v.fetch(http.MethodGet, "/config/worker", ""); code == http.StatusServiceUnavailable {
			limited = true
			break
		}
	}
	if !limited {
		t.Error("a flood is not limited")
	}
	v.wantFetch("during the flood, with a token", "/config/worker", res.GetToken(), http.StatusOK)
	v.advance(later)
	for range 200 {
		v.fetch(http.MethodGet, "/config/worker", "")
	}
	if _, err := n.again(); err != nil {
		t.Error("attesting during the flood:", err)
	}
}

func TestAttack_T53_ReplicaWhoseClockIsOff(t *testing.T) {
	v := newVerifier(t)
	v.advance(3 * time.Hour) // this replica is ahead of those that come
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.change("attestations/m1.yaml", enrolment("m1", "  pool: worker\n", n.id.EKSPKI))
	res, err := n.attest()
	if err != nil {
		t.Fatal("honest:", err)
	}
	// The token comes from a replica that is five minutes ahead of this one.
	v.advance(-4*time.Minute - 59*time.Second)
	v.wantFetch("issued five minutes ahead", "/config/worker", res.GetToken(), http.StatusOK)
	n.connect()
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	ev := n.evidence()
	v.advance(-4 * time.Minute)
	if _, err := n.send(ev); err != nil {
		t.Error("a challenge of a replica that is four minutes ahead:", err)
	}
	// Beyond the leeway it is our fault, and temporary.
	v.advance(-time.Hour)
	v.wantFetch("issued an hour ahead", "/config/worker", res.GetToken(), http.StatusServiceUnavailable)
}

func TestAttack_T57_ReportsForgedHugeOrRepeated(t *testing.T) {
	v, n, res := attested(t)
	report := func(ticket, message string) error {
		n.connect()
		_, err := n.client.Report(t.Context(), connect.NewRequest(&mcsattestv1.ReportRequest{
			Ticket: ticket, Unit: "ignition-files.service", Result: "exit-code", ExitStatus: 1, Message: message, BootId: "b",
		}))
		return err
	}
	if err := report(res.GetReportTicket(), "failed to create users\n\x1b[31mred"); err != nil {
		t.Fatal("honest:", err)
	}
	rec := v.machine("m1").Record
	if rec.Report == nil || rec.Report.Unit != "ignition-files.service" || strings.Contains(rec.Report.Message, "\x1b") {
		t.Errorf("recorded %+v", rec.Report)
	}
	var text bytes.Buffer
	if err := machine.Explain(&text, env.Verifier, v.state(), "m1"); err != nil ||
		!strings.Contains(text.String(), "failed to create users") {
		t.Errorf("explain does not show the report: %v\n%s", err, text.String())
	}
	for name, bad := range map[string]string{"forged": "AAAA" + res.GetReportTicket()[4:], "none": "",
		"the token": res.GetToken()} {
		if err := report(bad, "x"); err == nil || denialOf(t, err).GetTemporary() {
			t.Errorf("%s ticket: %v", name, err)
		}
		v.wantReason("ReportTicketInvalid")
	}
	if err := report(res.GetReportTicket(), strings.Repeat("x", 5<<10)); err == nil {
		t.Error("a huge report was taken")
	}
	for range 7 {
		if err := report(res.GetReportTicket(), "again"); err != nil {
			t.Fatal(err)
		}
	}
	if err := report(res.GetReportTicket(), "ninth"); err == nil {
		t.Error("a ninth report was taken")
	}
	v.wantReason("ReportLimit")
	if n := len(v.machine("m1").Record.History); n > v1alpha1.MaxHistory {
		t.Errorf("%d entries of history", n)
	}
	v.advance(3 * time.Hour)
	if err := report(res.GetReportTicket(), "late"); err == nil {
		t.Error("an expired ticket was taken")
	}
}

func TestSwitchingModesDropsNoRequest(t *testing.T) {
	v := newVerifier(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var refused, full atomic.Int32
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				code, _, body := v.fetch(http.MethodGet, "/config/worker", "")
				switch {
				case code == http.StatusUnauthorized:
					refused.Add(1)
				case code == http.StatusOK && body == fullConfig:
					full.Add(1)
				default:
					t.Errorf("%d %q", code, body)
				}
			}
		})
	}
	for i := range 30 {
		mode, seen := []string{`"Off"`, "Audit", "Enforce"}[i%3], &full
		if mode == "Enforce" {
			seen = &refused
		}
		v.policy("  mode: " + mode + "\n")
		before := seen.Load()
		eventually(t, func() bool { return seen.Load() > before }, func() string { return mode + " does not take effect" })
	}
	close(stop)
	wg.Wait()
}

func TestBreakGlassToken_OpensOnePoolThreeTimesAndIsAudited(t *testing.T) {
	v := newVerifier(t)
	var out, errOut bytes.Buffer
	args := []string{"token", "break-glass", "--config", filepath.Join(v.dir, "mcs-attest.yaml"), "--pool", "worker",
		"--name", "ticket-4711"}
	cmd := command(args...)
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(out.String())
	if strings.Contains(errOut.String(), token) {
		t.Error("the token is on standard error too")
	}
	v.wantFetch("another pool", "/config/master", token, http.StatusForbidden)
	for range 3 {
		v.wantFetch("use", "/config/worker", token, http.StatusOK)
	}
	v.wantFetch("a fourth use", "/config/worker", token, http.StatusUnauthorized)
	if log := v.log.everything(); strings.Count(log, `"machine":"break-glass/ticket-4711"`) < 4 {
		t.Error("the audit log does not tell of each use")
	}
	v.refresh()
	if m := v.machine("break-glass/ticket-4711"); m.Record.Token.Uses != 3 {
		t.Errorf("status shows %+v", m.Record)
	}
	cmd = command(append(args, "--lifetime", "2h")...)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err == nil {
		t.Error("made for two hours")
	}
}

func TestHealthAndReadiness(t *testing.T) {
	v := newVerifier(t)
	get := func(path string) (int, string) {
		rec := newResponse()
		v.server.HealthServer().Handler.ServeHTTP(rec, mustRequest(t, path))
		return rec.code, rec.body.String()
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	if code, body := get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, h, body := v.fetch(http.MethodGet, "/healthz", ""); code != http.StatusOK || body != "" ||
		h.Get("Content-Length") != "0" {
		t.Errorf("the gate's healthz: %d %q", code, body)
	}
	if err := v.remove("policies/default.yaml"); err != nil {
		t.Fatal(err)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "policies") {
		t.Errorf("readyz without a policy: %d %s", code, body)
	}
	// What the gate has said a moment ago may hold for a second.
	eventually(t, func() bool {
		code, _, _ := v.fetch(http.MethodGet, "/healthz", "")
		return code == http.StatusServiceUnavailable
	}, func() string { return "the gate's healthz is 200 without a policy" })

	v = newVerifier(t)
	all := v.server.Backend
	for part, without := range map[string]keyless{
		"token keys":   {all, token.KeySet{}, all.SealKeys()},
		"sealing keys": {all, all.TokenKeys(), seal.Ring{}},
	} {
		v.server.Backend = without
		if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.HasPrefix(body, part+": ") ||
			strings.Count(body, "\n") != 1 {
			t.Errorf("readyz without %s: %d %s", part, code, body)
		}
	}
}

// keyless is a backend without keys of a kind, as in a cluster before the Secret was read.
type keyless struct {
	backend.Backend
	tokens token.KeySet
	seals  seal.Ring
}

func (b keyless) TokenKeys() token.KeySet { return b.tokens }
func (b keyless) SealKeys() seal.Ring     { return b.seals }

func TestServe_RejectsASecondVerifierOfAFolder(t *testing.T) {
	v := newVerifier(t)
	_, err := serve.New(v.config, v.server.Log, v.now, "test")
	var h *hint.Error
	if !errors.Is(err, store.ErrLocked) || !errors.As(err, &h) {
		t.Errorf("got %v", err)
	}
}

func TestRecordsSurviveARestartAndWhatWasServedStaysCounted(t *testing.T) {
	v, n, res := attested(t)
	v.wantFetch("before", "/config/worker", res.GetToken(), http.StatusOK)
	v.stop()
	v.start()
	if m := v.machine("m1"); m.Record == nil || m.Record.Token.Uses != 1 {
		t.Fatalf("after a restart: %+v", m.Record)
	}
	v.wantFetch("after", "/config/worker", res.GetToken(), http.StatusOK)
	v.advance(later)
	if _, err := n.again(); err != nil {
		t.Error("attesting again after a restart:", err)
	}
	v.stop()
}

func rotateKeys(t *testing.T, c *config.Config, drop bool, now time.Time) error {
	f := &operator.Folder{Config: c}
	return f.ChangeKeys(t.Context(), func(k operator.Keys) (operator.Keys, error) {
		return operator.Rotate(k, now, time.Duration(c.KeyPublishDelay), drop)
	})
}

func stateOf(ctx context.Context, c *config.Config) (*admin.State, error) {
	return (&operator.Folder{Config: c, Now: time.Now, Offline: standalone.OfflineState}).State(ctx)
}

func TestServeStopsCleanlyWhenAsked(t *testing.T) {
	v := newVerifier(t)
	v.stop()
	c := *v.config
	c.Listen, c.HealthListen, c.MetricsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve.Run(ctx, &c, v.server.Log, version) }()
	eventually(t, func() bool {
		_, err := stateOf(ctx, &c)
		return err == nil && strings.Contains(v.log.everything(), `"msg":"serving"`)
	}, func() string { return "it does not serve:\n" + v.log.everything() })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s, err := stateOf(t.Context(), &c)
	if err != nil || s.Serving {
		t.Errorf("after the end: %+v, %v", s, err)
	}
}
