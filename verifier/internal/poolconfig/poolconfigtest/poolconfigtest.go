// SPDX-License-Identifier: Apache-2.0

// Package poolconfigtest has the objects and the client of the tests of package
// poolconfig's backends.
package poolconfigtest

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Pool is the MachineConfigPool worker.
const Pool = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
`

// Needed is the metadata of a MachineConfig that any client may have.
const Needed = "  annotations: {mcs-attest.dev/needed-before-node-approved: \"true\"}\n"

// Newest is the newest version of the specification.
var Newest = specversion.Accept{{Major: 3, Minor: 5}}

// MachineConfig returns a MachineConfig of the pool worker that writes a file. extra is added to its
// metadata.
func MachineConfig(name, path, text, extra string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels: {machineconfiguration.openshift.io/role: worker}
%sspec:
  config:
    ignition: {version: 3.2.0}
    storage:
      files: [{path: %s, mode: 420, contents: {source: "data:,%s"}}]
`, name, extra, path, url.PathEscape(text))
}

// Quiet discards the log.
func Quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// Configs returns what a backend serves.
type Configs interface {
	Config(pool string, preApproved bool, accept specversion.Accept) (*gate.Rendered, error)
	Findings() []view.Finding
}

// Text returns a config of a pool.
func Text(t *testing.T, s Configs, pool string, preApproved bool) string {
	t.Helper()
	r, err := s.Config(pool, preApproved, Newest)
	if err != nil {
		t.Fatalf("pool %s, pre-approved %t: %v", pool, preApproved, err)
	}
	return string(Raw(t, r))
}

// Raw returns what a client receives.
func Raw(t *testing.T, r *gate.Rendered) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	source := gate.Source{Config: func(string, specversion.Accept) (*gate.Rendered, error) { return r, nil }}
	source.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/config/worker", nil))
	return w.Body.Bytes()
}

// Unavailable reports whether an error is the temporary denial of a config.
func Unavailable(err error) bool {
	return err != nil && reason.From(err).Code == reason.ConfigUnavailable
}

// Eventually waits until check succeeds.
func Eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}
