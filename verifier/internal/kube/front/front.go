// SPDX-License-Identifier: Apache-2.0

// Package front is the backend of a verifier that serves in a cluster. One replica of the front runs on each
// control-plane node. It reads the cluster through informers, keeps records and claims, serves the bootstrap
// credentials that the controller publishes, and writes Events. It holds no lease. All other writes to the cluster
// are in package controllers, which runs in another process with another account.
package front

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/renderedconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Front implements backend.Backend. It stores nothing on the disk of its host.
type Front struct {
	parts       *backend.Parts
	inventory   *inventory.Inventory
	confirm     inventory.Confirmation
	reviews     *metrics.Reviews // authorizes readers of the metrics and of the web page
	events      *events.Recorder
	credentials *credential.Reader         // nil if configs keep the shared credential
	stored      *poolconfig.Store          // nil if this process renders no configs
	configs     *renderedconfig.Reconciler // nil if stored is nil
	synced      sync.Once
}

// New prepares the front. It makes no call.
func New(p *backend.Parts) (*Front, error) {
	api, err := kube.RESTConfig(p.Config.Kubernetes, p.Version)
	if err != nil {
		return nil, err
	}
	api.Transport = p.Transport
	b := &Front{parts: p}
	dyn, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	typed, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	b.events = events.NewRecorder(events.Options{Client: typed.CoreV1(), Log: p.Log, Dropped: p.Metrics.EventsDropped})
	c := p.Config
	if c.Credential != nil {
		b.credentials = credential.NewReader(credential.ReaderOptions{
			Client: typed, Namespace: c.Kubernetes.CredentialNamespace,
			Owner:  func(uid string) string { return b.inventory.RecordUID(uid) },
			Record: b.record(), Now: p.Now,
		})
	}
	if c.Render != nil {
		b.stored = poolconfig.NewStore(poolconfig.Options{Log: p.Log, Now: p.Now, Allow: c.Render.PreApprovedAllows})
		if b.configs, err = renderedconfig.New(api, renderedconfig.OptionsFor(c, p.Log, p.Now, b.stored)); err != nil {
			return nil, fmt.Errorf("render: %w", err)
		}
	}
	o := inventory.OptionsFor(p)
	o.Account, o.Certificate, o.Changed, o.Events = inventory.FrontAccount, b.serve, b.measure, b.events
	if b.inventory, err = inventory.New(api, *c.Kubernetes, o); err != nil {
		return nil, err
	}
	b.reviews = &metrics.Reviews{Client: typed, Now: p.Now, Log: p.Log}
	b.confirm = inventory.Confirmation{Client: dyn, Machines: b.inventory.Registry()}
	return b, nil
}

// record returns the function that reads a record, or nil if machines get no certificate from the
// verifier.
func (b *Front) record() func(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	if !b.parts.Config.Credential.Certificates() {
		return nil
	}
	return func(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
		return b.inventory.Records().Session(uid).Record(ctx)
	}
}

// View implements backend.Backend.
func (b *Front) View() *view.View { return b.inventory.View() }

// TokenKeys implements backend.Backend.
func (b *Front) TokenKeys() token.KeySet { return b.inventory.Keys().Tokens }

// SealKeys implements backend.Backend.
func (b *Front) SealKeys() seal.Ring { return b.inventory.Keys().Seals }

// Provisioning implements backend.Backend.
func (b *Front) Provisioning() provisioning.View { return b.inventory.Provisioning() }

// Records implements backend.Backend.
func (b *Front) Records() backend.Records { return b.inventory.Records() }

// Close implements backend.Backend.
func (b *Front) Close() error { return nil }

// Describe implements backend.Backend.
func (b *Front) Describe() string { return "cluster, namespace " + b.parts.Config.Kubernetes.Namespace }

