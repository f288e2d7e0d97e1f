// Package kube is the Kubernetes backend of the verifier: its scheme and its
// controller manager. Each controller is a package below kube/controllers, with one
// Reconcile and a SetupWithManager.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	machineconfigurationv1 "github.com/openshift/api/machineconfiguration/v1"
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// NewScheme returns a scheme with every type that the verifier reads or writes.
func NewScheme() (*runtime.Scheme, error) {
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
}

// NewClient returns a client that reads and writes the API itself, without a cache. It makes
// no call.
func NewClient(c *rest.Config) (client.Client, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	api, err := client.New(c, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	return api, nil
}

// Options are what a manager needs. The zero value of Cache is valid.
type Options struct {
	Log *slog.Logger // required
	// Cache restricts what is watched of a type: namespaces, selectors, transforms.
	Cache map[client.Object]cache.ByObject
	// WatchFailed receives the errors of watches, which are also logged. Optional.
	WatchFailed toolscache.WatchErrorHandlerWithContext
}

// SetLogger sets where controller-runtime logs what no manager or cache has a logger for.
// A program calls it once, before it uses this package.
func SetLogger(log *slog.Logger) { ctrl.SetLogger(logr.FromSlogHandler(log.Handler())) }

// NewManager returns a manager without listeners. It makes no call.
func NewManager(c *rest.Config, o Options) (manager.Manager, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	log := logr.FromSlogHandler(o.Log.Handler())
	m, err := manager.New(c, manager.Options{
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
			// A read that would begin to watch a whole kind is an error.
			ReaderFailOnMissingInformer: true,
		},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// A replica builds a new manager each time that it obtains the lease.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("controller manager: %w", err)
	}
	return m, nil
}

// RunManager builds a manager, starts it, and builds another one if it fails, until
// ctx ends.
func RunManager(ctx context.Context, log *slog.Logger, build func() (manager.Manager, error)) {
	const pause = 5 * time.Second
	for ctx.Err() == nil {
		m, err := build()
		if err == nil {
			err = m.Start(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		log.Error("the controller manager ended; a new one starts", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
