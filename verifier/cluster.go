package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/renderedconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

// clusterBasis is a cluster's API: nothing is kept on this replica's disk.
type clusterBasis struct {
	server      *server
	cluster     *cluster.Cluster
	confirm     cluster.Confirmation
	reviews     kubernetes.Interface // who may read the metrics
	events      *events.Recorder
	credentials *credential.Issuer         // nil: configs keep the shared one
	stored      *poolconfig.Store          // nil: no configs are rendered here
	configs     *renderedconfig.Reconciler // renders them; nil as well
	doors       *doors
	settled     sync.Once
	// controllers run in one manager while this replica holds the lease.
	controllers []func(manager.Manager) error
	cached      map[client.Object]cache.ByObject
	watchFailed []toolscache.WatchErrorHandlerWithContext
}

func newClusterBasis(s *server) (*clusterBasis, error) {
	c := s.config
	api, err := restConfig(c.Kubernetes)
	if err != nil {
		return nil, err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	b := &clusterBasis{server: s, cached: map[client.Object]cache.ByObject{}}
	dyn, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host's name: %w", err)
	}
	// As for the cluster's own calls, the API server's fairness is what bounds us:
	// each config that is fetched costs two.
	quick := rest.CopyConfig(api)
	quick.QPS, quick.Burst = -1, 0
	typed, err := kubernetes.NewForConfig(quick)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	o := cluster.Options{
		Log: s.log, Now: s.now, Version: version, Identity: os.Getenv("POD_NAME"),
		Origins: c.Origins, ProvisioningToken: c.ProvisioningToken, KeyRotation: time.Duration(c.KeyRotation), KeyPublishDelay: time.Duration(c.KeyPublishDelay),
		Certificate: b.serve, Changed: b.measure, Called: s.metrics.APICall,
	}
	b.events = events.NewRecorder(events.Options{Client: typed.CoreV1(), Host: host, Log: s.log, Dropped: s.metrics.EventsDropped})
	o.Events = b.events
	b.doors = newDoors(b)
	o.Findings = append(o.Findings, b.doors.Findings)
	o.Conditions = append(o.Conditions, b.doors.Condition)
	// What is begun here asks the cluster only once it runs.
	if err := b.becoming(quick, typed, &o); err != nil {
		return nil, err
	}
	if b.cluster, err = cluster.New(context.Background(), api, *c.Kubernetes, o); err != nil {
		return nil, err
	}
	b.reviews = typed
	b.confirm = cluster.Confirmation{Client: dyn, Machines: b.cluster.Registry()}
	return b, nil
}

// gcPercent is how much garbage may pile up, in percent of what is in use, unless
// GOGC says otherwise. Most of the memory of a verifier in a large cluster is its
// Machines, which stay; a control-plane node has better uses for as much again.
const gcPercent = 25

// restConfig says how the API server is reached: many short calls, none of which
// client-go's own limit of five a second must hold up.
func restConfig(k *config.Kubernetes) (*rest.Config, error) {
	api, err := rest.InClusterConfig()
	if k.Kubeconfig != "" {
		api, err = clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	}
	if err != nil {
		return nil, hint.New(fmt.Errorf("reach the Kubernetes API: %w", err), "in a pod leave kubernetes.kubeconfig empty and mount a service account; else name a kubeconfig")
	}
	api.QPS, api.Burst = 200, 400
	api.UserAgent = "mcs-attest-verifier/" + version
	return api, nil
}

// The basis interface.

func (b *clusterBasis) World() *service.World           { return b.cluster.World() }
func (b *clusterBasis) TokenKeys() token.KeySet         { return b.cluster.TokenKeys() }
func (b *clusterBasis) SealKeys() seal.Ring             { return b.cluster.SealKeys() }
func (b *clusterBasis) Provisioning() provisioning.View { return b.cluster.Provisioning() }
func (b *clusterBasis) Records() records                { return b.cluster.Records() }
func (b *clusterBasis) Close() error                    { return nil }

// Describe implements basis.
func (b *clusterBasis) Describe() string {
	return "cluster, namespace " + b.server.config.Kubernetes.Namespace
}

// Run implements basis.
func (b *clusterBasis) Run(ctx context.Context) error {
	go b.events.Run(ctx)
	go b.doors.Run(ctx)
	g, ctx := errgroup.WithContext(ctx)
	if b.configs != nil {
		g.Go(func() error { return b.configs.Run(ctx) })
	}
	g.Go(func() error { return b.cluster.Run(ctx) })
	return g.Wait()
}

// Unready implements basis.
func (b *clusterBasis) Unready(now time.Time) []string {
	_, unsynced := b.cluster.Synced()
	var problems []string
	for _, p := range unsynced {
		problems = append(problems, "cluster: "+p)
	}
	if err := b.cluster.World().Stale; err != nil {
		problems = append(problems, "records: "+err.Error())
	}
	if b.server.config.Upstream == "" && !b.configs.Ready(context.Background()) {
		problems = append(problems, "configs: the MachineConfigs have not been read yet")
	}
	if cert := b.server.certs.Current(); cert == nil {
		problems = append(problems, "serving certificate: none has been read")
	} else if cert.Leaf != nil && now.After(cert.Leaf.NotAfter) {
		problems = append(problems, "serving certificate: expired")
	}
	return problems
}

func (b *clusterBasis) serve(cert *tls.Certificate) {
	if err := b.server.certs.Set(cert); err != nil {
		b.server.log.Error("the serving certificate cannot be used; the one before stays", "error", err)
	}
}

func (b *clusterBasis) measure() {
	if synced, _ := b.cluster.Synced(); synced {
		// The first lists have left more behind than anything later will.
		b.settled.Do(func() { go debug.FreeOSMemory() })
	}
	m, now := b.server.metrics, b.server.now()
	world := b.cluster.World()
	m.Folder(now, len(b.cluster.Problems()), map[string]int{
		"machine": b.cluster.Registry().Len(), "reference-values": len(world.References), "ek-root": b.cluster.EKRoots().Len(),
	})
	m.RoleMismatches(len(b.cluster.RoleMismatches()))
	if world.Trust != nil {
		m.Trust(world.Trust, now)
	}
	b.server.clouds.Report(b.server.log, world.Policies)
	b.server.reportAbsence(world.Policies, b.cluster.Provisioning())
	if at, ok := b.cluster.EKRoots().NotAfter(now); ok {
		m.Expiry("ek-roots", at)
	}
	if cert := b.server.certs.Current(); cert != nil && cert.Leaf != nil {
		m.Expiry("serving-certificate", cert.Leaf.NotAfter)
	}
}

// trusting is a transport to the Machine Config Server which trusts what the
// cluster's CA bundle holds now: a rotation in mid-boot must not fail a node.
type trusting struct {
	make    func(roots *x509.CertPool) *http.Transport
	roots   func() *x509.CertPool
	current atomic.Pointer[trustingNow]
}

type trustingNow struct {
	roots     *x509.CertPool
	transport *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *trusting) RoundTrip(r *http.Request) (*http.Response, error) {
	roots := t.roots()
	if roots == nil {
		return nil, reason.Deny(reason.UpstreamUnavailable, "the CA of the Machine Config Server has not been read")
	}
	now := t.current.Load()
	if now == nil || now.roots != roots {
		next := &trustingNow{roots, t.make(roots)}
		if t.current.CompareAndSwap(now, next) {
			if now != nil {
				now.transport.CloseIdleConnections()
			}
		} else {
			next = t.current.Load()
		}
		now = next
	}
	return now.transport.RoundTrip(r)
}
