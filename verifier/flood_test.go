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
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

const apiPath = "/mcsattest.v1.Attestation/"

// turnTime is how long a call of the API waits for its turn, by the real clock.
const turnTime = 5 * time.Second

// softMachine enrolls a machine with keys in software.
func softMachine(t testing.TB, v *verifier, name string) *loadNode {
	t.Helper()
	keys, err := newSoftKeys()
	if err != nil {
		t.Fatal(err)
	}
	_, _, spki, _ := keys.public()
	v.enroll(name, "worker", spki)
	return &loadNode{addr: v.addr, origin: testOrigin, roots: v.roots, pool: "worker", keys: keys}
}

// stall opens a TLS connection, sends head and the first bytes of a body of which
// the rest never comes, and holds the connection until the test ends.
func stall(ctx context.Context, t testing.TB, v *verifier, head string, body []byte) {
	d := tls.Dialer{Config: &tls.Config{RootCAs: v.roots, ServerName: "mcs.test"}}
	conn, err := d.DialContext(ctx, "tcp", v.addr)
	if err != nil {
		return // refused: that is the verifier's right
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, head); err != nil {
		return
	}
	_, _ = conn.Write(body)
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestAttack_T62_StalledBodiesUseLimitedMemory(t *testing.T) {
	v := newVerifier(t)
	honest := softMachine(t, v, "honest")
	if _, _, err := honest.attest(t.Context()); err != nil {
		t.Fatal("honest, in quiet:", err)
	}
	const stalled, size = 400, 500 << 10
	before, part := heap(), make([]byte, size-1)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range stalled {
		head := fmt.Sprintf("POST %sAttest HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\n"+
			"Content-Length: %d\r\n\r\n", apiPath, size)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			stall(t.Context(), t, v, head, part)
		})
		if i == stalled/2 {
			v.advance(later)
			if _, _, err := honest.attest(t.Context()); err != nil {
				t.Error("honest, while bodies stall:", err)
			}
		}
	}
	wg.Wait()
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("%d stalled bodies of %d kB hold %d MB", stalled, size>>10, grown>>20)
	} else {
		t.Logf("%d stalled bodies of %d kB hold %d MB", stalled, size>>10, grown>>20)
	}
	v.advance(later)
	if _, _, err := honest.attest(t.Context()); err != nil {
		t.Error("honest, after bodies stalled:", err)
	}
}

// post sends a body on a connection of its own, and returns status and answer.
func (v *verifier) post(path, contentType string, body []byte) (int, string) {
	v.t.Helper()
	tr := v.transport()
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Post(testOrigin+path, contentType, bytes.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(text)
}

// metric is the value of the metrics whose line has all of these parts.
func (v *verifier) metric(parts ...string) (sum float64) {
	rec := newResponse()
	v.server.Metrics.Handler().ServeHTTP(rec, mustRequest(v.t.(*testing.T), "/metrics"))
lines:
	for _, line := range strings.Split(rec.body.String(), "\n") {
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue lines
			}
		}
		var value float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &value); err == nil {
			sum += value
		}
	}
	return sum
}

func TestAttack_T62_MalformedBodiesReachLimiterMetricAndAuditLog(t *testing.T) {
	v := newVerifier(t, func(dir string) {
		put(t, dir, "mcs-attest.yaml", []byte("origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 5\n"))
	})
	garbage := []byte(`{"sealed": "no", "ticket": 7, "tpm2": [[[`)
	for _, call := range []string{"Challenge", "Attest", "Report"} {
		event := strings.ToLower(call)
		v.log.drain()
		code, text := v.post(apiPath+call, "application/json", garbage)
		if code != http.StatusBadRequest || !strings.Contains(text, "mcsattest.v1.Denial") {
			t.Errorf("%s: %d %s", call, code, text)
		}
		if n := v.metric("mcs_attest_decisions_total", `event="`+event+`"`, `reason="Malformed"`); n != 1 {
			t.Errorf("%s: counted %v times", call, n)
		}
		if log := v.log.drain(); !strings.Contains(log, `"event":"`+event+`"`) ||
			!strings.Contains(log, `"reason":"Malformed"`) {
			t.Errorf("%s: the audit log has %s", call, log)
		}
	}
	v.freeze()
	for _, call := range []string{"Attest", "Report"} {
		v.advance(time.Hour)
		codes := map[int]int{}
		for range 30 {
			code, _ := v.post(apiPath+call, "application/json", garbage)
			codes[code]++
		}
		if codes[http.StatusServiceUnavailable] != 20 { // the burst is 10
			t.Errorf("30 malformed bodies to %s: %v", call, codes)
		}
	}
}

