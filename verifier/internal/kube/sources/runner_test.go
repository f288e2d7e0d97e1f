// SPDX-License-Identifier: Apache-2.0

package sources_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

var machines = sources.Kind{Group: "machine.openshift.io", Resource: "machines", Kind: "Machine",
	Versions: []string{"v1beta1"}}

// consumer stores what an inventory of Machines receives.
type consumer struct {
	t   *testing.T
	api *fakeAPI
	*sources.Runner
	batch sync.RWMutex

	mu       sync.Mutex
	values   map[string]int    // the last good state
	unusable map[string]string // the reason, by object that cannot be used
	highest  uint64
	probe    error

	epoch atomic.Uint32
}

func newConsumer(t *testing.T, api *fakeAPI, namespaces ...string) *consumer {
	t.Helper()
	c := &consumer{t: t, api: api, values: map[string]int{}, unusable: map[string]string{}}
	var all []*sources.Source
	for _, namespace := range namespaces {
		all = append(all, &sources.Source{
			Kind: machines, Namespace: namespace, Optional: true, Whole: true, Object: &unstructured.Unstructured{},
			Read: read, Put: c.put, Drop: c.drop,
		})
	}
	var err error
	c.Runner, err = sources.New(sources.Options{
		Config: &rest.Config{Host: api.URL, QPS: -1}, Scheme: runtime.NewScheme(), Log: slog.New(slog.DiscardHandler),
		Namespace: "own", MachineNamespaces: namespaces, Retry: 20 * time.Millisecond, Revisions: c, Batch: c.batch.RLocker(),
		NamespaceGone: func(context.Context, string) bool { return false },
		Unusable: func(_ *sources.Source, o *sources.Object, problems []manifest.Problem, hadGood bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if _, ok := c.values[o.String()]; ok != hadGood {
				t.Errorf("%s: a good state is known %v, reported %v", o, ok, hadGood)
			}
			c.unusable[o.String()] = problems[0].What
		},
		Usable: func(_ *sources.Source, name types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.unusable, sources.Name(name))
		},
		Changed: func() {},
	}, all...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs the inventory until the test ends.
func (c *consumer) start() {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	c.t.Cleanup(func() { stop(); running.Wait() })
}

type content struct{ value, era int64 }

func read(o client.Object) (any, []manifest.Problem) {
	spec := o.(*unstructured.Unstructured).Object["spec"].(map[string]any)
	value, _ := spec["value"].(int64)
	era, _ := spec["era"].(int64)
	if spec["broken"] == true {
		return nil, []manifest.Problem{{What: fmt.Sprint("broken ", value)}}
	}
	return content{value, era}, nil
}

func (c *consumer) put(o *sources.Object) []manifest.Problem {
	in, _ := o.Value.(content)
	if epoch := c.epoch.Load(); in.era > int64(epoch) {
		c.t.Errorf("%s of era %d was taken in before its restore was noticed: %d were", o, in.era, epoch)
	}
	c.api.do(func() {
		c.versions(func(key string, cached, live uint64, epoch uint32) {
			if int(epoch) == c.api.era && cached > live {
				c.t.Errorf("%s is cached at version %d, and a read returns %d", key, cached, live)
			}
		})
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values[o.String()] = int(in.value)
	return nil
}

// versions calls f with the versions of each object of the API. The caller holds the lock of the API.
func (c *consumer) versions(f func(key string, cached, live uint64, epoch uint32)) {
	for key, o := range c.api.objects {
		namespace, name, _ := strings.Cut(key, "/")
		cached, epoch := c.Cached(machines, types.NamespacedName{Namespace: namespace, Name: name})
		live, _ := strconv.ParseUint(o["metadata"].(map[string]any)["resourceVersion"].(string), 10, 64)
		f(key, cached, live, epoch)
	}
}

func (c *consumer) drop(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.values, sources.Name(name))
}

func (c *consumer) Epoch() uint32 { return c.epoch.Load() }

func (c *consumer) Highest(epoch uint32) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch.Load() {
		return 0
	}
	return c.highest
}

func (c *consumer) Observe(epoch uint32, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch == c.epoch.Load() {
		c.highest = max(c.highest, revision)
	}
}

// bump is by how much a restore may raise the revision.
const bump = 1 << 40

func (c *consumer) Follows(epoch uint32, revision uint64) error {
	if highest := c.Highest(epoch); highest != 0 && revision > highest+bump/2 {
		c.Restored(epoch, "by a raised revision")
		return errors.New("etcd was restored")
	}
	return nil
}

func (c *consumer) Probe(context.Context) error {
	c.mu.Lock()
	highest, epoch := c.highest, c.epoch.Load()
	c.mu.Unlock()
	var revision uint64
	away := false
	c.api.do(func() { revision, away = uint64(c.api.revision), c.api.away })
	switch {
	case away:
		return apierrors.NewServiceUnavailable("away")
	case revision < highest:
		c.Restored(epoch, "by a probe")
		return errors.New("etcd was restored")
	}
	return c.probe
}

func (c *consumer) Restored(epoch uint32, _ string) {
	c.mu.Lock()
	if c.epoch.Load() != epoch {
		c.mu.Unlock()
		return
	}
	c.epoch.Add(1)
	c.highest = 0
	c.mu.Unlock()
	c.Reset()
	c.Restart()
}

// until waits for a condition.
func (c *consumer) until(what string, so func() string) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		why := so()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			in, all := c.Outdated(time.Now())
			c.t.Fatalf("%s: %s; outdated: %v %v", what, why, in, all)
		}
	}
}

