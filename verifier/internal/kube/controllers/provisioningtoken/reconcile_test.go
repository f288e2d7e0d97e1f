// SPDX-License-Identifier: Apache-2.0

package provisioningtoken

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
)

const (
	tokenA = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	tokenB = "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
)

var at = client.ObjectKey{Namespace: "openshift-config", Name: "machineconfig-auth"}

// cluster is an API with the Secret of the token, and an inventory.
type cluster struct {
	client.Client
	*Reconciler
	t       *testing.T
	view    provisioning.View
	version string // that the inventory has
	now     time.Time
	writes  int
	fails   bool
	before  func() // called once, before a write
}

func newCluster(t *testing.T, every time.Duration) *cluster {
	c := &cluster{t: t, now: time.Now().UTC().Truncate(time.Second)}
	c.Client = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Update: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if c.fails {
				return errors.New("no answer")
			}
			if f := c.before; f != nil {
				c.before = nil
				f()
			}
			err := api.Update(ctx, o, opts...)
			if err == nil {
				c.writes++
			}
			return err
		},
	}).WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: at.Namespace, Name: at.Name, CreationTimestamp: metav1.NewTime(c.now),
	}}).Build()
	c.Reconciler = New(Options{
		Client: c.Client, Secret: at, RotateEvery: every, Grace: time.Hour, Interval: time.Minute,
		InForce: func() (provisioning.View, string, bool) { return c.view, c.version, true },
		Now:     func() time.Time { return c.now }, Log: slog.New(slog.DiscardHandler),
	})
	return c
}

// edit is what an administrator writes.
func (c *cluster) edit(data map[string]string) {
	c.t.Helper()
	s := c.secret()
	s.Data = map[string][]byte{}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	fails, writes := c.fails, c.writes
	c.fails = false
	if err := c.Update(c.t.Context(), s); err != nil {
		c.t.Fatal(err)
	}
	c.fails, c.writes = fails, writes
}

// observe is what the watch of the inventory brings.
func (c *cluster) observe() {
	s := c.secret()
	c.view, _ = c.view.Read(c.now, s.Data, time.Hour)
	c.version = s.ResourceVersion
}

func (c *cluster) secret() *corev1.Secret {
	c.t.Helper()
	var s corev1.Secret
	if err := c.Get(c.t.Context(), at, &s); err != nil {
		c.t.Fatal(err)
	}
	return &s
}

func (c *cluster) reconcile() (reconcile.Result, error) {
	return c.Reconcile(c.t.Context(), reconcile.Request{NamespacedName: at})
}

func TestReconcile_WritesBackAnEdit(t *testing.T) {
	start := func(t *testing.T) *cluster {
		c := newCluster(t, 0)
		c.edit(map[string]string{"token": tokenA})
		c.observe()
		if _, err := c.reconcile(); err != nil || c.writes != 0 {
			t.Fatalf("%v, %d writes before an edit", err, c.writes)
		}
		c.edit(map[string]string{"token": tokenB}) // by hand: the first has its grace
		c.observe()
		return c
	}
	is := func(t *testing.T, c *cluster, previous string, writes int) {
		t.Helper()
		for range 2 {
			if _, err := c.reconcile(); err != nil {
				t.Error(err)
			}
			c.observe()
		}
		if got := string(c.secret().Data[provisioning.KeyPrevious]); got != previous || c.writes != writes {
			t.Errorf("previous-token %q, %d writes", got, c.writes)
		}
	}
	revoked := map[string]string{"token": tokenB,
		"previous-expires": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)}
	t.Run("immediately", func(t *testing.T) { is(t, start(t), tokenA, 1) })
	t.Run("after the API was away", func(t *testing.T) {
		c := start(t)
		c.fails = true
		if _, err := c.reconcile(); err == nil {
			t.Error("no error")
		}
		c.fails = false
		is(t, c, tokenA, 1)
	})
	t.Run("attack: not once the previous one was voided", func(t *testing.T) {
		c := start(t)
		c.edit(revoked)
		c.observe()
		is(t, c, "", 0)
	})
	t.Run("attack: nor while that is on its way here", func(t *testing.T) {
		c := start(t)
		c.edit(revoked)
		is(t, c, "", 0)
	})
	t.Run("attack: nor when that comes between reading and writing", func(t *testing.T) {
		c := start(t)
		c.before = func() { c.edit(map[string]string{"token": tokenB}) }
		if _, err := c.reconcile(); err != nil || len(c.secret().Data[provisioning.KeyPrevious]) != 0 {
			t.Errorf("%v, previous-token %q", err, c.secret().Data[provisioning.KeyPrevious])
		}
	})
	t.Run("attack: a token that cannot be read is not replaced", func(t *testing.T) {
		c := start(t)
		c.edit(map[string]string{"token": "short"})
		c.observe()
		is(t, c, "", 0)
	})
}

func TestReconcile_RotatesWhenItIsDue(t *testing.T) {
	c := newCluster(t, 24*time.Hour)
	made := c.now
	c.edit(map[string]string{"token": tokenA})
	c.observe()
	c.now = made.Add(24*time.Hour - 20*time.Second)
	if again, err := c.reconcile(); err != nil || c.writes != 0 || again.RequeueAfter != 20*time.Second {
		t.Fatalf("%v, %d writes, again after %v", err, c.writes, again.RequeueAfter)
	}
	c.now = made.Add(24 * time.Hour)
	for range 3 {
		if _, err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		c.observe()
	}
	tokens, err := provisioning.Parse(c.secret().Data)
	if err != nil || c.writes != 1 || tokens.Check(c.now, []byte(tokenA)) != provisioning.Previous {
		t.Errorf("%v, %d writes", err, c.writes)
	}
}

// An edit by hand may remove the time of the last rotation. Then a rotation is due, and would end the token from before
// the edit.
func TestReconcile_DoesNotRotateAnEditThatIsOnItsWay(t *testing.T) {
	c := newCluster(t, 24*time.Hour)
	made := c.now
	c.edit(map[string]string{"token": tokenA,
		"previous-expires": made.Add(47 * time.Hour).Format(time.RFC3339)})
	c.observe()
	c.now = made.Add(48 * time.Hour)
	if _, err := c.reconcile(); err != nil || c.writes != 0 {
		t.Fatalf("%v, %d writes before a rotation is due", err, c.writes)
	}
	c.edit(map[string]string{"token": tokenB})
	for range 2 {
		if _, err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		c.observe()
	}
	tokens, err := provisioning.Parse(c.secret().Data)
	if err != nil || tokens.Check(c.now, []byte(tokenB)) != provisioning.Current ||
		tokens.Check(c.now, []byte(tokenA)) != provisioning.Previous {
		t.Errorf("%v, the edited token is %v, the one before %v", err, tokens.Check(c.now, []byte(tokenB)),
			tokens.Check(c.now, []byte(tokenA)))
	}
}

func TestReconcile_WritesNothingWhileNoTokenIsInForce(t *testing.T) {
	c := newCluster(t, 1)
	c.edit(map[string]string{"token": tokenA})
	c.o.InForce = func() (provisioning.View, string, bool) { return c.view, c.version, false }
	if _, err := c.reconcile(); err != nil || c.writes != 0 {
		t.Errorf("%v, %d writes", err, c.writes)
	}
}
