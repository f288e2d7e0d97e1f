// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

var (
	_ service.Records = (*records.Records)(nil)
	_ redeem.Records  = (*records.Records)(nil)
)

func TestLifecycleOfAMachineInACluster(t *testing.T) {
	s := newSite(t)
	r, m, id, now := s.replica(), s.machine("worker-0"), unique(), s.now()
	if rec := s.record(r, m.UID); rec != nil {
		t.Fatalf("before: %+v", rec)
	}
	for range 2 {
		if err := r.EnsureRecord(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	s.attested(r, m, id, "token1", now)
	o := s.get(attestations, s.namespace, m.UID)
	owner := o.GetOwnerReferences()
	if len(owner) != 1 || string(owner[0].UID) != m.UID || owner[0].Kind != "Machine" || owner[0].Name != "worker-0" {
		t.Errorf("owned by %+v", owner)
	}
	if name, _, _ := unstructured.NestedString(o.Object, "spec", "machineRef", "name"); name != "worker-0" {
		t.Errorf("spec %v", o.Object["spec"])
	}
	rec := s.record(s.replica(), m.UID)
	if st := rec.Status; st.Phase != v1alpha1.PhaseAttested || st.MachineUID != m.UID || st.Identity != id ||
		st.Token == nil || st.Token.ID != "token1" {
		t.Errorf("recorded %+v", st)
	}
	if got := s.holder(r, id); got != m.UID {
		t.Errorf("the identity is %q's", got)
	}
	redeem := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Redeem(rec, token.Claims{ID: "token1", Subject: m.String(), MachineUID: m.UID, Pool: "worker"},
			nil, now)
	}
	if err := r.Update(t.Context(), m.UID, redeem); err != nil {
		t.Fatal(err)
	}
	if rec := s.record(r, m.UID); rec.Status.Phase != v1alpha1.PhaseFetched || rec.Status.Token.Uses != 1 {
		t.Errorf("after a fetch: %+v", rec.Status)
	}
	join := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Joined(rec, "node-0", now), nil
	}
	for range 2 {
		if err := r.Update(t.Context(), m.UID, join); err != nil {
			t.Fatal(err)
		}
	}
	denied(t, r.Update(t.Context(), m.UID, redeem), reason.TokenSuperseded)
	denied(t, attest(r, m, id, "token2", now.Add(time.Hour)), reason.MachineJoined)
	if phase := s.record(r, m.UID).Status.Phase; phase != v1alpha1.PhaseJoined {
		t.Errorf("phase %s", phase)
	}
}

func TestDelete_FailsWhileTheMachineExists(t *testing.T) {
	s := newSite(t)
	r, m, id := s.replica(), s.machine("worker-0"), unique()
	s.attested(r, m, id, "token1", s.now())
	if err := r.Delete(t.Context(), m.UID); !errors.Is(err, records.ErrMachineThere) {
		t.Errorf("while it exists: %v", err)
	}
	if err := r.ReleaseClaims(t.Context(), m.UID); !errors.Is(err, records.ErrMachineThere) {
		t.Errorf("while it exists: %v", err)
	}
	if s.record(r, m.UID) == nil || s.holder(r, id) != m.UID {
		t.Fatal("the record or the claim of a living Machine is gone")
	}
	s.remove(m)
	for _, namespaces := range [][]string{nil, {s.namespace}} { // a second time is no error
		if err := r.Delete(t.Context(), m.UID, namespaces...); err != nil {
			t.Fatal(err)
		}
	}
	if rec := s.record(r, m.UID); rec != nil {
		t.Errorf("the record stays: %+v", rec)
	}
	if uid := s.holder(r, id); uid != "" {
		t.Errorf("the claim of %s stays", uid)
	}
	s.known.DeleteMachine("machine.openshift.io", m.Namespace, m.Name)
	_, err := r.Record(t.Context(), m.UID)
	denied(t, err, reason.MachineNotFound)
	denied(t, attest(r, m, id, "token2", s.now()), reason.MachineNotFound)
}

// The claims of a Machine without a record are all that names it. If a revocation fails, or the process ends, they
// remain for the next run.
func TestReleaseClaims_RevokesFirst(t *testing.T) {
	s := newSite(t)
	var revoked int
	fails := errors.New("the Secrets cannot be deleted")
	r := s.replica(func(o *records.Options) {
		o.Revoke = func(context.Context, string, []v1alpha1.CredentialStatus) error { revoked++; return fails }
	})
	m, id := s.machine("worker-0"), unique()
	s.attested(r, m, id, "token1", s.now())
	s.delete(attestations, m.Namespace, m.UID)
	if err := r.ReleaseClaims(t.Context(), m.UID); !errors.Is(err, records.ErrMachineThere) || revoked > 0 {
		t.Errorf("while the Machine exists: %v, revoked %d times", err, revoked)
	}
	s.remove(m)
	if err := r.ReleaseClaims(t.Context(), m.UID); !errors.Is(err, fails) || s.holder(r, id) != m.UID {
		t.Fatalf("after a failed revocation: %v, the identity is %q's", err, s.holder(r, id))
	}
	fails, revoked = nil, 0
	for range 2 {
		if err := r.ReleaseClaims(t.Context(), m.UID); err != nil || s.holder(r, id) != "" {
			t.Errorf("%v, the identity is %q's", err, s.holder(r, id))
		}
	}
	if revoked != 1 {
		t.Errorf("revoked %d times", revoked)
	}
}

func TestDelete_RevokesTheCredentialsOfTheRecordOnce(t *testing.T) {
	s := newSite(t)
	var revoked []string
	r := s.replica(func(o *records.Options) {
		o.Revoke = func(_ context.Context, uid string, _ []v1alpha1.CredentialStatus) error {
			revoked = append(revoked, uid)
			return nil
		}
	})
	m, id := s.machine("worker-0"), unique()
	s.attested(r, m, id, "token1", s.now())
	s.remove(m)
	if err := r.Delete(t.Context(), m.UID); err != nil || s.holder(r, id) != "" {
		t.Errorf("%v, the identity is %q's", err, s.holder(r, id))
	}
	if !slices.Equal(revoked, []string{m.UID}) {
		t.Errorf("revoked %q", revoked)
	}
}

