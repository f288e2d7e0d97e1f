package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// key names an object of a kind.
type key struct{ namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// item is what is kept of an object while it is on its way from the API into
// memory: a list of 100 000 whole Machines would be some hundred megabytes.
type item struct {
	key
	about   Object
	at      int64  // metadata.generation
	version uint64 // metadata.resourceVersion; 0 if it is no number
	// value is what the kind's compact made of the object; nil if problems say
	// why it cannot be used.
	value    any
	problems []manifest.Problem
	// rest is what can be used of an object that cannot be as a whole.
	rest any
	// Of a policy's status.
	conditions []metav1.Condition
	observed   int64
}

// GetObjectKind, DeepCopyObject and GetObjectMeta let client-go pass it on.
func (i *item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (i *item) DeepCopyObject() runtime.Object   { c := *i; return &c }
func (i *item) GetObjectMeta() metav1.Object {
	m := &metav1.ObjectMeta{Namespace: i.namespace, Name: i.name}
	if i.version != 0 {
		m.ResourceVersion = strconv.FormatUint(i.version, 10)
	}
	return m
}

// kind is a resource of the API.
type kind struct {
	group, resource string
	versions        []string // any of them will do, the preferred first
}

func (k kind) String() string {
	if k.group == "" {
		return k.resource
	}
	return k.resource + "." + k.group
}

// watched is one kind in one place, kept current by a list and a watch.
type watched struct {
	kind
	namespace string // empty: all of them, or none
	name      string // the one object; empty: all
	selector  string // of labels
	// optional: a cluster that has no such kind is an ordinary one.
	optional bool
	// advisory: the verifier can serve without.
	advisory bool
	// whole: a list of it is taken in as a whole; no world is made of a part.
	whole bool

	compact func(u *unstructured.Unstructured) (any, []manifest.Problem)
	// put takes each state that can be used, drop what is gone. They are called
	// one at a time.
	// It may find problems that keep a part of the object from being used.
	put  func(i *item) []manifest.Problem
	drop func(k key)
	// advance, if set, takes the rest of an object, and reports whether a state of
	// this very object is known.
	advance func(i *item) bool
	// settled is called after a whole list was put.
	settled func()
	// vanished is called when the cluster does not have the kind.
	vanished func()

	c *Cluster

	known   map[key]seen // of one goroutine
	round   uint32
	highest uint64 // the highest resourceVersion of a list or an event
	epoch   uint32 // the restore after which that counts
	current uint32 // the restore after which the present watch began

	mu      sync.Mutex
	synced  bool
	missing bool // the cluster does not have the kind
	gone    bool // the namespace is gone, and with it what let the verifier read there
	err     error
	since   time.Time // of err
	heard   time.Time // when it was last in step
	logged  string

	lively atomic.Int64 // when anything came in, Unix time in nanoseconds
}

// How long a watch may be of no use before nothing is granted on what it holds:
// with an error, and without a word. The API server sends a bookmark every minute,
// so a silent watch is one that has died; it is begun anew before it counts.
const (
	mostError   = 5 * time.Minute
	mostQuiet   = 5 * time.Minute
	mostSilence = mostQuiet + mostError
)

// seen is what is remembered of an object.
type seen struct {
	version uint64
	round   uint32
	good    bool // there was a state that could be used
	bad     bool // the present one cannot be
}

// String names it for a person.
func (w *watched) String() string {
	s := w.kind.String()
	if w.name != "" {
		s += " " + w.name
	}
	if w.namespace != "" {
		s += " in " + w.namespace
	}
	return s
}

// run keeps it current until ctx ends.
func (w *watched) run(ctx context.Context) {
	w.current = w.c.epoch.Load()
	wait := backoff{least: 200 * time.Millisecond, most: 10 * time.Second}
	for ctx.Err() == nil {
		gvr, ok, err := w.c.discover(ctx, w.kind)
		switch {
		case err != nil:
			w.failed(err)
			wait.sleep(ctx)
		case !ok:
			w.absent()
			sleep(ctx, jitter(w.c.o.Discovery))
		default:
			w.follow(ctx, gvr, &wait)
		}
	}
}

// follow lists and watches until the kind is gone or ctx ends.
func (w *watched) follow(ctx context.Context, gvr schema.GroupVersionResource, wait *backoff) {
	source := edge{watched: w, client: w.c.dynamic.Resource(gvr)}
	if w.namespace != "" {
		source.client = w.c.dynamic.Resource(gvr).Namespace(w.namespace)
	}
	reflector := cache.NewReflectorWithOptions(source, nil, (*sink)(w), cache.ReflectorOptions{
		Name: w.String(), TypeDescription: w.kind.String(),
	})
	for ctx.Err() == nil {
		began := time.Now()
		err := w.attend(ctx, mostQuiet, reflector.ListAndWatchWithContext)
		if time.Since(began) > time.Minute {
			wait.reset()
		}
		if err != nil && ctx.Err() == nil {
			if refused(err) && w.namespaceGone(ctx) {
				w.deserted()
				sleep(ctx, jitter(w.c.o.Discovery))
				continue
			}
			w.failed(err)
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				w.c.forgetDiscovery(w.group)
				wait.sleep(ctx)
				return
			}
		}
		wait.sleep(ctx)
	}
}

// attend watches until an error, until ctx ends, or until nothing came for as long
// as quiet.
func (w *watched) attend(ctx context.Context, quiet time.Duration, watch func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	w.alive()
	looking.Go(func() {
		for ctx.Err() == nil {
			sleep(ctx, quiet/8)
			if ctx.Err() == nil && time.Since(time.Unix(0, w.lively.Load())) > quiet {
				w.c.log.Warn("nothing was heard of it for some time; watching it anew", "what", w.String())
				cancel()
			}
		}
	})
	return watch(ctx)
}

// alive notes that the API says something.
func (w *watched) alive() { w.lively.Store(time.Now().UnixNano()) }

// edge is where objects come in: each becomes an item at once, whether it comes
// by a page of a list or by a watch. A reflector may still read a page after it was
// stopped, so each has an edge of its own.
type edge struct {
	*watched
	client dynamic.ResourceInterface
}

func (e edge) options(o *metav1.ListOptions) {
	o.LabelSelector = e.selector
	if e.name != "" {
		o.FieldSelector = "metadata.name=" + e.name
	}
}

// List and Watch are for an interface of client-go that is not used.
func (e edge) List(o metav1.ListOptions) (runtime.Object, error) {
	return e.ListWithContext(context.Background(), o)
}

// Watch is like List.
func (e edge) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return e.WatchWithContext(context.Background(), o)
}

