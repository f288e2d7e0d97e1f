// SPDX-License-Identifier: Apache-2.0

// Package store stores the verifier's records in an embedded database. In standalone mode, this is the
// only state besides the administrator's files.
//
// There are four buckets. "records" has a MachineAttestation by the UID of its Machine. "claims" has,
// by the hash of an identity component, the UID of the Machine that holds it: one identity belongs to
// one Machine (rule 4 of docs/security-rules.md). "pending" has the machines that wait for an
// administrator's approval. "meta" has the database's id.
//
// Every change is one transaction that is on disk when the call returns. So a crash leaves the records
// consistent and loses none that was answered. Concurrent changes share one write.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var (
	recordsBucket = []byte("records")
	claimsBucket  = []byte("claims")
	pendingBucket = []byte("pending")
)

// Store is the database. It is safe for concurrent use.
type Store struct {
	db         *bbolt.DB
	path       string
	mu         sync.Mutex // guards remembered and its file
	remembered seen
}

// Close closes the database after the active transactions.
func (s *Store) Close() error {
	var err error
	if !s.db.IsReadOnly() {
		err = s.Remember()
	}
	return errors.Join(err, s.db.Close())
}

// A context prevents only what has not begun: a transaction is never interrupted.
//
// If the disk damages a page after Open, the error affects only the calls that read it.
func (s *Store) view(ctx context.Context, f func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return guard(func() error { return s.db.View(f) })
}

func (s *Store) write(ctx context.Context, f func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return guard(func() error { return s.db.Update(guarded(f)) })
}

func (s *Store) batch(ctx context.Context, f func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return guard(func() error { return s.db.Batch(guarded(f)) })
}

// guarded wraps f in a separate guard. The database runs a batch in another goroutine, and a panic
// there would leave its write lock held.
func guarded(f func(*bbolt.Tx) error) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return guard(func() error { return f(tx) }) }
}

// Record returns the record of the Machine, or nil if there is none.
func (s *Store) Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	var rec *v1alpha1.MachineAttestation
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		var err error
		rec, err = read(tx, uid)
		return err
	})
	return rec, unavailable(err)
}

// Records returns all records, sorted by UID.
func (s *Store) Records(ctx context.Context) ([]*v1alpha1.MachineAttestation, error) {
	var all []*v1alpha1.MachineAttestation
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(recordsBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			rec := new(v1alpha1.MachineAttestation)
			if err := json.Unmarshal(v, rec); err != nil {
				return fmt.Errorf("record %s: %w", k, err)
			}
			all = append(all, rec)
			return nil
		})
	})
	return all, unavailable(err)
}

// Holder returns the UID of the Machine that has an identity component, or "" if there is none.
func (s *Store) Holder(ctx context.Context, component string) (uid string, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		uid = string(tx.Bucket(claimsBucket).Get([]byte(component)))
		return nil
	})
	return uid, unavailable(err)
}

// Update changes the record of the Machine. change receives the current record, or nil if there is
// none. It returns the next record, or nil to leave it unchanged. If change returns an error, Update
// changes nothing and returns that error. It may call change more than once.
func (s *Store) Update(ctx context.Context, uid string, change Change) error {
	return s.update(ctx, uid, nil, nil, change)
}

// Change is a change of a record; see [Store.Update].
type Change func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error)

// ErrRestored means that the store was restored from a backup. A change that failed with it grants nothing, and may
// have changed the restored state.
var ErrRestored = errors.New("the store was restored from a backup; everything is read again")

// Session is the work of one request on the record of one Machine.
type Session interface {
	// Record returns the record, or nil if there is none.
	Record(ctx context.Context) (*v1alpha1.MachineAttestation, error)
	// Update may start from what Record read, instead of reading the record again.
	Update(ctx context.Context, change Change) error
}

// NewSession returns a session for a store whose reads are cheap.
func NewSession(r interface {
	Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
	Update(ctx context.Context, uid string, change Change) error
}, uid string,
) Session {
	return session{
		record: func(ctx context.Context) (*v1alpha1.MachineAttestation, error) { return r.Record(ctx, uid) },
		update: func(ctx context.Context, change Change) error { return r.Update(ctx, uid, change) },
	}
}

