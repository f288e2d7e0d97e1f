// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errExpired ends a cache whose watch cannot continue where it ended.
var errExpired = errors.New("the watch expired")

// follower follows one source with one cache: a list, and the watch after it. It implements the cache's
// ListerWatcher, which receives objects first, and its event handler.
type follower struct {
	*Source
	number uint32                              // of the watch
	api    toolscache.ListerWatcherWithContext // of the cache
	ended  <-chan struct{}                     // of the cache

	mu      sync.Mutex
	listed  bool // the last page was read
	version uint64
	synced  bool      // the list was applied
	list    []*Object // until synced
	events  []func()  // received before synced
}

// follow follows a source until ctx ends or the source needs another cache. It returns the reason.
func (i *Runner) follow(ctx context.Context, s *Source) error {
	ctx, end := context.WithCancelCause(ctx)
	f := &follower{Source: s, number: s.StartWatch(i.o.Revisions.Epoch()), ended: ctx.Done()}
	if s.target == nil {
		target, err := i.find(s)
		if err != nil {
			end(err)
			return err
		}
		s.target = target
	}
	c, err := i.newCache(f, end)
	if err != nil {
		end(err)
		return err
	}
	informer, err := c.GetInformer(ctx, s.target.object, cache.BlockUntilSynced(false))
	if err != nil {
		end(err)
		return fmt.Errorf("watch %s: %w", s, err)
	}
	handler, err := informer.AddEventHandler(f)
	if err != nil {
		end(err)
		return fmt.Errorf("watch %s: %w", s, err)
	}
	var running sync.WaitGroup
	running.Go(func() { end(c.Start(ctx)) })
	if toolscache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		f.complete()
	}
	running.Wait()
	return context.Cause(ctx)
}

// target is how a source is read: with an empty object of a version that the cluster serves.
type target struct {
	object client.Object
	mapper meta.RESTMapper
}

// find discovers the source's kind, version by version. It does not request the list of groups: a starting API
// server does not list the group of a CRD yet, but returns an error for the group itself.
func (i *Runner) find(s *Source) (*target, error) {
	for _, version := range s.Versions {
		gvk := schema.GroupVersionKind{Group: s.Group, Version: version, Kind: s.Kind.Kind}
		if s.Group != "" { // every cluster has the core group
			all, err := i.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("discovery of %s: %w", s.Kind, err)
			}
			if err != nil || !slices.ContainsFunc(all.APIResources,
				func(r metav1.APIResource) bool { return r.Name == s.Resource }) {
				continue
			}
		}
		mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gvk.GroupVersion()})
		resource, scope := gvk.GroupVersion().WithResource(s.Resource), meta.RESTScopeRoot
		if s.Namespace != "" {
			scope = meta.RESTScopeNamespace
		}
		mapper.AddSpecific(gvk, resource, resource, scope)
		object, _ := s.Object.DeepCopyObject().(client.Object)
		object.GetObjectKind().SetGroupVersionKind(gvk)
		return &target{object, mapper}, nil
	}
	return nil, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: s.Group, Kind: s.Kind.Kind},
		SearchedVersions: s.Versions}
}

func (i *Runner) newCache(f *follower, end context.CancelCauseFunc) (cache.Cache, error) {
	selector, err := labels.Parse(f.Selector)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", f, err)
	}
	o := cache.Options{
		HTTPClient: i.client, Scheme: i.o.Scheme, Mapper: f.target.mapper, DefaultLabelSelector: selector,
		DefaultWatchErrorHandler: func(_ context.Context, _ *toolscache.Reflector, err error) { end(err) },
		NewInformer:              f.informer,
	}
	if f.Name != "" {
		o.DefaultFieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, f.Name)
	}
	if f.Namespace != "" {
		o.DefaultNamespaces = map[string]cache.Config{f.Namespace: {}}
	}
	c, err := cache.New(i.o.Config, o)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", f, err)
	}
	return c, nil
}

// informer replaces the cache's access to the API by the follower.
func (f *follower) informer(
	api toolscache.ListerWatcher, _ runtime.Object, _ time.Duration, by toolscache.Indexers,
) toolscache.SharedIndexInformer {
	f.api = toolscache.ToListerWatcherWithContext(api)
	return informer{toolscache.NewSharedIndexInformer(f, &entry{}, 0, by), f.ended}
}

// informer ends each wait for its first list when its cache ends. For a cache of namespaces, controller-runtime has
// goroutines that wait only for the list. Without this, each cache that ends before its first list leaves two.
type informer struct {
	toolscache.SharedIndexInformer
	ended <-chan struct{} // of the cache
}

// HasSyncedChecker implements [toolscache.SharedIndexInformer].
func (i informer) HasSyncedChecker() toolscache.DoneChecker {
	return until(i.SharedIndexInformer.HasSyncedChecker(), i.ended)
}

// AddEventHandler implements [toolscache.SharedIndexInformer].
func (i informer) AddEventHandler(h toolscache.ResourceEventHandler) (
	toolscache.ResourceEventHandlerRegistration, error,
) {
	r, err := i.SharedIndexInformer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("add an event handler: %w", err)
	}
	return registration{r, until(r.HasSyncedChecker(), i.ended)}, nil
}

// registration is that of an event handler.
type registration struct {
	toolscache.ResourceEventHandlerRegistration
	checker toolscache.DoneChecker
}

// HasSyncedChecker implements [toolscache.ResourceEventHandlerRegistration].
func (r registration) HasSyncedChecker() toolscache.DoneChecker { return r.checker }

