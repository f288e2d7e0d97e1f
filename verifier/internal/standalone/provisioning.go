// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/reload"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// provisioningFile follows the file of the provisioning token of a standalone verifier.
//
// A missing file means that there is no token only if another file of keys/ is readable, which proves
// that the folder is mounted. A file that cannot be read is like one that is malformed. A changed file is
// used after two reads had the same content, because a part of a token may look like a complete one.
type provisioningFile struct {
	path, beside string
	grace        time.Duration
	log          *slog.Logger
	now          func() time.Time

	view atomic.Pointer[provisioning.View]

	mu        sync.Mutex
	started   bool
	seen      [sha256.Size]byte // the hash of the content of view; zero if there is none
	candidate [sha256.Size]byte
	reported  string
}

func newProvisioningFile(c *config.Config, log *slog.Logger, now func() time.Time) *provisioningFile {
	f := &provisioningFile{
		path: c.Path("keys", keys.ProvisioningFile), beside: c.Path("keys", keys.TokenFile),
		grace: time.Duration(c.ProvisioningToken.Grace), log: log, now: now,
	}
	f.view.Store(&provisioning.View{})
	f.Refresh()
	return f
}

// View returns the cached state of the token.
func (f *provisioningFile) View() provisioning.View { return *f.view.Load() }

// Watch reads the file periodically until ctx ends, and calls seen after each read.
func (f *provisioningFile) Watch(ctx context.Context, seen func()) {
	reload.Every(ctx, reload.Interval, func() {
		f.Refresh()
		seen()
	})
}

// Refresh reads the file once.
func (f *provisioningFile) Refresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.read()
	f.view.Store(&next)
	f.report(next)
	f.started = true
}

func (f *provisioningFile) read() provisioning.View {
	now, view := f.now(), *f.view.Load()
	_, raw, err := wholefile.Read(f.path, manifest.MaxFile)
	if err != nil {
		f.seen, f.candidate = [sha256.Size]byte{}, [sha256.Size]byte{} // the next content is read again, whatever it is
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, besideErr := os.Stat(f.beside); besideErr == nil {
			return view.Gone(now)
		}
		return view.Failed(err)
	case err != nil:
		return view.Malformed(now, err) // it exists
	}
	sum := sha256.Sum256(raw)
	if sum == f.seen {
		return view
	}
	if f.started && sum != f.candidate {
		f.candidate = sum
		return view
	}
	f.seen = sum
	data, err := provisioning.ParseFile(raw)
	if err != nil {
		return view.Malformed(now, err)
	}
	next, writeBack := view.Read(now, data, f.grace)
	if writeBack != nil {
		f.writeBack(raw, *writeBack)
	}
	return next
}

// writeBack writes the grace of a manual edit into the file, for a verifier that starts later.
func (f *provisioningFile) writeBack(read []byte, tokens provisioning.Tokens) {
	_, again, err := wholefile.Read(f.path, manifest.MaxFile)
	if err == nil && string(again) != string(read) {
		return // it was edited again; the next read detects that
	}
	content := tokens.EncodeFile().Expose()
	if err == nil {
		err = wholefile.Write(f.path, 0o600, content)
	}
	if err != nil {
		f.log.Warn("the provisioning token was edited, but its grace could not be written to the file: the "+
			"previous token ends when the verifier stops", "error", err)
		return
	}
	f.seen = sha256.Sum256(content)
	f.log.Info("the provisioning token was edited; the previous one is valid for a while",
		"until", tokens.PreviousExpires.Format(time.RFC3339))
}

// report logs changes. The log contains no part of a token.
func (f *provisioningFile) report(v provisioning.View) {
	_, presence := v.At(f.now())
	text := presence.String()
	if v.Err() != nil {
		text += ": " + v.Err().Error()
	}
	if text == f.reported {
		return
	}
	before := f.reported
	f.reported = text
	switch {
	case v.Err() != nil:
		f.log.Error("the provisioning token cannot be read; its last good state is in force; "+
			"without one, machines of its pools wait", "file", f.path, "error", v.Err())
	case presence == provisioning.Absent && before == "": // the normal case
	default:
		f.log.Info("provisioning token", "state", presence.String())
	}
}
