// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"testing"
)

func TestLoad_AcceptsTheDeployedConfigurations(t *testing.T) {
	paths, err := filepath.Glob("../../../deploy/overlays/*/mcs-attest.yaml")
	if err != nil || len(paths) < 2 {
		t.Fatalf("found %v (%v)", paths, err)
	}
	for _, path := range paths {
		c, err := Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if c.Kubernetes == nil || c.Upstream == "" {
			t.Errorf("%s: no cluster or no upstream", path)
		}
	}
}
