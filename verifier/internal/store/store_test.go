// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T) (*store.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records.db")
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, path
}

func everyone(string) bool { return true }

// become makes the record of a Machine, in a phase that tells the writers apart.
func become(uid, who string) store.Change {
	return func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		next := &v1alpha1.MachineAttestation{}
		if rec != nil {
			next = rec.DeepCopy()
		}
		next.Status.MachineUID, next.Status.Pool = uid, who
		return next, nil
	}
}

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := reason.From(err).Code; got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
}

func (k kept) want(t *testing.T, uid, pool string) {
	t.Helper()
	rec, err := k.Record(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case pool == "" && rec != nil:
		t.Errorf("%s has a record: %+v", uid, rec.Status)
	case pool != "" && (rec == nil || rec.Status.Pool != pool):
		t.Errorf("%s: got %+v, want %s", uid, rec, pool)
	}
}

type kept struct{ *store.Store }

func TestRecordsExistAfterReopening(t *testing.T) {
	s, path := open(t)
	if rec, err := s.Record(t.Context(), "uid1"); rec != nil || err != nil {
		t.Fatalf("before: %v, %v", rec, err)
	}
	if err := s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone, become("uid1", "a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ro, err := store.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	kept{ro}.want(t, "uid1", "a")
	if holder, err := ro.Holder(t.Context(), "ek1"); holder != "uid1" || err != nil {
		t.Errorf("holder %q, %v", holder, err)
	}
	if all, err := ro.Records(t.Context()); len(all) != 1 || err != nil {
		t.Errorf("%d records, %v", len(all), err)
	}
	_ = ro.Close()
}

func TestAttest_FailedChangeWritesNothing(t *testing.T) {
	s, _ := open(t)
	mine := errors.New("no")
	err := s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone,
		func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) { return nil, mine })
	if !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	if err := s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone,
		func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) { return nil, nil }); err != nil {
		t.Errorf("a change of nothing: %v", err)
	}
	kept{s}.want(t, "uid1", "")
	if holder, _ := s.Holder(t.Context(), "ek1"); holder != "" {
		t.Errorf("the identity was claimed by %q all the same", holder)
	}
}