// Run implements backend.Backend.
func (b *Front) Run(ctx context.Context) error {
	go b.events.Run(ctx)
	g, ctx := errgroup.WithContext(ctx)
	if b.configs != nil {
		g.Go(func() error { return b.configs.Run(ctx) })
	}
	g.Go(func() error { return b.inventory.Run(ctx) })
	return g.Wait()
}

// Live implements backend.Backend.
func (b *Front) Live() backend.Live {
	live := backend.Live{
		Machine: b.confirm.Confirm, MachineUID: b.confirm.ConfirmUID, Outdated: b.inventory.Outdated,
		Failing: b.inventory.Records().Failing, Provisioning: b.inventory.ReadProvisioning,
	}
	if b.parts.Config.Credential.Certificates() {
		live.NodeNames = b.confirm.NodeNames
	}
	return live
}

// Configs implements backend.Backend. It serves the configs that are rendered from MachineConfigs.
func (b *Front) Configs(preApproved bool) *gate.Source {
	if b.configs == nil {
		return nil
	}
	return &gate.Source{Config: func(pool string, accept specversion.Accept) (*gate.Rendered, error) {
		return b.stored.Config(pool, preApproved, accept)
	}}
}

// UpstreamRoots implements backend.Backend.
func (b *Front) UpstreamRoots() *x509.CertPool { return b.inventory.UpstreamCAs() }

// Authorities implements backend.Backend.
func (b *Front) Authorities() ([]byte, error) { return b.inventory.Authorities() }

// Credentials implements backend.Backend.
func (b *Front) Credentials() backend.Credentials {
	if b.credentials == nil {
		return nil
	}
	return b.credentials
}

// ProtectMetrics implements backend.Backend. The API server authorizes each reader.
func (b *Front) ProtectMetrics(h http.Handler) http.Handler { return b.reviews.Protect(h) }

// ProtectPage implements backend.Backend. The API server authorizes each reader.
func (b *Front) ProtectPage(path string, h http.Handler) http.Handler {
	return b.reviews.ProtectPage(path, h)
}

// State implements backend.Backend.
func (b *Front) State(ctx context.Context) (*admin.State, error) {
	return b.inventory.State(ctx, b.parts.Audit.Recent())
}

// Checks implements backend.Backend.
func (b *Front) Checks() []string {
	if b.parts.Config.Upstream == "" {
		return []string{"cluster", "configs"}
	}
	return []string{"cluster"}
}

// EKRoots returns the trusted roots of TPM manufacturers.
func (b *Front) EKRoots() *anchors.Set { return b.inventory.EKRoots() }

// Findings returns the problems of the MachineConfigs.
func (b *Front) Findings() []view.Finding { return b.configs.Findings() }

// Unready implements backend.Backend.
func (b *Front) Unready(now time.Time) []string {
	problems := b.inventory.Unready()
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

func (b *Front) serve(cert *tls.Certificate) {
	if err := b.parts.Certificates.Set(cert); err != nil {
		b.parts.Log.Error("the serving certificate cannot be used; the previous one stays in force", "error", err)
	}
}

func (b *Front) measure() {
	if synced, _ := b.inventory.Synced(); synced {
		b.synced.Do(func() { go b.parts.FreeMemory() })
	}
	m, now := b.parts.Metrics, b.parts.Now()
	current := b.inventory.View()
	m.Folder(now, len(b.inventory.Problems()), map[string]int{
		"machine": b.inventory.Registry().Len(), "reference-values": len(current.References),
		"ek-root": b.inventory.EKRoots().Len(),
	})
	if current.Trust != nil {
		m.Trust(current.Trust, now)
	}
	b.parts.Clouds.Report(b.parts.Log, current.Policies)
	b.parts.ReportAbsence(current.Policies, b.inventory.Provisioning())
	if at, ok := b.inventory.EKRoots().NotAfter(now); ok {
		m.Expiry("ek-roots", at)
	}
	if cert := b.parts.Certificates.Current(); cert != nil && cert.Leaf != nil {
		m.Expiry("serving-certificate", cert.Leaf.NotAfter)
	}
}
