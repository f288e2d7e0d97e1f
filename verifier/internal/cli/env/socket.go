// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
)

// mayAsk returns an error if this user may not open the socket of a folder's verifier. [admin.Ask] reports
// [admin.ErrNotServing] then, too, and that would be a false statement about a verifier that serves.
func mayAsk(ctx context.Context, c *config.Config) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Path("state", "admin.sock"))
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return fmt.Errorf("this user may not ask the verifier of the folder: %w", err)
}

// offlineState is [standalone.OfflineState]. Where it fails and this user may not open the verifier's socket, the
// error says so. Where it succeeds, no verifier has the records open, so none serves.
func offlineState(c *config.Config, now time.Time) (*admin.State, error) {
	s, err := standalone.OfflineState(c, now)
	if err == nil {
		return s, nil
	}
	if denied := mayAsk(context.Background(), c); denied != nil {
		return nil, hint.New(fmt.Errorf("%w, and its records cannot be read: %w", denied, err), ownerHint, c.Path("state"))
	}
	return nil, err
}

const ownerHint = "run the command as the owner of %s, the user that the verifier runs as"