// A replica that does not know yet that a Machine was deleted does not create the record that another one deleted.
func TestEnsureRecord_CreatesNothingForADeletedMachine(t *testing.T) {
	s := newSite(t)
	r, m := s.replica(), s.machine("worker-0")
	s.remove(m)
	if err := r.EnsureRecord(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if rec := s.record(r, m.UID); rec != nil {
		t.Errorf("there is a record: %+v", rec)
	}
}

func TestRecord_IsDeletedWithItsMachineWithoutTheVerifier(t *testing.T) {
	t.Parallel() // the controller looks for new kinds of objects every half minute
	s := newSite(t, cluster.Start(t, cluster.Controllers("garbage-collector-controller")))
	r, m := s.replica(), s.machine("worker-0")
	s.attested(r, m, unique(), "token1", s.now())
	s.remove(m)
	for s.record(r, m.UID) != nil {
		time.Sleep(50 * time.Millisecond)
	}
}

func TestDelete_KeepsAnObjectThatIsNotARecord(t *testing.T) {
	s := newSite(t)
	r, m := s.replica(), s.machine("worker-0")
	s.remove(m)
	s.create(attestations, s.namespace, map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation, "metadata": map[string]any{"name": m.UID},
		"spec": map[string]any{"pool": "worker", "expectedProviderID": "aws:///z/i-1"},
	})
	if err := r.Delete(t.Context(), m.UID); err != nil {
		t.Fatal(err)
	}
	s.get(attestations, s.namespace, m.UID)
}

// The account of the front may write every status. It must not choose with one what the controller deletes.
func TestDelete_KeepsAnEnrollmentWhoseStatusHasItsNameAsUID(t *testing.T) {
	s := newSite(t)
	r := s.replica()
	s.create(attestations, s.namespace, map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"name": "worker-0"},
		"spec": map[string]any{"quarantined": true, "machineRef": map[string]any{
			"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "name": "worker-0",
		}},
	})
	s.patch(attestations, s.namespace, "worker-0", `{"status":{"machineUID":"worker-0"}}`, "status")
	for _, namespaces := range [][]string{nil, {s.namespace}} {
		if err := r.Delete(t.Context(), "worker-0", namespaces...); err != nil {
			t.Fatal(err)
		}
		s.get(attestations, s.namespace, "worker-0")
	}
}

func TestUpdate_AttestationIsAtMostTwoWrites(t *testing.T) {
	s := newSite(t)
	var mu sync.Mutex
	var called []string
	r := s.replica(func(o *records.Options) {
		o.Called = func(verb, resource string) { mu.Lock(); defer mu.Unlock(); called = append(called, verb+" "+resource) }
	})
	check := func(what string, wantWrites, wantReads int, want ...string) {
		t.Helper()
		writes, reads := r.count()
		if writes != wantWrites || reads != wantReads {
			t.Errorf("%s: %d writes and %d reads, want %d and %d", what, writes, reads, wantWrites, wantReads)
		}
		if !slices.Equal(called, want) {
			t.Errorf("%s: %q, want %q", what, called, want)
		}
		called = nil
	}
	m, id, now := s.machine("worker-0"), unique(), s.now()
	if err := r.EnsureRecord(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	check("making the record in advance", 1, 1, "get machines", "create machineattestations")
	s.attested(r, m, id, "token1", now)
	check("the first attestation", 2, 1, "get machineattestations", "create identityclaims",
		"patch machineattestations/status")
	s.attested(r, m, id, "token2", now.Add(time.Minute))
	check("the same identity again", 1, 2, "get machineattestations", "get identityclaims",
		"patch machineattestations/status")
	denied(t, attest(r, m, unique(), "token3", now.Add(2*time.Minute)), reason.IdentityConflict)
	check("another identity", 0, 1, "get machineattestations")
	if _, err := r.Record(t.Context(), m.UID); err != nil {
		t.Fatal(err)
	}
	check("reading", 0, 1, "get machineattestations")

	late := s.machine("worker-1")
	s.attested(r, late, unique(), "token1", now)
	check("without a record made in advance", 3, 1, "get machineattestations", "create identityclaims",
		"create machineattestations", "patch machineattestations/status")
}

func TestAttack_T42_ASecondIdentityForAMachineThatHasOne(t *testing.T) {
	s := newSite(t)
	a, b, m, now := s.replica(), s.replica(), s.machine("worker-0"), s.now()
	first, second := unique(), unique()
	s.attested(a, m, first, "token1", now)
	denied(t, attest(b, m, second, "token2", now.Add(time.Minute)), reason.IdentityConflict)
	if rec := s.record(a, m.UID); rec.Status.Identity != first || rec.Status.Token.ID != "token1" {
		t.Errorf("the record is %+v", rec.Status)
	}
	if uid := s.holder(a, second); uid != "" {
		t.Errorf("the refused identity was claimed for %s", uid)
	}
	// The rightful holder is not locked out.
	s.attested(b, m, first, "token3", now.Add(2*time.Minute))
}

func TestAttack_T42_OneEKForTwoMachines(t *testing.T) {
	s := newSite(t)
	r, now, id, other := s.replica(), s.now(), unique(), unique()
	m1, m2 := s.machine("worker-1"), s.machine("worker-2")
	s.attested(r, m1, id, "token1", now)
	// One component of another Machine is enough, and the free one is given back.
	err := r.Attest(t.Context(), m2.UID, []string{components(other)[0], components(id)[0]}, alive,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Attest(rec, verdict(m2, other, "token2", now), now)
		})
	denied(t, err, reason.IdentityConflict)
	if rec := s.record(r, m2.UID); rec != nil {
		t.Errorf("a record was made: %+v", rec.Status)
	}
	if s.holder(r, id) != m1.UID || s.holder(r, other) != "" {
		t.Errorf("held by %q and %q", s.holder(r, id), s.holder(r, other))
	}
	// The watched state lacks it, but the API has it.
	s.known.DeleteMachine("machine.openshift.io", m1.Namespace, m1.Name)
	denied(t, attest(r, m2, id, "token3", now), reason.IdentityConflict)
	// And the other way round.
	s.watched(s.get(machines, m1.Namespace, m1.Name))
	s.remove(m1)
	s.attested(s.replica(), m2, id, "token4", now)
	if uid := s.holder(r, id); uid != m2.UID {
		t.Errorf("held by %q", uid)
	}
}

