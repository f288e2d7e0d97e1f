// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

const fakeAgent = "\x7fELF, an agent"

// withAgents adds a folder with an agent to the verifier's configuration.
func withAgents(t *testing.T) func(dir string) {
	return func(dir string) {
		file := filepath.Join(dir, "mcs-attest.yaml")
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{
			file: string(raw) + "agents: {folder: agents, architectures: [amd64]}\n",
			filepath.Join(dir, "agents", "mcs-attest-agent-amd64"): fakeAgent,
			filepath.Join(dir, "agents", "README"):                 "no agent",
		} {
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// mergedParts returns the configs that a config merges from data URLs.
func mergedParts(t *testing.T, raw string) (parts []string) {
	t.Helper()
	var c types.Config
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Ignition.Config.Merge {
		u, err := dataurl.DecodeString(*r.Source)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, string(u.Data))
	}
	return parts
}

func TestStockImage_PreApprovedConfigCarriesTheAgentOnlyForTheRealRoot(t *testing.T) {
	v := newVerifier(t, withAgents(t))
	const pre = `{"ignition":{"version":"3.2.0"}}`
	v.change("configs/worker.pre-approved.ign", pre)
	v.policy("  unattested: PreApproved\n")
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusOK || body != pre {
		t.Errorf("stage Initramfs: %d %q", code, body)
	}
	v.policy("  unattested: PreApproved\n  stage: RealRoot\n")
	code, _, body := v.fetch(http.MethodGet, "/config/worker", "")
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(fakeAgent)))
	parts := mergedParts(t, body)
	if code != http.StatusOK || len(parts) != 2 || parts[0] != pre {
		t.Fatalf("stage RealRoot: %d %q", code, parts)
	}
	for _, want := range []string{testOrigin + "/agent/" + hash, "sha256-" + hash, "mcs-attest-firstboot.service"} {
		if !strings.Contains(parts[1], want) {
			t.Errorf("no %s in %s", want, parts[1])
		}
	}
	for _, part := range append(parts, body) {
		c, err := pointer.Parse([]byte(part))
		if err != nil {
			t.Fatal(err)
		}
		if tokens := c.Bearers(); len(tokens) > 0 {
			t.Errorf("%d tokens in a public config", len(tokens))
		}
	}
	if _, _, again := v.fetch(http.MethodGet, "/config/worker", ""); again != body {
		t.Error("the second answer differs")
	}
	// The config follows its source.
	v.change("configs/worker.pre-approved.ign", `{"ignition":{"version":"3.3.0"}}`)
	if _, _, changed := v.fetch(http.MethodGet, "/config/worker", ""); changed == body {
		t.Error("the old config is still served")
	}
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", "broken"); code != http.StatusUnauthorized ||
		strings.Contains(body, "ignition") {
		t.Errorf("an invalid token fell back to anonymous: %d %q", code, body)
	}
}

func TestStockImage_GateServesTheAgentByItsHash(t *testing.T) {
	v := newVerifier(t, withAgents(t))
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(fakeAgent)))
	code, header, body := v.fetch(http.MethodGet, "/agent/"+hash, "")
	if code != http.StatusOK || body != fakeAgent ||
		header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
		t.Errorf("%d %v %q", code, header, body)
	}
	if code, header, body := v.fetch(http.MethodHead, "/agent/"+hash, ""); code != http.StatusOK || body != "" ||
		header.Get("Content-Length") != fmt.Sprint(len(fakeAgent)) {
		t.Errorf("HEAD: %d %v %q", code, header, body)
	}
	for _, path := range []string{
		"/agent/", "/agent/" + strings.ToUpper(hash), "/agent/" + hash + "/",
		"/agent/mcs-attest-agent-amd64", "/agent/README", "/agent/../mcs-attest.yaml", "/agent/%2e%2e/mcs-attest.yaml",
	} {
		if code, _, body := v.fetch(http.MethodGet, path, ""); code != http.StatusNotFound || body != "" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, header, _ := v.fetch(http.MethodPost, "/agent/"+hash, ""); code != http.StatusMethodNotAllowed ||
		header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", code, header)
	}
	if lines := v.log.everything(); strings.Contains(lines, hash) {
		t.Errorf("an anonymous request is in the log: %s", lines)
	}
}

func TestStockImage_AgentDownloadsAreLimited(t *testing.T) {
	v := newVerifier(t, withAgents(t))
	v.freeze()
	tr := v.transport()
	defer tr.CloseIdleConnections()
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(fakeAgent)))
	served, limited := 0, 0
	for range 200 {
		res, err := (&http.Client{Transport: tr}).Get(testOrigin + "/agent/" + hash)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		switch res.StatusCode {
		case http.StatusOK:
			served++
		case http.StatusServiceUnavailable:
			limited++
			if res.Header.Get("Retry-After") == "" {
				t.Error("503 without Retry-After")
			}
		default:
			t.Fatal(res.Status)
		}
	}
	if served < 20 || limited == 0 {
		t.Errorf("%d requests of one source served, %d limited", served, limited)
	}
}

func TestStockImage_WithoutAgentsTheGateServesNone(t *testing.T) {
	v := newVerifier(t)
	v.change("configs/worker.pre-approved.ign", `{"ignition":{"version":"3.2.0"}}`)
	v.policy("  unattested: PreApproved\n  stage: RealRoot\n")
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusOK ||
		strings.Contains(body, "/agent/") {
		t.Errorf("%d %q", code, body)
	}
	state, err := v.standalone().State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(state.Problems, "\n"); !strings.Contains(text, "AgentsMissing: the policy of pool ") {
		t.Errorf("status does not report it: %q", text)
	}
	if code, _, _ := v.fetch(http.MethodGet, "/agent/"+strings.Repeat("0", 64), ""); code != http.StatusNotFound {
		t.Error(code)
	}
}