// Half a megabyte of empty elements takes fifty times as long to parse as an
// honest message.
func TestAttack_T62_MessagesOfManyPartsAreNotParsed(t *testing.T) {
	v := newVerifier(t)
	many := func(n int) string { return strings.Repeat(`{},`, n) + "{}" }
	for name, c := range map[string]struct {
		call, contentType string
		body              []byte
	}{
		"JSON, to Attest":        {"Attest", "application/json", []byte(`{"cloud":[` + many(150000) + `]}`)},
		"JSON, to Challenge":     {"Challenge", "application/json", []byte(`{"tpm":{"banks":[` + strings.Repeat("4,", 75000) + `4]}}`)},
		"JSON of unknown fields": {"Attest", "application/json", []byte(`{"unknown":[` + many(150000) + `]}`)},
		"binary, to Attest":      {"Attest", "application/proto", bytes.Repeat([]byte{0x32, 0}, 250000)},
		"binary, nested":         {"Attest", "application/proto", nested(200000)},
	} {
		v.log.drain()
		if code, text := v.post(apiPath+c.call, c.contentType, c.body); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, code, text)
		}
		v.wantReason("TooLarge")
	}
}

// nested is an AttestRequest whose tpm2 has n empty PCR values.
func nested(n int) []byte {
	inner := bytes.Repeat([]byte{0x22, 0}, n)
	out := []byte{0x2a} // field 5, bytes
	for v := len(inner); ; v >>= 7 {
		if v < 0x80 {
			out = append(out, byte(v))
			break
		}
		out = append(out, byte(v)|0x80)
	}
	return append(out, inner...)
}

func TestAttack_T62_EachCallHasABodyLimitOfItsOwn(t *testing.T) {
	v := newVerifier(t)
	for call, limit := range map[string]int{"Challenge": 160 << 10, "Attest": 512 << 10, "Report": 32 << 10} {
		for _, size := range []int{limit - 100, limit + 1} {
			body := []byte(`{"unknown":"` + strings.Repeat("x", size-14) + `"}`)
			v.log.drain()
			code, text := v.post(apiPath+call, "application/json", body)
			tooLarge := strings.Join(v.reasons(), " ") == "TooLarge"
			if tooLarge != (size > limit) || code == http.StatusOK {
				t.Errorf("%s of %d bytes: %d %s", call, len(body), code, text)
			}
		}
	}
}

func TestAttack_T62_ProtocolsThatAreNotTheContractAreRefused(t *testing.T) {
	v := newVerifier(t)
	client := &http.Client{Transport: v.transport()}
	defer client.CloseIdleConnections()
	for name, option := range map[string]connect.ClientOption{"gRPC": connect.WithGRPC(),
		"gRPC-Web": connect.WithGRPCWeb()} {
		_, err := mcsattestv1connect.NewAttestationClient(client, testOrigin, option).Challenge(t.Context(),
			connect.NewRequest(&mcsattestv1.ChallengeRequest{Pool: "worker", Origin: testOrigin}))
		if err == nil {
			t.Errorf("%s is answered", name)
		}
		v.wantReason("Malformed")
	}
	for _, contentType := range []string{"application/grpc-web+proto", "application/connect+proto", "application/grpc",
		"text/plain", ""} {
		if code, text := v.post(apiPath+"Challenge", contentType, []byte("{}")); code != http.StatusUnsupportedMediaType {
			t.Errorf("%q: %d %s", contentType, code, text)
		}
		v.wantReason("Malformed")
	}
	// What the contract has is answered still: JSON with a charset, too.
	body := []byte(`{"pool":"worker","origin":"` + testOrigin + `"}`)
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8"} {
		if code, text := v.post(apiPath+"Challenge", contentType, body); code != http.StatusOK &&
			!strings.Contains(text, "denied") {
			t.Errorf("%q: %d %s", contentType, code, text)
		}
	}
}

// ordinary is a verifier with the limits that it has by default.
func ordinary(t testing.TB, settings string) func(string) {
	return func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "mcs-attest.yaml"), []byte("origins: [\""+testOrigin+"\"]\n"+settings),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// patiently does what a machine does while the verifier's clock stands. A denial by a limit comes immediately, and
// would come again. What failed only after the time that a call waits for its turn may be due to a test that was
// stalled: like the agent, it tries again.
func patiently(t *testing.T, what string, do func() error) (err error) {
	for range 3 {
		began := time.Now()
		if err = do(); err == nil || time.Since(began) < turnTime {
			return err
		}
		t.Logf("%s, after %v: %v", what, time.Since(began), err)
	}
	return err
}