func TestRecord_RecreatedMachineHasItsOwn(t *testing.T) {
	s := newSite(t)
	r, now, id := s.replica(), s.now(), unique()
	m1 := s.machine("worker-0")
	s.attested(r, m1, id, "token1", now)
	s.remove(m1)
	s.known.DeleteMachine("machine.openshift.io", m1.Namespace, m1.Name)
	m2 := s.machine("worker-0")
	s.attested(r, m2, id, "token2", now)
	if uid := s.holder(r, id); uid != m2.UID || m1.UID == m2.UID {
		t.Errorf("held by %q", uid)
	}
}

func TestAttack_T42_AMachineThatMovesToClusterAPIKeepsItsRecord(t *testing.T) {
	for _, c := range []struct {
		name string
		late time.Duration // of the Cluster API's object
	}{{"first a Machine API Machine", time.Hour}, {"first a Cluster API Machine", -time.Hour}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			r, now, id := s.replica(), s.now(), unique()
			own := s.machine("worker-0")
			here := s.get(machines, s.namespace, "worker-0")
			there := here.DeepCopy()
			there.SetAPIVersion("cluster.x-k8s.io/v1beta1")
			there.SetNamespace(s.own)
			there.SetUID(types.UID("capi-" + own.UID))
			there.SetCreationTimestamp(metav1.NewTime(here.GetCreationTimestamp().Add(c.late)))
			counts := func(api string) *machine.Machine {
				for _, o := range []*unstructured.Unstructured{here, there} {
					_ = unstructured.SetNestedField(o.Object, "aws:///z/i-"+own.UID, "spec", "providerID")
				}
				_ = unstructured.SetNestedField(here.Object, api, "spec", "authoritativeAPI")
				s.watched(there)
				return s.watched(here)
			}
			before, after := "MachineAPI", "ClusterAPI"
			if c.late < 0 {
				before, after = after, before
			}
			m := counts(before)
			s.attested(r, m, id, "token1", now)
			moved := counts(after)
			if moved.UID == m.UID {
				t.Fatalf("%s still counts", m.UID)
			}
			denied(t, attest(r, moved, unique(), "token2", now.Add(time.Minute)), reason.IdentityConflict)
			// The token from before is good, under either UID.
			for _, uid := range []string{m.UID, moved.UID} {
				if err := r.Update(t.Context(), uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
					return record.Redeem(rec, token.Claims{ID: "token1", MachineUID: uid, Pool: "worker"}, nil, now)
				}); err != nil {
					t.Error(err)
				}
			}
			s.attested(r, moved, id, "token3", now.Add(2*time.Minute))
			if n := len(s.list(attestations, s.namespace)) + len(s.list(attestations, s.own)); n != 1 {
				t.Errorf("%d records", n)
			}
			if rec := s.record(r, m.UID); rec.Name != m.UID || rec.Namespace != m.Namespace || rec.Status.Token.ID != "token3" {
				t.Errorf("the record is %s/%s, %+v", rec.Namespace, rec.Name, rec.Status.Token)
			}
		})
	}
}

func TestAttack_T42_AClaimWhoseMachineCannotBeReadStays(t *testing.T) {
	s := newSite(t)
	r, m, id := s.replica(), s.machine("worker-0"), unique()
	s.attested(r, m, id, "token1", s.now())
	// Such as a Cluster API Machine while the CRD is unavailable.
	name := s.claimOf(m.UID)
	s.delete(claims, "", name)
	s.create(claims, "", map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindIdentityClaim, "metadata": map[string]any{"name": name},
		"spec": map[string]any{"component": components(id)[0], "machineUID": "elsewhere",
			"machineRef": map[string]any{"apiVersion": "example.org/v1", "kind": "Machine", "namespace": s.namespace,
				"name": "worker-9"}},
	})
	denied(t, attest(r, s.machine("worker-1"), id, "token2", s.now()), reason.StoreUnavailable)
	_, err := r.Holder(t.Context(), components(id)[0])
	denied(t, err, reason.StoreUnavailable)
	s.get(claims, "", name)
	s.delete(claims, "", name)
}

// claimOf is the name of the Machine's one claim.
func (s *site) claimOf(uid string) string {
	s.Helper()
	var names []string
	for _, o := range s.list(claims, "") {
		if held, _, _ := unstructured.NestedString(o.Object, "spec", "machineUID"); held == uid {
			names = append(names, o.GetName())
		}
	}
	if len(names) != 1 {
		s.Fatalf("the claims of %s are %q", uid, names)
	}
	return names[0]
}

