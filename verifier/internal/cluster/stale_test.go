package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// everythingRead is a Cluster whose watches are all in step.
func everythingRead(t testing.TB) *Cluster {
	t.Helper()
	c := unconnected(t)
	if c.World().Stale == nil {
		t.Fatal("a grant before anything was read")
	}
	for _, w := range c.watches {
		w.list(t, 10)
	}
	c.build()
	if err := c.World().Stale; err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNothingIsGrantedOnWhatIsOutOfSight(t *testing.T) {
	forbidden := kerrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no"))
	away := errors.New("connection refused")
	for _, name := range []string{
		"machines.machine.openshift.io in m", "machines.cluster.x-k8s.io in m", "baremetalhosts.metal3.io in m",
		"machineattestations.mcs-attest.dev in m", "machineattestations.mcs-attest.dev in own",
		"nodes", "attestationpolicies.mcs-attest.dev", "configmaps in own", "secrets mcs-attest-keys in own",
	} {
		t.Run(name, func(t *testing.T) {
			c := everythingRead(t)
			var w *watched
			for _, x := range c.watches {
				if x.String() == name {
					w = x
				}
			}
			if w == nil {
				t.Fatal("it is not watched")
			}
			c.watches = []*watched{w}
			stale := func(after time.Duration, want bool) {
				t.Helper()
				in, err := c.outdated(time.Now().Add(after))
				if len(in) > 0 {
					t.Errorf("only some namespaces: %v", in)
				}
				if (err != nil) != want || want && !strings.Contains(err.Error(), name) {
					t.Errorf("after %s: %v", after, err)
				}
			}
			// Silence.
			stale(mostSilence-time.Minute, false)
			stale(mostSilence+time.Second, true)
			// An API that is away, for a short time and for long.
			w.failed(away)
			stale(mostError-time.Minute, false)
			w.failed(errors.New("another reason"))
			stale(mostError+time.Second, true)
			w.resumed()
			stale(mostError+time.Second, false)
			// Not allowed: at once, also when it was away before.
			w.failed(away)
			<-c.dirty
			w.failed(forbidden)
			stale(0, true)
			select {
			case <-c.dirty:
			default:
				t.Error("nobody is told")
			}
			w.list(t, 20)
			stale(0, false)
			// To be read anew.
			w.stale()
			stale(0, true)
		})
	}
}

func TestWhatTheVerifierCanServeWithoutIsNotMissed(t *testing.T) {
	c := everythingRead(t)
	w := c.watching(t, poolKind, "")
	w.failed(kerrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no")))
	if _, err := c.outdated(time.Now().Add(mostError + time.Second)); err != nil {
		t.Error(err)
	}
	// A kind that an ordinary cluster does not have.
	w = c.watching(t, hostKind, "m")
	w.absent()
	if _, err := c.outdated(time.Now()); err != nil {
		t.Error(err)
	}
	// One that it must have.
	c.watching(t, attestationKind, "m").absent()
	if _, err := c.outdated(time.Now()); err == nil {
		t.Error("grants without MachineAttestations")
	}
}

// Nothing happens when a watch goes bad: somebody has to look.
func TestTheWorldIsMadeAnewWhenItIsOutdated(t *testing.T) {
	c := everythingRead(t)
	told := func() bool {
		select {
		case <-c.dirty:
			c.build()
			return true
		default:
			return false
		}
	}
	told()
	if c.notice(time.Now()); told() {
		t.Error("made anew for nothing")
	}
	if c.notice(time.Now().Add(mostSilence + time.Second)); !told() {
		t.Error("not made anew")
	}
	w := c.watching(t, nodeKind, "")
	w.failed(errors.New("away"))
	told()
	w.mu.Lock()
	w.since = w.since.Add(-mostError - time.Second)
	w.mu.Unlock()
	if c.notice(time.Now()); !told() || c.World().Stale == nil {
		t.Errorf("an error for long: %v", c.World().Stale)
	}
	w.resumed()
	if !told() || c.World().Stale != nil {
		t.Errorf("all is well again: %v", c.World().Stale)
	}
}

// A stream that says nothing is given up; one that says something is not.
func TestASilentWatchIsBegunAnew(t *testing.T) {
	c := unconnected(t)
	w := c.watching(t, nodeKind, "")
	err := w.attend(t.Context(), 10*time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || t.Context().Err() != nil {
		t.Error(err)
	}
	own := errors.New("its own")
	if err := w.attend(t.Context(), time.Hour, func(context.Context) error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
}
