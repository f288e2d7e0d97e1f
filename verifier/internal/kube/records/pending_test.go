// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// names of what waits, as the API has it.
func (s *site) pending() []string {
	s.Helper()
	var names []string
	for _, o := range s.list(attestations, s.own) {
		names = append(names, o.GetName())
	}
	return names
}

func TestPending_KeepsAMachineUntilItsApproval(t *testing.T) {
	s := newSite(t)
	a, b, now, p := s.replica(), s.replica(), s.now(), waiting(1)
	p.Certificate, p.Claims = map[string]string{"manufacturer": "ACME"}, `{"serial":"1"}`
	for range 3 {
		if err := a.AddPending(t.Context(), now, p); err != nil {
			t.Fatal(err)
		}
	}
	all, err := b.ListPending(t.Context(), now)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	if got := all[0]; got.ID != p.ID || got.EKSHA256 != p.EKSHA256 || got.Pool != "worker" || got.Source != p.Source ||
		got.Claims != p.Claims || got.Certificate["manufacturer"] != "ACME" || !got.FirstSeen.Equal(now) {
		t.Errorf("got %+v", got)
	}
	o := s.get(attestations, s.own, "pending-"+p.ID)
	if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase != string(v1alpha1.PhasePending) {
		t.Errorf("phase %q", phase)
	}
	// It asks every few seconds; that is written down every ten minutes.
	a.count()
	for minute := range 20 {
		if err := a.AddPending(t.Context(), now.Add(time.Duration(minute)*time.Minute), p); err != nil {
			t.Fatal(err)
		}
	}
	if writes, _ := a.count(); writes != 1 {
		t.Errorf("%d writes in twenty minutes", writes)
	}
	all, err = b.ListPending(t.Context(), now.Add(20*time.Minute))
	if err != nil || len(all) != 1 || !all[0].FirstSeen.Equal(now) || !all[0].LastSeen.Equal(now.Add(10*time.Minute)) {
		t.Errorf("%+v, %v", all, err)
	}
	for range 2 {
		if err := b.DeletePending(t.Context(), p.EKSHA256); err != nil {
			t.Fatal(err)
		}
	}
	if left := s.pending(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestPending_Expires(t *testing.T) {
	s := newSite(t)
	r, now := s.replica(), s.now()
	for i := range 2 {
		if err := r.AddPending(t.Context(), now.Add(time.Duration(i)*time.Hour), waiting(i)); err != nil {
			t.Fatal(err)
		}
	}
	over := now.Add(store.PendingLifetime + time.Minute)
	if all, err := r.ListPending(t.Context(), over); err != nil || len(all) != 1 || all[0].ID != waiting(1).ID {
		t.Errorf("%+v, %v", all, err)
	}
	if err := r.ExpirePending(t.Context(), over); err != nil {
		t.Fatal(err)
	}
	if left := s.pending(); len(left) != 1 || left[0] != "pending-"+waiting(1).ID {
		t.Errorf("left: %q", left)
	}
}

// fill makes n objects of machines that wait.
func (s *site) fill(n int) {
	s.Helper()
	for i := range n {
		s.create(attestations, s.own, map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
			"metadata": map[string]any{"name": fmt.Sprintf("pending-%016x", 10_000+i),
				"labels": map[string]any{"mcs-attest.dev/pending": "true"}},
		})
	}
}

func TestAttack_T40_TwoReplicasLetTheLastOneIn(t *testing.T) {
	s := newSite(t)
	a, b, now := s.replica(), s.replica(), s.now()
	s.fill(store.MaxPending - 1)
	held, resume := a.hold(http.MethodPost, "/machineattestations")
	done := make(chan error)
	go func() { done <- a.AddPending(t.Context(), now, waiting(1)) }()
	<-held
	if err := b.AddPending(t.Context(), now, waiting(2)); err != nil {
		t.Error(err)
	}
	resume()
	denied(t, <-done, reason.RateLimited)
	if n := len(s.pending()); n != store.MaxPending {
		t.Errorf("%d wait", n)
	}
	s.get(attestations, s.own, "pending-"+waiting(2).ID)
}

func TestAttack_T40_GenuineTPMsByTheThousandOnThreeReplicas(t *testing.T) {
	s := newSite(t)
	now := s.now()
	s.fill(store.MaxPending - 6)
	replicas := s.replicas(3)
	var in atomic.Int32
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			err := replicas[i%3].AddPending(t.Context(), now, waiting(1000+i))
			if err == nil {
				in.Add(1)
				return
			}
			if d := reason.From(err); d.Code != reason.RateLimited || !d.Code.Temporary() {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Two that exceed the limit at the same time may both be deleted, and return.
	left := s.pending()
	if len(left) > store.MaxPending || len(left) != store.MaxPending-6+int(in.Load()) {
		t.Errorf("%d wait, of which %d were admitted", len(left), in.Load())
	}
	late := now.Add(time.Minute)
	for i := range 12 {
		_ = replicas[0].AddPending(t.Context(), late, waiting(2000+i))
	}
	if n := len(s.pending()); n != store.MaxPending {
		t.Errorf("%d wait", n)
	}
	// While there are too many, a flood of new ones is not a flood at the API.
	replicas[0].count()
	for i := range 50 {
		denied(t, replicas[0].AddPending(t.Context(), late, waiting(3000+i)), reason.RateLimited)
	}
	if writes, reads := replicas[0].count(); writes != 0 || reads > 51 {
		t.Errorf("%d writes, %d reads", writes, reads)
	}
	// The others have expired: there is room.
	over := late.Add(store.PendingLifetime + time.Minute)
	if err := replicas[1].AddPending(t.Context(), over, waiting(1)); err != nil {
		t.Error(err)
	}
}

func TestPending_KeepsAnApproval(t *testing.T) {
	s := newSite(t)
	r, now := s.replica(), s.now()
	for i := 1; i <= 3; i++ {
		if err := r.AddPending(t.Context(), now, waiting(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.patch(attestations, s.own, "pending-"+waiting(1).ID, `{"spec":{"pool":"worker","ekSHA256":["`+waiting(1).EKSHA256+`"]}}`)
	s.patch(attestations, s.own, "pending-"+waiting(2).ID, `{"spec":{"machineRef":{"namespace":"`+s.namespace+`","name":"worker-0"},"ekSHA256":["`+waiting(2).EKSHA256+`"]}}`)
	over := now.Add(store.PendingLifetime + time.Hour)
	if all, err := r.ListPending(t.Context(), now); err != nil || len(all) != 1 || all[0].ID != waiting(3).ID {
		t.Errorf("who waits: %+v, %v", all, err)
	}
	if err := r.ExpirePending(t.Context(), over); err != nil {
		t.Fatal(err)
	}
	// It asks again before the watch has brought the approval.
	if err := r.AddPending(t.Context(), over, waiting(1)); err != nil {
		t.Fatal(err)
	}
	// The first is its own record now, and attests.
	m := s.watched(s.get(attestations, s.own, "pending-"+waiting(1).ID))
	id := v1alpha1.RecordedIdentity{EKSHA256: waiting(1).EKSHA256}
	s.attested(r, m, id, "token1", now)
	for i := 1; i <= 2; i++ {
		if err := r.DeletePending(t.Context(), waiting(i).EKSHA256); err != nil {
			t.Fatal(err)
		}
	}
	if rec := s.record(r, m.UID); rec.Status.Phase != v1alpha1.PhaseAttested || rec.Status.Pending != nil {
		t.Errorf("the record is %+v", rec.Status)
	}
	o := s.get(attestations, s.own, "pending-"+waiting(2).ID)
	if status, _, _ := unstructured.NestedMap(o.Object, "status"); len(status) != 0 {
		t.Errorf("the enrollment still waits: %v", status)
	}
	s.delete(attestations, s.own, "pending-"+waiting(1).ID)
	s.delete(claims, "", s.claimOf(m.UID))
}

func TestApprovalBetweenReadAndDeletion_IsKept(t *testing.T) {
	s := newSite(t)
	r, now, p := s.replica(), s.now(), waiting(1)
	if err := r.AddPending(t.Context(), now, p); err != nil {
		t.Fatal(err)
	}
	held, resume := r.hold(http.MethodDelete, "/machineattestations/")
	done := make(chan error)
	go func() { done <- r.ExpirePending(t.Context(), now.Add(store.PendingLifetime+time.Hour)) }()
	<-held
	s.patch(attestations, s.own, "pending-"+p.ID, `{"spec":{"pool":"worker","ekSHA256":["`+p.EKSHA256+`"]}}`)
	resume()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.get(attestations, s.own, "pending-"+p.ID)
}

func TestAttack_T42_AnEKWhoseHashBeginsAlike(t *testing.T) {
	s := newSite(t)
	r, now, p := s.replica(), s.now(), waiting(1)
	if err := r.AddPending(t.Context(), now, p); err != nil {
		t.Fatal(err)
	}
	twin := p
	twin.EKSHA256 = p.EKSHA256[:63] + "f"
	denied(t, r.AddPending(t.Context(), now.Add(time.Hour), twin), reason.StoreUnavailable)
	if err := r.DeletePending(t.Context(), twin.EKSHA256); err != nil {
		t.Fatal(err)
	}
	if all, err := r.ListPending(t.Context(), now); err != nil || len(all) != 1 || all[0].EKSHA256 != p.EKSHA256 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A client that hangs up leaves no object behind without the check of the limit.
func TestWait_EndsForAClientThatHangsUp(t *testing.T) {
	s := newSite(t)
	r, now := s.replica(), s.now()
	ctx, hangUp := context.WithCancel(t.Context())
	held, resume := r.hold(http.MethodPost, "/machineattestations")
	done := make(chan error)
	go func() { done <- r.AddPending(ctx, now, waiting(1)) }()
	<-held
	hangUp()
	resume()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if all, err := r.ListPending(t.Context(), now); err != nil || len(all) != 1 {
		t.Errorf("%+v %v", all, err)
	}
}
