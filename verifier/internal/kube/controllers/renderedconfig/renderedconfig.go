// SPDX-License-Identifier: Apache-2.0

// Package renderedconfig is the controller that renders the configs of the cluster's
// MachineConfigPools. It runs in every replica of the front, without leader election, because its
// result is in memory, in a [poolconfig.Store]. It also runs in the controller process, which reports
// its findings.
//
// Reconcile makes the two configs of one pool:
//
//   - the full config. It is the rendered MachineConfig that the Machine Config Server would serve:
//     the pool's spec.configuration after a node has it, and status.configuration until then. If a pool
//     names none, it is rendered here;
//   - the pre-approved part, which is always rendered here.
//
// It watches MachineConfigPools, the ControllerConfig, the OSImageStream (v1 or v1alpha1), and the
// ConfigMap with the CA of kubeconfigs. Of MachineConfigs it watches the metadata, because a cluster
// keeps many rendered ones of up to a megabyte. It reads from the API server the contents of those that
// a pool chooses or names. A cluster may lack any of the kinds.
//
// It writes nothing. Its permissions are those of deploy/components/render:
//
//	machineconfigs                                                 get, list, watch
//	machineconfigpools                                             list, watch
//	controllerconfigs (machine-config-controller)                  list, watch
//	osimagestreams (cluster)                                       list, watch
//	configmaps (kubeconfig-data of the machine-config-operator)    list, watch
//
// If it runs twice, the second result equals the first. If it runs late, the last good config stays in
// force. Package poolconfig has the rules.
package renderedconfig

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// The names of the two objects that exist once in a cluster.
const (
	controllerName = "machine-config-controller"
	streamsName    = "cluster"
)

const (
	// debounce is how long a change waits for others. A rollout changes a pool and its MachineConfigs one
	// after the other.
	debounce = 100 * time.Millisecond
	// unsynced is the pause while a pool waits for the kinds that it needs.
	unsynced = 200 * time.Millisecond
	// callTimeout bounds one call to the API server.
	callTimeout = 10 * time.Second
)

// Options configure a Reconciler.
type Options struct {
	Log   *slog.Logger // required
	Store *poolconfig.Store
	Now   func() time.Time // default time.Now
	// OwnCredential means that each machine receives its own bootstrap credential. Full configs then
	// have a kubeconfig with a placeholder that the gate replaces. Otherwise they have no kubeconfig.
	OwnCredential bool
	// KubeconfigConfigMap, as namespace/name, has the CA of the API server.
	KubeconfigConfigMap string
	// Retry is the maximum pause before a failed call is repeated. Default 5 s.
	Retry time.Duration
}

// OptionsFor returns the options for a configuration that has the section render.
func OptionsFor(c *config.Config, log *slog.Logger, now func() time.Time, store *poolconfig.Store) Options {
	return Options{
		Log: log, Now: now, Store: store,
		OwnCredential: c.Credential != nil && c.Upstream == "", KubeconfigConfigMap: c.Render.KubeconfigConfigMap,
	}
}

// Reconciler renders pools. Findings and Ready are safe for concurrent use.
type Reconciler struct {
	o       Options
	manager manager.Manager
	watches *kube.Watches
	ready   atomic.Bool   // the last result of Ready
	live    client.Reader // of the API server

	pools, configs, controllers, streams, alphaStreams *kube.Kind
	bundle                                             *kube.Kind // nil if no kubeconfig is made

	// The fields below belong to Reconcile, which never runs concurrently.

	// contents has the MachineConfigs that pools choose, by name.
	contents map[string]*content
	// named has the rendered MachineConfigs that pools name, by the pool's name.
	named map[string]*named
	// noStreams means that the absence of OSImageStream was logged.
	noStreams bool
	// The last good input of kubeconfigs.
	ca        []byte
	apiServer string
}

// New returns a Reconciler with a manager of its own. It makes no call.
func New(c *rest.Config, o Options) (*Reconciler, error) {
	namespace, name, ok := strings.Cut(o.KubeconfigConfigMap, "/")
	if !ok && o.OwnCredential {
		return nil, fmt.Errorf("the ConfigMap of the kubeconfig is %q, not namespace/name", o.KubeconfigConfigMap)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	one := func(what, name string, o client.Object) *kube.Kind {
		return &kube.Kind{Name: what + " " + name, Object: o, Only: client.ObjectKey{Name: name}}
	}
	r := &Reconciler{
		o:            o,
		pools:        &kube.Kind{Name: "machineconfigpools", Object: &mcfgv1.MachineConfigPool{}},
		configs:      &kube.Kind{Name: "machineconfigs", Object: slimConfig()},
		controllers:  one("controllerconfig", controllerName, &mcfgv1.ControllerConfig{}),
		streams:      one("osimagestream", streamsName, streamsOf("v1")),
		alphaStreams: one("osimagestream.v1alpha1", streamsName, streamsOf("v1alpha1")),
		contents:     map[string]*content{}, named: map[string]*named{},
	}
	kinds := []*kube.Kind{r.pools, r.configs, r.controllers, r.streams, r.alphaStreams}
	if o.OwnCredential {
		r.bundle = one("configmap", name, &corev1.ConfigMap{})
		r.bundle.Only.Namespace = namespace
		kinds = append(kinds, r.bundle)
	}
	r.watches = &kube.Watches{Log: o.Log, Now: o.Now, Kinds: kinds, Handler: handler.Funcs{
		CreateFunc:  func(ctx context.Context, e event.CreateEvent, q queue) { r.enqueue(ctx, e.Object, q) },
		UpdateFunc:  func(ctx context.Context, e event.UpdateEvent, q queue) { r.enqueue(ctx, e.ObjectNew, q) },
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, q queue) { r.enqueue(ctx, e.Object, q) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q queue) { r.enqueue(ctx, e.Object, q) },
	}}
	var err error
	if r.manager, err = kube.NewManager(c, kube.Options{Log: o.Log}); err != nil {
		return nil, err
	}
	return r, r.SetupWithManager(r.manager)
}

