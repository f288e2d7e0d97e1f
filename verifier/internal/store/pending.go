// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"encoding/json"
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
// RateLimited. It reads first: most requests write nothing, so they do not wait for the write lock, and do not make the
// database repeat the batch that they are in.
func (s *Store) AddPending(ctx context.Context, now time.Time, p Pending) error {
	var a admission
	err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
		a, err = admit(tx.Bucket(pendingBucket), now, p)
		return err
	})
	if err == nil && (a.record != nil || len(a.expired) > 0) {
		err = s.batch(ctx, func(tx *bbolt.Tx) (err error) {
			if a, err = admit(tx.Bucket(pendingBucket), now, p); err != nil {
				return err
			}
			return a.write(tx.Bucket(pendingBucket), p.EKSHA256)
		})
	}
	if err != nil {
		return unavailable(err)
	}
	return a.refused
}

// admission is what a request of a pending machine changes.
type admission struct {
	record  []byte   // the machine's next record; nil: unchanged
	expired [][]byte // the keys of the machines that waited too long
	refused error
}

// admit decides on a request. It counts the machines, because Bucket.Stats omits what earlier changes of the same
// transaction have written.
func admit(b *bbolt.Bucket, now time.Time, p Pending) (a admission, err error) {
	waiting := 0
	p.FirstSeen, p.LastSeen = now, time.Time{}
	err = b.ForEach(func(k, v []byte) error {
		var one Pending
		if err := json.Unmarshal(v, &one); err != nil || now.Sub(one.LastSeen) > PendingLifetime {
			a.expired = append(a.expired, bytes.Clone(k))
			return nil
		}
		waiting++
		if string(k) == p.EKSHA256 {
			p.FirstSeen, p.LastSeen = one.FirstSeen, one.LastSeen
		}
		return nil
	})
	switch known := !p.LastSeen.IsZero(); {
	case err != nil || known && now.Sub(p.LastSeen) < 10*time.Second: // it sends a request every few seconds
		return a, err
	case !known && waiting >= MaxPending:
		a.refused = reason.Deny(reason.RateLimited, "%d machines are already waiting for approval", MaxPending)
		return a, nil
	}
	p.LastSeen = now
	a.record, err = json.Marshal(p)
	return a, err
}

func (a admission) write(b *bbolt.Bucket, key string) error {
	for _, k := range a.expired {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	if a.record == nil {
		return nil
	}
	return b.Put([]byte(key), a.record)
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
