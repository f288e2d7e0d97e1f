// SPDX-License-Identifier: Apache-2.0

// Package controllers is the controller process. It does everything that the verifier does to a cluster
// and that serving machines does not need. It has its own account. Several replicas run. One leads by
// the Lease mcs-attest-verifier; the others have read the cluster and are ready to take over.
//
// Each controller is a package below this one. The process runs them in one manager and builds a new
// manager when it loses the lease. Only renderedconfig has its own manager and needs no lease. No code
// here decides about a machine that attests, so serving continues while no controller runs. There is
// one exception: with bootstrap credentials, a machine that has none yet gets 503 until a controller
// runs.
package controllers

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/bootstrapcredential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/csr"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/doorprobe"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/mcscertificates"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/nodecertificate"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/renderedconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/signingkeys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/verifierstatus"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Process is a replica of the controller.
type Process struct {
	parts     *backend.Parts
	api       *rest.Config
	identity  string
	typed     kubernetes.Interface
	reviews   *metrics.Reviews // authorizes readers of the metrics and of the web page
	events    *events.Recorder
	inventory *inventory.Inventory
	confirm   inventory.Confirmation
	configs   *renderedconfig.Reconciler // nil if no configs are rendered
	doors     *doorprobe.Prober
	signing   *signingkeys.Reconciler
	synced    sync.Once

	// controllers add the controllers, with their watches, to each manager.
	controllers []func(manager.Manager) error
	cached      map[client.Object]cache.ByObject
	watchFailed []toolscache.WatchErrorHandlerWithContext
	// findings and conditions are those of all parts. New adds them.
	findings   []verifierstatus.Findings
	conditions []verifierstatus.Condition
}

// New prepares the process. It makes no call. The configuration must have the section kubernetes.
func New(p *backend.Parts) (*Process, error) {
	api, err := kube.RESTConfig(p.Config.Kubernetes, p.Version)
	if err != nil {
		return nil, err
	}
	api.Transport = p.Transport
	k := &Process{parts: p, api: api, cached: map[client.Object]cache.ByObject{}}
	if k.identity, err = identity(); err != nil {
		return nil, err
	}
	if k.typed, err = kubernetes.NewForConfig(api); err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	k.reviews = &metrics.Reviews{Client: k.typed, Now: p.Now, Log: p.Log}
	dyn, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	k.events = events.NewRecorder(events.Options{
		Client: k.typed.CoreV1(), Log: p.Log, Dropped: p.Metrics.EventsDropped,
	})
	k.doors = doorprobe.New(doorprobe.Options{
		Log: p.Log, Metrics: p.Metrics, Events: k.events, Interval: time.Duration(p.Config.Kubernetes.DoorInterval),
		Keys:         func() seal.Ring { return k.inventory.Keys().Seals },
		ControlPlane: func() (map[string][]netip.Addr, bool) { return k.inventory.ControlPlane() },
	})
	o := inventory.OptionsFor(p)
	o.Account, o.Identity, o.Events, o.Changed = "mcs-attest-controller", k.identity, k.events, k.measure
	o.Certificate = func(cert *tls.Certificate) { _ = p.Certificates.Set(cert) } // the front reports errors
	k.findings, k.conditions = append(k.findings, k.doors.Findings), append(k.conditions, k.doors.Condition)
	o.RenewKeys = func(ctx context.Context) error { return k.signing.Renew(ctx) }
	// These parts access the inventory only after the process runs.
	for _, add := range []func(*inventory.Options) error{
		k.addCredentials, k.addRenderedConfig, k.addCSR, k.addCertificates,
	} {
		if err := add(&o); err != nil {
			return nil, err
		}
	}
	if k.inventory, err = inventory.New(api, *p.Config.Kubernetes, o); err != nil {
		return nil, err
	}
	p.Metrics.Rehearsals(k.inventory.Rehearsed)
	k.confirm = inventory.Confirmation{Client: dyn, Machines: k.inventory.Registry()}
	k.controllers = append(k.controllers, k.doors.SetupWithManager)
	secrets, err := k.secretControllers()
	if err != nil {
		return nil, err
	}
	k.controllers = append(k.controllers, secrets...)
	k.controllers = append(k.controllers, k.statusControllers()...)
	k.controllers = append(k.controllers, k.recordControllers(o.Revoke)...)
	k.controllers = append(k.controllers, func(m manager.Manager) error {
		return m.Add(manager.RunnableFunc(k.inventory.Lead))
	}, k.inventory.SetupWithManager)
	return k, nil
}

