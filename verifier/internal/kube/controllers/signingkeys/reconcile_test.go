// SPDX-License-Identifier: Apache-2.0

package signingkeys

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
)

const (
	month   = 30 * 24 * time.Hour
	publish = 10 * time.Minute
)

var (
	noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	at   = client.ObjectKey{Namespace: "own", Name: "mcs-attest-keys"}
)

// cluster is an API with at most the Secret of the keys, and what the processes of one test remember.
type cluster struct {
	client.Client
	t         *testing.T
	writes    int
	now       time.Time
	voided    func(keys.Pair) bool
	repairing bool
	before    func() // called once, before a write
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, now: noon, voided: func(keys.Pair) bool { return false }}
	write := func() {
		c.writes++
		if f := c.before; f != nil {
			c.before = nil
			f()
		}
	}
	c.Client = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			write()
			return api.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			write()
			return api.Update(ctx, o, opts...)
		},
	}).Build()
	return c
}

// process is one that keeps the keys. Its clock is off.
func (c *cluster) process(clock time.Duration) *Reconciler {
	return New(Options{
		Client: c, Secret: at, Rotation: month, Publish: publish, Interval: time.Minute, Log: slog.New(slog.DiscardHandler),
		Now:    func() time.Time { return c.now.Add(clock) },
		Voided: func(p keys.Pair) bool { return c.voided(p) }, Repairing: func() bool { return c.repairing },
	})
}

func (c *cluster) reconcile(r *Reconciler) reconcile.Result {
	c.t.Helper()
	result, err := r.Reconcile(c.t.Context(), reconcile.Request{NamespacedName: at})
	if err != nil {
		c.t.Fatal(err)
	}
	return result
}

func (c *cluster) keys() keys.Pair {
	c.t.Helper()
	var s corev1.Secret
	if err := c.Get(c.t.Context(), at, &s); kerrors.IsNotFound(err) {
		return keys.Pair{}
	} else if err != nil {
		c.t.Fatal(err)
	}
	p, err := keys.Parse(s.Data)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func TestReconcile_MakesAndRotatesTheKeys(t *testing.T) {
	c := newCluster(t)
	r := c.process(0)
	c.reconcile(r)
	first := c.keys()
	if len(first.IDs()) != 2 {
		t.Fatalf("keys %v", first.IDs())
	}
	c.now = noon.Add(month - 20*time.Second)
	if again := c.reconcile(r).RequeueAfter; again != 20*time.Second || c.writes != 1 {
		t.Errorf("shortly before they are due: again after %v, %d writes", again, c.writes)
	}
	c.now = noon.Add(month)
	c.reconcile(r)
	both := c.keys()
	if len(both.Tokens.Keys) != 2 || both.Tokens.Keys[0].ID != first.Tokens.Keys[0].ID {
		t.Fatalf("keys %v, before %v", both.IDs(), first.IDs())
	}
	if k, _ := both.Tokens.Current(c.now.Add(publish - time.Second)); k.ID != first.Tokens.Keys[0].ID {
		t.Error("the next key signs before it was published everywhere")
	}
	for range 3 {
		c.now = c.now.Add(publish)
		c.reconcile(r)
	}
	if c.writes != 2 {
		t.Errorf("%d writes", c.writes)
	}
}

// The clocks of two processes are hours apart, and they lead in turn.
func TestReconcile_DoesNotLoopWithAClockThatIsHoursAhead(t *testing.T) {
	for name, clocks := range map[string][]time.Duration{
		"one that is ahead": {9 * time.Hour}, "ahead, then right": {9 * time.Hour, 0},
		"right, then ahead":  {0, 9 * time.Hour},
		"behind, then right": {-9 * time.Hour, 0}, "ahead, then behind": {9 * time.Hour, -9 * time.Hour},
	} {
		c := newCluster(t)
		for turn := range 3 * 24 * 6 { // every ten minutes, for three days
			c.reconcile(c.process(clocks[turn%len(clocks)]))
			if _, signs := c.keys().Tokens.Current(c.now); !signs {
				t.Fatalf("%s: no key signs", name)
			}
			c.now = c.now.Add(publish)
		}
		if c.writes != 1 {
			t.Errorf("%s: %d writes", name, c.writes)
		}
	}
}

func TestReconcile_KeepsWhatItCannotRead(t *testing.T) {
	c := newCluster(t)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name},
		Data: map[string][]byte{keys.TokenFile: []byte("{")}}
	if err := c.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	c.voided = func(keys.Pair) bool { return true }
	c.reconcile(c.process(0))
	if err := c.process(0).Renew(t.Context()); err != nil || c.writes != 1 {
		t.Errorf("%v, %d writes", err, c.writes)
	}
}

func TestReconcile_LeavesWhatAnotherProcessWrote(t *testing.T) {
	c := newCluster(t)
	other := c.process(0)
	c.before = func() { c.reconcile(other) }
	c.reconcile(c.process(0))
	first := c.keys()
	if len(first.IDs()) != 2 {
		t.Fatalf("keys %v", first.IDs())
	}
	c.now = noon.Add(month)
	c.before = func() { c.reconcile(other) }
	c.reconcile(c.process(0))
	if n := len(c.keys().Tokens.Keys); n != 2 {
		t.Errorf("%d token keys", n)
	}
}

// Keys from before a restore are replaced, after what was revoked is revoked again.
func TestRenew(t *testing.T) {
	c := newCluster(t)
	r := c.process(0)
	c.reconcile(r)
	void := c.keys().IDs()
	c.voided = func(p keys.Pair) bool {
		return slices.ContainsFunc(p.IDs(), func(id string) bool { return slices.Contains(void, id) })
	}
	c.repairing = true
	if c.reconcile(r); c.writes != 1 {
		t.Fatal("new keys before what was revoked is revoked again")
	}
	for range 2 { // of two processes, the second finds them
		if err := c.process(0).Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if p := c.keys(); c.writes != 2 || c.voided(p) || len(p.IDs()) != 2 {
		t.Errorf("%d writes, keys %v, before %v", c.writes, p.IDs(), void)
	}
	if _, ok := c.keys().Tokens.Current(noon.Add(-4 * time.Minute)); !ok {
		t.Error("no key signs")
	}

	// The backup is from before the first keys.
	if err := c.Delete(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}}); err != nil {
		t.Fatal(err)
	}
	if c.reconcile(r); len(c.keys().IDs()) != 0 {
		t.Error("first keys before what was revoked is revoked again")
	}
	c.repairing = false
	if c.reconcile(r); len(c.keys().IDs()) != 2 {
		t.Error("no keys")
	}

	// A process that is slower than one that does not remember the restore.
	c.voided = func(keys.Pair) bool { return true }
	c.before = func() { c.now = c.now.Add(month); c.reconcile(c.process(0)) }
	if err := r.Renew(t.Context()); err == nil {
		t.Error("void keys are in the Secret, and it is not reported")
	}
}