// ListWithContext reads one page.
func (e edge) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	e.options(&o)
	if o.ResourceVersion == "0" {
		// A list from some API server's cache may be older than what was seen;
		// a consistent one never is, except after a restore.
		o.ResourceVersion = ""
	}
	page, err := e.client.List(ctx, o)
	if err != nil {
		return nil, hide(err)
	}
	e.alive()
	items := &list{ListMeta: metav1.ListMeta{
		ResourceVersion: page.GetResourceVersion(), Continue: page.GetContinue(), RemainingItemCount: page.GetRemainingItemCount(),
	}}
	for i := range page.Items {
		items.Items = append(items.Items, *e.item(&page.Items[i]))
		page.Items[i] = unstructured.Unstructured{}
	}
	return items, nil
}

// list is a page of items.
type list struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []item
}

// DeepCopyObject makes it an object of client-go's.
func (l *list) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]item(nil), l.Items...)
	return &c
}

// WatchWithContext opens a stream. One that resumes where another broke off waits
// here while the API is away, so that nothing needs to be listed again.
func (e edge) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	e.options(&o)
	wait := backoff{least: 200 * time.Millisecond, most: 3 * time.Second}
	for {
		stream, err := e.open(ctx, o)
		if err == nil {
			if o.ResourceVersion != "" && o.SendInitialEvents == nil {
				e.resumed()
			}
			return watch.Filter(stream, func(ev watch.Event) (watch.Event, bool) {
				e.alive()
				if u, ok := ev.Object.(*unstructured.Unstructured); ok && ev.Type != watch.Bookmark && ev.Type != watch.Error {
					if ev.Type == watch.Deleted {
						ev.Object = e.bare(u)
					} else {
						ev.Object = e.item(u)
					}
				}
				return ev, true
			}), nil
		}
		if o.SendInitialEvents != nil || !passing(err) || ctx.Err() != nil {
			return nil, hide(err)
		}
		e.failed(err)
		wait.sleep(ctx)
	}
}

