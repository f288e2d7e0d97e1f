// SPDX-License-Identifier: Apache-2.0

// Package client_test checks the page of the contract: attest.sh, a client that was written only
// from that page, attests to the real verifier. The real agent rehearses with it.
//
// Each test starts what it needs: the verifier as a process, and a software TPM behind the socket
// of tpm2-tools. It needs swtpm, tpm2-tools, openssl, jq and curl.
package client_test

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestIndependentClient_AttestsAndFetches(t *testing.T) {
	v, tpm := startVerifier(t), startTPM(t)
	v.enroll(t, tpm, "worker-0")

	if status, body := v.fetch(t, ""); status != "401" {
		t.Errorf("without a token: %s %s", status, body)
	}
	r := v.attestEnrolled(t, tpm)
	token := strings.TrimSuffix(r.stdout, "\n")
	if r.status != 0 || token == "" || strings.ContainsAny(token, " \n") {
		t.Fatalf("stdout does not contain exactly a token: %+v", r)
	}
	if strings.Contains(r.stderr, token) {
		t.Error("the token is on stderr too")
	}
	full, err := os.ReadFile(filepath.Join(v.dir, "configs", "worker.ign"))
	if err != nil {
		t.Fatal(err)
	}
	if status, body := v.fetch(t, token); status != "200" || strings.TrimSpace(body) != strings.TrimSpace(string(full)) {
		t.Errorf("with the token: %s %s, want the config", status, body)
	}
	if status, body := v.fetch(t, token[:len(token)-8]+"AAAAAAAA"); status != "401" {
		t.Errorf("with another signature: %s %s", status, body)
	}
}

func TestIndependentClient_WaitsForEnrollment(t *testing.T) {
	v, enrolled, other := startVerifier(t), startTPM(t), startTPM(t)
	v.enroll(t, enrolled, "worker-0")
	if r := v.attestEnrolled(t, enrolled); r.status != 0 {
		t.Fatalf("the enrolled TPM is denied: %+v", r)
	}

	r := v.attest(t, other)
	r.refused(t, 2, "Attest denied: NOT_YET", "HTTP 503", "hint: this may be temporary")
	id := regexp.MustCompile(`correlation id ([0-9a-f]+)`).FindStringSubmatch(r.stderr)
	if id == nil {
		t.Fatal("no correlation id is shown")
	}
	wait(t, "the audit log holds the correlation id", func() bool {
		for line := range strings.Lines(v.logged(t)) {
			if strings.Contains(line, id[1]) && strings.Contains(line, "EKNotEnrolled") {
				return true
			}
		}
		return false
	})

	v.enroll(t, other, "worker-1")
	if r := v.attestEnrolled(t, other); r.status != 0 || r.stdout == "" {
		t.Errorf("still denied after the enrollment: %+v", r)
	}
}

func TestIndependentClient_StopsAtAFinalDenial(t *testing.T) {
	v, tpm := startVerifier(t), startTPM(t)
	v.enroll(t, tpm, "worker-0")
	if r := v.attestEnrolled(t, tpm); r.status != 0 {
		t.Fatalf("the valid run is denied: %+v", r)
	}
	v.attest(t, tpm, "--pool", "master").refused(t, 1, "Attest denied: MACHINE", "HTTP 403", "hint: this is final",
		"correlation id")
	v.attest(t, tpm, "--origin", "https://127.0.0.1:1", "--connect", strings.TrimPrefix(v.origin, "https://")).
		refused(t, 1, "Challenge denied: MALFORMED", "HTTP 400", "correlation id")
}

func TestIndependentClient_TrustsOnlyTheGivenCAs(t *testing.T) {
	v, tpm := startVerifier(t), startTPM(t)
	foreign := startVerifier(t)
	v.attest(t, tpm, "--ca", foreign.ca()).refused(t, 1, "no trusted TLS 1.3 connection", "hint: ")
	v.attest(t, tpm, "--origin", "https://localhost:22623", "--connect", strings.TrimPrefix(v.origin, "https://")).
		refused(t, 1, "hostname mismatch", "hint: ")
	v.attest(t, tpm, "--connect", "127.0.0.1:1").refused(t, 2, "no connection to 127.0.0.1:1")
}

func TestIndependentClient_QuotesTheRequestedBank(t *testing.T) {
	v, tpm := startVerifier(t, "profile: identity-only", "profile: identity-only\n    banks: [sha384]"), startTPM(t)
	v.enroll(t, tpm, "worker-0")
	r := v.attestEnrolled(t, tpm)
	if r.status != 0 || r.stdout == "" || !strings.Contains(r.stderr, "quoting sha384:11") {
		t.Errorf("%+v", r)
	}
}

