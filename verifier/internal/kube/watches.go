// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// A failing watch is retried within a minute. So an error is over when no other one followed for longer than that,
// and it is a problem when it persists. A kind that was cached counts as unserved only after the API server
// answered "not found" for as long: a single such answer may come from a replica that is starting.
const (
	errorOver  = 90 * time.Second
	errorLasts = time.Minute
)

// unanswered is the pause before the next attempt, if the API server did not answer the request for a kind.
const unanswered = 2 * time.Second

// Watches are the kinds that one controller reads and that a cluster may lack. As a source of the controller, it
// starts to watch each kind when the cluster serves it. It also keeps the state of each watch: not served, not yet
// listed, or failing.
type Watches struct {
	Log     *slog.Logger         // required
	Now     func() time.Time     // required
	Handler handler.EventHandler // receives the events of all kinds
	Kinds   []*Kind
	// Interval is the pause between two requests for a kind that the API server did not serve. Default 30 s.
	Interval time.Duration

	manager manager.Manager
}

// Kind is one kind of object. Each Kind has its own cache, because the manager's cache requires that the API server
// serves all of its kinds.
type Kind struct {
	// Name is for messages, such as "machineconfigpools".
	Name string
	// Object is typed, unstructured, or only the metadata.
	Object client.Object
	// Only restricts the watch to the object with this name and namespace.
	Only client.ObjectKey

	// Reader reads the cache. Use it only when the kind is served and synced.
	client.Reader

	cache    cache.Cache
	mu       sync.Mutex
	informer cache.Informer // nil until the cluster serves the kind
	unserved bool
	err      error
	// since is when the current series of errors began. absent is when the current series of "not found" began. at
	// is the time of err.
	since, absent, at time.Time
}

// SetManager creates the caches of the kinds. It makes no call.
func (w *Watches) SetManager(m manager.Manager) error {
	w.manager = m
	for _, k := range w.Kinds {
		o := cache.Options{
			HTTPClient: m.GetHTTPClient(), Scheme: m.GetScheme(), Mapper: m.GetRESTMapper(),
			DefaultTransform:            cache.TransformStripManagedFields(),
			ReaderFailOnMissingInformer: true,
			DefaultWatchErrorHandler:    func(_ context.Context, _ *toolscache.Reflector, err error) { w.failed(k, err) },
		}
		if k.Only.Name != "" {
			o.DefaultFieldSelector = fields.OneTermEqualSelector("metadata.name", k.Only.Name)
		}
		if k.Only.Namespace != "" {
			o.DefaultNamespaces = map[string]cache.Config{k.Only.Namespace: {}}
		}
		c, err := cache.New(m.GetConfig(), o)
		if err != nil {
			return fmt.Errorf("cache of %s: %w", k.Name, err)
		}
		k.cache, k.Reader = c, c
	}
	return nil
}

// requests is the queue of a controller.
type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// String implements fmt.Stringer, for the log of the controller.
func (w *Watches) String() string { return fmt.Sprintf("%d optional kinds", len(w.Kinds)) }

// Start implements source.Source. The controller does not wait for the kinds, because a cluster may never serve
// them.
func (w *Watches) Start(ctx context.Context, queue requests) error {
	for _, k := range w.Kinds {
		go func() {
			for !w.watch(ctx, k, queue) {
				pause := unanswered
				if k.Unserved(w.Now()) {
					pause = cmp.Or(w.Interval, 30*time.Second)
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
			}
		}()
	}
	go w.wake(ctx, queue)
	return nil
}

// wake makes the controller reconcile again while a watch fails, because the meaning of a failure changes with its
// duration.
func (w *Watches) wake(ctx context.Context, queue requests) {
	tick := time.NewTicker(errorLasts / 2)
	defer tick.Stop()
	for failed := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		fails := w.failing()
		if fails || failed {
			w.Handler.Generic(ctx, event.GenericEvent{}, queue)
		}
		failed = fails
	}
}

// watch starts to watch a kind if the cluster serves it, and reports whether it did.
func (w *Watches) watch(ctx context.Context, k *Kind, queue requests) bool {
	informer, err := k.cache.GetInformer(ctx, k.Object, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { k.works() }, UpdateFunc: func(any, any) { k.works() }, DeleteFunc: func(any) { k.works() },
		})
	}
	if err == nil {
		err = source.Kind(k.cache, k.Object, w.Handler).Start(ctx, queue)
	}
	if err == nil {
		k.works() // before the cache can report an error
		err = w.manager.Add(k.cache)
	}
	if err != nil {
		w.failed(k, err)
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.informer = informer
	return true
}

// works ends a series of errors.
func (k *Kind) works() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unserved, k.err = false, nil
}

// failed records an error of a kind.
func (w *Watches) failed(k *Kind, err error) {
	now := w.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := k.err == nil || now.Sub(k.at) > errorOver
	if fresh {
		k.since = now
	}
	if fresh || !notServed(k.err) {
		k.absent = now
	}
	was := k.unserved
	k.unserved = notServed(err) && (k.informer == nil || !k.informer.HasSynced() || now.Sub(k.absent) > errorLasts)
	k.err, k.at = err, now
	if k.unserved && !was && k.informer != nil {
		w.Log.Warn("the cluster no longer serves a kind", "kind", k.Name, "error", err)
	}
	w.Log.Debug("a watch ended or did not start; it will be retried", "kind", k.Name, "error", err)
}

// notServed reports whether an error means that the API server has no such kind.
func notServed(err error) bool { return kerrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// Unserved reports whether the cluster does not serve the kind. Until that is certain, the cache keeps what was
// read before.
func (k *Kind) Unserved(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.unserved && (k.informer == nil || now.Sub(k.at) <= errorOver)
}

// Synced reports whether the kind is in the cache, or is not served.
func (k *Kind) Synced(now time.Time) bool {
	if k.Unserved(now) {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.informer != nil && k.informer.HasSynced()
}

// Synced reports whether each kind is in the cache, or is not served.
func (w *Watches) Synced() bool {
	for _, k := range w.Kinds {
		if !k.Synced(w.Now()) {
			return false
		}
	}
	return true
}

// failing reports whether the last event of any watch was an error.
func (w *Watches) failing() bool {
	now := w.Now()
	for _, k := range w.Kinds {
		k.mu.Lock()
		fails := k.informer != nil && k.err != nil && now.Sub(k.at) <= errorOver
		k.mu.Unlock()
		if fails {
			return true
		}
	}
	return false
}

// Problems returns the watches that do not start, or have failed for a minute or longer.
func (w *Watches) Problems() []error {
	now := w.Now()
	var all []error
	for _, k := range w.Kinds {
		synced := k.Synced(now)
		k.mu.Lock()
		if k.err != nil && !k.unserved && now.Sub(k.at) <= errorOver && (!synced || now.Sub(k.since) > errorLasts) {
			all = append(all, fmt.Errorf("watch %s: %w", k.Name, k.err))
		}
		k.mu.Unlock()
	}
	return all
}
