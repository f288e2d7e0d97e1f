// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Backup writes a consistent copy of the database. It calls start with the size before the first byte.
// Reads and writes continue in the meantime, even if w stalls. An open read transaction would block a
// write that grows the database, so Backup first copies a database that is open for writing to a file
// beside it.
func (s *Store) Backup(ctx context.Context, w io.Writer, start func(size int64)) (err error) {
	if s.db.IsReadOnly() {
		return s.view(ctx, func(tx *bbolt.Tx) error {
			start(tx.Size())
			_, err := tx.WriteTo(w)
			return err
		})
	}
	tmp, err := os.CreateTemp(filepath.Dir(s.path), ".backup-*")
	if err != nil {
		return fmt.Errorf("copy the record database: %w", err)
	}
	defer func() { err = errors.Join(err, tmp.Close()) }()
	// Without a name, the file is deleted when this process ends.
	if err := os.Remove(tmp.Name()); err != nil {
		return fmt.Errorf("copy the record database: %w", err)
	}
	var size int64
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		size, err = tx.WriteTo(tmp)
		return err
	})
	if err != nil {
		return fmt.Errorf("copy the record database: %w", err)
	}
	start(size)
	_, err = io.Copy(w, io.NewSectionReader(tmp, 0, size))
	return err
}

// Check returns an error unless the file is a complete record database.
func Check(path string) error {
	s, err := open(path, true)
	if err != nil {
		return err
	}
	return s.db.Close()
}

// Restore replaces the database at path, which no process may have open, with the backup. It keeps the
// former one as PATH.old, or as PATH.old.1 and so on if that exists. Unless the backup is as new as the
// former database, attestations are held: see [Store.Restored]. The restored database has a new id,
// because its transactions cannot be compared with those of the former database.
func Restore(path, backup string) (held bool, err error) {
	s, err := open(backup, true)
	if err != nil {
		return false, err
	}
	now, err := s.identity()
	if err := errors.Join(err, s.db.Close()); err != nil {
		return false, err
	}
	raw, err := os.ReadFile(backup)
	if err != nil {
		return false, fmt.Errorf("read the backup: %w", err)
	}
	// The file PATH.seen may be a minute old, so it is not sufficient. The former database may also be
	// one that Open rejects or holds.
	last, _ := readSeen(path) // an unreadable database causes a hold
	var before seen
	if former, err := open(path, true); err == nil {
		before, err = former.identity()
		if err := errors.Join(err, former.db.Close()); err != nil {
			return false, err
		}
	} else if errors.Is(err, ErrLocked) {
		return false, err
	}
	held = now.ID == "" || now != before || now.ID != last.ID || now.Transaction < last.Transaction
	if held {
		// The hold comes first, so that a crash holds too much instead of too little.
		if err := Hold(path, "the record database was restored from a backup"); err != nil {
			return false, err
		}
	}
	fresh := path + ".restoring"
	if err := wholefile.Write(fresh, 0o600, raw); err != nil {
		return held, err
	}
	if held {
		if now, err = renewed(fresh); err != nil {
			return held, errors.Join(err, os.Remove(fresh))
		}
	}
	if err := os.Rename(path, unused(path+".old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return held, fmt.Errorf("keep the former record database: %w", err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return held, fmt.Errorf("restore the record database: %w", err)
	}
	return held, now.write(path)
}

// renewed gives the database at path a new id.
func renewed(path string) (seen, error) {
	s, err := open(path, false)
	if err != nil {
		return seen{}, err
	}
	err = s.renew()
	now, identityErr := s.identity()
	return now, errors.Join(err, identityErr, s.db.Close())
}

// unused returns path, or path with a number if that file exists.
func unused(path string) string {
	name := path
	for i := 1; ; i++ {
		if _, err := os.Lstat(name); err != nil {
			return name
		}
		name = fmt.Sprintf("%s.%d", path, i)
	}
}

// Restored is the content of the file PATH.restored.
type Restored struct {
	Time time.Time `json:"time"`
	Why  string    `json:"why"`
}

// Hold records that the database may be older than the newest one.
func Hold(path, why string) error {
	raw, err := json.Marshal(Restored{Time: time.Now().UTC().Truncate(time.Second), Why: why})
	if err != nil {
		return err
	}
	return wholefile.Write(path+".restored", 0o600, append(raw, '\n'))
}

// Restored returns why attestations are held, or nil if they are not. Older records lack joins, claims
// and used grants. So a caller must not admit a machine by them until an administrator has acknowledged
// the restore.
func (s *Store) Restored() *Restored { return HeldAt(s.path) }

// HeldAt is [Store.Restored] for a database that is not open.
func HeldAt(path string) *Restored {
	raw, err := os.ReadFile(path + ".restored")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r := &Restored{Why: "the record database was restored"}
	if err == nil {
		_ = json.Unmarshal(raw, r) // an unreadable file also causes a hold
	}
	return r
}

// Acknowledge ends the hold. It returns false if there is none.
func Acknowledge(path string) (bool, error) {
	err := os.Remove(path + ".restored")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("acknowledge the restore: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return true, err
	}
	return true, errors.Join(dir.Sync(), dir.Close())
}