// checker is done when the checker that it extends is done, or never will be.
type checker struct {
	toolscache.DoneChecker
	done chan struct{}
}

// until returns a checker that is also done when ended is closed.
func until(c toolscache.DoneChecker, ended <-chan struct{}) toolscache.DoneChecker {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-c.Done():
		case <-ended:
		}
	}()
	return checker{c, done}
}

// Done implements [toolscache.DoneChecker].
func (c checker) Done() <-chan struct{} { return c.done }

// IsWatchListSemanticsUnSupported selects paged lists, whose revision is known before their objects are applied.
func (f *follower) IsWatchListSemanticsUnSupported() bool { return true }

// List and Watch implement an interface of client-go whose methods are not called.
func (f *follower) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch is like List.
func (f *follower) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// ListWithContext reads one page. A second list needs the next cache, so that it is applied as a whole.
func (f *follower) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	f.mu.Lock()
	listed := f.listed
	f.mu.Unlock()
	if listed {
		return nil, errExpired
	}
	// A list from an API server's cache may be older than what was read before. A consistent list is not, except
	// after a restore.
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	list, err := f.api.ListWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	page := &metainternal.List{}
	page.ResourceVersion, page.Continue, page.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(),
		m.GetRemainingItemCount()
	var objects []*Object
	err = meta.EachListItem(list, func(o runtime.Object) error {
		e, err := f.entry(o)
		if err == nil {
			page.Items, objects = append(page.Items, e), append(objects, e.object)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	version := revision(page.ResourceVersion)
	if err := f.Check(f.number, objects, version); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.version, f.listed = version, page.Continue == ""
	f.mu.Unlock()
	return page, nil
}

// WatchWithContext opens a stream. While the API is unavailable it retries, so that no new list is needed.
func (f *follower) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	for pause := backoff(); ; Sleep(ctx, pause.Step()) {
		// After a restore of etcd, a continued watch would receive nothing until the revisions have caught up.
		err := f.runner.o.Revisions.Probe(ctx)
		if refused(err) || apierrors.IsNotFound(err) {
			err = nil // the problem of another source, which reports it
		}
		var stream watch.Interface
		if err == nil {
			stream, err = f.api.WatchWithContext(ctx, o)
		}
		if err == nil {
			f.Resumed()
			return f.reduced(stream), nil
		}
		if !Unavailable(err) || ctx.Err() != nil {
			return nil, err
		}
		f.Fail(err)
	}
}

// reducedWatch is a watch whose events have entries.
type reducedWatch struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	stop    func()
}

// reduced returns a watch with reduced events. Unlike that of [watch.Filter], its goroutine ends if the watch is
// stopped while an event is unread.
func (f *follower) reduced(stream watch.Interface) watch.Interface {
	w := &reducedWatch{Interface: stream, events: make(chan watch.Event), stopped: make(chan struct{})}
	w.stop = sync.OnceFunc(func() { close(w.stopped) })
	go func() {
		defer close(w.events)
		for event := range stream.ResultChan() {
			select {
			case w.events <- f.reduce(event):
			case <-w.stopped:
				return
			}
		}
	}()
	return w
}

// ResultChan implements watch.Interface.
func (w *reducedWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *reducedWatch) Stop() {
	w.stop()
	w.Interface.Stop()
}

// reduce replaces the object of an event by an entry, or the event by an error if it shows a restore of etcd.
func (f *follower) reduce(ev watch.Event) watch.Event {
	if ev.Type == watch.Error {
		return ev
	}
	m, err := meta.Accessor(ev.Object)
	if err != nil {
		return ev // the reflector reports the error
	}
	version := revision(m.GetResourceVersion())
	if err := f.follows(f.Epoch(), version); err != nil {
		return watch.Event{Type: watch.Error, Object: &apierrors.NewResourceExpired(err.Error()).ErrStatus}
	}
	switch ev.Type {
	case watch.Added, watch.Modified:
		if e, err := f.entry(ev.Object); err == nil {
			ev.Object = e
		}
	default:
		name := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
		ev.Object = &entry{NamespacedName: name, version: m.GetResourceVersion()}
	}
	f.mu.Lock()
	synced := f.synced
	f.mu.Unlock()
	if f.progress(f.number, version) && synced {
		f.markCurrent()
	}
	return ev
}

// complete applies the list and the events received since.
func (f *follower) complete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Replace(f.list, f.version)
	for _, event := range f.events {
		event()
	}
	f.synced, f.list, f.events = true, nil, nil
}

// afterList runs the action of an event after the list was applied.
func (f *follower) afterList(event func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		f.events = append(f.events, event)
		return
	}
	event()
}

// OnAdd receives an object of the list, or a new one.
func (f *follower) OnAdd(object any, inList bool) {
	e, ok := object.(*entry)
	switch {
	case !ok:
	case inList:
		f.mu.Lock()
		f.list = append(f.list, e.object)
		e.object = nil
		f.mu.Unlock()
	default:
		f.afterList(func() {
			f.Apply(e.object)
			e.object = nil
		})
	}
}

// OnUpdate receives an object's next state.
func (f *follower) OnUpdate(_, object any) { f.OnAdd(object, false) }

// OnDelete receives an object that was deleted.
func (f *follower) OnDelete(object any) {
	if e, ok := object.(*entry); ok {
		f.afterList(func() { f.Delete(e.NamespacedName) })
	}
}
