// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
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

// Neither the process nor its conditions may look healthy while nothing may be granted.
func TestInventory_ReportsASourceThatKeepsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := everythingRead(t)
		c.watching(t, clusterAPIKind, "m").Fail(errors.New("conversion webhook failed"))
		time.Sleep(sources.MaxError)
		c.build()
		if f, all := c.Unavailable(), c.Findings(); f.Reason == "NotSynced" || len(all) > 0 {
			t.Fatalf("after a short outage: %+v, %+v", f, all)
		}
		time.Sleep(time.Second)
		c.build()
		for where, f := range map[string][]view.Finding{"Unavailable": {c.Unavailable()}, "Findings": c.Findings()} {
			if len(f) != 1 || f[0].Reason != "NotSynced" || !strings.Contains(f[0].Text, "conversion webhook failed") {
				t.Errorf("%s: %+v", where, f)
			}
		}
	})
}
