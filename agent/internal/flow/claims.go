// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

// maxClaims is the limit of the contract, in bytes.
const maxClaims = 4 << 10

// claims is what the machine states about itself. No decision depends on it. It is bound to the
// evidence and helps an administrator to find the machine.
type claims struct {
	BootID   string   `json:"bootID,omitempty"`
	Hostname string   `json:"hostname,omitempty"`
	MACs     []string `json:"macs,omitempty"`
	Platform string   `json:"platform,omitempty"`
	// ProviderID is the hint by which the verifier chooses the Machine that it checks.
	ProviderID string `json:"providerID,omitempty"`
	SMBIOSUUID string `json:"smbiosUUID,omitempty"`
	Stage      string `json:"stage,omitempty"`
}

// Claims returns the claims as JSON. It omits what cannot be read.
func Claims(p paths.Paths, platform, providerID, stage string) []byte {
	c := claims{BootID: word(p.BootID), Platform: platform, ProviderID: providerID,
		SMBIOSUUID: strings.ToLower(word(p.SMBIOSUUID)), Stage: stage}
	c.Hostname, _ = os.Hostname()
	links, _ := filepath.Glob(filepath.Join(p.Network, "*", "address"))
	for _, l := range links {
		if mac := word(l); mac != "" && mac != "00:00:00:00:00:00" && !slices.Contains(c.MACs, mac) {
			c.MACs = append(c.MACs, mac)
		}
	}
	for {
		raw, err := json.Marshal(c)
		if err == nil && len(raw) <= maxClaims {
			return raw
		}
		if len(c.MACs) == 0 {
			return []byte("{}")
		}
		c.MACs = c.MACs[:len(c.MACs)/2]
	}
}

// word returns the text of a small file, or "" if it cannot be read.
func word(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil || len(raw) > 256 {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