func TestAttack_T43_FiftyAttestationsWithTwoIdentitiesOnThreeReplicas(t *testing.T) {
	s := newSite(t)
	replicas, m, now := s.replicas(3), s.machine("worker-0"), s.now()
	ids := []v1alpha1.RecordedIdentity{unique(), unique()}
	var granted [2]atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			err := attest(replicas[i%3], m, ids[i%2], fmt.Sprint("token", i), now)
			switch code := reason.From(err); {
			case err == nil:
				granted[i%2].Add(1)
			case code.Code != reason.IdentityConflict && code.Code != reason.RateLimited:
				t.Errorf("attestation %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if a, b := granted[0].Load(), granted[1].Load(); a+b != 1 {
		t.Errorf("%d and %d tokens were granted at one moment, want one in all", a, b)
	}
	rec := s.record(replicas[0], m.UID)
	winner := ids[0]
	if granted[1].Load() > 0 {
		winner = ids[1]
	}
	if rec.Status.Identity != winner || len(rec.Status.History) != 1 {
		t.Errorf("recorded %+v, and %d entries of history", rec.Status.Identity, len(rec.Status.History))
	}
	if uid := s.holder(replicas[0], winner); uid != m.UID {
		t.Errorf("the identity that won is held by %q", uid)
	}
}

func TestAttack_T43_FiftyMachinesClaimOneIdentityOnThreeReplicas(t *testing.T) {
	s := newSite(t)
	replicas, id, now := s.replicas(3), unique(), s.now()
	var all []*machine.Machine
	for i := range 50 {
		all = append(all, s.machine(fmt.Sprint("worker-", i)))
	}
	var winner atomic.Pointer[machine.Machine]
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() {
			err := attest(replicas[i%3], m, id, "token1", now)
			if err != nil {
				if reason.From(err).Code != reason.IdentityConflict {
					t.Errorf("%s: %v", m, err)
				}
				return
			}
			if other := winner.Swap(m); other != nil {
				t.Errorf("%s and %s have one identity", m, other)
			}
		})
	}
	wg.Wait()
	if winner.Load() == nil {
		t.Fatal("no machine got the identity")
	}
	if uid := s.holder(replicas[0], id); uid != winner.Load().UID {
		t.Errorf("held by %q", uid)
	}
	for _, o := range s.list(attestations, s.namespace) {
		if o.GetName() != winner.Load().UID {
			t.Errorf("a record was made for %s", o.GetName())
		}
	}
}

func TestAttack_T43_AReplicaThatWasPausedBeforeItsWrite(t *testing.T) {
	for _, c := range []struct {
		name      string
		meanwhile func(s *site, r replica, m *machine.Machine, paused v1alpha1.RecordedIdentity)
		want      reason.Code
		holds     bool // the paused replica's identity
	}{
		{"another identity was recorded", func(s *site, r replica, m *machine.Machine, _ v1alpha1.RecordedIdentity) {
			s.attested(r, m, unique(), "token2", s.now())
		}, reason.IdentityConflict, false},
		{"the same identity was recorded", func(s *site, r replica, m *machine.Machine, id v1alpha1.RecordedIdentity) {
			s.attested(r, m, id, "token2", s.now())
		}, reason.RateLimited, true},
		{"the record was quarantined by its spec", func(s *site, _ replica, m *machine.Machine, _ v1alpha1.RecordedIdentity) {
			s.patch(attestations, m.Namespace, m.UID, `{"spec":{"quarantined":true}}`)
		}, reason.Quarantined, false},
		{"the Machine joined", func(s *site, r replica, m *machine.Machine, _ v1alpha1.RecordedIdentity) {
			err := r.Update(t.Context(), m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				return record.Joined(rec, "node-0", s.now()), nil
			})
			if err != nil {
				s.Fatal(err)
			}
		}, reason.MachineJoined, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			a, b, m, id := s.replica(), s.replica(), s.machine("worker-0"), unique()
			if err := a.EnsureRecord(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			held, resume := a.hold(http.MethodPatch, "/status")
			done := make(chan error)
			go func() { done <- attest(a, m, id, "token1", s.now()) }()
			<-held
			c.meanwhile(s, b, m, id)
			before := s.record(b, m.UID)
			resume()
			denied(t, <-done, c.want)
			if after := s.record(b, m.UID); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("the record was written all the same: %+v", after.Status)
			}
			if got := s.holder(b, id) == m.UID; got != c.holds {
				t.Errorf("holds its identity: %t, want %t", got, c.holds)
			}
		})
	}
}

func TestAttack_T43_AReplicaThatWasPausedBeforeItMadeTheRecord(t *testing.T) {
	s := newSite(t)
	a, b, m, id := s.replica(), s.replica(), s.machine("worker-0"), unique()
	held, resume := a.hold(http.MethodPost, "/machineattestations")
	done := make(chan error)
	go func() { done <- attest(a, m, id, "token1", s.now()) }()
	<-held
	other := unique()
	s.attested(b, m, other, "token2", s.now())
	resume()
	denied(t, <-done, reason.IdentityConflict)
	if rec := s.record(b, m.UID); rec.Status.Identity != other {
		t.Errorf("recorded %+v", rec.Status.Identity)
	}
}

func TestAttack_T43_BetweenClaimAndRecordTheMachineIsDeleted(t *testing.T) {
	s := newSite(t)
	a, b, m1, m2, id := s.replica(), s.replica(), s.machine("worker-1"), s.machine("worker-2"), unique()
	if err := a.EnsureRecord(t.Context(), m1); err != nil {
		t.Fatal(err)
	}
	held, resume := a.hold(http.MethodPatch, "/status")
	done := make(chan error)
	go func() { done <- attest(a, m1, id, "token1", s.now()) }()
	<-held
	s.remove(m1)
	if err := b.Delete(t.Context(), m1.UID); err != nil {
		t.Fatal(err)
	}
	s.known.DeleteMachine("machine.openshift.io", m1.Namespace, m1.Name)
	s.attested(b, m2, id, "token2", s.now())
	resume()
	denied(t, <-done, reason.IdentityConflict)
	if uid := s.holder(b, id); uid != m2.UID {
		t.Errorf("held by %q", uid)
	}
}

// An attestation that met other writers, and was then denied, leaves no claim.
func TestAttack_T43_ADenialAfterConflictsReleasesTheClaim(t *testing.T) {
	s := newSite(t)
	a, b, m, id := s.replica(), s.replica(), s.machine("worker-0"), unique()
	if err := a.EnsureRecord(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	tries := 0
	err := a.Attest(t.Context(), m.UID, components(id), alive,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			if tries++; tries == 3 {
				return nil, reason.Deny(reason.Quarantined, "now")
			}
			s.patch(attestations, m.Namespace, m.UID, fmt.Sprintf(`{"metadata":{"labels":{"try":"%d"}}}`, tries))
			return record.Attest(rec, verdict(m, id, "token1", s.now()), s.now())
		})
	denied(t, err, reason.Quarantined)
	if uid := s.holder(b, id); uid != "" {
		t.Errorf("after the denial %q holds the identity", uid)
	}
	s.attested(b, s.machine("worker-1"), id, "token2", s.now())
}

