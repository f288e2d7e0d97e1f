// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/signingkeys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// unconnected is an Inventory whose watches are fed by the test.
func unconnected(t testing.TB) *Inventory {
	t.Helper()
	c, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, config.Kubernetes{
		Namespace: "own", MachineNamespaces: []string{"m"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
	}, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watched is a source that the test feeds.
type watched struct {
	*sources.Source
	c *Inventory
}

// sources are everything that is watched.
func (c *Inventory) sources() (all []watched) {
	for _, s := range c.watches.Sources() {
		all = append(all, watched{s, c})
	}
	return all
}

func (c *Inventory) watching(t testing.TB, k kind, namespace string) watched {
	t.Helper()
	for _, w := range c.sources() {
		if w.Kind.String() == k.String() && w.Namespace == namespace {
			return w
		}
	}
	t.Fatalf("%s in %q is not watched", k, namespace)
	return watched{}
}

// object is what the source keeps of an object.
func (w watched) object(t testing.TB, u *unstructured.Unstructured) *sources.Object {
	t.Helper()
	into, _ := w.Object.DeepCopyObject().(client.Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.DeepCopy().Object, into); err != nil {
		t.Fatal(err)
	}
	return w.NewObject(into)
}

func (w watched) receive(t testing.TB, u *unstructured.Unstructured) { w.Apply(w.object(t, u)) }

func (w watched) remove(u *unstructured.Unstructured) {
	w.Delete(types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()})
}

// list is a list of a new watch. One that shows a restore is not taken in.
func (w watched) list(t testing.TB, version uint64, all ...*unstructured.Unstructured) {
	t.Helper()
	var objects []*sources.Object
	for _, u := range all {
		objects = append(objects, w.object(t, u))
	}
	watch := w.StartWatch(w.c.guard.Epoch())
	if w.Check(watch, objects, version) == nil {
		w.Replace(objects, version)
	}
}

func object(n int, version uint64, change func(o map[string]any)) *unstructured.Unstructured {
	o := map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{
			"namespace": "m", "name": fmt.Sprintf("cluster-abcde-worker-us-east-1a-%06d", n),
			"uid":             fmt.Sprintf("00000000-0000-4000-8000-%012d", n),
			"resourceVersion": strconv.FormatUint(version, 10), "creationTimestamp": "2026-11-21T00:00:00Z",
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker",
				"machine.openshift.io/cluster-api-machine-type": "worker"},
		},
		"spec":   map[string]any{"providerID": fmt.Sprintf("aws:///us-east-1a/i-%017d", n)},
		"status": map[string]any{"phase": "Provisioned"},
	}
	if change != nil {
		change(o)
	}
	return &unstructured.Unstructured{Object: o}
}

func TestList_ReplacesTheCachedState(t *testing.T) {
	c := unconnected(t)
	w := c.watching(t, machineAPIKind, "m")
	w.list(t, 10, object(1, 1, nil), object(2, 2, nil))
	w.list(t, 20, object(2, 12, nil), object(3, 13, nil))
	var names []string
	for _, m := range c.registry.All().Machines() {
		names = append(names, m.Name[len(m.Name)-1:])
	}
	if strings.Join(names, "") != "23" {
		t.Errorf("Machines %v", names)
	}
}

func TestRestore_IsDetected(t *testing.T) {
	spoiled := func(o map[string]any) {
		o["metadata"].(map[string]any)["annotations"] = map[string]any{v1alpha1.AnnotationEKSHA256: "x"}
	}
	for name, test := range map[string]struct {
		list  uint64
		items []*unstructured.Unstructured
		want  bool
	}{
		"the same again":                            {20, []*unstructured.Unstructured{object(1, 15, nil)}, false},
		"later":                                     {30, []*unstructured.Unstructured{object(1, 25, nil)}, false},
		"an object was deleted":                     {30, nil, false},
		"an object was deleted and recreated":       {30, []*unstructured.Unstructured{object(1, 29, nil)}, false},
		"the list is older":                         {19, []*unstructured.Unstructured{object(1, 15, nil)}, true},
		"revisions were raised, an object is older": {1 << 40, []*unstructured.Unstructured{object(1, 14, nil)}, true},
		"an older object that cannot be used": {1 << 40,
			[]*unstructured.Unstructured{object(1, 14, spoiled)}, true},
		"an API that counts in something else than etcd": {0, []*unstructured.Unstructured{object(1, 0, nil)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := unconnected(t)
			w := c.watching(t, machineAPIKind, "m")
			w.list(t, 20, object(1, 15, nil))
			w.list(t, test.list, test.items...)
			if got := c.guard.Epoch() == 1; got != test.want {
				t.Errorf("noticed %v", got)
			}
			if !test.want {
				return
			}
			// The same state once more, by a new watch, is not another restore.
			w.list(t, max(test.list, 19)+1, test.items...)
			if c.guard.Epoch() != 1 || len(c.registry.UIDs()) != 1 {
				t.Errorf("%d restores, Machines %v", c.guard.Epoch(), c.registry.UIDs())
			}
		})
	}
}

// A source without events of its own lists again, before any probe. The others had seen later revisions.
func TestRestore_IsDetectedByTheRevisionOfAllKinds(t *testing.T) {
	c := unconnected(t)
	w := c.watching(t, machineAPIKind, "m")
	w.list(t, 10, object(1, 9, nil))
	c.watching(t, policyKind, "").list(t, 30)
	w.list(t, 20, object(1, 9, nil), object(2, 8, nil))
	if c.guard.Epoch() != 1 || len(c.registry.UIDs()) != 1 {
		t.Errorf("%d restores, Machines %v", c.guard.Epoch(), c.registry.UIDs())
	}
	// Built-in resources may be in another etcd.
	c = unconnected(t)
	c.watching(t, policyKind, "").list(t, 30)
	c.watching(t, nodeKind, "").list(t, 20)
	if c.guard.Epoch() != 0 {
		t.Error("the revision of another etcd is a restore")
	}
}

