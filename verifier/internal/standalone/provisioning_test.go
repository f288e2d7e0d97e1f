// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
)

// Under whenAbsent: Open, an absent token opens the pool. A file that cannot be read is none that is absent.
func TestProvisioningFile_ThatCannotBeReadIsNotAbsent(t *testing.T) {
	dir := t.TempDir()
	c, err := config.Parse("test", []byte("origins: ['https://mcs.test:22623']"), dir)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "keys"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "keys", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(dir, "keys", name)); err != nil {
			t.Fatal(err)
		}
	}
	unreadable := func(name string) { // to root, too
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, "keys", name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	const good = "token: AAAA+bbb/CCC+ddd/EEE+fff/GGG+hhh/III+jjj/KKK="
	now := time.Now()
	write(keys.TokenFile, "{}")
	f := newProvisioningFile(c, slog.New(slog.DiscardHandler), func() time.Time { return now })
	want := func(what string, presence provisioning.Presence, broken bool) {
		t.Helper()
		for range 3 { // a change is used after two equal reads
			f.Refresh()
		}
		if _, got := f.View().At(now); got != presence || (f.View().Err() != nil) != broken {
			t.Errorf("%s: %v, error %v; want %v, an error %t", what, got, f.View().Err(), presence, broken)
		}
	}
	want("no file", provisioning.Absent, false)
	unreadable(keys.ProvisioningFile)
	want("a file that cannot be read, after none", provisioning.Unknown, true)
	remove(keys.ProvisioningFile)
	want("no file again", provisioning.Absent, false)

	write(keys.ProvisioningFile, good)
	want("a token", provisioning.Present, false)
	remove(keys.ProvisioningFile)
	unreadable(keys.ProvisioningFile)
	want("replaced by a file that cannot be read", provisioning.Present, true)
	remove(keys.ProvisioningFile)
	want("deleted", provisioning.Present, false)
	unreadable(keys.ProvisioningFile)
	want("created again, and cannot be read", provisioning.Present, true)
	now = now.Add(time.Minute)
	want("a minute after the deletion", provisioning.Present, true)
	remove(keys.ProvisioningFile)
	write(keys.ProvisioningFile, good)
	want("readable with the same content", provisioning.Present, false)

	// The folder is unavailable, which says nothing about the file.
	if err := os.Rename(filepath.Join(dir, "keys"), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	want("without the folder", provisioning.Present, true)
	if err := os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
	want("with the folder again", provisioning.Present, false)
}