type session struct {
	record func(context.Context) (*v1alpha1.MachineAttestation, error)
	update func(context.Context, Change) error
}

func (s session) Record(ctx context.Context) (*v1alpha1.MachineAttestation, error) {
	return s.record(ctx)
}
func (s session) Update(ctx context.Context, change Change) error { return s.update(ctx, change) }

// Session returns a session for the record of one Machine.
func (s *Store) Session(uid string) Session { return NewSession(s, uid) }

// Attest is Update, but first claims every component of an identity for the Machine. If another Machine
// holds a component, it returns IdentityConflict, unless alive reports that the other Machine does not
// exist. Then its claim is released.
func (s *Store) Attest(ctx context.Context, uid string, components []string, alive func(uid string) bool,
	change Change) error {
	return s.update(ctx, uid, components, alive, change)
}

func (s *Store) update(ctx context.Context, uid string, components []string, alive func(string) bool,
	change Change) error {
	var refused error
	err := s.batch(ctx, func(tx *bbolt.Tx) error {
		refused = nil
		rec, err := read(tx, uid)
		if err != nil {
			return err
		}
		if refused = holders(tx, uid, components, alive); refused != nil {
			return errUnchanged
		}
		next, err := change(rec)
		if err != nil || next == nil {
			refused = err
			return errUnchanged
		}
		claims := tx.Bucket(claimsBucket)
		for _, c := range components {
			if err := claims.Put([]byte(c), []byte(uid)); err != nil {
				return err
			}
		}
		raw, err := json.Marshal(next)
		if err != nil {
			return err
		}
		return tx.Bucket(recordsBucket).Put([]byte(uid), raw)
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return unavailable(err)
	}
	return refused
}

// errUnchanged rolls back a transaction that has nothing to write, because even an empty one causes a
// disk write.
var errUnchanged = errors.New("nothing to write")

func holders(tx *bbolt.Tx, uid string, components []string, alive func(string) bool) error {
	claims := tx.Bucket(claimsBucket)
	for _, c := range components {
		holder := string(claims.Get([]byte(c)))
		if holder != "" && holder != uid && alive(holder) {
			return reason.Deny(reason.IdentityConflict, "identity component %s belongs to the machine with UID %s", c, holder)
		}
	}
	return nil
}

// Prune deletes the records and the claims of Machines that do not exist. It returns their UIDs.
func (s *Store) Prune(ctx context.Context, alive func(uid string) bool) ([]string, error) {
	var gone []string
	err := s.write(ctx, func(tx *bbolt.Tx) error {
		gone = nil
		records, claims := tx.Bucket(recordsBucket), tx.Bucket(claimsBucket)
		err := records.ForEach(func(k, _ []byte) error {
			if !alive(string(k)) {
				gone = append(gone, string(k))
			}
			return nil
		})
		if err != nil || len(gone) == 0 {
			return err
		}
		for _, uid := range gone {
			if err := records.Delete([]byte(uid)); err != nil {
				return err
			}
		}
		var stale [][]byte
		err = claims.ForEach(func(k, v []byte) error {
			if !alive(string(v)) {
				stale = append(stale, append([]byte(nil), k...))
			}
			return nil
		})
		for _, k := range stale {
			err = errors.Join(err, claims.Delete(k))
		}
		return err
	})
	return gone, unavailable(err)
}

func read(tx *bbolt.Tx, uid string) (*v1alpha1.MachineAttestation, error) {
	b := tx.Bucket(recordsBucket)
	if b == nil {
		return nil, nil
	}
	raw := b.Get([]byte(uid))
	if raw == nil {
		return nil, nil
	}
	rec := new(v1alpha1.MachineAttestation)
	if err := json.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("record %s: %w", uid, err)
	}
	return rec, nil
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return reason.Wrap(reason.StoreUnavailable, err, "record database")
}
