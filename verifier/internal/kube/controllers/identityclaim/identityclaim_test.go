// SPDX-License-Identifier: Apache-2.0

package identityclaim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/identityclaim"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// fake has the claims of Machines that were deleted.
type fake struct {
	claims map[string]error // by UID of the Machine: the result of their release
}

func (f *fake) EachClaim(_ context.Context, each func(v1alpha1.IdentityClaimSpec)) error {
	for uid := range f.claims {
		each(v1alpha1.IdentityClaimSpec{MachineUID: uid, MachineRef: v1alpha1.MachineReference{Namespace: "m"}})
	}
	return nil
}

func (f *fake) ReleaseClaims(_ context.Context, uid string) error {
	err := f.claims[uid]
	if err == nil {
		delete(f.claims, uid)
	}
	return err
}

func TestReconcile_ReleasesAgainAfterAFailure(t *testing.T) {
	fails := errors.New("the credentials are not revoked")
	f := &fake{claims: map[string]error{"a": nil, "b": fails, "c": fmt.Errorf("claim: %w", records.ErrMachineThere)}}
	r := identityclaim.New(identityclaim.Options{
		Claims: f, Known: func(string) bool { return false }, Synced: func() (bool, []string) { return true, nil },
		CanChange: func(string) bool { return true }, Limit: flowcontrol.NewFakeAlwaysRateLimiter(),
	})
	for range 2 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, fails) || len(f.claims) != 2 {
			t.Fatalf("%v, claims %v", err, f.claims)
		}
	}
	f.claims["b"] = nil
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || len(f.claims) != 1 {
		t.Errorf("%v, claims %v", err, f.claims)
	}
}
