// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

func TestClaims(t *testing.T) {
	dir := t.TempDir()
	p := paths.Paths{BootID: filepath.Join(dir, "boot"), SMBIOSUUID: filepath.Join(dir, "uuid"),
		Network: filepath.Join(dir, "net")}
	write := func(file, content string) {
		ok(t, os.MkdirAll(filepath.Dir(file), 0o755))
		ok(t, os.WriteFile(file, []byte(content), 0o644))
	}
	write(p.BootID, "8d2f7f3e-0000-4000-8000-000000000000\n")
	write(p.SMBIOSUUID, "4C4C4544-0000-0000-0000-000000000000\n")
	write(filepath.Join(p.Network, "lo", "address"), "00:00:00:00:00:00\n")
	write(filepath.Join(p.Network, "eth0", "address"), "52:54:00:12:34:56\n")
	raw := flow.Claims(p, "aws", "aws:///eu-central-1a/i-0123456789abcdef0", firstboot.RealRoot)
	for _, part := range []string{
		`"bootID":"8d2f7f3e-0000-4000-8000-000000000000"`, `"macs":["52:54:00:12:34:56"]`,
		`"platform":"aws"`, `"providerID":"aws:///eu-central-1a/i-0123456789abcdef0"`,
		`"stage":"RealRoot"`,
		`"smbiosUUID":"4c4c4544-0000-0000-0000-000000000000"`,
	} {
		if !strings.Contains(string(raw), part) {
			t.Errorf("%s is not in %s", part, raw)
		}
	}
	for i := range 1000 {
		write(filepath.Join(p.Network, fmt.Sprintf("veth%d", i), "address"),
			fmt.Sprintf("52:54:00:00:%02x:%02x", i/256, i%256))
	}
	raw = flow.Claims(p, "aws", "aws:///eu-central-1a/i-0123456789abcdef0", firstboot.RealRoot)
	if len(raw) > 4096 || !json.Valid(raw) {
		t.Errorf("%d bytes", len(raw))
	}
	if raw := flow.Claims(paths.Paths{}, "", "", ""); !json.Valid(raw) || strings.Contains(string(raw), "stage") {
		t.Errorf("nothing to read: %s", raw)
	}
}
