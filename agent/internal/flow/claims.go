package flow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

// maxClaims is the contract's bound.
const maxClaims = 4 << 10

// claims are what the machine says of itself. Nothing is decided by them; they
// are bound to the evidence, for the person who looks for this machine.
type claims struct {
	BootID   string   `json:"bootID,omitempty"`
	Hostname string   `json:"hostname,omitempty"`
	MACs     []string `json:"macs,omitempty"`
	Platform string   `json:"platform,omitempty"`
	// ProviderID is the hint: by it the verifier chooses which Machine it checks.
	ProviderID string `json:"providerID,omitempty"`
	SMBIOSUUID string `json:"smbiosUUID,omitempty"`
}

// Claims gathers the claims; what cannot be read, or is not known, is left out.
func Claims(p paths.Paths, platform, providerID string) []byte {
	c := claims{BootID: word(p.BootID), Platform: platform, ProviderID: providerID,
		SMBIOSUUID: strings.ToLower(word(p.SMBIOSUUID))}
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

// word is a small file's text; "" if it cannot be read.
func word(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil || len(raw) > 256 {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