func TestRestore_VoidsTheKeys(t *testing.T) {
	c := unconnected(t)
	pair, err := keys.Pair{}.Rotate(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	data, err := pair.Data()
	if err != nil {
		t.Fatal(err)
	}
	put := func(data map[string][]byte) { c.putKeys(&sources.Object{Value: secretData{data}}) }
	put(data)
	if _, ok := c.Keys().Tokens.Current(time.Now()); !ok {
		t.Fatal("no key")
	}
	c.guard.Restored(0, "test")
	if len(c.Keys().Tokens.Keys)+len(c.Keys().Seals.Keys) != 0 {
		t.Error("keys from before are in force")
	}
	put(data) // as the backup has it
	if len(c.Keys().Tokens.Keys)+len(c.Keys().Seals.Keys) != 0 {
		t.Error("the backup's keys are in force")
	}
	more, err := pair.Rotate(time.Now().Add(time.Hour), 0)
	if err != nil {
		t.Fatal(err)
	}
	if data, err = more.Data(); err != nil {
		t.Fatal(err)
	}
	put(data)
	if len(c.Keys().Tokens.Keys) != 0 {
		t.Error("a Secret that still has an old key is in force")
	}
}

// An administrator voided stolen keys; the backup is from before that.
func TestKeysThatWereVoidedDoNotComeBack(t *testing.T) {
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	made := func(p keys.Pair, at time.Time) keys.Pair {
		t.Helper()
		p, err := p.Rotate(at, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	data := func(p keys.Pair) map[string][]byte {
		t.Helper()
		data, err := p.Data()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	stolen, since := made(keys.Pair{}, now.Add(-24*time.Hour)), made(keys.Pair{}, now.Add(-time.Hour))
	hasty := made(keys.Pair{}, now.Add(-3*time.Minute)) // replaced again a minute before the restore
	api := newSecretAPI(t)
	replica := func(clock time.Duration) *Inventory {
		c := api.cluster(t)
		c.o.Now = func() time.Time { return now.Add(clock) }
		for _, p := range []keys.Pair{hasty, since} {
			c.putKeys(&sources.Object{Value: secretData{data(p)}})
		}
		c.guard.Restored(0, "test")
		return c
	}
	inForce := func(c *Inventory, p keys.Pair) bool {
		c.putKeys(&sources.Object{Value: secretData{data(p)}})
		return len(c.Keys().Tokens.Keys)+len(c.Keys().Seals.Keys) > 0
	}
	for name, test := range map[string]struct {
		pair keys.Pair
		want bool
	}{
		"stolen, never seen by this process":    {stolen, false},
		"in force when etcd was restored":       {since, false},
		"younger than clocks are apart":         {hasty, false},
		"the stolen, rotated since the restore": {made(stolen, now.Add(time.Minute)), false},
		"made by another replica":               {made(keys.Pair{}, now.Add(time.Second)), true},
		"made by one whose clock is behind":     {made(keys.Pair{}, now.Add(-4*time.Minute)), true},
		"made so, and rotated":                  {made(made(keys.Pair{}, now), now.Add(10*24*time.Hour)), true},
	} {
		if got := inForce(replica(0), test.pair); got != test.want {
			t.Errorf("%s: in force %v", name, got)
		}
	}

	api.data, api.version = data(stolen), 7
	var pair keys.Pair
	for i, clock := range []time.Duration{0, 4 * time.Minute, -4 * time.Minute} {
		c := replica(clock)
		secrets, err := kube.NewSecretClient(api.config())
		if err != nil {
			t.Fatal(err)
		}
		signing := signingkeys.New(signingkeys.Options{
			Client: secrets, Secret: client.ObjectKey{Namespace: "own", Name: KeysSecret}, Now: c.o.Now, Log: c.log,
			Voided: c.guard.Voided,
		})
		if err := signing.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		p, err := keys.Parse(api.data)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			pair = p
		}
		if api.version != 8 || !slices.Equal(p.IDs(), pair.IDs()) || len(p.IDs()) != 2 ||
			slices.Contains(p.IDs(), stolen.IDs()[0]) {
			t.Errorf("replica %d: version %d, keys %v, before %v", i, api.version, p.IDs(), stolen.IDs())
		}
		if !inForce(c, p) {
			t.Errorf("replica %d does not take the new keys", i)
		}
		if _, ok := p.Tokens.Current(now.Add(-4 * time.Minute)); !ok {
			t.Error("a replica whose clock is behind cannot sign")
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	s := secretData{map[string][]byte{"token": []byte("hunter2")}}
	if out := fmt.Sprintf("%v %+v %#v %s", s, s, s, s); strings.Contains(out, "hunter2") ||
		strings.Contains(out, fmt.Sprint([]byte("hunter2"))) {
		t.Error(out)
	}
}

func TestErrorsOfAnUnavailableAPI(t *testing.T) {
	resource := schema.GroupResource{Resource: "machines"}
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, err := range []error{refused, kerrors.NewTooManyRequestsError("x"), kerrors.NewServiceUnavailable("x"),
		kerrors.NewTimeoutError("x", 1)} {
		if !sources.Unavailable(err) {
			t.Errorf("%v does not pass", err)
		}
	}
	for _, err := range []error{kerrors.NewForbidden(resource, "", nil), kerrors.NewNotFound(resource, ""),
		kerrors.NewResourceExpired("x"), store.ErrRestored, context.Canceled} {
		if sources.Unavailable(err) {
			t.Errorf("%v passes", err)
		}
	}
}
