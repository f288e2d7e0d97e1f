// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// OfflineState returns the state of a folder whose verifier is not running.
func OfflineState(c *config.Config, now time.Time) (*admin.State, error) {
	snapshot, err := folder.Load(c.Data)
	if err != nil {
		return nil, err
	}
	path := c.Path("state", "records.db")
	records, err := store.OpenReadOnly(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		records = nil
	case err != nil:
		return nil, RecordsHint(err, c)
	default:
		defer records.Close() //nolint:errcheck // it was only read
	}
	state, err := State(context.Background(), snapshot, records, now, false)
	if err != nil {
		return nil, err
	}
	state.Problems = append(state.Problems, HeldProblems(store.HeldAt(path))...)
	state.Problems = append(state.Problems, problems(c, now)...)
	// Only a serving verifier knows what is rendered.
	if sources, _ := fs.Glob(os.DirFS(c.Data), "machineconfigs/*"); len(sources) == 0 {
		state.Problems = append(state.Problems, configProblems(c, snapshot, nil)...)
	}
	return state, nil
}

// RecordsHint adds a hint to the error of a database that cannot be used.
func RecordsHint(err error, c *config.Config) error {
	path := c.Path("state", "records.db")
	const restore = "restore a backup with 'mcs-attest-verifier restore FILE --force'"
	switch {
	case errors.Is(err, store.ErrMissing):
		return hint.New(err, "mount the volume with the database, or %s; "+
			"to start without any record, so that every enrolled machine may attest again, remove %s.seen and state/evidence/",
			restore, path)
	case errors.Is(err, store.ErrForeign):
		return hint.New(err, "put the former file back, or %s", restore)
	case errors.Is(err, store.ErrDamaged):
		return hint.New(err, "%s; keep the damaged file for an analysis. Without a backup, move it and %s.seen away: every "+
			"enrolled machine may attest again then", restore, path)
	}
	return err
}

// HeldProblems describes a database that may have been restored, and how to end the hold. It returns
// nil if there is no hold.
func HeldProblems(r *store.Restored) []string {
	if r == nil {
		return nil
	}
	return []string{r.Why + ": no machine is admitted until 'mcs-attest-verifier restore --acknowledge'; see " +
		"docs/operating.md, Backup"}
}