func (e edge) open(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.ResourceVersion != "" {
		// Where etcd was restored a resumed watch would say nothing until the
		// revisions have caught up.
		if err := e.c.probe(ctx); err != nil {
			return nil, err
		}
	}
	return e.client.Watch(ctx, o)
}

func (e edge) bare(u *unstructured.Unstructured) *item {
	return &item{
		key:     key{e.c.intern(u.GetNamespace()), u.GetName()},
		about:   Object{APIVersion: e.c.intern(u.GetAPIVersion()), Kind: e.c.intern(u.GetKind()), Namespace: e.c.intern(u.GetNamespace()), Name: u.GetName(), UID: string(u.GetUID())},
		at:      u.GetGeneration(),
		version: number(u.GetResourceVersion()),
	}
}

func (e edge) item(u *unstructured.Unstructured) *item {
	i := e.bare(u)
	unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	if e.resource == policyKind.resource {
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		i.conditions = conditionsOf(status)
		i.observed, _ = status["observedGeneration"].(int64)
	}
	if i.value, i.problems = e.compact(u); manifest.Failed(i.problems) {
		i.value, i.rest = nil, i.value
	}
	return i
}

// sink is where the reflector puts what it has read.
type sink watched

// Add takes a new object.
func (s *sink) Add(obj any) error { return s.Update(obj) }

// Update takes an object's next state.
func (s *sink) Update(obj any) error {
	i, ok := obj.(*item)
	if !ok {
		return fmt.Errorf("%T is no item", obj)
	}
	s.take(i)
	return nil
}

func (s *sink) take(i *item) {
	before := s.known[i.key]
	problems := i.problems
	if i.value != nil {
		problems = s.put(i)
	} else if i.rest != nil && s.advance != nil {
		before.good = s.advance(i)
	}
	now := seen{version: i.version, round: s.round, good: before.good || !manifest.Failed(problems), bad: manifest.Failed(problems)}
	s.known[i.key] = now
	switch {
	case now.bad:
		s.c.unusable(s.kind, i, problems, before.good)
	case before.bad:
		s.c.mended(s.kind, i.key)
	}
}

// Delete forgets an object.
func (s *sink) Delete(obj any) error {
	i, ok := obj.(*item)
	if !ok {
		return fmt.Errorf("%T is no item", obj)
	}
	s.forget(i.key)
	return nil
}

func (s *sink) forget(k key) {
	bad := s.known[k].bad
	delete(s.known, k)
	s.drop(k)
	if bad {
		s.c.mended(s.kind, k)
	}
}

// Replace takes a whole list: what is not in it is gone.
func (s *sink) Replace(all []any, resourceVersion string) error {
	items := make([]*item, len(all))
	for n, obj := range all {
		i, ok := obj.(*item)
		if !ok {
			return fmt.Errorf("%T is no item", obj)
		}
		items[n], all[n] = i, nil
	}
	if s.epoch == s.c.epoch.Load() && s.older(items, number(resourceVersion)) {
		s.c.restored(s.epoch, fmt.Sprintf("%s is at revision %s, %d was seen before", (*watched)(s), resourceVersion, s.highest))
	}
	if now := s.c.epoch.Load(); s.epoch != now {
		s.epoch, s.highest = now, 0
	}
	s.round++
	(*watched)(s).atOnce(func() {
		for n, i := range items {
			s.take(i)
			items[n] = nil // so that there are never two copies of all Machines
		}
		for k, seen := range s.known {
			if seen.round != s.round {
				s.forget(k)
			}
		}
		s.settled()
	})
	s.UpdateResourceVersion(resourceVersion)
	return nil
}

// atOnce does what no world may be made in the middle of.
func (w *watched) atOnce(f func()) {
	if w.whole {
		w.c.batch.RLock()
		defer w.c.batch.RUnlock()
	}
	f()
}

// older reports whether a list shows an earlier time than was seen before: its
// resourceVersion is lower, or some object's is. The second also finds a restore
// that raised all revisions, as etcd's --bump-revision does.
func (s *sink) older(items []*item, version uint64) bool {
	if version != 0 && version < s.highest {
		return true
	}
	for _, i := range items {
		if before, ok := s.known[i.key]; ok && i.version != 0 && i.version < before.version {
			return true
		}
	}
	return false
}

// Resync has no meaning here.
func (s *sink) Resync() error { return nil }