func TestUpdatesOfThreeReplicasAreAllStored(t *testing.T) {
	s := newSite(t)
	replicas, m := s.replicas(3), s.machine("worker-0")
	s.attested(replicas[0], m, unique(), "token1", s.now())
	var wg sync.WaitGroup
	for i := range 15 { // an update conflicts at most with the ten of the other two replicas, and has twelve attempts
		wg.Go(func() {
			err := replicas[i%3].Update(t.Context(), m.UID,
				func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
					next := rec.DeepCopy()
					next.Status.GrantAttestations++
					return next, nil
				})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.record(replicas[0], m.UID).Status.GrantAttestations; n != 15 {
		t.Errorf("%d of 15", n)
	}
}

func TestAttack_T45_FiftyUsesOfOneTokenOnThreeReplicas(t *testing.T) {
	s := newSite(t)
	replicas, m, now := s.replicas(3), s.machine("worker-0"), s.now()
	s.attested(replicas[0], m, unique(), "token1", now)
	c := token.Claims{ID: "token1", Subject: m.String(), MachineUID: m.UID, Pool: "worker"}
	var redeemed atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		gate := redeem.Redeemer{Records: replicas[i%3], Machines: func() redeem.Machines { return s.known }, Now: s.now}
		wg.Go(func() {
			use, _ := gate.Check(t.Context(), c)
			switch err := use.Redeem(t.Context(), nil); {
			case err == nil:
				redeemed.Add(1)
			case reason.From(err).Code != reason.TokenUsedUp:
				t.Errorf("use %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := redeemed.Load(); n != 3 {
		t.Errorf("%d uses of 3", n)
	}
	if rec := s.record(replicas[1], m.UID); rec.Status.Token.Uses != 3 {
		t.Errorf("%d uses are recorded", rec.Status.Token.Uses)
	}
}

func TestAttack_T45_QuarantinedBetweenTheCheckAndTheUse(t *testing.T) {
	s := newSite(t)
	r, m, now := s.replica(), s.machine("worker-0"), s.now()
	s.attested(r, m, unique(), "token1", now)
	c := token.Claims{ID: "token1", Subject: m.String(), MachineUID: m.UID, Pool: "worker"}
	if err := record.Redeemable(s.record(r, m.UID), c); err != nil {
		t.Fatal(err)
	}
	held, resume := r.hold(http.MethodPatch, "/status")
	done := make(chan error)
	go func() {
		done <- r.Update(t.Context(), m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Redeem(rec, c, nil, now)
		})
	}()
	<-held
	s.patch(attestations, m.Namespace, m.UID, `{"spec":{"quarantined":true}}`)
	resume()
	denied(t, <-done, reason.Quarantined)
	if rec := s.record(r, m.UID); rec.Status.Token.Uses != 0 || !rec.Spec.Quarantined {
		t.Errorf("%+v, %+v", rec.Spec, rec.Status.Token)
	}
	// Lifted, it works; and writing the status does not change the spec.
	s.patch(attestations, m.Namespace, m.UID, `{"spec":{"quarantined":null,"expectedProviderID":"aws:///z/i-1"}}`)
	if err := r.Update(t.Context(), m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		next, err := record.Redeem(rec, c, nil, now)
		if err == nil {
			next.Spec = v1alpha1.MachineAttestationSpec{}
		}
		return next, err
	}); err != nil {
		t.Fatal(err)
	}
	if rec := s.record(r, m.UID); rec.Status.Token.Uses != 1 || rec.Spec.ExpectedProviderID != "aws:///z/i-1" ||
		rec.Spec.MachineRef == nil {
		t.Errorf("%+v, %+v", rec.Spec, rec.Status.Token)
	}
}

func TestGrantInTheRecord_IsInForceImmediately(t *testing.T) {
	s := newSite(t)
	r, m, id, now := s.replica(), s.machine("worker-0"), unique(), s.now()
	s.attested(r, m, id, "token1", now)
	if err := r.Update(t.Context(), m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Joined(rec, "node-0", now), nil
	}); err != nil {
		t.Fatal(err)
	}
	denied(t, attest(r, m, id, "token2", now.Add(time.Minute)), reason.MachineJoined)
	s.patch(attestations, m.Namespace, m.UID, `{"spec":{"reattest":{"until":"`+now.Add(time.Hour).UTC().Format(time.RFC3339)+`"}}}`)
	s.attested(r, m, id, "token3", now.Add(time.Minute))
}

func TestAttack_T58_WithoutTheAPINothingIsGranted(t *testing.T) {
	s := newSite(t)
	r, m, id, now := s.replica(), s.machine("worker-0"), unique(), s.now()
	s.attested(r, m, id, "token1", now)
	brief := func(o *records.Options) { o.Timeout = 200 * time.Millisecond }
	calls := func(r replica) map[string]error {
		changed := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			t.Error("a change was asked for")
			return rec, nil
		}
		_, recordErr := r.Record(t.Context(), m.UID)
		_, holderErr := r.Holder(t.Context(), components(id)[0])
		_, waitingErr := r.ListPending(t.Context(), now)
		return map[string]error{
			"Record": recordErr, "Holder": holderErr, "ListPending": waitingErr,
			"AddPending":    r.AddPending(t.Context(), now, waiting(1)),
			"DeletePending": r.DeletePending(t.Context(), ek(1)),
			"Update":        r.Update(t.Context(), m.UID, changed),
			"Attest":        r.Attest(t.Context(), m.UID, components(id), alive, changed),
			"Delete":        r.Delete(t.Context(), m.UID),
			"ReleaseClaims": r.ReleaseClaims(t.Context(), m.UID), "ExpirePending": r.ExpirePending(t.Context(), now),
			"EnsureRecord":        r.EnsureRecord(t.Context(), m),
			"a break-glass token": r.Update(t.Context(), record.BreakGlassUID("b1"), changed),
		}
	}
	check := func(state string, r replica) {
		t.Helper()
		for call, err := range calls(r) {
			if d := reason.From(err); d == nil || d.Code != reason.StoreUnavailable || !d.Code.Temporary() {
				t.Errorf("%s, %s: %v", state, call, err)
			}
		}
	}
	slow := s.replica(brief)
	resume := s.cluster.PauseAPIServer()
	check("silent", slow)
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	s.cluster.StopAPIServer()
	check("away", slow)
	if err := s.cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	if rec := s.record(r, m.UID); len(rec.Status.History) != 1 || rec.Status.Token.ID != "token1" {
		t.Errorf("the record is %+v", rec.Status)
	}
	s.attested(r, m, id, "token2", now.Add(time.Minute))
}

func TestAttack_T58_TheAPIFailsBetweenClaimAndRecord(t *testing.T) {
	s := newSite(t)
	r, m, id, now := s.replica(), s.machine("worker-0"), unique(), s.now()
	held, resume := r.hold(http.MethodPatch, "/status")
	done := make(chan error)
	go func() { done <- attest(r, m, id, "token1", now) }()
	<-held
	s.cluster.StopAPIServer()
	resume()
	denied(t, <-done, reason.StoreUnavailable)
	if err := s.cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	if rec := s.record(r, m.UID); rec.Status.Token != nil {
		t.Errorf("a token was recorded that no client has: %+v", rec.Status.Token)
	}
	// It asks again and gets in, on another replica.
	s.attested(s.replica(), m, id, "token2", now.Add(time.Second))
	if uid := s.holder(r, id); uid != m.UID {
		t.Errorf("held by %q", uid)
	}
}

func TestAttack_T58_EveryReadIsOfTheLatest(t *testing.T) {
	s := newSite(t)
	r, m, id := s.replica(), s.machine("worker-0"), unique()
	var stale []string
	var mu sync.Mutex
	r.stop = func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Query().Has("resourceVersion") {
			stale = append(stale, r.URL.String())
		}
	}
	s.attested(r, m, id, "token1", s.now())
	s.record(r, m.UID)
	s.holder(r, id)
	if err := r.AddPending(t.Context(), s.now(), waiting(1)); err != nil {
		t.Error(err)
	}
	if len(stale) > 0 {
		t.Errorf("these may be answered from a cache: %q", stale)
	}
}

