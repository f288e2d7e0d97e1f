// SPDX-License-Identifier: Apache-2.0

package support

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// collecting is a source whose collection is interrupted.
type collecting struct{ interrupt context.CancelFunc }

func (collecting) Known(context.Context) ([]secret.Bytes, []error) { return nil, nil }

func (c collecting) Collect(ctx context.Context, _ time.Duration, to operator.Collector) error {
	c.interrupt()
	to.Missed("cluster/pods", ctx.Err()) // what cannot be had is missing, also for this reason
	return nil
}

// A bundle that lacks everything after Ctrl-C must not look complete.
func TestGather_AnInterruptIsAnError(t *testing.T) {
	for _, output := range []string{"bundle.tar.gz", "bundle/"} {
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr strings.Builder
		cmd := &cobra.Command{}
		cmd.SetContext(ctx)
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		path := filepath.Join(t.TempDir(), "new") + output
		err := gather(cmd, collecting{cancel}, "v1", path, 0, true, time.Now())
		if !errors.Is(err, context.Canceled) || stdout.String() != "" {
			t.Errorf("%s: %v; %s", output, err, stdout.String())
		}
		if _, err := os.Stat(path); !strings.HasSuffix(output, "/") && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s stays: %v", output, err)
		}
	}
}