// UpdateResourceVersion remembers how far the API has come.
func (s *sink) UpdateResourceVersion(resourceVersion string) {
	if v := number(resourceVersion); v > s.highest {
		s.highest = v
		if s.group != "" && s.current == s.c.epoch.Load() {
			s.c.saw(s.current, v)
		}
	}
	(*watched)(s).inStep()
}

// number is a resourceVersion as etcd's revision; 0 if it is none.
func number(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// stale notes that nothing of it counts until it was read anew.
func (w *watched) stale() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced, w.gone = false, false
}

// inStep notes that it is in step with the API.
func (w *watched) inStep() {
	if w.current != w.c.epoch.Load() {
		return // this watch is about to end
	}
	w.mu.Lock()
	was := w.err
	first := !w.synced || w.missing || w.gone
	w.synced, w.missing, w.gone, w.err, w.logged, w.heard = true, false, false, nil, "", time.Now()
	w.mu.Unlock()
	if was != nil {
		w.c.log.Info("watching again", "what", w.String())
	}
	if first || was != nil {
		w.c.changed()
	}
}

// resumed notes that it goes on where it broke off. That it is in step shows the
// next event, or bookmark.
func (w *watched) resumed() {
	w.mu.Lock()
	was := w.err
	if w.synced && !w.missing && !w.gone && w.current == w.c.epoch.Load() {
		w.err, w.logged = nil, ""
	}
	changed := was != nil && w.err == nil
	w.mu.Unlock()
	if changed {
		w.c.log.Info("watching again", "what", w.String())
		w.c.changed()
	}
}

// absent notes that the cluster does not have the kind.
func (w *watched) absent() {
	w.mu.Lock()
	first := !w.missing
	w.missing, w.err, w.heard = true, nil, time.Now()
	w.mu.Unlock()
	if !first {
		return
	}
	w.forgetAll()
	if w.optional {
		w.c.log.Info("this cluster does not have a kind; looking for it again now and then", "kind", w.kind.String())
	} else {
		w.c.log.Error("this cluster does not have a kind that the verifier needs; apply its CRDs", "kind", w.kind.String())
	}
	w.c.changed()
}

// namespaceGone reports whether the namespace is gone or on its way: its
// RoleBinding goes first, and the answer is "forbidden" ever after. The verifier's
// own is never taken for gone.
func (w *watched) namespaceGone(ctx context.Context) bool {
	if w.namespace == "" || w.namespace == w.c.config.Namespace || w.name != "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ns, err := w.c.dynamic.Resource(namespacesResource).Get(ctx, w.namespace, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && ns.GetDeletionTimestamp() != nil
}

// deserted notes that there is nothing left to watch: other namespaces' Machines
// must not wait for it.
func (w *watched) deserted() {
	w.mu.Lock()
	first := !w.gone
	w.gone, w.err, w.logged, w.heard = true, nil, "", time.Now()
	w.mu.Unlock()
	if !first {
		return
	}
	w.c.log.Warn("a namespace is gone; looking for it again now and then", "what", w.String())
	w.forgetAll()
	w.c.changed()
}

// forgetAll forgets every object.
func (w *watched) forgetAll() {
	w.atOnce(func() {
		for k := range w.known {
			(*sink)(w).forget(k)
		}
		w.settled()
		w.vanished()
	})
}

// failed notes why it is not in step.
func (w *watched) failed(err error) {
	w.mu.Lock()
	changed := w.err == nil || refused(w.err) != refused(err)
	if w.err == nil {
		w.since = time.Now()
	}
	w.err = err
	news := err.Error() != w.logged
	w.logged = err.Error()
	w.mu.Unlock()
	if news {
		w.c.log.Warn("watch", "what", w.String(), "error", err, "hint", w.hint(err))
	}
	if changed {
		w.c.changed()
	}
}

// refused reports whether an error says that the verifier may not read.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// outdated says why nothing may be granted on what it holds; "" if it may be.
func (w *watched) outdated(now time.Time) string {
	s, _ := w.state()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.advisory:
	case s.unsynced || s.forbidden:
		return s.text
	case w.err != nil && now.Sub(w.since) > mostError:
		return fmt.Sprintf("%s; it is so since %s", s.text, w.since.UTC().Format(time.RFC3339))
	case now.Sub(w.heard) > mostSilence:
		return fmt.Sprintf("%s: nothing was heard of it since %s", s.name, w.heard.UTC().Format(time.RFC3339))
	}
	return ""
}