func TestIndependentClient_SendsTheRequestedEventLog(t *testing.T) {
	v, tpm := startVerifier(t, "profile: identity-only", "profile: secure-boot"), startTPM(t)
	v.enroll(t, tpm, "worker-0")
	v.attest(t, tpm, "--event-log", "/nonexistent").refused(t, 1, "requires the firmware's log")

	// No firmware ran before this TPM, so every log is wrong. The verifier received the log if it
	// reports it as malformed.
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, make([]byte, 250<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	v.attestEnrolled(t, tpm, "--event-log", log).refused(t, 1, "Attest denied: EVIDENCE", "HTTP 403")
	wait(t, "the audit log has the reason", func() bool { return strings.Contains(v.logged(t), "EventLogMalformed") })

	if err := os.Truncate(log, 257<<10); err != nil {
		t.Fatal(err)
	}
	v.attest(t, tpm, "--event-log", log).refused(t, 1, "is over 262144 bytes")
}

func TestIndependentClient_ContinuesWithoutATokenUnderAudit(t *testing.T) {
	v, tpm := startVerifier(t, "mode: Enforce", "mode: Audit"), startTPM(t)
	v.enroll(t, tpm, "worker-0")
	if r := v.attestEnrolled(t, tpm); r.status != 0 || r.stdout != "" {
		t.Errorf("audit: %+v, want success without a token", r)
	}
	if r := v.attest(t, startTPM(t)); r.status != 2 || !strings.Contains(r.stderr, "continue without one") {
		t.Errorf("audit, not enrolled: %+v, want the advice to continue", r)
	}
}

// Servers that are not verifiers, and responses that no verifier sends.
func TestIndependentClient_DetectsOtherServers(t *testing.T) {
	tpm := startTPM(t)
	for name, c := range map[string]struct {
		answer   http.HandlerFunc
		max      uint16
		status   int
		messages string
	}{
		"a plain MCS that answers 404": {http.NotFound, tls.VersionTLS13, 3, "no verifier here"},
		"a plain MCS that answers 405": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusMethodNotAllowed)
		}, tls.VersionTLS13, 3, "no verifier here"},
		"a 404 with a Connect error is a denial": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			w.Write([]byte(`{"code":"unimplemented"}`))
		}, tls.VersionTLS13, 1, "Challenge denied"},
		"a broken front end": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
		}, tls.VersionTLS13, 2, "502"},
		"an answer that is not JSON": {func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("hello"))
		}, tls.VersionTLS13, 2, "not a JSON object"},
		"a challenge for another pool": {func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte(`{"required":["EVIDENCE_KIND_TPM2"],"pool":"master","origin":"https://` + r.Host + `"}`))
		}, tls.VersionTLS13, 1, "not what was requested"},
		"a challenge that asks for nothing, in chunks": {func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte(`{"mode":`))
			w.(http.Flusher).Flush()
			w.Write([]byte(`"MODE_OFF"}`))
		}, tls.VersionTLS13, 0, "continue without a token"},
		"a truncated answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte(`{`))
		}, tls.VersionTLS13, 2, "truncated"},
		"no TLS 1.3": {http.NotFound, tls.VersionTLS12, 1, "no trusted TLS 1.3 connection"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(c.answer)
			server.TLS = &tls.Config{MaxVersion: c.max}
			server.StartTLS()
			defer server.Close()
			ca := filepath.Join(t.TempDir(), "ca.crt")
			if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
				0o600); err != nil {
				t.Fatal(err)
			}
			r := client(t, "--origin", server.URL, "--ca", ca, "--pool", "worker", "--tcti", tpm)
			if r.status != c.status || r.stdout != "" || !strings.Contains(r.stderr, c.messages) {
				t.Errorf("exit status %d, stdout %q; want %d, nothing, and %q", r.status, r.stdout, c.status, c.messages)
			}
		})
	}
}

func TestIndependentClient_PrintsUsage(t *testing.T) {
	if r := client(t, "--help"); r.status != 0 || !strings.Contains(r.stdout, "--origin URL") {
		t.Errorf("--help: %+v", r)
	}
	for name, args := range map[string][]string{
		"an unknown flag":           {"--nonsense"},
		"a flag without its value":  {"--origin"},
		"an origin without a port":  {"--origin", "https://host", "--ca", "/dev/null", "--pool", "worker"},
		"an origin without TLS":     {"--origin", "http://host:80", "--ca", "/dev/null", "--pool", "worker"},
		"an invalid pool":           {"--origin", "https://host:1", "--ca", "/dev/null", "--pool", "a/b"},
		"a CA that cannot be read":  {"--origin", "https://host:1", "--ca", "/nonexistent", "--pool", "worker"},
		"a TPM that does not exist": {"--identify", "--tcti", "device:/nonexistent"},
		"an origin in upper case":   {"--origin", "https://HOST:1", "--ca", "/dev/null", "--pool", "worker"},
		"an injection in the value": {"--origin", "https://host:1\r\nX: y", "--ca", "/dev/null", "--pool", "worker"},
	} {
		t.Run(name, func(t *testing.T) { client(t, args...).refused(t, 1, "hint: ") })
	}
}

func TestIndependentClient_PassesShellcheck(t *testing.T) {
	if out, err := exec.Command("shellcheck", "attest.sh").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