// queue is what the handlers of events write to.
type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// slimConfig is the metadata of a MachineConfig.
func slimConfig() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(mcfgv1.GroupVersion.WithKind(render.KindMachineConfig))
	return m
}

// streamsOf returns an empty OSImageStream of a version. The version that the cluster serves is known
// only at run time.
func streamsOf(version string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: render.Group, Version: version, Kind: render.KindOSImageStream})
	return u
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	r.live = m.GetAPIReader()
	if err := r.watches.SetManager(m); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(m).Named("renderedconfig").WatchesRawSource(r.watches).
		WithOptions(controller.Options{
			NeedLeaderElection: ptr.To(false),
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](
				unsynced, max(unsynced, cmp.Or(r.o.Retry, 5*time.Second))),
		}).Complete(r)
}

// Run runs the controller until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.manager.Start(ctx) }

// enqueue requests all pools: a pool reads objects of each kind, and a custom pool also reads the
// worker pool.
func (r *Reconciler) enqueue(ctx context.Context, changed client.Object, q queue) {
	add := func(name string) {
		q.AddAfter(ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}, debounce)
	}
	if p, ok := changed.(*mcfgv1.MachineConfigPool); ok {
		add(p.Name) // it may have been deleted
	}
	pools, err := r.listPools(ctx)
	if err != nil {
		return // the events of the pools themselves follow
	}
	for _, p := range pools {
		add(p.Name)
	}
}

// listPools returns the pools in the cache, by name. It does not block.
func (r *Reconciler) listPools(ctx context.Context) ([]*render.Pool, error) {
	switch now := r.o.Now(); {
	case r.pools.Unserved(now):
		return nil, nil
	case !r.pools.Synced(now):
		return nil, kerrors.NewServiceUnavailable("MachineConfigPools have not been read yet")
	}
	var list mcfgv1.MachineConfigPoolList
	if err := r.pools.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list MachineConfigPools: %w", err)
	}
	var pools []*render.Pool
	for _, p := range list.Items {
		pools = append(pools, &render.Pool{MachineConfigPool: p})
	}
	slices.SortFunc(pools, func(a, b *render.Pool) int { return strings.Compare(a.Name, b.Name) })
	return pools, nil
}

// Ready reports whether everything was read once. It then stays true, so that a new pool that cannot be
// rendered does not stop the others.
func (r *Reconciler) Ready(ctx context.Context) bool {
	if r.ready.Load() {
		return true
	}
	if !r.watches.Synced() {
		return false
	}
	pools, err := r.listPools(ctx)
	names := r.o.Store.Names()
	missing := func(p *render.Pool) bool { return !slices.Contains(names, p.Name) }
	if err != nil || slices.ContainsFunc(pools, missing) {
		return false
	}
	r.ready.Store(true)
	return true
}

// Findings returns the problems of pools and of watches.
func (r *Reconciler) Findings() []view.Finding {
	all := r.o.Store.Findings()
	for _, err := range r.watches.Problems() {
		all = append(all, view.Finding{
			Reason: poolconfig.ReasonNotRead, Text: err.Error() + "; the last state read stays in force",
		})
	}
	return all
}

// Reconcile renders one pool. It returns an error only if a retry may succeed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if !r.watches.Synced() {
		return ctrl.Result{RequeueAfter: unsynced}, nil
	}
	pools, err := r.listPools(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	configs, err := r.listConfigs(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.prune(configs, pools)
	i := slices.IndexFunc(pools, func(p *render.Pool) bool { return p.Name == request.Name })
	if i < 0 {
		r.o.Store.Retain(func(name string) bool { return name != request.Name })
		return ctrl.Result{}, nil
	}
	in, err := r.read(ctx, configs, pools, pools[i])
	if err == nil {
		r.o.Store.Update(request.Name, in)
		return ctrl.Result{}, nil
	}
	r.o.Store.Keep(request.Name, in.Input, err, poolconfig.Fault{
		Key: "read " + request.Name, Reason: poolconfig.ReasonNotRead,
		Text: strings.TrimPrefix(err.Error(), reason.ConfigUnavailable.String()+": ") + "; the configs do not change",
	})
	if reason.From(err).Code == reason.ConfigUnavailable {
		return ctrl.Result{}, nil // only a change of an object can fix it
	}
	return ctrl.Result{}, err
}