// local reports whether only the Machines of one namespace depend on it.
func (w *watched) local() bool {
	return w.namespace != "" && w.namespace != w.c.config.Namespace && w.name == ""
}

// vacant reports whether its namespace does not exist.
func (w *watched) vacant() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// barred reports whether the verifier may not read what only the Machines of one
// namespace depend on.
func (w *watched) barred() bool {
	s, _ := w.state()
	return s.forbidden && w.local()
}

// hint says what helps.
func (w *watched) hint(err error) string {
	switch {
	case err == nil:
		return ""
	case refused(err):
		what := w.kind.String()
		if w.name != "" {
			what += " (resourceNames: " + w.name + ")"
		}
		where := "in every namespace"
		if w.namespace != "" {
			where = "in namespace " + w.namespace
		}
		return fmt.Sprintf("the verifier's service account needs get, list and watch on %s %s; see deploy/base", what, where)
	}
	return ""
}

// state is what the watch has to say for readyz and the conditions: "" when all
// is well.
type state struct {
	name      string
	unsynced  bool // never in step so far
	forbidden bool
	advisory  bool
	text      string
}

func (w *watched) state() (state, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := state{name: w.String(), advisory: w.advisory, unsynced: !w.synced && !(w.missing && w.optional) && !w.gone}
	switch {
	case w.err != nil:
		s.forbidden = refused(w.err)
		s.text = s.name + ": " + w.err.Error()
		if h := w.hint(w.err); h != "" {
			s.text += "; " + h
		}
	case w.missing && !w.optional && !w.gone:
		s.unsynced = true
		s.text = s.name + ": the cluster has no such kind; apply the CRDs of deploy/base"
	case s.unsynced:
		s.text = s.name + ": not read yet"
	}
	return s, s.text != "" && (s.unsynced || s.forbidden || w.err != nil)
}

// discover finds the version of a kind that the cluster serves.
func (c *Cluster) discover(ctx context.Context, k kind) (schema.GroupVersionResource, bool, error) {
	if k.group == "" {
		return schema.GroupVersionResource{Version: k.versions[0], Resource: k.resource}, true, nil
	}
	c.discoveryMu.Lock()
	defer c.discoveryMu.Unlock()
	for _, v := range k.versions {
		gv := schema.GroupVersion{Group: k.group, Version: v}
		served, ok := c.served[gv]
		if !ok || !served.resources[k.resource] && time.Since(served.at) > c.o.Discovery/2 {
			resources, err := c.discovery.ServerResourcesForGroupVersion(gv.String())
			if err != nil && !apierrors.IsNotFound(err) {
				return schema.GroupVersionResource{}, false, fmt.Errorf("discovery of %s: %w", gv, err)
			}
			served = discovered{at: time.Now(), resources: map[string]bool{}}
			if resources != nil {
				for _, r := range resources.APIResources {
					served.resources[r.Name] = true
				}
			}
			c.served[gv] = served
		}
		if served.resources[k.resource] {
			return gv.WithResource(k.resource), true, nil
		}
		if ctx.Err() != nil {
			return schema.GroupVersionResource{}, false, ctx.Err()
		}
	}
	return schema.GroupVersionResource{}, false, nil
}

// discovered is what one version of a group has.
type discovered struct {
	at        time.Time
	resources map[string]bool
}

// forgetDiscovery looks again: a kind has gone.
func (c *Cluster) forgetDiscovery(group string) {
	c.discoveryMu.Lock()
	defer c.discoveryMu.Unlock()
	for gv := range c.served {
		if gv.Group == group {
			delete(c.served, gv)
		}
	}
}

// passing reports whether an error is one of the API's being away or busy.
func passing(err error) bool {
	var network net.Error
	return errors.As(err, &network) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// hide keeps "connection refused" from client-go, which would wait for up to a
// minute, deaf to the end of the context.
func hide(err error) error {
	var network net.Error
	if errors.As(err, &network) || apierrors.IsTooManyRequests(err) {
		return errors.New(err.Error())
	}
	return err
}

// backoff is how long to wait between tries.
type backoff struct{ least, most, next time.Duration }

func (b *backoff) reset() { b.next = 0 }

func (b *backoff) sleep(ctx context.Context) {
	b.next = min(max(cmp.Or(b.next, b.least), b.least), b.most)
	sleep(ctx, jitter(b.next))
	b.next *= 2
}

// jitter spreads the replicas over time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