// A backup has a token with uses that were taken since. The first write after the restore shows it: etcd counts lower.
func TestAttack_T58_AWriteIntoARestoredEtcdGrantsNothing(t *testing.T) {
	s, noticed := newSite(t), 0
	d := &restore.Detector{Now: time.Now, Clock: time.Now, Noticed: func(time.Time, time.Time, string) { noticed++ },
		Reread: func() {}}
	r, m := s.replica(func(o *records.Options) { o.Revisions = d }), s.machine("worker-0")
	now := time.Now()
	s.attested(r, m, unique(), "token1", now)
	redeem := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Redeem(rec, token.Claims{ID: "token1", Subject: m.String(), MachineUID: m.UID, Pool: "worker"},
			nil, now)
	}
	if err := r.Update(t.Context(), m.UID, redeem); err != nil || noticed != 0 {
		t.Fatalf("before the restore: %v, %d restores", err, noticed)
	}
	version, err := strconv.ParseUint(s.record(r, m.UID).ResourceVersion, 10, 64)
	if err != nil || d.Highest(0) != version {
		t.Fatalf("the record is at %d (%v), and the highest revision is %d", version, err, d.Highest(0))
	}
	d.Observe(0, version+1_000_000)
	same := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return rec.DeepCopy(), nil
	}
	if err := r.Update(t.Context(), m.UID, same); err != nil || noticed != 0 {
		t.Errorf("a patch without a change: %v, %d restores", err, noticed)
	}
	before := r.Session(m.UID) // of a request whose token was checked with the keys of before the restore
	denied(t, r.Update(t.Context(), m.UID, redeem), reason.StoreUnavailable)
	if noticed != 1 {
		t.Errorf("%d restores", noticed)
	}
	denied(t, before.Update(t.Context(), redeem), reason.StoreUnavailable)
	if err := r.Update(t.Context(), m.UID, same); err != nil || noticed != 1 {
		t.Errorf("after the restore was noticed: %v, %d restores", err, noticed)
	}
}

// After a restore with --bump-revision, etcd counts higher than before. A record is still older than the cached one.
func TestAttack_T58_AnOlderRecordShowsARestoreThatRaisedTheRevision(t *testing.T) {
	s, cached := newSite(t), uint64(0)
	d := &restore.Detector{Now: time.Now, Clock: time.Now, Noticed: func(time.Time, time.Time, string) {},
		Reread: func() {}}
	r, m := s.replica(func(o *records.Options) {
		o.Revisions, o.Cached = d, func(client.ObjectKey) (uint64, uint32) { return cached, 0 }
	}), s.machine("worker-0")
	changed := 0
	change := func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		changed++
		return nil, nil
	}
	cached = 1
	denied(t, r.Update(t.Context(), m.UID, change), reason.StoreUnavailable)
	if changed != 0 || d.Epoch() != 0 {
		t.Errorf("a record that is missing before a watch reported it: %d changes, epoch %d", changed, d.Epoch())
	}
	cached = 0
	s.attested(r, m, unique(), "token1", time.Now())
	version, err := strconv.ParseUint(s.record(r, m.UID).ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	cached = version
	if err := r.Update(t.Context(), m.UID, change); err != nil || changed != 1 || d.Epoch() != 0 {
		t.Errorf("the cached version: %v, %d changes, epoch %d", err, changed, d.Epoch())
	}
	cached = version + 1
	err = r.Update(t.Context(), m.UID, change)
	denied(t, err, reason.StoreUnavailable)
	if !errors.Is(err, store.ErrRestored) || changed != 1 || d.Epoch() != 1 {
		t.Errorf("an earlier version than the cached one: %v, %d changes, epoch %d", err, changed, d.Epoch())
	}
}

