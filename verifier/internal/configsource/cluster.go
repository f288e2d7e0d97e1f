package configsource

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// The names of the two objects of which a cluster has one.
const (
	controllerName = "machine-config-controller"
	streamsName    = "cluster"
)

var (
	configsGVR     = schema.GroupVersionResource{Group: render.Group, Version: "v1", Resource: "machineconfigs"}
	poolsGVR       = schema.GroupVersionResource{Group: render.Group, Version: "v1", Resource: "machineconfigpools"}
	controllersGVR = schema.GroupVersionResource{Group: render.Group, Version: "v1", Resource: "controllerconfigs"}
	// Clusters have one of these versions, both or none.
	streamsGVR      = schema.GroupVersionResource{Group: render.Group, Version: "v1", Resource: "osimagestreams"}
	alphaStreamsGVR = schema.GroupVersionResource{Group: render.Group, Version: "v1alpha1", Resource: "osimagestreams"}
	configMapsGVR   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// callTimeout bounds one call of the API.
const callTimeout = 10 * time.Second

// api is a cluster's API. Of MachineConfigs only the metadata is watched: a cluster
// keeps many rendered ones, of up to a megabyte each.
type api struct {
	s      *Source
	client dynamic.Interface
	watches
	poke chan struct{}

	// Of run alone: what was read of each object, by kind and name.
	read map[string]*object
	// rendered are the rendered MachineConfigs that pools name, by the pool's name.
	rendered map[string]*named
	// toldNoStreams: the log has that no OSImageStream is served.
	toldNoStreams bool
	// The last good content of kubeconfigs.
	ca        []byte
	apiServer string
}

type watches struct{ pools, configs, controllers, streams, alphaStreams, configMap *watched }

func (w watches) all() []*watched {
	all := []*watched{w.pools, w.configs, w.controllers, w.streams, w.alphaStreams}
	if w.configMap != nil {
		all = append(all, w.configMap)
	}
	return all
}

// osImageStreams returns the newest version of the kind that the cluster serves; nil if it
// serves none.
func (w watches) osImageStreams() *watched {
	for _, s := range []*watched{w.streams, w.alphaStreams} {
		s.mu.Lock()
		absent := s.absent
		s.mu.Unlock()
		if !absent {
			return s
		}
	}
	return nil
}

// watched is one resource.
type watched struct {
	what     string
	informer cache.SharedIndexInformer

	mu     sync.Mutex
	absent bool // the cluster does not have the kind
	err    error
	// since is when the errors began that err is the last of, at when that was.
	since, at time.Time
}

// A watch that fails is begun anew at least every half minute, so an error that was
// not followed by another for some time is over. One is told once it has lasted.
const (
	errorOver  = 90 * time.Second
	errorLasts = time.Minute
)

// object is the last good content of an object, and what is wrong with it now.
type object struct {
	version string
	good    bool
	in      render.Input
	faults  []fault
}

// named is a rendered MachineConfig.
type named struct {
	name, version string
	render        *render.Rendered
}

// NewCluster reads a cluster's API once Run runs.
func NewCluster(config *rest.Config, o Options) (*Source, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	slim, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	namespace, name, ok := strings.Cut(o.KubeconfigConfigMap, "/")
	if !ok && o.OwnCredential {
		return nil, fmt.Errorf("the ConfigMap of the kubeconfig is %q, not namespace/name", o.KubeconfigConfigMap)
	}
	s := &Source{o: o.complete()}
	a := &api{s: s, client: client, poke: make(chan struct{}, 1), read: map[string]*object{}, rendered: map[string]*named{}}
	s.run = a
	one := func(name string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + name }
	}
	whole := func(gvr schema.GroupVersionResource, namespace string, tweak func(*metav1.ListOptions)) cache.SharedIndexInformer {
		return dynamicinformer.NewFilteredDynamicInformer(client, gvr, namespace, 0, cache.Indexers{}, tweak).Informer()
	}
	a.pools = &watched{what: "machineconfigpools", informer: whole(poolsGVR, "", nil)}
	a.configs = &watched{what: "machineconfigs", informer: metadatainformer.NewFilteredMetadataInformer(slim, configsGVR, "", 0, cache.Indexers{}, nil).Informer()}
	a.controllers = &watched{what: "controllerconfig " + controllerName, informer: whole(controllersGVR, "", one(controllerName))}
	a.streams = &watched{what: "osimagestream " + streamsName, informer: whole(streamsGVR, "", one(streamsName))}
	a.alphaStreams = &watched{what: "osimagestream.v1alpha1 " + streamsName, informer: whole(alphaStreamsGVR, "", one(streamsName))}
	if o.OwnCredential {
		a.configMap = &watched{what: "configmap " + o.KubeconfigConfigMap, informer: whole(configMapsGVR, namespace, one(name))}
	}
	for _, w := range a.all() {
		if err := a.prepare(w); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.what, err)
		}
	}
	return s, nil
}

func (a *api) prepare(w *watched) error {
	err := w.informer.SetTransform(func(obj any) (any, error) {
		if m, err := meta.Accessor(obj); err == nil {
			m.SetManagedFields(nil)
		}
		return obj, nil
	})
	if err != nil {
		return err
	}
	err = w.informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		now := a.s.o.Now()
		w.mu.Lock()
		if w.err == nil || now.Sub(w.at) > errorOver {
			w.since = now
		}
		w.absent, w.err, w.at = kerrors.IsNotFound(err) || meta.IsNoMatchError(err), err, now
		w.mu.Unlock()
		a.s.o.Log.Debug("watch ended; it begins anew", "what", w.what, "error", err)
		a.wake()
	})
	if err != nil {
		return err
	}
	news := func() {
		w.mu.Lock()
		w.absent, w.err = false, nil
		w.mu.Unlock()
		a.wake()
	}
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { news() }, UpdateFunc: func(any, any) { news() }, DeleteFunc: func(any) { news() },
	})
	return err
}

func (a *api) wake() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// state reports whether all that there is was listed, and what could not be.
func (w *watched) state(now time.Time) (settled bool, faults []fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	settled = w.absent || w.informer.HasSynced()
	switch {
	case w.err == nil || w.absent:
	case now.Sub(w.at) > errorOver:
		w.err = nil
	case !settled || now.Sub(w.since) > errorLasts:
		faults = []fault{{key: w.what, reason: reasonNotRead, text: fmt.Sprintf("%s cannot be watched: %v; what was read before stays in force", w.what, w.err)}}
	}
	return settled, faults
}

// failing reports whether the last that was heard of one of them is an error.
func (a *api) failing() bool {
	return slices.ContainsFunc(a.all(), func(w *watched) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.err != nil && !w.absent
	})
}

func (a *api) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, w := range a.all() {
		wg.Go(func() { w.informer.Run(ctx.Done()) })
		// An empty list brings no event, and shows that the cluster serves the kind.
		wg.Go(func() {
			if cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced) {
				w.mu.Lock()
				w.absent, w.err = false, nil
				w.mu.Unlock()
				a.wake()
			}
		})
	}
	tick := time.NewTicker(errorLasts / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !a.failing() {
				continue
			}
		case <-a.poke:
		}
		// A rollout changes a pool and its MachineConfigs one after the other.
		pause(ctx, 100*time.Millisecond)
		if err := a.refresh(ctx); err != nil && ctx.Err() == nil {
			a.s.o.Log.Warn("reading MachineConfigs failed; it is tried again", "error", err)
			pause(ctx, a.s.o.Retry)
			a.wake()
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
