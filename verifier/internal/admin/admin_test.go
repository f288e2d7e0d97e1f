// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
)

func TestSocket_AnswersItsOwnerWhileItServes(t *testing.T) {
	dir, err := os.MkdirTemp("", "admin-") // a socket's path has a limit of about 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	if _, err := admin.Ask(t.Context(), path); !errors.Is(err, admin.ErrNotServing) {
		t.Errorf("before: %v", err)
	}
	// What a verifier that was killed leaves behind.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- admin.Serve(ctx, path, admin.Answers{State: func(context.Context) (*admin.State, error) {
			return &admin.State{Serving: true, Machines: []admin.Machine{{Name: "default/m1"}}}, nil
		}}, slog.New(slog.DiscardHandler))
	}()
	var state *admin.State
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if state, err = admin.Ask(t.Context(), path); err == nil {
			break
		}
	}
	if err != nil || !state.Serving || len(state.Machines) != 1 || state.Machines[0].Name != "default/m1" {
		t.Fatalf("got %+v, %v", state, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may open the socket: %v, %v", info.Mode(), err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := admin.Ask(t.Context(), path); !errors.Is(err, admin.ErrNotServing) {
		t.Errorf("after: %v", err)
	}
}