// A probe reads the policies. The other sources do not depend on them.
func TestRunner_WatchesWhileThePoliciesCannotBeRead(t *testing.T) {
	policies := schema.GroupResource{Resource: "attestationpolicies"}
	for name, err := range map[string]error{
		"forbidden": apierrors.NewForbidden(policies, "", errors.New("no")), "not found": apierrors.NewNotFound(policies, ""),
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			c, m := newConsumer(t, api, "a"), &model{api, map[string][]int{}}
			c.probe = err
			c.start()
			random := rand.New(rand.NewPCG(0, 12))
			for i := range 3 {
				api.do(func() { m.change(random, true, "a", i) })
				c.until("after a change", func() string { return m.equal(c) })
			}
			if st, wrong := c.Sources()[0].Status(); wrong {
				t.Error(st.Text)
			}
		})
	}
}

// none means that the consumer may have no good state.
const none = -1

// model is the expected state of a consumer of the same objects.
type model struct {
	api *fakeAPI
	// good has, by object, the candidates for the last good state that the consumer received.
	good map[string][]int
}

// want returns the expected states, and why objects cannot be used. The caller holds the lock.
func (m *model) want() (good map[string][]int, bad map[string]string) {
	good, bad = map[string][]int{}, map[string]string{}
	for key, o := range m.api.objects {
		spec := o["spec"].(map[string]any)
		good[key] = []int{spec["value"].(int)}
		if spec["broken"] == true {
			good[key], bad[key] = m.good[key], fmt.Sprint("broken ", spec["value"])
		}
	}
	return good, bad
}

// equal returns how a consumer differs from the model, or "".
func (m *model) equal(c *consumer) (why string) {
	m.api.do(func() {
		good, bad := m.want()
		c.mu.Lock()
		defer c.mu.Unlock()
		for key, value := range c.values {
			if !slices.Contains(good[key], value) {
				why = fmt.Sprintf("%s is %d, want one of %v", key, value, good[key])
			}
		}
		for key, values := range good {
			if _, ok := c.values[key]; !ok && !slices.Contains(values, none) {
				why = fmt.Sprintf("%s is missing, want one of %v", key, values)
			}
		}
		c.versions(func(key string, cached, live uint64, epoch uint32) {
			if cached != live || epoch != c.epoch.Load() {
				why = fmt.Sprintf("%s is at version %d of epoch %d, want %d of %d", key, cached, epoch, live, c.epoch.Load())
			}
		})
		if version, _ := c.Cached(machines, types.NamespacedName{Namespace: "a", Name: "unknown"}); version != 0 {
			why = fmt.Sprintf("an unknown object is at version %d", version)
		}
		if !maps.Equal(c.unusable, bad) {
			why = fmt.Sprintf("cannot be used: %v, want %v", c.unusable, bad)
		}
	})
	return why
}

