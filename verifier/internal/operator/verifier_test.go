// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	kuberecords "github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// registry returns the verifier's Machines and enrollments, read again.
func registry(t *testing.T, f fixture) *machine.Registry {
	t.Helper()
	r := machine.NewRegistry(nil)
	for _, ns := range []string{f.namespace, f.own} {
		for _, resource := range []string{"machines", "machineattestations"} {
			gvr := machines
			if resource == "machineattestations" {
				gvr = attestations
			}
			list, err := f.d.Resource(gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				found, problems := machine.FromObject(o.Object)
				if len(problems) > 0 {
					t.Fatal(problems)
				}
				for _, m := range found.Machines {
					r.PutMachine(m)
				}
				for _, e := range found.Enrollments {
					r.PutEnrollment(e)
				}
			}
		}
	}
	return r
}

// The commands and the verifier communicate only through objects. Here each reads what
// the other wrote.
func TestCommands_ReadAndWriteTheVerifiersObjects(t *testing.T) {
	f, b := room(t, installed(t), "both")
	uid, err := f.machine("worker-0", "")
	if err != nil {
		t.Fatal(err)
	}
	reg := registry(t, f)
	live, err := kuberecords.NewClient(installed(t).Admin())
	if err != nil {
		t.Fatal(err)
	}
	records := kuberecords.New(kuberecords.Options{
		Client: live, Namespace: f.own, Machine: func(uid string) (*machine.Machine, bool) { return reg.ByUID(uid) },
		Log: slog.New(slog.DiscardHandler),
	})
	id := strings.Repeat("ab12", 4)
	hash := strings.Repeat(id, 4)
	ek, err := machine.ParseEKHash(hash)
	if err != nil {
		t.Fatal(err)
	}

	// A machine waits; status and explain show it; approval enrolls its TPM.
	if err := records.AddPending(t.Context(), time.Now(), store.Pending{ID: id, EKSHA256: hash, Pool: "worker",
		Source: "192.0.2.7", Claims: "{}"}); err != nil && reason.From(err).Code != reason.PendingApproval {
		t.Fatal(err)
	}
	s, err := b.State(t.Context())
	if err != nil || len(s.Pending) != 1 || s.Pending[0].ID != id || s.Pending[0].EKSHA256 != hash ||
		s.Pending[0].Source != "192.0.2.7" {
		t.Fatalf("%+v, %v", s, err)
	}
	// Its id is the beginning of its EK's hash, so another EK may have the same.
	for name, want := range map[string]int{id: 1, "pending-" + id: 1, hash: 1, id + strings.Repeat("0", 48): 0} {
		if s, err := b.Find(t.Context(), name); err != nil || len(s.Pending) != want {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if reg.Enrolled(ek) {
		t.Error("a machine that waits is enrolled")
	}
	e := &v1alpha1.MachineAttestation{}
	e.Namespace, e.Name = f.namespace, "worker-0"
	e.Spec.MachineRef, e.Spec.EKSHA256 = &v1alpha1.MachineReference{Namespace: f.namespace, Name: "worker-0"},
		[]string{hash}
	if _, err := b.Enroll(t.Context(), e, operator.Write{}); err != nil {
		t.Fatal(err)
	}
	reg = registry(t, f)
	if !reg.Enrolled(ek) {
		t.Error("an approved machine is not enrolled")
	}
	if err := records.DeletePending(t.Context(), hash); err != nil {
		t.Fatal(err)
	}

	// Its record, as the verifier writes it.
	m, ok := reg.ByUID(uid)
	if !ok {
		t.Fatal("no Machine")
	}
	err = records.Attest(t.Context(), uid, []string{"ek:" + hash}, func(string) bool { return true },
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Attest(rec, record.Attestation{
				Machine: m, Identity: v1alpha1.RecordedIdentity{EKSHA256: hash}, Endorsement: v1alpha1.EndorsementEnrolled,
				Pool: "worker", TokenID: "t1", TokenExpiry: time.Now().Add(time.Minute), TokenUses: 3,
			}, time.Now())
		})
	if err != nil {
		t.Fatal(err)
	}
	s, err = b.State(t.Context())
	if err != nil || len(s.Pending) != 0 || len(s.Machines) != 1 || s.Machines[0].Record == nil ||
		s.Machines[0].Record.Phase != v1alpha1.PhaseAttested || s.Machines[0].Record.Identity.EKSHA256 != hash {
		t.Fatalf("%+v, %v", s, err)
	}

	// A quarantine and a grant on that record, as the verifier reads them.
	for _, stop := range []bool{true, false} {
		if _, err := b.Quarantine(t.Context(), "worker-0", stop, operator.Write{}); err != nil {
			t.Fatal(err)
		}
		reg = registry(t, f)
		err := reg.Redeemable(uid, "worker", time.Now())
		if m, ok := reg.ByUID(uid); !ok || m.Quarantined() != stop || (err != nil) != stop {
			t.Errorf("quarantine %v: the verifier has %+v, %v", stop, m, err)
		}
	}
	if _, err := b.Reattest(t.Context(), "worker-0", time.Now().Add(time.Hour), operator.Write{}); err != nil {
		t.Fatal(err)
	}
	reg = registry(t, f)
	if m, ok := reg.ByUID(uid); !ok || !m.Granted(time.Now()) {
		t.Errorf("the verifier sees no grant: %+v", m)
	}
	if rec, err := records.Record(t.Context(), uid); err != nil || rec.Status.Phase != v1alpha1.PhaseAttested ||
		rec.Status.Token == nil {
		t.Errorf("what the verifier wrote is gone: %+v, %v", rec, err)
	}

	// A break-glass token's record is no machine of the scale-up, and is shown.
	glass := strings.Repeat("0a", 12)
	now := time.Now()
	err = records.Update(t.Context(), record.BreakGlassUID(glass),
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.BreakGlass(rec, token.Claims{Subject: "break-glass/ticket-4711",
				MachineUID: record.BreakGlassUID(glass), ID: glass, Pool: "worker", IssuedAt: now, NotBefore: now,
				Expiry: now.Add(time.Minute)}, true, now)
		})
	if err != nil {
		t.Fatal(err)
	}
	s, err = b.State(t.Context())
	shown := fmt.Sprintf("%+v", s.Machines)
	if err != nil || len(s.Machines) != 2 || !strings.Contains(shown, "break-glass-"+glass) ||
		!strings.Contains(shown, "BreakGlass") || len(s.Problems) != 0 {
		t.Errorf("%s, %v, %v", shown, s.Problems, err)
	}
	if _, err := b.Quarantine(t.Context(), "break-glass-"+glass, true, operator.Write{}); err == nil ||
		!strings.Contains(err.Error(), "is a break-glass token") {
		t.Errorf("a token was quarantined: %v", err)
	}
}