// identity is the name of this replica in the Lease.
func identity() (string, error) {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host's name: %w", err)
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid()), nil
}

func (k *Process) addCredentials(o *inventory.Options) error {
	c := k.parts.Config
	if c.Credential == nil {
		return nil
	}
	issuer, err := credential.NewIssuer(credential.Options{
		Client: k.typed, Config: *c.Credential, Namespace: c.Kubernetes.CredentialNamespace,
		Now: k.parts.Now, Log: k.parts.Log,
	})
	if err != nil {
		return fmt.Errorf("credential: %w", err)
	}
	credentials := bootstrapcredential.New(bootstrapcredential.Options{
		Issuer: issuer, Records: lazyInventory{k}, Redeemable: lazyInventory{k}.Redeemable, Confirm: lazyInventory{k}.Confirm,
		Ready: lazyInventory{k}.Ready, Certificates: c.Credential.Certificates(), Log: k.parts.Log, Now: k.parts.Now,
	})
	o.Revoke, o.Token = issuer.Revoke, credentials.Observe
	k.controllers = append(k.controllers, credentials.SetupWithManager)
	k.findings = append(k.findings, credentials.Findings)
	return nil
}

func (k *Process) addRenderedConfig(o *inventory.Options) (err error) {
	p, c := k.parts, k.parts.Config
	if c.Render == nil {
		return nil
	}
	stored := poolconfig.NewStore(poolconfig.Options{
		Log: p.Log, Now: p.Now, Allow: c.Render.PreApprovedAllows, Notify: k.notify,
		Leading: func() bool { return k.inventory.Leading() },
	})
	if k.configs, err = renderedconfig.New(k.api, renderedconfig.OptionsFor(c, p.Log, p.Now, stored)); err != nil {
		return fmt.Errorf("render: %w", err)
	}
	k.findings = append(k.findings, k.configs.Findings)
	return nil
}

func (k *Process) addCSR(o *inventory.Options) error {
	p, c := k.parts, k.parts.Config
	if c.Approver == nil {
		return nil
	}
	requests, err := csr.New(csr.Options{
		Config: *c.Approver, Credential: c.Credential,
		Namespaces: slices.Concat(c.Kubernetes.MachineNamespaces, []string{c.Kubernetes.Namespace}),
		Namespace:  c.Kubernetes.Namespace,
		Machines:   lazyInventory{k}, Records: lazyInventory{k}, Log: p.Log, Audit: p.Audit, Now: p.Now,
		Ready: func() error { return k.inventory.Ready() },
	})
	if err == nil {
		err = requests.Register(p.Metrics.Registerer())
	}
	if err != nil {
		return fmt.Errorf("approver: %w", err)
	}
	o.Names = true
	if c.Credential.Certificates() {
		certificates := nodecertificate.New(nodecertificate.Options{
			Rules:    approval.Rules(*c.Approver, c.Credential, c.Kubernetes.Namespace),
			Lifetime: time.Duration(c.Credential.Lifetime), Records: lazyInventory{k},
			Redeemable: lazyInventory{k}.Redeemable, Confirm: lazyInventory{k}.Confirm, Ready: lazyInventory{k}.Ready,
			Waiting: lazyInventory{k}.CertificateRequests, Log: p.Log, Now: p.Now,
		})
		o.Requested = certificates.Observe
		k.controllers = append(k.controllers, certificates.SetupWithManager)
	}
	k.findings = append(k.findings, requests.Findings)
	k.controllers = append(k.controllers, requests.SetupWithManager)
	maps.Copy(k.cached, csr.Cache())
	k.watchFailed = append(k.watchFailed, requests.WatchFailed)
	return nil
}

func (k *Process) addCertificates(o *inventory.Options) error {
	p := k.parts
	if p.Config.Certificates == nil {
		return nil
	}
	live, err := kube.NewClient(k.api)
	if err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	certificates, err := mcscertificates.New(mcscertificates.Options{
		Client: live, Config: p.Config, Log: p.Log, Events: k.events, Expiry: p.Metrics.Expiry, Now: p.Now,
	})
	if err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	k.controllers = append(k.controllers, certificates.SetupWithManager)
	k.findings = append(k.findings, certificates.Findings)
	return nil
}

// Run runs the controllers until ctx ends.
func (k *Process) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	run := func(f func(context.Context)) { g.Go(func() error { f(ctx); return nil }) }
	run(k.events.Run)
	if k.configs != nil {
		g.Go(func() error { return k.configs.Run(ctx) })
	}
	g.Go(func() error { return k.inventory.Run(ctx) })
	run(func(ctx context.Context) { kube.RunManager(ctx, k.parts.Log, k.manager) })
	return g.Wait()
}