func TestAttack_T42_OneIdentityForTwoMachines(t *testing.T) {
	s, _ := open(t)
	if err := s.Attest(t.Context(), "uid1", []string{"ek1", "provider1"}, everyone, become("uid1", "a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone, become("uid1", "again")); err != nil {
		t.Fatal("the holder itself:", err)
	}
	// One component of another Machine is enough, and the free one is not taken.
	wantCode(t, s.Attest(t.Context(), "uid2", []string{"ek2", "provider1"}, everyone, become("uid2", "b")),
		reason.IdentityConflict)
	kept{s}.want(t, "uid2", "")
	kept{s}.want(t, "uid1", "again")
	if holder, _ := s.Holder(t.Context(), "ek2"); holder != "" {
		t.Errorf("a refused attestation claimed ek2 for %q", holder)
	}
	// When the Machine is gone its identity is free.
	if err := s.Attest(t.Context(), "uid2", []string{"ek2", "provider1"}, func(uid string) bool { return uid != "uid1" },
		become("uid2", "b")); err != nil {
		t.Fatal(err)
	}
	if holder, _ := s.Holder(t.Context(), "provider1"); holder != "uid2" {
		t.Errorf("holder %q", holder)
	}
}

func TestAttack_T43_ManyMachinesClaimOneIdentityConcurrently(t *testing.T) {
	s, _ := open(t)
	const n = 50
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			uid := fmt.Sprint("uid", i)
			err := s.Attest(t.Context(), uid, []string{fmt.Sprint("own", i), "shared"}, everyone, become(uid, "won"))
			switch {
			case err == nil:
				won.Add(1)
			case reason.From(err).Code != reason.IdentityConflict:
				t.Errorf("%s: %v", uid, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d got the identity", won.Load())
	}
	all, err := s.Records(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	if holder, _ := s.Holder(t.Context(), "shared"); holder != all[0].Status.MachineUID {
		t.Errorf("held by %q, recorded for %q", holder, all[0].Status.MachineUID)
	}
}

func TestConcurrentUpdatesAreAllStored(t *testing.T) {
	s, _ := open(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			err := s.Update(t.Context(), "uid1", func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				next := &v1alpha1.MachineAttestation{}
				if rec != nil {
					next = rec.DeepCopy()
				}
				next.Generation++
				return next, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if rec, err := s.Record(t.Context(), "uid1"); err != nil || rec.Generation != 50 {
		t.Errorf("%v, %v", rec, err)
	}
}

func TestPrune_DeletesRecordsOfDeletedMachines(t *testing.T) {
	s, _ := open(t)
	for _, uid := range []string{"uid1", "uid2"} {
		if err := s.Attest(t.Context(), uid, []string{"ek-" + uid}, everyone, become(uid, "a")); err != nil {
			t.Fatal(err)
		}
	}
	if gone, err := s.Prune(t.Context(), everyone); len(gone) != 0 || err != nil {
		t.Errorf("with everyone there: %v, %v", gone, err)
	}
	gone, err := s.Prune(t.Context(), func(uid string) bool { return uid == "uid2" })
	if err != nil || len(gone) != 1 || gone[0] != "uid1" {
		t.Fatalf("%v, %v", gone, err)
	}
	kept{s}.want(t, "uid1", "")
	kept{s}.want(t, "uid2", "a")
	if holder, _ := s.Holder(t.Context(), "ek-uid1"); holder != "" {
		t.Errorf("the claim of %q stays", holder)
	}
	if holder, _ := s.Holder(t.Context(), "ek-uid2"); holder != "uid2" {
		t.Errorf("holder %q", holder)
	}
}

func waiting(i int) store.Pending {
	return store.Pending{ID: fmt.Sprintf("%016d", i), EKSHA256: fmt.Sprintf("%064d", i), Pool: "worker"}
}

func TestAttack_T40_GenuineTPMsByTheThousandFillABoundedList(t *testing.T) {
	s, _ := open(t)
	var wg sync.WaitGroup
	var refused atomic.Int32
	for i := range store.MaxPending + 50 {
		wg.Go(func() {
			if err := s.AddPending(t.Context(), start, waiting(i)); err != nil {
				refused.Add(1)
				wantCode(t, err, reason.RateLimited)
			}
		})
	}
	wg.Wait()
	all, err := s.ListPending(t.Context(), start)
	if err != nil || len(all) != store.MaxPending || refused.Load() != 50 {
		t.Fatalf("%d wait, %d were refused, %v", len(all), refused.Load(), err)
	}
	// Who waits already may ask again; a new one gets in once the others are over.
	seen := all[0]
	if err := s.AddPending(t.Context(), start.Add(time.Minute), seen); err != nil {
		t.Error(err)
	}
	over := start.Add(store.PendingLifetime + time.Second)
	if err := s.AddPending(t.Context(), over, waiting(10_000)); err != nil {
		t.Error("after the others have expired:", err)
	}
	all, err = s.ListPending(t.Context(), over)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d wait, %v", len(all), err)
	}
	for _, p := range all {
		if p.EKSHA256 == seen.EKSHA256 && (!p.FirstSeen.Equal(start) || !p.LastSeen.Equal(start.Add(time.Minute))) {
			t.Errorf("first seen %v, last %v", p.FirstSeen, p.LastSeen)
		}
	}
}

func TestAddPending_WritesNothingForAPoll(t *testing.T) {
	s, path := open(t)
	var wg sync.WaitGroup
	for i := range store.MaxPending {
		wg.Go(func() {
			if err := s.AddPending(t.Context(), start, waiting(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddPending(t.Context(), start.Add(time.Second), waiting(1)); err != nil {
		t.Error(err)
	}
	wantCode(t, s.AddPending(t.Context(), start.Add(time.Second), waiting(10_000)), reason.RateLimited)
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the database changed, %v", err)
	}
}

func TestAttack_T40_WhoIsRefusedDoesNotWaitForAWrite(t *testing.T) {
	s, _ := open(t)
	var wg sync.WaitGroup
	for i := range store.MaxPending {
		wg.Go(func() {
			if err := s.AddPending(t.Context(), start, waiting(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	writing, end := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		_ = s.Update(t.Context(), "uid", func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			close(writing)
			<-end
			return nil, nil
		})
	})
	<-writing
	defer wg.Wait()
	defer close(end)
	asked := make(chan error, 2)
	go func() {
		asked <- s.AddPending(t.Context(), start.Add(time.Second), waiting(1))
		asked <- s.AddPending(t.Context(), start.Add(time.Second), waiting(10_000))
	}()
	answer := func() error {
		select {
		case err := <-asked:
			return err
		case <-time.After(time.Minute):
			t.Fatal("it waits for the write of another machine")
			return nil
		}
	}
	if err := answer(); err != nil {
		t.Error(err)
	}
	wantCode(t, answer(), reason.RateLimited)
}

func TestAddPending_DeletesExpiredMachinesAlsoIfNothingElseChanges(t *testing.T) {
	s, _ := open(t)
	late := start.Add(store.PendingLifetime)
	for i, at := range []time.Time{start, late} {
		if err := s.AddPending(t.Context(), at, waiting(i)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := s.AddPending(t.Context(), late.Add(time.Second), waiting(1)); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.ListPending(t.Context(), start); err != nil || len(all) != 1 {
		t.Errorf("%d wait, %v", len(all), err)
	}
}

func TestDeletePending_EndsTheWait(t *testing.T) {
	s, _ := open(t)
	if err := s.AddPending(t.Context(), start, waiting(1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.DeletePending(t.Context(), waiting(1).EKSHA256); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.ListPending(t.Context(), start); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
}

func TestSecondWriter_IsReported(t *testing.T) {
	_, path := open(t)
	if _, err := store.Open(path); !errors.Is(err, store.ErrLocked) {
		t.Errorf("got %v", err)
	}
}

func TestWithoutTheDatabase_EveryDenialIsTemporary(t *testing.T) {
	s, _ := open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, recordErr := s.Record(t.Context(), "uid1")
	_, holderErr := s.Holder(t.Context(), "ek1")
	_, waitingErr := s.ListPending(t.Context(), start)
	for call, err := range map[string]error{
		"Record": recordErr, "Holder": holderErr, "ListPending": waitingErr,
		"AddPending":    s.AddPending(t.Context(), start, waiting(1)),
		"DeletePending": s.DeletePending(t.Context(), "ek1"),
		"Update":        s.Update(t.Context(), "uid1", become("uid1", "a")),
		"Attest":        s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone, become("uid1", "a")),
	} {
		if d := reason.From(err); d == nil || d.Code != reason.StoreUnavailable || !d.Code.Info().Temporary {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// Kept evidence shows that there was a database, also in a folder with characters of a pattern in its path.
func TestOpen_EvidenceWithoutADatabaseIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v[1]*?")
	if err := os.MkdirAll(filepath.Join(dir, "evidence"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "evidence", "1.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := store.Open(filepath.Join(dir, "records.db")); !errors.Is(err, store.ErrMissing) {
		t.Errorf("got %v, %v", s, err)
	}
}
