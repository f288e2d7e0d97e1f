// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

func TestInventory_ReportsWhatIsInProgress(t *testing.T) {
	c := unconnected(t)
	want := func(when, reason string) {
		t.Helper()
		if f := c.Progressing(); f.Reason != reason || (f.Text == "") != (reason == "") {
			t.Errorf("%s: %+v, want %q", when, f, reason)
		}
	}
	list := func() {
		t.Helper()
		for _, w := range c.sources() {
			w.list(t, 10)
		}
	}
	var pair keys.Pair
	rotate := func() {
		t.Helper()
		next, err := pair.Rotate(time.Now(), c.o.KeyPublishDelay)
		if err != nil {
			t.Fatal(err)
		}
		data, err := next.Data()
		if err != nil {
			t.Fatal(err)
		}
		c.putKeys(&sources.Object{Value: secretData{data}})
		pair = next
	}
	want("nothing was read", "Syncing")
	list()
	want("everything was read", "")
	rotate()
	want("the first keys", "")
	rotate()
	want("keys that are not in use yet", "KeyRotation")

	c.guard.Restored(0, "test")
	want("after a restore", "Syncing")
	list()
	want("everything was read again", "Restoring")
	c.o.RenewKeys = func(context.Context) error { return nil }
	if _, err := c.repair.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	want("repaired", "")
}
