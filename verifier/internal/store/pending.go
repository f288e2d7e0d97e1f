package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	// MaxPending bounds the enrolments that wait for approval: a genuine TPM can
	// be had by the thousand (DESIGN, section 19, rule 1).
	MaxPending = 256

	// PendingLifetime is how long one waits after the machine was last seen.
	PendingLifetime = 24 * time.Hour
)

// Pending is a machine with a genuine TPM that no enrolment names.
type Pending struct {
	ID          string            `json:"id"`       // the first 16 hex digits of EKSHA256
	EKSHA256    string            `json:"ekSHA256"` // hex
	Pool        string            `json:"pool"`
	FirstSeen   time.Time         `json:"firstSeen"`
	LastSeen    time.Time         `json:"lastSeen"`
	Source      string            `json:"source"`           // the client's address, for orientation only
	Certificate map[string]string `json:"certificate"`      // what the EK certificate says
	Claims      string            `json:"claims,omitempty"` // self-asserted JSON, for orientation only
}

// Wait notes that p was seen now. When there are too many it is a RateLimited.
func (s *Store) Wait(ctx context.Context, now time.Time, p Pending) error {
	var refused error
	err := s.batch(ctx, func(tx *bbolt.Tx) error {
		refused = nil
		b := tx.Bucket(pendingBucket)
		waiting, err := expire(b, now)
		if err != nil {
			return err
		}
		p.FirstSeen, p.LastSeen = now, now
		if raw := b.Get([]byte(p.EKSHA256)); raw != nil {
			var old Pending
			if err := json.Unmarshal(raw, &old); err != nil {
				return fmt.Errorf("pending %s: %w", p.EKSHA256, err)
			}
			p.FirstSeen = old.FirstSeen
			if now.Sub(old.LastSeen) < 10*time.Second {
				return nil // a machine asks every few seconds; the disk need not hear of each
			}
		} else if waiting >= MaxPending {
			refused = reason.Deny(reason.RateLimited, "%d machines wait for approval already", MaxPending)
			return nil
		}
		raw, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return b.Put([]byte(p.EKSHA256), raw)
	})
	if err != nil {
		return unavailable(err)
	}
	return refused
}

// Waiting lists what waits, by EK hash.
func (s *Store) Waiting(ctx context.Context, now time.Time) ([]Pending, error) {
	var all []Pending
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(pendingBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			var p Pending
			if err := json.Unmarshal(v, &p); err != nil {
				return fmt.Errorf("pending %s: %w", k, err)
			}
			if now.Sub(p.LastSeen) <= PendingLifetime {
				all = append(all, p)
			}
			return nil
		})
	})
	return all, unavailable(err)
}

// Settled removes what no longer waits.
func (s *Store) Settled(ctx context.Context, ekSHA256 string) error {
	waits := false
	err := s.view(ctx, func(tx *bbolt.Tx) error { // a read first: the usual answer is that it did not wait
		waits = tx.Bucket(pendingBucket).Get([]byte(ekSHA256)) != nil
		return nil
	})
	if err != nil || !waits {
		return unavailable(err)
	}
	return unavailable(s.batch(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket(pendingBucket).Delete([]byte(ekSHA256))
	}))
}

// expire removes what waited too long and counts the rest. Bucket.Stats does not
// see what earlier changes of the same transaction have put.
func expire(b *bbolt.Bucket, now time.Time) (left int, err error) {
	var old [][]byte
	err = b.ForEach(func(k, v []byte) error {
		var p Pending
		if err := json.Unmarshal(v, &p); err != nil || now.Sub(p.LastSeen) > PendingLifetime {
			old = append(old, append([]byte(nil), k...))
			return nil
		}
		left++
		return nil
	})
	for _, k := range old {
		if err == nil {
			err = b.Delete(k)
		}
	}
	return left, err
}
