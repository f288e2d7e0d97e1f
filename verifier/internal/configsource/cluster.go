package configsource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
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
	// Not in every cluster.
	streamsGVR    = schema.GroupVersionResource{Group: render.Group, Version: "v1alpha1", Resource: "osimagestreams"}
	configMapsGVR = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
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
}

type watches struct{ pools, configs, controllers, streams, configMap *watched }

func (w watches) all() []*watched {
	all := []*watched{w.pools, w.configs, w.controllers, w.streams}
	if w.configMap != nil {
		all = append(all, w.configMap)
	}
	return all
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
		// An empty list brings no event.
		wg.Go(func() {
			if cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced) {
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

// refresh makes the configs of what is there now. The error is of a call that is
// worth another try; what did not need it is in force.
func (a *api) refresh(ctx context.Context) error {
	var in input
	for _, w := range a.all() {
		settled, faults := w.state(a.s.o.Now())
		if !settled {
			if !a.s.Ready() {
				a.s.tell(faults, nil)
			}
			return nil
		}
		in.faults = append(in.faults, faults...)
	}
	var again []error
	inputs, here := []render.Input{}, map[string]bool{}
	take := func(o *object) {
		in.faults = append(in.faults, o.faults...)
		if o.good {
			inputs = append(inputs, o.in)
		}
	}
	var selectors []labels.Selector
	for _, u := range contents[*unstructured.Unstructured](a.pools) {
		o := a.parse(u, here)
		take(o)
		for _, p := range o.in.Pools {
			if sel, err := metav1.LabelSelectorAsSelector(p.Spec.MachineConfigSelector); err == nil && !sel.Empty() {
				selectors = append(selectors, sel)
			}
		}
	}
	for _, w := range []*watched{a.controllers, a.streams} {
		for _, u := range contents[*unstructured.Unstructured](w) {
			take(a.parse(u, here))
		}
	}
	for _, m := range contents[*metav1.PartialObjectMetadata](a.configs) {
		if !slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(m.Labels)) }) {
			continue
		}
		o, err := a.machineConfig(ctx, m, here)
		if err != nil {
			again = append(again, err)
		}
		take(o)
	}
	for k := range a.read {
		if !here[k] {
			delete(a.read, k)
		}
	}
	joined, problems := render.Join(inputs...)
	if in.faults = append(in.faults, fromProblems(problems, cluster.Object{})...); manifest.Failed(problems) {
		a.s.tell(in.faults, a.s.Pools())
		return nil
	}
	in.Input = joined
	authorities(&in.extras, joined)
	in.faults = append(in.faults, a.bootstrap(&in.extras)...)
	in.chosen = func(p *render.Pool) (*render.Rendered, error) {
		r, err := a.chosen(ctx, p)
		if err != nil && reason.From(err).Code != reason.ConfigUnavailable {
			again = append(again, err)
			err = reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s", p.Name)
		}
		return r, err
	}
	if len(again) > 0 && !a.s.Ready() {
		return errors.Join(again...) // a part of the MachineConfigs makes no config
	}
	a.s.take(in)
	for name := range a.rendered {
		if !slices.ContainsFunc(joined.Pools, func(p *render.Pool) bool { return p.Name == name }) {
			delete(a.rendered, name)
		}
	}
	return errors.Join(again...)
}

// contents are a watched resource's objects, by name.
func contents[T metav1.Object](w *watched) []T {
	var all []T
	for _, o := range w.informer.GetStore().List() {
		if t, ok := o.(T); ok {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// parse reads an object anew if it changed; what cannot be used leaves the last good
// content as it was.
func (a *api) parse(u *unstructured.Unstructured, here map[string]bool) *object {
	k := u.GetKind() + "/" + u.GetName()
	here[k] = true
	o := a.read[k]
	if o == nil {
		o = &object{}
		a.read[k] = o
	}
	if o.version == u.GetResourceVersion() {
		return o
	}
	o.version = u.GetResourceVersion()
	in, problems := render.FromObject(u.Object)
	o.faults = fromProblems(problems, cluster.Object{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Name: u.GetName(), UID: string(u.GetUID())})
	if len(o.faults) == 0 {
		o.in, o.good = in, true
	}
	return o
}

// machineConfig reads one as a pool's selector chose it.
func (a *api) machineConfig(ctx context.Context, m *metav1.PartialObjectMetadata, here map[string]bool) (*object, error) {
	k := render.KindMachineConfig + "/" + m.Name
	if o := a.read[k]; o != nil && o.version == m.ResourceVersion {
		here[k] = true
		return o, nil
	}
	u, err := a.get(ctx, m.Name)
	if kerrors.IsNotFound(err) {
		return &object{}, nil // the watch will say so
	}
	if err != nil {
		here[k] = true
		if o := a.read[k]; o != nil {
			return o, err
		}
		return &object{}, err
	}
	return a.parse(u, here), nil
}

func (a *api) get(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u, err := a.client.Resource(configsGVR).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read MachineConfig %s: %w", name, err)
	}
	return u, nil
}

// chosen is the rendered MachineConfig that the Machine Config Server would serve for
// the pool; nil if the pool names none.
func (a *api) chosen(ctx context.Context, p *render.Pool) (*render.Rendered, error) {
	name := p.Status.Configuration.Name
	// Once a node has it, the newest can be trusted to work.
	if p.Status.UpdatedMachineCount > 0 {
		name = p.Spec.Configuration.Name
	}
	if name == "" {
		return nil, nil
	}
	stored, ok, err := a.configs.informer.GetStore().GetByKey(name)
	m, isMeta := stored.(*metav1.PartialObjectMetadata)
	if err != nil || !ok || !isMeta {
		return nil, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %s names MachineConfig %.253s, which is not there", p.Name, name)
	}
	if r := a.rendered[p.Name]; r != nil && r.name == name && r.version == m.ResourceVersion {
		return r.render, nil
	}
	u, err := a.get(ctx, name)
	if err != nil {
		return nil, err
	}
	u.SetManagedFields(nil)
	r := &render.Rendered{Pool: p.Name, Config: &mcfgv1.MachineConfig{}}
	raw, err := json.Marshal(u.Object)
	if err == nil {
		err = json.Unmarshal(raw, r.Config)
	}
	if err == nil {
		// A config that cannot be served must not take the place of one that can.
		_, err = mcs.Config(r, mcs.Extras{}, specversion.Version{Major: 3, Minor: 5})
	}
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s: MachineConfig %s cannot be used", p.Name, name)
	}
	a.rendered[p.Name] = &named{name, u.GetResourceVersion(), r}
	return r, nil
}

// bootstrap adds what the kubeconfig is made of.
func (a *api) bootstrap(x *mcs.Extras) []fault {
	if a.configMap == nil || x.APIServer == "" {
		return nil
	}
	for _, u := range contents[*unstructured.Unstructured](a.configMap) {
		x.CA = bundle(u.Object)
	}
	if len(x.CA) == 0 {
		return []fault{{reason: reasonNotRead, text: fmt.Sprintf("%s has no CA bundle in its key %s: whole configs have no kubeconfig", a.configMap.what, bundleKey)}}
	}
	x.Token = tokenless()
	return nil
}

// authorities adds what the ControllerConfig says of the cluster.
func authorities(x *mcs.Extras, in render.Input) {
	c := in.Controller
	if c == nil {
		return
	}
	x.KubeletCA, x.CloudCA = c.Spec.KubeAPIServerServingCAData, c.Spec.CloudProviderCAData
	if c.Spec.Infra != nil {
		x.APIServer = c.Spec.Infra.Status.APIServerInternalURL
	}
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
