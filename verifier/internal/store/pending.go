// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	// MaxPending is the maximum number of enrollments that wait for approval, because an attacker can
	// buy thousands of genuine TPMs (rule 1 of docs/security-rules.md).
	MaxPending = 256

	// PendingLifetime is how long an enrollment waits after the machine's last request.
	PendingLifetime = 24 * time.Hour
)

// Pending is a machine with a genuine TPM that is not enrolled.
type Pending struct {
	ID          string            `json:"id"`       // the first 16 hex digits of EKSHA256
	EKSHA256    string            `json:"ekSHA256"` // hex
	Pool        string            `json:"pool"`
	FirstSeen   time.Time         `json:"firstSeen"`
	LastSeen    time.Time         `json:"lastSeen"`
	Source      string            `json:"source"`           // the client's address, for orientation only
	Certificate map[string]string `json:"certificate"`      // the content of the EK certificate
	Claims      string            `json:"claims,omitempty"` // self-asserted JSON, for orientation only
}

// PendingOf returns the pending machine of an object of the API whose status has one.
func PendingOf(a *v1alpha1.MachineAttestation) Pending {
	p := a.Status.Pending
	return Pending{
		ID: strings.TrimPrefix(a.Name, v1alpha1.PendingPrefix), EKSHA256: p.EKSHA256, Pool: p.Pool,
		FirstSeen: p.FirstSeen.Time, LastSeen: p.LastSeen.Time, Source: p.Source, Certificate: p.Certificate,
		Claims: p.Claims,
	}
}

// AddPending records a request of the pending machine p. If there are too many pending machines, it returns
// RateLimited.
func (s *Store) AddPending(ctx context.Context, now time.Time, p Pending) error {
	var refused error
	err := s.batch(ctx, func(tx *bbolt.Tx) error {
		refused = nil
		b := tx.Bucket(pendingBucket)
		waiting, unchanged, err := expire(b, now)
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
				return unchanged // a machine sends a request every few seconds; not each needs a write
			}
		} else if waiting >= MaxPending {
			refused = reason.Deny(reason.RateLimited, "%d machines are already waiting for approval", MaxPending)
			return unchanged
		}
		raw, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return b.Put([]byte(p.EKSHA256), raw)
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return unavailable(err)
	}
	return refused
}

// ListPending returns the pending machines, sorted by EK hash.
func (s *Store) ListPending(ctx context.Context, now time.Time) ([]Pending, error) {
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

// DeletePending deletes a machine that is no longer pending.
func (s *Store) DeletePending(ctx context.Context, ekSHA256 string) error {
	waits := false
	err := s.view(ctx, func(tx *bbolt.Tx) error { // reads first, because most machines were not pending
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

// expire deletes the machines that waited too long, and returns the number of the others. unchanged is
// errUnchanged if it deleted none. Bucket.Stats omits what earlier changes of the same transaction have written.
func expire(b *bbolt.Bucket, now time.Time) (left int, unchanged, err error) {
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
	if len(old) == 0 {
		unchanged = errUnchanged
	}
	for _, k := range old {
		if err == nil {
			err = b.Delete(k)
		}
	}
	return left, unchanged, err
}
