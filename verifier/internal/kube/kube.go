// SPDX-License-Identifier: Apache-2.0

// Package kube is the Kubernetes backend of the verifier: its scheme and its controller manager. Each controller is
// a package below kube/controllers with one Reconcile and a SetupWithManager. There are two exceptions: the restore
// controller is in kube/restore beside its guard, and doorprobe is a Runnable.
package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	machineconfigurationv1 "github.com/openshift/api/machineconfiguration/v1"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	vconfig "github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// Scheme returns the scheme with every type that the verifier reads or writes. All clients share it.
func Scheme() (*runtime.Scheme, error) { return sharedScheme() }

var sharedScheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1alpha1.AddToScheme,
		machinev1beta1.Install, machineconfigurationv1.Install, configv1.Install, networkv1.Install,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	return s, nil
})

// NewClient returns a client that reads and writes the API directly, without a cache. It makes no call.
func NewClient(c *rest.Config) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	api, err := client.New(c, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	return api, nil
}

// NewSecretClient is [NewClient] for Secrets. It does not use API discovery.
func NewSecretClient(c *rest.Config) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	api, err := client.New(c, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	return api, nil
}

// RESTConfig returns the configuration of clients of the API server. It sets no client-side rate limit: API
// Priority and Fairness bounds the calls, and client-go's default limit would make machines wait for each other.
func RESTConfig(k *vconfig.Kubernetes, version string) (*rest.Config, error) {
	api, err := rest.InClusterConfig()
	if k.Kubeconfig != "" {
		api, err = clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	}
	if err != nil {
		return nil, hint.New(fmt.Errorf("reach the Kubernetes API: %w", err),
			"in a pod, leave kubernetes.kubeconfig empty and mount a service account; elsewhere, set kubernetes.kubeconfig")
	}
	api.QPS, api.Burst = -1, 0
	api.UserAgent = "mcs-attest-verifier/" + version
	return api, nil
}

// gcPercent is the default of GOGC. Most of the memory of a verifier in a large cluster holds its Machines. The
// usual 100 percent would double that on a control-plane node.
const gcPercent = 25

// SetGCPercent sets the garbage collection target of the process for use in a cluster.
func SetGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// LeaseName is the name of the leader's Lease, in the namespace of the verifier.
const LeaseName = "mcs-attest-verifier"

// Lease configures the election of a leader.
type Lease struct {
	Namespace string
	Identity  string
	// Duration is how long a leader that does not renew the Lease keeps it. Default 30 s.
	Duration time.Duration
}

// Options are what a manager needs. The zero value of Cache is valid.
type Options struct {
	Log *slog.Logger // required
	// Lease, if set, lets the controllers run only while this replica leads. If nil, they start immediately.
	Lease *Lease
	// Cache restricts what is watched of a type: namespaces, selectors, transforms.
	Cache map[client.Object]cache.ByObject
	// WatchFailed receives the errors of watches, which are also logged. Optional.
	WatchFailed toolscache.WatchErrorHandlerWithContext
}

// SetLogger sets the logger of controller-runtime and client-go for messages outside any manager or cache. A
// program calls it once, before it uses this package.
func SetLogger(log *slog.Logger) {
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetLogger(logr.FromSlogHandler(log.Handler())) // of client-go
}

// NewManager returns a manager without listeners. It makes no call.
func NewManager(c *rest.Config, o Options) (manager.Manager, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	log := logr.FromSlogHandler(o.Log.Handler())
	options := manager.Options{
		Scheme: scheme,
		Logger: log,
		Cache: cache.Options{
			ByObject: o.Cache,
			DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
				toolscache.DefaultWatchErrorHandler(ctx, r, err)
				if o.WatchFailed != nil {
					o.WatchFailed(ctx, r, err)
				}
			},
			DefaultTransform: cache.TransformStripManagedFields(),
			// A read of a kind that is not watched is an error. It must not start a watch.
			ReaderFailOnMissingInformer: true,
		},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// A replica builds a new manager after it lost the lease, with controllers of the same names.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
	if o.Lease != nil {
		duration := cmp.Or(o.Lease.Duration, 30*time.Second)
		election := rest.CopyConfig(c)
		election.Timeout = duration / 3 // one request without an answer must not use up the time to renew
		leases, err := coordinationv1.NewForConfig(election)
		if err != nil {
			return nil, fmt.Errorf("controller manager: %w", err)
		}
		options.LeaderElection, options.LeaderElectionReleaseOnCancel = true, true
		options.LeaderElectionID, options.LeaderElectionNamespace = LeaseName, o.Lease.Namespace
		options.LeaseDuration, options.RenewDeadline = ptr.To(duration), ptr.To(duration*2/3)
		options.RetryPeriod = ptr.To(duration / 8)
		options.LeaderElectionResourceLockInterface = &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Lease.Namespace, Name: LeaseName},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Lease.Identity},
		}
	}
	m, err := manager.New(c, options)
	if err != nil {
		return nil, fmt.Errorf("controller manager: %w", err)
	}
	return &waitingManager{Manager: m}, nil
}

// RunManager builds and starts a manager. If the manager fails or loses its lease, RunManager builds another one,
// until ctx ends. The process does not exit, because its inventory holds state that a restore of etcd removes.
// After a restore, every lease can expire.
func RunManager(ctx context.Context, log *slog.Logger, build func() (manager.Manager, error)) {
	const pause = 5 * time.Second
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		m, err := build()
		if err == nil {
			err = m.Start(ctx)
		}
		if ctx.Err() == nil {
			log.Error("the controller manager ended; a new one starts", "error", err)
		}
	}, pause)
}

// JoinOptions returns the options of a controller for which machines wait while they boot. The time to list its objects
// is unlimited, because other controllers of the manager must run while these cannot be listed.
func JoinOptions() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: 8, CacheSyncTimeout: 365 * 24 * time.Hour, ReconciliationTimeout: 30 * time.Second,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			200*time.Millisecond, MaxJoinPause),
	}
}

// MaxJoinPause is the longest pause of [JoinOptions] before the next try.
const MaxJoinPause = 30 * time.Second

// ControllerOptions returns the options of a controller that writes a few objects. They bound the duration of a
// reconciliation, and repeat a failed one within a minute.
func ControllerOptions() controller.Options {
	return controller.Options{
		ReconciliationTimeout: 30 * time.Second,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			500*time.Millisecond, time.Minute),
	}
}
