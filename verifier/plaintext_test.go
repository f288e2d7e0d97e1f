// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ignitionBinary is the real Ignition, which the tests with virtual machines also boot.
const ignitionBinary = "/usr/lib/dracut/modules.d/30ignition/ignition"

// A20: without TLS, no path of the nodes' listener serves anything.
func TestA20_NothingIsServedWithoutTLS(t *testing.T) {
	v := newVerifier(t, func(dir string) {
		put(t, dir, "policies/default.yaml", []byte("apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\n"+
			"metadata: {name: default}\nspec: {pools: [worker], mode: \"Off\"}\n"))
	})
	if status, _, body := v.fetch(http.MethodGet, "/config/worker", ""); status != 200 || body != fullConfig {
		t.Fatalf("over TLS: %d %s", status, body)
	}
	for path, want := range map[string]int{
		"/config/worker": 401, "/config/other": 401, apiPath + "Challenge": 404, "/agent/agent": 404, "/": 404,
	} {
		res, err := http.Get("http://" + v.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want || want == 401 && res.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %v", path, res.StatusCode, res.Header)
		}
	}
	if got := strings.Join(v.reasons(), " "); got != "Plaintext Plaintext" {
		t.Errorf("reasons %s", got)
	}
}

// A20: Ignition stops after its first request without TLS, and says why it stops.
func TestA20_IgnitionStopsWithoutTLS(t *testing.T) {
	if _, err := os.Stat(ignitionBinary); err != nil {
		t.Fatalf("the package ignition: %v", err)
	}
	v := newVerifier(t)
	began := time.Now()
	out, err := runIgnition(t, "http://"+v.addr+"/config/worker")
	if err == nil || !strings.Contains(out, "GET result: Unauthorized") || strings.Contains(out, "attempt #2") {
		t.Errorf("after %v: %v\n%s", time.Since(began), err, out)
	}
	v.wantReason("Plaintext")
}

// runIgnition runs the fetch stage of Ignition with a pointer config for source.
func runIgnition(t *testing.T, source string) (log string, err error) {
	t.Helper()
	dir := t.TempDir()
	pointer, err := json.Marshal(map[string]any{"ignition": map[string]any{"version": "3.3.0",
		"config": map[string]any{"merge": []any{map[string]any{"source": source}}}}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "pointer.ign", pointer)
	cmd := exec.CommandContext(t.Context(), ignitionBinary, "--platform=file", "--stage=fetch", "--root="+dir,
		"--config-cache="+filepath.Join(dir, "cache"), "--state-file="+filepath.Join(dir, "state"), "--log-to-stdout")
	cmd.Env = append(os.Environ(), "IGNITION_CONFIG_FILE="+filepath.Join(dir, "pointer.ign"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