func TestAttack_T43_AnObjectThatIsNotTheRecordIsNotChanged(t *testing.T) {
	owner := func(m *machine.Machine) []any {
		return []any{map[string]any{"apiVersion": m.APIVersion, "kind": m.Kind, "name": m.Name, "uid": m.UID}}
	}
	ref := func(m *machine.Machine) map[string]any {
		return map[string]any{"machineRef": map[string]any{"name": m.Name}}
	}
	for _, c := range []struct {
		name   string
		change func(m *machine.Machine, meta, spec map[string]any) (status string)
		fine   bool
	}{
		{name: "as it should be", fine: true,
			change: func(*machine.Machine, map[string]any, map[string]any) string { return "" }},
		{name: "with the whole reference", fine: true, change: func(m *machine.Machine, _, spec map[string]any) string {
			spec["machineRef"] = map[string]any{"apiVersion": m.APIVersion, "kind": m.Kind, "namespace": m.Namespace,
				"name": m.Name}
			return ""
		}},
		{name: "for another Machine", change: func(_ *machine.Machine, _, spec map[string]any) string {
			spec["machineRef"] = map[string]any{"name": "worker-9"}
			return ""
		}},
		{name: "for a Machine of another namespace", change: func(m *machine.Machine, _, spec map[string]any) string {
			spec["machineRef"] = map[string]any{"name": m.Name, "namespace": "elsewhere"}
			return ""
		}},
		{name: "for a Machine of another API", change: func(m *machine.Machine, _, spec map[string]any) string {
			spec["machineRef"] = map[string]any{"name": m.Name, "apiVersion": "cluster.x-k8s.io/v1beta1"}
			return ""
		}},
		{name: "standing in", change: func(_ *machine.Machine, _, spec map[string]any) string {
			delete(spec, "machineRef")
			spec["pool"], spec["expectedProviderID"] = "master", "aws:///z/i-1"
			return ""
		}},
		{name: "without an owner", change: func(_ *machine.Machine, meta, _ map[string]any) string {
			delete(meta, "ownerReferences")
			return ""
		}},
		{name: "of another owner", change: func(_ *machine.Machine, meta, _ map[string]any) string {
			meta["ownerReferences"].([]any)[0].(map[string]any)["uid"] = "elsewhere"
			return ""
		}},
		{name: "with another Machine's record", change: func(*machine.Machine, map[string]any, map[string]any) string {
			return `{"status":{"machineUID":"elsewhere","phase":"Attested","token":{"id":"token0","pool":"worker","expiry":"2030-01-01T00:00:00Z","uses":0,"maxUses":3}}}`
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			var logged strings.Builder
			r := s.replica(func(o *records.Options) { o.Log = logTo(&logged) })
			m := s.machine("worker-0")
			meta, spec := map[string]any{"name": m.UID, "ownerReferences": owner(m)}, ref(m)
			status := c.change(m, meta, spec)
			s.create(attestations, m.Namespace,
				map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation, "metadata": meta,
					"spec": spec})
			if status != "" {
				s.patch(attestations, m.Namespace, m.UID, status, "status")
			}
			before := s.get(attestations, m.Namespace, m.UID)
			id := unique()
			err := attest(r, m, id, "token1", s.now())
			if c.fine {
				if err != nil || logged.Len() > 0 {
					t.Errorf("%v, %s", err, logged.String())
				}
				return
			}
			denied(t, err, reason.StoreUnavailable)
			if !strings.Contains(logged.String(), m.UID) {
				t.Errorf("logged %q", logged.String())
			}
			if after := s.get(attestations, m.Namespace, m.UID); after.GetResourceVersion() != before.GetResourceVersion() {
				t.Error("it was written to")
			}
			if uid := s.holder(r, id); uid != "" {
				t.Errorf("claimed for %q", uid)
			}
			// Only that Machine.
			s.attested(r, s.machine("worker-1"), unique(), "token1", s.now())
		})
	}
}

func TestRecord_StandInIsItsOwn(t *testing.T) {
	s := newSite(t)
	r, id, now := s.replica(), unique(), s.now()
	make := func() *machine.Machine {
		return s.watched(s.create(attestations, s.namespace, map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
			"metadata": map[string]any{"name": "sno"},
			"spec":     map[string]any{"pool": "master", "ekSHA256": []any{id.EKSHA256}},
		}))
	}
	m := make()
	if err := r.EnsureRecord(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	s.attested(r, m, id, "token1", now)
	o := s.get(attestations, s.namespace, "sno")
	if pool, _, _ := unstructured.NestedString(o.Object, "spec", "pool"); pool != "master" ||
		len(s.list(attestations, s.namespace)) != 1 {
		t.Errorf("got %v", o.Object)
	}
	if rec := s.record(r, m.UID); rec.Status.Phase != v1alpha1.PhaseAttested || rec.Status.MachineUID != m.UID {
		t.Errorf("recorded %+v", rec.Status)
	}
	// deleted and recreated, it is another machine, also before a watch has seen it.
	s.delete(attestations, s.namespace, "sno")
	denied(t, attest(r, m, id, "token2", now), reason.MachineNotFound)
	if len(s.list(attestations, s.namespace)) != 0 {
		t.Error("an object was made for a stand-in that was deleted")
	}
	again := make()
	s.attested(r, again, id, "token3", now)
	if uid := s.holder(r, id); uid != again.UID || again.UID == m.UID {
		t.Errorf("held by %q", uid)
	}
}

func TestBreakGlass_UsesAreCountedInTheCluster(t *testing.T) {
	s := newSite(t)
	now := s.now()
	c := token.Claims{ID: "b1", Subject: "break-glass/ticket-7", MachineUID: record.BreakGlassUID("b1"), Pool: "worker",
		IssuedAt: now, Expiry: now.Add(time.Hour)}
	use := func(r replica, take bool) error {
		return r.Update(t.Context(), c.MachineUID,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				return record.BreakGlass(rec, c, take, now)
			})
	}
	replicas := s.replicas(3)
	if err := use(replicas[0], false); err != nil || len(s.list(attestations, s.own)) != 0 {
		t.Errorf("a check: %v, and %d objects", err, len(s.list(attestations, s.own)))
	}
	var uses atomic.Int32
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if err := use(replicas[i%3], true); err == nil {
				uses.Add(1)
			} else if reason.From(err).Code != reason.TokenUsedUp {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if uses.Load() != 3 {
		t.Errorf("%d uses", uses.Load())
	}
	o := s.get(attestations, s.own, "break-glass-b1")
	if uid, _, _ := unstructured.NestedString(o.Object, "status", "machineUID"); uid != c.MachineUID {
		t.Errorf("recorded %v", o.Object["status"])
	}
	if all, err := replicas[0].ListPending(t.Context(), now); err != nil || len(all) != 0 {
		t.Errorf("it is taken for a machine that waits: %v, %v", all, err)
	}
	_, err := replicas[0].Record(t.Context(), record.BreakGlassUID("../b1"))
	denied(t, err, reason.TokenInvalid)
}

