package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
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

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/doorprobe"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/renderedconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Cluster is the backend of a cluster's API: nothing is kept on this replica's disk.
type Cluster struct {
	parts       *server.Parts
	cluster     *cluster.Cluster
	confirm     cluster.Confirmation
	reviews     kubernetes.Interface // who may read the metrics
	events      *events.Recorder
	credentials *credential.Issuer         // nil: configs keep the shared one
	stored      *poolconfig.Store          // nil: no configs are rendered here
	configs     *renderedconfig.Reconciler // renders them; nil as well
	doors       *doorprobe.Prober
	settled     sync.Once
	// controllers run in one manager while this replica holds the lease.
	controllers []func(manager.Manager) error
	cached      map[client.Object]cache.ByObject
	watchFailed []toolscache.WatchErrorHandlerWithContext
}

func newCluster(s *server.Parts) (*Cluster, error) {
	c := s.Config
	api, err := restConfig(c.Kubernetes, s.Version)
	if err != nil {
		return nil, err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	b := &Cluster{parts: s, cached: map[client.Object]cache.ByObject{}}
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
		Log: s.Log, Now: s.Now, Version: s.Version, Identity: os.Getenv("POD_NAME"),
		Origins: c.Origins, ProvisioningToken: c.ProvisioningToken, KeyRotation: time.Duration(c.KeyRotation), KeyPublishDelay: time.Duration(c.KeyPublishDelay),
		Certificate: b.serve, Changed: b.measure, Called: s.Metrics.APICall,
	}
	b.events = events.NewRecorder(events.Options{Client: typed.CoreV1(), Host: host, Log: s.Log, Dropped: s.Metrics.EventsDropped})
	o.Events = b.events
	b.doors = doorprobe.New(doorprobe.Options{
		Log: s.Log, Metrics: s.Metrics, Events: b.events, Keys: b.SealKeys, Interval: time.Duration(c.Kubernetes.DoorInterval),
		ControlPlane: func() (map[string][]netip.Addr, bool) { return b.cluster.ControlPlane() },
	})
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
func restConfig(k *config.Kubernetes, version string) (*rest.Config, error) {
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

// Folder and Cluster implement server.Backend.

func (b *Cluster) View() *view.View                { return b.cluster.View() }
func (b *Cluster) TokenKeys() token.KeySet         { return b.cluster.TokenKeys() }
func (b *Cluster) SealKeys() seal.Ring             { return b.cluster.SealKeys() }
func (b *Cluster) Provisioning() provisioning.View { return b.cluster.Provisioning() }
func (b *Cluster) Records() server.Records         { return b.cluster.Records() }
func (b *Cluster) Close() error                    { return nil }

// Describe implements server.Backend.
func (b *Cluster) Describe() string {
	return "cluster, namespace " + b.parts.Config.Kubernetes.Namespace
}

// Run implements server.Backend.
func (b *Cluster) Run(ctx context.Context) error {
	go b.events.Run(ctx)
	g, ctx := errgroup.WithContext(ctx)
	if b.configs != nil {
		g.Go(func() error { return b.configs.Run(ctx) })
	}
	g.Go(func() error { return b.doors.Start(ctx) })
	g.Go(func() error { return b.cluster.Run(ctx) })
	return g.Wait()
}

// Live implements server.Backend.
func (b *Cluster) Live() server.Live {
	return server.Live{
		Machine: b.confirm.Confirm, MachineUID: b.confirm.ConfirmUID, Outdated: b.cluster.Outdated,
		InTrouble: b.cluster.Records().InTrouble, Provisioning: b.cluster.ReadProvisioning,
	}
}

// Configs implements server.Backend: what is rendered from MachineConfigs.
func (b *Cluster) Configs(preApproved bool) http.Handler {
	if b.configs == nil {
		return nil
	}
	return gate.Source{Config: func(pool string, accept specversion.Accept) (*gate.Rendered, error) {
		return b.stored.Config(pool, preApproved, accept)
	}}
}

// UpstreamRoots implements server.Backend.
func (b *Cluster) UpstreamRoots() (func() *x509.CertPool, error) { return b.cluster.UpstreamCAs, nil }

// Credentials implements server.Backend.
func (b *Cluster) Credentials() server.Credentials {
	if b.credentials == nil {
		return nil
	}
	return b.credentials
}

// ProtectMetrics implements server.Backend: the API server decides who may read them.
func (b *Cluster) ProtectMetrics(h http.Handler) http.Handler {
	return (&metrics.Reviews{Client: b.reviews, Now: b.parts.Now, Log: b.parts.Log}).Protect(h)
}

// Checks implements server.Backend.
func (b *Cluster) Checks() []string {
	if b.parts.Config.Upstream == "" {
		return []string{"cluster", "configs"}
	}
	return []string{"cluster"}
}

// EKRoots are the roots of the manufacturers that are in force.
func (b *Cluster) EKRoots() *anchors.Set { return b.cluster.EKRoots() }

// Findings are what is wrong with the MachineConfigs.
func (b *Cluster) Findings() []view.Finding { return b.configs.Findings() }

// Unready implements server.Backend.
func (b *Cluster) Unready(now time.Time) []string {
	_, unsynced := b.cluster.Synced()
	var problems []string
	for _, p := range unsynced {
		problems = append(problems, "cluster: "+p)
	}
	if err := b.cluster.View().Stale; err != nil {
		problems = append(problems, "records: "+err.Error())
	}
	if b.parts.Config.Upstream == "" && !b.configs.Ready(context.Background()) {
		problems = append(problems, "configs: the MachineConfigs have not been read yet")
	}
	if cert := b.parts.Certificates.Current(); cert == nil {
		problems = append(problems, "serving certificate: none has been read")
	} else if cert.Leaf != nil && now.After(cert.Leaf.NotAfter) {
		problems = append(problems, "serving certificate: expired")
	}
	return problems
}

func (b *Cluster) serve(cert *tls.Certificate) {
	if err := b.parts.Certificates.Set(cert); err != nil {
		b.parts.Log.Error("the serving certificate cannot be used; the one before stays", "error", err)
	}
}

func (b *Cluster) measure() {
	if synced, _ := b.cluster.Synced(); synced {
		// The first lists have left more behind than anything later will.
		b.settled.Do(func() { go debug.FreeOSMemory() })
	}
	m, now := b.parts.Metrics, b.parts.Now()
	world := b.cluster.View()
	m.Folder(now, len(b.cluster.Problems()), map[string]int{
		"machine": b.cluster.Registry().Len(), "reference-values": len(world.References), "ek-root": b.cluster.EKRoots().Len(),
	})
	m.RoleMismatches(len(b.cluster.RoleMismatches()))
	if world.Trust != nil {
		m.Trust(world.Trust, now)
	}
	b.parts.Clouds.Report(b.parts.Log, world.Policies)
	b.parts.ReportAbsence(world.Policies, b.cluster.Provisioning())
	if at, ok := b.cluster.EKRoots().NotAfter(now); ok {
		m.Expiry("ek-roots", at)
	}
	if cert := b.parts.Certificates.Current(); cert != nil && cert.Leaf != nil {
		m.Expiry("serving-certificate", cert.Leaf.NotAfter)
	}
}
