// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// An administrator who rotates keys replaces the file, which the kubelet updates in the pod.
func TestRotatedKeys_AreReadWithoutARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": file} {
		t.Setenv(name, value)
	}
	write := func(id string) {
		if err := os.WriteFile(file, fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = x\n", id),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write("old")
		p, err := New(config.AWS{Regions: []string{"eu-central-1"}}, outbound.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := p.regions["eu-central-1"].Options().Credentials
		has := func(want string) {
			t.Helper()
			if got, err := c.Retrieve(t.Context()); err != nil || got.AccessKeyID != want {
				t.Errorf("%q, %v, want %q", got.AccessKeyID, err, want)
			}
		}
		has("old")
		write("new")
		has("old")
		time.Sleep(keepCredentials)
		has("new")
	})
}
