package config

import (
	"os"
	"regexp"
	"testing"
)

// The sections of clouds in docs/deploying.md are ones that the verifier takes.
func TestTheCloudsOfThePageAreRead(t *testing.T) {
	page, err := os.ReadFile("../../../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n((aws|gcp|azure|vsphere):\n.*?)^```$").FindAllSubmatch(page, -1) {
		found[string(m[2])] = true
		if _, err := Parse("page", append([]byte("origins: [https://10.0.0.1:22623]\n"), m[1]...), "/etc/mcs-attest"); err != nil {
			t.Errorf("%s: %v", m[2], err)
		}
	}
	if len(found) != 4 {
		t.Errorf("sections found: %v", found)
	}
}
