// SPDX-License-Identifier: Apache-2.0

package identityclaim_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/identityclaim"
)

// fake has the claims of Machines that were deleted, and the credentials of all.
type fake struct {
	claims  map[string]bool // by UID of the Machine
	fails   error           // of each revocation
	revoked []string
}

func (f *fake) EachClaim(_ context.Context, each func(v1alpha1.IdentityClaimSpec)) error {
	for uid := range f.claims {
		each(v1alpha1.IdentityClaimSpec{MachineUID: uid, MachineRef: v1alpha1.MachineReference{Namespace: "m"}})
	}
	return nil
}

func (f *fake) ReleaseClaims(_ context.Context, uid string) error {
	delete(f.claims, uid)
	return nil
}

func (f *fake) revoke(_ context.Context, uid string, _ []v1alpha1.CredentialStatus) error {
	if f.fails != nil {
		return f.fails
	}
	f.revoked = append(f.revoked, uid)
	return nil
}

// After the claims are released, nothing in the API names the Machine anymore.
func TestReconcile_RevokesAgainAfterAFailure(t *testing.T) {
	f := &fake{claims: map[string]bool{"a": true, "b": true}, fails: errors.New("the API is unavailable")}
	r := identityclaim.New(identityclaim.Options{
		Claims: f, Known: func(string) bool { return false }, Synced: func() (bool, []string) { return true, nil },
		CanChange: func(string) bool { return true }, Revoke: f.revoke, Limit: flowcontrol.NewFakeAlwaysRateLimiter(),
	})
	for range 2 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, f.fails) || len(f.claims) > 0 {
			t.Fatalf("%v, claims %v", err, f.claims)
		}
	}
	f.fails = nil
	for range 2 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Sort(f.revoked); !slices.Equal(f.revoked, []string{"a", "b"}) {
		t.Errorf("revoked %q", f.revoked)
	}
}