func TestAttack_T61_AFloodFromTheSameAddressStopsNoHonestMachine(t *testing.T) {
	v := newVerifier(t, ordinary(t, ""))
	const machines = 30
	var honest []*loadNode
	for i := range machines {
		honest = append(honest, softMachine(t, v, fmt.Sprintf("m%d", i)))
	}
	// No limit recovers. So the limits of the address stay used up, however slowly the flood arrives.
	v.freeze()
	stop := flood(t, v, 400)
	// The limits of the address are used up before the first honest machine comes: that of the gate and that of the API.
	for _, event := range []string{"fetch", "attest"} {
		eventually(t, func() bool {
			return v.metric("mcs_attest_decisions_total", `event="`+event+`"`, `reason="RateLimited"`) > 20
		}, func() string { return "the flood is not limited: " + event })
	}
	var failed atomic.Int64
	var all sync.WaitGroup
	room := make(chan struct{}, 6) // one after another takes minutes on a slow machine
	for i, n := range honest {
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			var token string
			err := patiently(t, fmt.Sprintf("machine %d, attest", i), func() (err error) {
				token, _, err = n.attest(t.Context())
				return err
			})
			if err == nil {
				err = patiently(t, fmt.Sprintf("machine %d, fetch", i), func() error { return collect(t.Context(), v, token) })
			}
			if err != nil {
				t.Errorf("machine %d, during the flood: %v", i, err)
				failed.Add(1)
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d honest machines during a flood; %d hostile requests", machines-failed.Load(), machines, stop())
}

func TestAttack_T61_IdleStrangersDoNotHoldTheConnections(t *testing.T) {
	v := newVerifier(t, ordinary(t, "maxConnections: 64\n"))
	honest := softMachine(t, v, "m1")
	for round := range 2 {
		v.advance(later)
		for range 64 { // from four addresses, as the old limit allowed, and from the honest machine's own
			for _, last := range []byte{1, 2, 3, 4} {
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}).Dial("tcp", v.addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
			}
		}
		if err := provision(t.Context(), v, honest); err != nil {
			t.Errorf("round %d: an honest machine: %v", round, err)
		}
		if code, _, _ := v.fetch(http.MethodGet, "/healthz", ""); code != http.StatusOK {
			t.Errorf("round %d: a balancer's health check: %d", round, code)
		}
	}
}

func TestAttack_T61_AConnectionWithoutAChallengeIsNotIdleForLong(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, ordinary(t, ""))
	v.freeze()
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	conn, err := tls.Dial("tcp", v.addr, &tls.Config{RootCAs: v.roots, ServerName: "mcs.test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
		t.Errorf("the connection is open a minute later: %v %q", err, answer)
	}
	// One that has a challenge waits for a slow TPM. The clock that the challenge expires by stands.
	if _, err := n.answer(); err != nil {
		t.Error("the connection with a challenge was closed:", err)
	}
}

func TestAttack_T61_AHandshakeOfAnySizeIsBounded(t *testing.T) {
	v := newVerifier(t, ordinary(t, ""))
	conn, err := net.Dial("tcp", v.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A ClientHello that says it has 65 000 bytes, in records of 16 000.
	hello := append([]byte{1, 0, 0xfd, 0xe8}, make([]byte, 60000)...)
	sent := 0
	for chunk := range slices.Chunk(hello, 16000) {
		record := append([]byte{22, 3, 1, byte(len(chunk) >> 8), byte(len(chunk))}, chunk...)
		n, err := conn.Write(record)
		if sent += n; err != nil {
			break
		}
	}
	// The size ends it, not the time: the verifier of the tests allows handshakeTime.
	if err := conn.SetReadDeadline(time.Now().Add(handshakeTime / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a handshake of 60 kB is kept")
	}
}

// denials counts the audit lines with a reason since the last call.
func (v *verifier) denials(code string) (n int) {
	for _, r := range v.reasons() {
		if r == code {
			n++
		}
	}
	return n
}

func TestAttack_T70_AFloodDoesNotHideOtherDenialsFromTheAuditLog(t *testing.T) {
	const denied = 20
	for name, from := range map[string]net.IP{"from another address": net.IPv4(127, 0, 0, 2),
		"from the same address": net.IPv4(127, 0, 0, 1)} {
		t.Run(name, func(t *testing.T) {
			v := newVerifier(t)
			keys, err := newSoftKeys()
			if err != nil {
				t.Fatal(err)
			}
			unknown := &loadNode{addr: v.addr, origin: testOrigin, roots: v.roots, pool: "worker", keys: keys}
			if _, _, err := unknown.attest(t.Context()); err == nil {
				t.Fatal("a machine that no administrator enrolled is accepted")
			}
			reasons := v.reasons()
			code := reasons[len(reasons)-1]
			tr := v.transport()
			defer tr.CloseIdleConnections()
			tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(ctx, "tcp", v.addr)
			}
			client := &http.Client{Transport: tr}
			foreign := func(n int) {
				for range n {
					discard(client.Get(testOrigin + "/config/worker"))
				}
			}
			foreign(400)
			v.reasons()
			logged := 0
			for range denied {
				foreign(5)
				_, _, _ = unknown.attest(t.Context())
				logged += v.denials(code)
			}
			if logged != denied {
				t.Errorf("%d of %d denials are in the audit log", logged, denied)
			}
			if v.metric("mcs_attest_audit_left_out_total") == 0 {
				t.Error("lines that were left out are not counted")
			}
		})
	}
}
