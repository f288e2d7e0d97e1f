// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

var (
	metaBucket = []byte("meta")
	idKey      = []byte("id")
)

// The errors of [Open], [OpenReadOnly] and [Restore].
var (
	// ErrLocked means that another process, most likely a serving verifier, has the database open.
	ErrLocked = errors.New("the record database is in use by another process")
	// ErrDamaged means that the file cannot be read completely.
	ErrDamaged = errors.New("the record database is damaged")
	// ErrMissing means that the database does not exist, although one was used before.
	ErrMissing = errors.New("the record database is missing, but one was used before")
	// ErrForeign means that the file is a database, but not the one that was used before.
	ErrForeign = errors.New("the record database is not the one that was used here before")
)

// Open opens the database for writing. It creates one only if none was used before, because a new
// database contains no joins and no claims. It first reads all of an existing database, and returns an
// error if any part of it is damaged.
//
// Two files beside the database make this possible. PATH.seen has the database's id and its newest
// transaction. PATH.restored exists while the records may be older than the newest ones; see
// [Store.Restored].
func Open(path string) (*Store, error) {
	seen, err := readSeen(path)
	if err != nil {
		return nil, err
	}
	if err := create(path, seen); err != nil {
		return nil, err
	}
	s, err := open(path, false)
	if err != nil {
		return nil, err
	}
	if err := s.adopt(seen); err != nil {
		_ = s.db.Close()
		return nil, err
	}
	return s, nil
}

// OpenReadOnly opens an existing database for reading. If the file does not exist, the error is
// [fs.ErrNotExist] or, if a database was used before, [ErrMissing].
func OpenReadOnly(path string) (*Store, error) {
	seen, err := readSeen(path)
	if err != nil {
		return nil, err
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist) && seen.ID != "":
		return nil, fmt.Errorf("%s: %w", path, ErrMissing)
	case err != nil:
		return nil, fmt.Errorf("open record database: %w", err)
	case info.Size() == 0:
		return nil, fmt.Errorf("%s: %w: the file is empty", path, ErrDamaged)
	}
	s, err := open(path, true)
	if err != nil {
		return nil, err
	}
	if now, err := s.identity(); err != nil || seen.ID != "" && now.ID != seen.ID {
		_ = s.db.Close()
		return nil, fmt.Errorf("%s: %w", path, cmp.Or(err, ErrForeign))
	}
	return s, nil
}

// seen is the content of the file PATH.seen.
type seen struct {
	ID          string `json:"id"`
	Transaction int    `json:"transaction"`
}

func readSeen(path string) (seen, error) {
	var s seen
	raw, err := os.ReadFile(path + ".seen")
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err == nil && s.ID == "" {
		err = errors.New("the file has no id")
	}
	if err != nil {
		return s, fmt.Errorf("read %s.seen: %w", path, err)
	}
	return s, nil
}

func (s seen) write(path string) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return wholefile.Write(path+".seen", 0o600, append(raw, '\n'))
}

