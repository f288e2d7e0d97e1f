// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
)

// The driver of a network card can load while the agent waits for the network.
func TestAddCloud_ClaimsHaveWhatAppearsLater(t *testing.T) {
	a, f := &agent{}, &flow.Flow{}
	a.paths.Network = t.TempDir()
	if err := a.addCloud(t.Context(), f, "metal"); err != nil {
		t.Fatal(err)
	}
	const mac = "52:54:00:12:34:56"
	if got := string(f.Claims(t.Context())); strings.Contains(got, mac) {
		t.Fatalf("claims %s", got)
	}
	link := filepath.Join(a.paths.Network, "eth0")
	if err := os.Mkdir(link, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(link, "address"), []byte(mac+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(f.Claims(t.Context())); !strings.Contains(got, mac) {
		t.Errorf("claims %s", got)
	}
}
