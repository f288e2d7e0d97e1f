// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

// revoked notes what was taken back.
type revoked struct {
	mu   sync.Mutex
	ids  []string
	fail bool
}

func (r *revoked) revoke(_ context.Context, uid string, all []v1alpha1.CredentialStatus) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail {
		return errors.New("the Secret cannot be deleted")
	}
	for _, c := range all {
		r.ids = append(r.ids, uid+" "+c.ID)
	}
	return nil
}

func (r *revoked) set(fail bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = fail
}

func (r *revoked) has(uid, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errorIf(!slices.Contains(r.ids, uid+" "+id), "taken back: %v", r.ids)
}

func TestMachinesAreFoundByTheNamesInRequests(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	var gone revoked
	p := w.start("a", func(_ *config.Kubernetes, o *verifier.Options) { o.Names, o.Revoke = true, gone.revoke })
	until(t, "sync", p.synced)
	named := func(name string, want ...string) func() error {
		return func() error {
			var got []string
			for _, ref := range p.ByInternalDNS(name) {
				got = append(got, ref.UID)
			}
			slices.Sort(got)
			slices.Sort(want)
			return errorIf(!slices.Equal(got, want), "%s: %v, want %v", name, got, want)
		}
	}
	address := func(name string) string {
		return fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalDNS","address":%q},{"type":"InternalIP","address":"10.0.0.1"},{"type":"Hostname","address":"h"}]}}`, name)
	}
	one, two := w.worker("one"), w.worker("two")
	uid := string(one.GetUID())
	w.patch(machines, machineNamespace, "one", address("Worker-0.Example.com."), "status")
	until(t, "found whatever the case", named("worker-0.example.com", uid))
	w.patch(machines, machineNamespace, "two", address("worker-0.example.com"), "status")
	until(t, "both are found", named("worker-0.example.com.", uid, string(two.GetUID())))
	w.patch(machines, machineNamespace, "two", address("worker-1.example.com"), "status")
	until(t, "each has its name", named("worker-0.example.com", uid))
	until(t, "each has its name", named("worker-1.example.com", string(two.GetUID())))
	if refs := p.ByInternalDNS("h"); len(refs) != 0 {
		t.Errorf("by its host name: %v", refs)
	}
	w.patch(machines, machineNamespace, "two", `{"status":{"nodeRef":{"name":"worker-1.example.com"}}}`, "status")
	until(t, "found by its Node", func() error {
		refs := p.ByNode("worker-1.example.com")
		return errorIf(!slices.Equal(refs,
			[]machine.Ref{{APIVersion: "machine.openshift.io/v1beta1", Namespace: machineNamespace, Name: "two",
				UID: string(two.GetUID())}}), "%v", refs)
	})
	w.delete(machines, machineNamespace, "two")
	until(t, "gone", named("worker-1.example.com"))
	if refs := p.ByNode("worker-1.example.com"); len(refs) != 0 {
		t.Errorf("its Node still names it: %v", refs)
	}

	t.Run("a credential leads to its record, until it ends", func(t *testing.T) {
		attestationsOf(w, uid)
		now := time.Now()
		err := p.Records().Update(t.Context(), uid,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				rec = rec.DeepCopy()
				for id, ends := range map[string]time.Time{"JTI=live": now.Add(time.Hour), "JTI=ended": now.Add(-time.Minute)} {
					rec.Status.Credentials = append(rec.Status.Credentials,
						v1alpha1.CredentialStatus{ID: id, Issued: metav1.NewTime(now.Add(-time.Hour)), Expiry: metav1.NewTime(ends)})
				}
				return rec, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "found", func() error {
			got, ok := p.ByCredential("JTI=live")
			return errorIf(!ok || got != uid, "%s %v", got, ok)
		})
		for _, id := range []string{"JTI=ended", "JTI=other", ""} {
			if got, ok := p.ByCredential(id); ok {
				t.Errorf("%q leads to %s", id, got)
			}
		}
	})
	t.Run("a quarantine revokes it", func(t *testing.T) {
		gone.set(true)
		w.patch(attestations, machineNamespace, uid, `{"spec":{"quarantined":true}}`)
		until(t, "latched although it cannot be taken back", func() error {
			rec, err := p.Records().Record(t.Context(), uid)
			return errorIf(err != nil || !rec.Status.Quarantined, "%v", err)
		})
		gone.set(false)
		until(t, "taken back", func() error { return gone.has(uid, "JTI=live") })
		until(t, "known to be", func() error {
			rec, err := p.Records().Record(t.Context(), uid)
			return errorIf(err != nil || !rec.Status.Credentials[0].Revoked || !rec.Status.Credentials[1].Revoked, "%v", err)
		})
	})
	t.Run("and so does one that was issued meanwhile", func(t *testing.T) {
		err := p.Records().Update(t.Context(), uid,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				rec = rec.DeepCopy()
				rec.Status.Credentials = append(rec.Status.Credentials,
					v1alpha1.CredentialStatus{ID: "JTI=late", Issued: metav1.Now(), Expiry: metav1.NewTime(time.Now().Add(time.Hour))})
				return rec, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "taken back", func() error { return gone.has(uid, "JTI=late") })
	})
	t.Run("and so does the end of the Machine", func(t *testing.T) {
		w.patch(attestations, machineNamespace, uid, `{"spec":{"quarantined":false}}`)
		until(t, "released", func() error {
			rec, err := p.Records().Record(t.Context(), uid)
			return errorIf(err != nil || rec.Status.Quarantined || len(rec.Status.Credentials) > 0, "%v", err)
		})
		err := p.Records().Update(t.Context(), uid,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				rec = rec.DeepCopy()
				rec.Status.Credentials = []v1alpha1.CredentialStatus{{ID: "JTI=second", Issued: metav1.Now(),
					Expiry: metav1.NewTime(time.Now().Add(time.Hour))}}
				return rec, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		w.delete(machines, machineNamespace, "one")
		until(t, "taken back", func() error { return gone.has(uid, "JTI=second") })
		until(t, "the record is gone, and leads nowhere", func() error {
			_, ok := p.ByCredential("JTI=second")
			o, err := w.there(attestations, machineNamespace, uid)
			return errorIf(o != nil || err != nil || ok, "%v %v", err, ok)
		})
	})
	t.Run("and of a record that went before its Machine", func(t *testing.T) {
		o := w.worker("three")
		uid := string(o.GetUID())
		attestationsOf(w, uid)
		err := p.Records().Update(t.Context(), uid,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				rec = rec.DeepCopy()
				rec.Status.Credentials = []v1alpha1.CredentialStatus{{ID: "system:bootstrap:abcdef", Issued: metav1.Now(),
					Expiry: metav1.NewTime(time.Now().Add(time.Hour))}}
				return rec, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "known", func() error { _, ok := p.ByCredential("system:bootstrap:abcdef"); return errorIf(!ok, "not") })
		// As the API server cleans up, which is faster than the holder of the lease.
		w.delete(machines, machineNamespace, "three")
		err = w.in(attestations, machineNamespace).Delete(t.Context(), uid, metav1.DeleteOptions{})
		if err != nil && !kerrors.IsNotFound(err) {
			t.Fatal(err)
		}
		until(t, "taken back", func() error { return gone.has(uid, "system:bootstrap:abcdef") })
	})
}