// The sources equal the API's state whatever happens to either. The test compares them with a model after each of
// many random steps.
func TestInventory_HoldsWhatTheAPIHas(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 12))
			namespaces := []string{"a", "b"}
			api := newFakeAPI(t)
			c, m := newConsumer(t, api, namespaces...), &model{api, map[string][]int{}}
			c.start()
			seen := map[string]bool{"a": true, "b": true} // events arrive one by one
			next, snapshots := 0, 0
			for step := range 80 {
				what := trouble(random, api, seen)
				// Changes also happen while the API is unavailable to the verifier.
				api.do(func() {
					for range random.IntN(5) {
						next++
						namespace := namespaces[random.IntN(2)]
						m.change(random, seen[namespace], namespace, next)
					}
				})
				if random.IntN(4) == 0 {
					what += ", all is well"
					api.do(func() {
						api.away, api.absent, api.starting = false, false, false
						clear(api.forbidden)
					})
					seen["a"], seen["b"] = true, true
				}
				if seen["a"] && seen["b"] {
					c.until(fmt.Sprintf("step %d, after %s", step, what), func() string { return m.equal(c) })
					m.recordStates(c)
				}
				if random.IntN(30) == 0 && seen["a"] && seen["b"] {
					snapshots++
					m.restore(c)
				}
			}
			if got := int(c.epoch.Load()); got != snapshots {
				t.Errorf("%d restores were noticed, want %d", got, snapshots)
			}
		})
	}
}

// trouble simulates a random failure of the API.
func trouble(random *rand.Rand, api *fakeAPI, seen map[string]bool) (what string) {
	api.do(func() {
		switch random.IntN(8) {
		case 0:
			what, api.away = "an outage", true
			api.starting = random.IntN(2) == 0
			api.streams++
			seen["a"], seen["b"] = false, false
		case 1:
			what = "a namespace is forbidden"
			api.forbidden["a"] = true
			api.streams++
			seen["a"] = false
			seen["b"] = false // its stream ended, too
		case 2:
			what = "streams end"
			api.streams++
		case 3:
			what, api.compacted = "streams end, and what they missed is compacted", api.revision+1
			api.streams++
			api.revision++
			seen["a"], seen["b"] = false, false
		case 4:
			if api.away || len(api.forbidden) > 0 || random.IntN(4) > 0 {
				break
			}
			what, api.absent = "the kind vanishes", true
			api.objects, api.events, api.compacted = map[string]map[string]any{}, nil, api.revision+1
			api.revision++
			api.streams++
			seen["a"], seen["b"] = false, false
		}
	})
	return what
}

// change creates, replaces or deletes a Machine. seen means that the verifier receives every state.
func (m *model) change(random *rand.Rand, seen bool, namespace string, value int) {
	name := fmt.Sprint("m", random.IntN(9))
	key := namespace + "/" + name
	state := none
	switch {
	case m.api.absent:
		return
	case random.IntN(4) == 0:
		if m.api.objects[key] != nil {
			m.api.remove(key)
		}
	case random.IntN(3) == 0:
		m.api.put(namespace, name, value, true)
		if m.good[key] == nil {
			m.good[key] = []int{none}
		}
		return
	default:
		m.api.put(namespace, name, value, false)
		state = value
	}
	if seen {
		m.good[key] = nil
	} else if m.good[key] == nil {
		m.good[key] = []int{none}
	}
	m.good[key] = append(m.good[key], state)
}

