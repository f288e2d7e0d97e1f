// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/controller"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func run(t *testing.T, config string, args ...string) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mcs-attest.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := controller.Command(&env.Env{Name: env.Verifier})
	cmd.SetArgs(append([]string{"--config", path}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.ExecuteContext(context.Background())
}

// Standalone is one process.
func TestController_RefusesAConfigurationWithoutACluster(t *testing.T) {
	err := run(t, "origins: [\"https://a.test:22623\"]\n")
	var h *hint.Error
	if !errors.As(err, &h) || !strings.Contains(err.Error(), "no section kubernetes") {
		t.Errorf("%v", err)
	}
}

func TestController_HealthIsOnlyOnTheLoopback(t *testing.T) {
	err := run(t, "origins: [\"https://a.test:22623\"]\nkubernetes: {}\n", "--health-listen", ":22682")
	if err == nil || !strings.Contains(err.Error(), "--health-listen") {
		t.Errorf("%v", err)
	}
}