func TestUpdate_KeepsTheFieldsOfANewerVersion(t *testing.T) {
	s := newSite(t)
	r, m, id, now := s.replica(), s.machine("worker-0"), unique(), s.now()
	schema := "spec/versions/0/schema/openAPIV3Schema/properties/status/"
	s.cluster.Kubectl(t, "patch", "crd", "machineattestations.mcs-attest.dev", "--type=json", "-p",
		`[{"op":"add","path":"/`+schema+`x-kubernetes-preserve-unknown-fields","value":true},`+
			`{"op":"add","path":"/`+schema+`properties/token/x-kubernetes-preserve-unknown-fields","value":true},`+
			`{"op":"add","path":"/`+schema+`properties/history/items/x-kubernetes-preserve-unknown-fields","value":true}]`)
	defer s.cluster.InstallOwn(t)
	s.attested(r, m, id, "token1", now)
	// The schema is in force some time after the patch.
	for {
		s.patch(attestations, m.Namespace, m.UID, `{"status":{"credential":{"jti":"j1"},"token":{"boundTo":"secret-1"}}}`, "status")
		if _, found, _ := unstructured.NestedString(s.get(attestations, m.Namespace, m.UID).Object, "status", "credential",
			"jti"); found {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	o := s.get(attestations, m.Namespace, m.UID)
	history, _, _ := unstructured.NestedSlice(o.Object, "status", "history")
	history[0].(map[string]any)["replica"] = "cp-1"
	_ = unstructured.SetNestedSlice(o.Object, history, "status", "history")
	if _, err := s.in(attestations, m.Namespace).UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := token.Claims{ID: "token1", Subject: m.String(), MachineUID: m.UID, Pool: "worker"}
	if err := r.Update(t.Context(), m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Redeem(rec, c, nil, now)
	}); err != nil {
		t.Fatal(err)
	}
	o = s.get(attestations, m.Namespace, m.UID)
	jti, _, _ := unstructured.NestedString(o.Object, "status", "credential", "jti")
	bound, _, _ := unstructured.NestedString(o.Object, "status", "token", "boundTo")
	uses, _, _ := unstructured.NestedInt64(o.Object, "status", "token", "uses")
	history, _, _ = unstructured.NestedSlice(o.Object, "status", "history")
	if jti != "j1" || bound != "secret-1" || uses != 1 || len(history) != 2 ||
		history[0].(map[string]any)["replica"] != "cp-1" {
		t.Errorf("after a fetch: %v", o.Object["status"])
	}
	// Another token is not what the old one was bound to.
	s.attested(r, m, id, "token2", now.Add(time.Minute))
	o = s.get(attestations, m.Namespace, m.UID)
	jti, _, _ = unstructured.NestedString(o.Object, "status", "credential", "jti")
	if _, found, _ := unstructured.NestedString(o.Object, "status", "token", "boundTo"); found || jti != "j1" {
		t.Errorf("after another attestation: %v", o.Object["status"])
	}
}

// A session's first write starts from what the session has read, and no later one does.
func TestSession_TheFirstWriteSavesARead(t *testing.T) {
	s := newSite(t)
	r, m, now := s.replica(), s.machine("worker-0"), s.now()
	s.attested(r, m, unique(), "token1", now)
	r.count()
	use := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		next := rec.DeepCopy()
		next.Status.Token.Uses++
		return next, nil
	}
	session, late := r.Session(m.UID), r.Session(m.UID)
	for _, one := range []store.Session{session, late} {
		if _, err := one.Record(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []struct{ writes, reads int }{{1, 2}, {1, 1}} {
		if err := session.Update(t.Context(), use); err != nil {
			t.Fatal(err)
		}
		if writes, reads := r.count(); writes != want.writes || reads != want.reads {
			t.Errorf("write %d: %d writes and %d reads", i, writes, reads)
		}
	}
	// What this one has read is out of date: it is not written over.
	if err := late.Update(t.Context(), use); err != nil {
		t.Fatal(err)
	}
	if uses := s.record(r, m.UID).Status.Token.Uses; uses != 3 {
		t.Errorf("%d uses of 3", uses)
	}
}

// What a session has read may be out of date: neither a denial nor "nothing to do" rests
// only on it.
func TestSession_ADenialRestsOnTheLatestRecord(t *testing.T) {
	s := newSite(t)
	r, m, now := s.replica(), s.machine("worker-0"), s.now()
	s.attested(r, m, unique(), "token1", now)
	uses := func(n int32) store.Change {
		return func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next := rec.DeepCopy()
			next.Status.Token.Uses = n
			return next, nil
		}
	}
	for _, answer := range []error{reason.Deny(reason.TokenUsedUp, "3 of 3"), nil} {
		if err := r.Update(t.Context(), m.UID, uses(3)); err != nil {
			t.Fatal(err)
		}
		session := r.Session(m.UID)
		if _, err := session.Record(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Another request returns a use.
		if err := r.Update(t.Context(), m.UID, uses(2)); err != nil {
			t.Fatal(err)
		}
		var seen []int32
		err := session.Update(t.Context(), func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			seen = append(seen, rec.Status.Token.Uses)
			if rec.Status.Token.Uses == 3 {
				return nil, answer
			}
			return uses(3)(rec)
		})
		if err != nil || !slices.Equal(seen, []int32{3, 2}) {
			t.Errorf("answer %v: %v, and the change saw %v uses", answer, err, seen)
		}
		if n := s.record(r, m.UID).Status.Token.Uses; n != 3 {
			t.Errorf("answer %v: %d uses of 3", answer, n)
		}
	}
}