// recordStates records which of several states a current consumer has.
func (m *model) recordStates(c *consumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(m.good)
	for key, value := range c.values {
		m.good[key] = []int{value}
	}
	for key := range c.unusable {
		if m.good[key] == nil {
			m.good[key] = []int{none}
		}
	}
}

// restore sets a state from before some changes that the consumer received.
func (m *model) restore(c *consumer) {
	before := c.epoch.Load()
	var snapshot map[string]map[string]any
	var at int
	m.api.do(func() {
		snapshot, at = maps.Clone(m.api.objects), m.api.revision
		for i := range 3 {
			m.api.put("a", fmt.Sprint("later", i), 1_000_000+i, false)
		}
		if before%2 == 0 { // no object is older after the restore
			return
		}
		for key, o := range snapshot {
			if namespace, name, _ := strings.Cut(key, "/"); o["spec"].(map[string]any)["broken"] != true {
				m.api.put(namespace, name, 2_000_000, false)
			}
		}
	})
	c.until("before the restore", func() string { return m.equal(c) })
	if before%2 == 0 {
		at += bump
	}
	m.api.do(func() { m.api.restore(at, snapshot) })
	c.until("the restore is noticed", func() string {
		if c.epoch.Load() == before {
			return "not yet"
		}
		return ""
	})
	c.until("after the restore", func() string { return m.equal(c) })
	m.recordStates(c)
}

// A list whose revision is compacted between two of its pages is read again, without pages.
func TestInventory_ListThatExpiresBetweenPagesIsWhole(t *testing.T) {
	api := newFakeAPI(t)
	c, want := newConsumer(t, api, "a"), map[string]int{}
	api.do(func() {
		for value := range 8 {
			api.put("a", fmt.Sprint("m", value), value, false)
			want[fmt.Sprint("a/m", value)] = value
		}
		api.onPage = func() { api.put("a", "m9", 9, false) }
	})
	want["a/m9"] = 9
	c.start()
	c.until("all of the list is known", func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !maps.Equal(c.values, want) {
			return fmt.Sprint(c.values)
		}
		return ""
	})
}

// A forbidden namespace does not stop the others, and recovers.
func TestInventory_StalenessIsPerNamespace(t *testing.T) {
	api := newFakeAPI(t)
	c := newConsumer(t, api, "a", "b")
	api.do(func() {
		api.forbidden["a"] = true
		api.put("a", "one", 1, false)
		api.put("b", "two", 2, false)
	})
	c.start()
	c.until("only a is stale", func() string {
		in, all := c.Outdated(time.Now())
		synced, missing := c.Synced()
		if all != nil || in["a"] == nil || len(in) != 1 || !synced || c.Complete() ||
			!strings.Contains(in["a"].Error(), "needs get, list and watch") {
			return fmt.Sprint(in, all, missing)
		}
		return ""
	})
	api.do(func() { clear(api.forbidden) })
	c.until("a is current", func() string {
		in, all := c.Outdated(time.Now())
		if all != nil || len(in) > 0 || !c.Complete() {
			return fmt.Sprint(in, all)
		}
		return ""
	})
	if !maps.Equal(c.values, map[string]int{"a/one": 1, "b/two": 2}) {
		t.Error(c.values)
	}
	if in, all := c.Outdated(time.Now().Add(sources.MaxSilent + time.Second)); len(in) > 0 || all == nil {
		t.Error("a silent API does not count:", in, all)
	}
}

func TestUnavailable(t *testing.T) {
	resource := schema.GroupResource{Resource: "machines"}
	_, err := http.Get("http://127.0.0.1:1") //nolint:noctx // it fails immediately
	for _, err := range []error{err, apierrors.NewTooManyRequestsError("x"), apierrors.NewServiceUnavailable("x"),
		apierrors.NewTimeoutError("x", 1)} {
		if !sources.Unavailable(err) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range []error{apierrors.NewForbidden(resource, "", nil), apierrors.NewNotFound(resource, ""),
		apierrors.NewResourceExpired("x"), context.Canceled} {
		if sources.Unavailable(err) {
			t.Errorf("%v", err)
		}
	}
}