// create creates the database if none was used before. The file appears complete, so a crash leaves no
// empty file.
func create(path string, seen seen) (err error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Size() > 0:
		return nil
	case err == nil:
		return fmt.Errorf("%s: %w: the file is empty", path, ErrDamaged)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("open record database: %w", err)
	case seen.ID != "":
		return fmt.Errorf("%s: %w", path, ErrMissing)
	}
	// Versions without the file PATH.seen left other traces.
	if kept, _ := fs.Glob(os.DirFS(filepath.Dir(path)), "evidence/*.json"); len(kept) > 0 {
		return fmt.Errorf("%s: %w", path, ErrMissing)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("create record database: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fresh := filepath.Join(dir, "records.db")
	db, err := bbolt.Open(fresh, 0o600, nil)
	if err != nil {
		return fmt.Errorf("create record database %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{recordsBucket, claimsBucket, pendingBucket} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("create record database %s: %w", path, err)
	}
	// A link does not replace a database that another process has created in the meantime.
	if err := os.Link(fresh, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create record database: %w", err)
	}
	return nil
}

func open(path string, readOnly bool) (*Store, error) {
	s := &Store{path: path}
	var system *fs.PathError
	err := guard(func() (err error) {
		s.db, err = bbolt.Open(path, 0o600,
			&bbolt.Options{Timeout: 2 * time.Second, ReadOnly: readOnly, PreLoadFreelist: true})
		return err
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%s: %w", path, ErrLocked)
	case errors.Is(err, ErrDamaged):
		return nil, fmt.Errorf("%s: %w", path, err)
	case errors.As(err, &system):
		return nil, fmt.Errorf("open record database: %w", err)
	case err != nil: // an error of the content
		return nil, fmt.Errorf("%s: %w: %w", path, ErrDamaged, err)
	}
	if err := guard(s.check); err != nil {
		_ = s.db.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// guard turns a panic of the database into an error. A damaged file can make it access memory out of
// bounds.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %.200s", ErrDamaged, fmt.Sprint(r))
		}
	}()
	return f()
}

// check reads every page and every record. The database's own check runs in a separate goroutine, so it
// comes last: at that point, no page is out of bounds.
func (s *Store) check() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		if info, err := os.Stat(s.path); err != nil || info.Size() < tx.Size() {
			return fmt.Errorf("%w: the file is truncated", ErrDamaged)
		}
		for _, name := range [][]byte{recordsBucket, claimsBucket, pendingBucket} {
			b := tx.Bucket(name)
			if b == nil {
				return fmt.Errorf("%w: the bucket %s is missing", ErrForeign, name)
			}
			err := b.ForEach(func(k, v []byte) error {
				var into any
				switch string(name) {
				case string(recordsBucket):
					into = new(v1alpha1.MachineAttestation)
				case string(pendingBucket):
					into = new(Pending)
				default:
					return nil
				}
				if err := json.Unmarshal(v, into); err != nil {
					return fmt.Errorf("%w: %s of %q: %w", ErrDamaged, name, k, err)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		var first error
		for err := range tx.Check() {
			if first == nil {
				first = fmt.Errorf("%w: %w", ErrDamaged, err)
			}
		}
		return first
	})
}

// identity returns the database's id and its newest transaction. The id is "" if an earlier version
// created the database.
func (s *Store) identity() (seen, error) {
	var now seen
	err := guard(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			now.Transaction = tx.ID()
			if b := tx.Bucket(metaBucket); b != nil {
				now.ID = string(b.Get(idKey))
			}
			return nil
		})
	})
	return now, err
}

// adopt compares the database with PATH.seen. It gives the database an id if it has none. If the
// database is older, it gets a new id, because its later transactions cannot be compared with those
// that it lacks.
func (s *Store) adopt(before seen) error {
	now, err := s.identity()
	if err != nil {
		return fmt.Errorf("open record database %s: %w", s.path, err)
	}
	switch {
	case before.ID != "" && now.ID != before.ID:
		return fmt.Errorf("%s: %w", s.path, ErrForeign)
	case now.Transaction < before.Transaction:
		if err := Hold(s.path, "the record database is older than the one that was last used"); err != nil {
			return err
		}
		now.ID = ""
	}
	if now.ID == "" {
		if err := s.renew(); err != nil {
			return fmt.Errorf("prepare record database %s: %w", s.path, err)
		}
	}
	return s.Remember()
}

// renew gives the database a new id.
func (s *Store) renew() error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
	return s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(metaBucket)
		if err != nil {
			return err
		}
		return b.Put(idKey, []byte(hex.EncodeToString(id[:])))
	})
}

// Remember writes the newest transaction to PATH.seen, so that the next [Open] detects an older
// database. The verifier calls it every minute.
func (s *Store) Remember() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.identity()
	if err != nil || now == s.remembered {
		return err
	}
	if err := now.write(s.path); err != nil {
		return err
	}
	s.remembered = now
	return nil
}
