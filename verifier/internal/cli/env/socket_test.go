// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// another calls f as a user who may not open the folder's state.
func another(t *testing.T, c *config.Config, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		state := c.Path("state")
		if err := os.Chmod(state, 0); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(state, 0o700) }() // so that the test can remove it
		f()
		return
	}
	const overflowUser = 65534 // owns no file of the test
	runtime.LockOSThread()     // the user of file accesses is the thread's
	defer runtime.UnlockOSThread()
	if err := syscall.Setfsuid(overflowUser); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setfsuid(0); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// served returns a folder with the socket of a verifier that was killed. Only its owner may open it: others cannot
// find out that nothing listens.
func served(t *testing.T) *config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c, err := config.Parse("mcs-attest.yaml", []byte("origins: [\"https://mcs.test:22623\"]\n"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "state"), 0o700), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: c.Path("state", "admin.sock")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(c.Path("state", "admin.sock"), 0o600), l.Close()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOfflineState_AnotherUserLearnsThatTheSocketIsNotReadable(t *testing.T) {
	c := served(t)
	another(t, c, func() {
		_, err := offlineState(c, time.Now())
		var h *hint.Error
		if !errors.As(err, &h) || !strings.Contains(err.Error(), "this user may not ask the verifier of the folder") ||
			!strings.Contains(h.Hint, "as the owner of "+c.Path("state")) {
			t.Errorf("%v; %v", err, h)
		}
	})
	s, err := offlineState(c, time.Now())
	if err != nil || s.Serving {
		t.Errorf("the owner: %v", err)
	}
}

func TestWaitInForce_AnotherUserLearnsThatItIsUnknown(t *testing.T) {
	c := served(t)
	var out strings.Builder
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetErr(&out)
	wait := func() error {
		return WaitInForce(cmd, &operator.Folder{Config: c}, "m1", time.Second, true,
			func(*admin.State) bool { return true })
	}
	another(t, c, func() {
		err := wait()
		var h *hint.Error
		if !errors.As(err, &h) || !strings.Contains(err.Error(), "the change of m1 was written, but it is unknown") ||
			strings.Contains(out.String(), "no verifier is serving") {
			t.Errorf("%v; %s", err, out.String())
		}
	})
	if err := wait(); err != nil || !strings.Contains(out.String(), "no verifier is serving") {
		t.Errorf("the owner: %v; %s", err, out.String())
	}
}

func TestWaitInForce_ReportsAnInterruption(t *testing.T) {
	cmd := &cobra.Command{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd.SetContext(ctx)
	var out strings.Builder
	cmd.SetErr(&out)
	for name, err := range map[string]error{"it asks": context.Canceled, "no verifier serves": admin.ErrNotServing} {
		err := WaitInForce(cmd, asked{err}, "m1", time.Minute, true, func(*admin.State) bool { return true })
		if err == nil || !strings.HasPrefix(err.Error(), "interrupted: the change of m1 was written") || out.Len() > 0 {
			t.Errorf("%s: %v; %s", name, err, out.String())
		}
	}
}

// asked is a backend whose verifier answers with an error.
type asked struct{ err error }

func (a asked) InForce(context.Context, func(*admin.State) bool) ([]string, error) { return nil, a.err }
