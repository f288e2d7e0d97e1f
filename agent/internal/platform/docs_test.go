// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

// docs/platforms.md has a line for each provider and each variable.
func TestPlatformsAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/platforms.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	for name := range providers {
		if !strings.Contains(page, "| `"+name+"` | yes |") {
			t.Errorf("platform %s has no line with \"yes\"", name)
		}
	}
	for f := range reflect.TypeFor[paths.Paths]().Fields() {
		name, standard := f.Tag.Get("env"), f.Tag.Get("default")
		if !strings.Contains(page, "| `"+name+"` | `"+standard+"` |") {
			t.Errorf("variable %s with default %s has no line", name, standard)
		}
	}
}