// manager returns a manager with all controllers.
func (k *Process) manager() (manager.Manager, error) {
	m, err := kube.NewManager(k.api, kube.Options{
		Log: k.parts.Log, Cache: k.cached,
		Lease: &kube.Lease{Namespace: k.parts.Config.Kubernetes.Namespace, Identity: k.identity},
		WatchFailed: func(ctx context.Context, r *toolscache.Reflector, err error) {
			for _, failed := range k.watchFailed {
				failed(ctx, r, err)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	for _, setUp := range k.controllers {
		if err := setUp(m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Checks returns the names of the parts that Problems reports.
func (k *Process) Checks() []string { return []string{"cluster", "records"} }

// Problems returns what was not read yet or may be outdated.
func (k *Process) Problems() []string { return k.inventory.Unready() }

// MetricsHandler serves the metrics, including those of controller-runtime. The API server authorizes
// each reader.
func (k *Process) MetricsHandler() http.Handler {
	return k.reviews.Protect(k.parts.Metrics.Handler(prometheus.GathererFunc(runtimeMetrics)))
}

// ProtectPage returns a handler that serves the web page only to readers that the API server authorizes.
func (k *Process) ProtectPage(path string, h http.Handler) http.Handler {
	return k.reviews.ProtectPage(path, h)
}

// State implements page.Source.
func (k *Process) State(ctx context.Context) (*admin.State, error) {
	return k.inventory.State(ctx, k.parts.Audit.Recent())
}

// TokenKeys implements page.Source.
func (k *Process) TokenKeys() token.KeySet { return k.inventory.Keys().Tokens }

// SealKeys implements page.Source.
func (k *Process) SealKeys() seal.Ring { return k.inventory.Keys().Seals }

// Provisioning implements page.Source.
func (k *Process) Provisioning() provisioning.View { return k.inventory.Provisioning() }

// runtimeMetrics gathers the metrics of the controllers and of the leader election. Those of the
// process are in the verifier's own registry.
func runtimeMetrics() ([]*dto.MetricFamily, error) {
	all, err := ctrlmetrics.Registry.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
		name := f.GetName()
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
	}), err
}

func (k *Process) measure() {
	if synced, _ := k.inventory.Synced(); synced {
		k.synced.Do(func() { go k.parts.FreeMemory() })
	}
}

// notify writes an Event about a config that is not the newest.
func (k *Process) notify(f poolconfig.Fault) {
	about := events.Object{APIVersion: render.Group + "/v1", Kind: f.About.Kind, Name: f.About.Name, UID: f.About.UID}
	k.events.Emit(events.Event{About: about, Warning: true, Reason: f.Reason, Message: f.Text})
}

// lazyInventory gives access to the inventory of a process. It is for controllers that New prepares
// before the inventory.
type lazyInventory struct{ k *Process }

func (n lazyInventory) ByInternalDNS(name string) []machine.Ref {
	return n.k.inventory.ByInternalDNS(name)
}
func (n lazyInventory) ByNode(node string) []machine.Ref { return n.k.inventory.ByNode(node) }
func (n lazyInventory) ByCredential(id string) (uid string, ok bool) {
	return n.k.inventory.ByCredential(id)
}
func (n lazyInventory) Counts() (machines, nodes int) { return n.k.inventory.Counts() }

// Record fails for a record that a restore of etcd left without a latch: no request of its machine may be approved.
func (n lazyInventory) Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	if err := n.k.inventory.Unrepaired(uid); err != nil {
		return nil, err
	}
	return n.k.inventory.Records().Record(ctx, uid)
}
func (n lazyInventory) Update(ctx context.Context, uid string, change store.Change) error {
	return n.k.inventory.Records().Update(ctx, uid, change)
}
func (n lazyInventory) Session(uid string) store.Session { return n.k.inventory.Records().Session(uid) }
func (n lazyInventory) CertificateRequests() []string    { return n.k.inventory.CertificateRequests() }
func (n lazyInventory) Redeemable(uid, pool string, now time.Time) error {
	return n.k.inventory.Registry().Redeemable(uid, pool, now)
}
func (n lazyInventory) Confirm(ctx context.Context, uid string) error {
	return n.k.confirm.ConfirmUID(ctx, uid)
}
func (n lazyInventory) Ready(uid string) error {
	return cmp.Or(n.k.inventory.Ready(), n.k.inventory.Outdated(uid))
}
