// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// everythingRead is an Inventory whose watches are all in step.
func everythingRead(t testing.TB) *Inventory {
	t.Helper()
	c := unconnected(t)
	if c.View().Stale == nil {
		t.Fatal("a grant before anything was read")
	}
	for _, w := range c.sources() {
		w.list(t, 10)
	}
	c.build()
	if err := c.View().Stale; err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNothingIsGrantedOnUnwatchedState(t *testing.T) {
	forbidden := kerrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no"))
	away := errors.New("connection refused")
	for _, name := range []string{
		"machines.machine.openshift.io in m", "machines.cluster.x-k8s.io in m", "baremetalhosts.metal3.io in m",
		"machineattestations.mcs-attest.dev in m", "machineattestations.mcs-attest.dev in own",
		"nodes", "attestationpolicies.mcs-attest.dev", "configmaps in own", "secrets mcs-attest-keys in own",
	} {
		t.Run(name, func(t *testing.T) {
			c := everythingRead(t)
			var w watched
			for _, x := range c.sources() {
				if x.String() == name {
					w = x
				}
			}
			if w.Source == nil {
				t.Fatal("it is not watched")
			}
			stale := func(after time.Duration, want bool) {
				t.Helper()
				if why := w.Outdated(time.Now().Add(after)); (why != "") != want || want && !strings.Contains(why, name) {
					t.Errorf("after %s: %v", after, why)
				}
				in, err := c.watches.Outdated(time.Now().Add(after))
				if len(in) > 0 {
					t.Errorf("only some namespaces: %v", in)
				}
				if want && err == nil {
					t.Errorf("after %s grants go on", after)
				}
			}
			// Silence.
			stale(sources.MaxSilent-time.Minute, false)
			stale(sources.MaxSilent+time.Second, true)
			// An API that is unavailable, for a short time and for long.
			w.Fail(away)
			stale(sources.MaxError-time.Minute, false)
			w.Fail(errors.New("another reason"))
			stale(sources.MaxError+time.Second, true)
			w.Resumed()
			stale(sources.MaxError+time.Second, false)
			// Forbidden: immediately, even if it was unavailable before.
			w.Fail(away)
			<-c.dirty
			w.Fail(forbidden)
			stale(0, true)
			select {
			case <-c.dirty:
			default:
				t.Error("Changed was not called")
			}
			w.list(t, 20)
			stale(0, false)
			// It must be read again.
			w.Reset()
			stale(0, true)
		})
	}
}

// A Machine and the end of a certificate change what is measured without a new view.
func TestInventory_IsMeasuredEachMinuteWithoutAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := everythingRead(t)
		for len(c.dirty) > 0 {
			<-c.dirty
		}
		calls := 0
		c.o.Changed = func() { calls++ }
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Second)
		defer cancel()
		c.publish(ctx)
		if calls != 5 {
			t.Errorf("Changed was called %d times in 5 minutes", calls)
		}
	})
}

func TestOptionalSourcesDoNotBlockServing(t *testing.T) {
	c := everythingRead(t)
	w := c.watching(t, poolKind, "")
	w.Fail(kerrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no")))
	if _, err := c.watches.Outdated(time.Now().Add(sources.MaxError + time.Second)); err != nil {
		t.Error(err)
	}
	// A kind that an ordinary cluster does not have.
	w = c.watching(t, hostKind, "m")
	w.Absent()
	if _, err := c.watches.Outdated(time.Now()); err != nil {
		t.Error(err)
	}
	// One that it must have.
	c.watching(t, attestationKind, "m").Absent()
	if _, err := c.watches.Outdated(time.Now()); err == nil {
		t.Error("grants without MachineAttestations")
	}
}

// No event reports a failing watch, so the inventory checks periodically.
func TestView_IsRebuiltWhenItIsOutdated(t *testing.T) {
	c := everythingRead(t)
	rebuilt := func() bool {
		select {
		case <-c.dirty:
			c.build()
			return true
		default:
			return false
		}
	}
	rebuilt()
	if c.checkStale(time.Now()); rebuilt() {
		t.Error("built again without a reason")
	}
	if c.checkStale(time.Now().Add(sources.MaxSilent + time.Second)); !rebuilt() {
		t.Error("not built again")
	}
	w := c.watching(t, nodeKind, "")
	w.Fail(errors.New("away"))
	rebuilt()
	if c.checkStale(time.Now().Add(sources.MaxError + time.Second)); !rebuilt() {
		t.Error("not built again after a long error")
	}
	w.Resumed()
	if !rebuilt() || c.View().Stale != nil {
		t.Errorf("all is well again: %v", c.View().Stale)
	}
}
