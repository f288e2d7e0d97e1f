package serve

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/csr"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/mcscertificates"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/renderedconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// becoming begins what has to do with a machine after it attested, as far as the
// configuration has it: rendered configs, its bootstrap credential, its certificates.
func (b *Cluster) becoming(api *rest.Config, typed kubernetes.Interface, o *cluster.Options) (err error) {
	s, c := b.parts, b.parts.Config
	if c.Credential != nil {
		b.credentials, err = credential.NewIssuer(credential.Options{Client: typed, Config: *c.Credential, Now: s.Now, Log: s.Log,
			Owner: func(uid string) string { return b.cluster.RecordUID(uid) }})
		if err != nil {
			return fmt.Errorf("credential: %w", err)
		}
		o.Revoke = b.credentials.Revoke
	}
	if c.Render != nil {
		b.stored = poolconfig.NewStore(poolconfig.Options{
			Log: s.Log, Now: s.Now, Allow: c.Render.PreApprovedAllows, Notify: b.notify, Leading: func() bool { return b.cluster.Leading() },
		})
		b.configs, err = renderedconfig.New(api, renderedconfig.Options{
			Log: s.Log, Now: s.Now, Store: b.stored,
			OwnCredential: c.Credential != nil && c.Upstream == "", KubeconfigConfigMap: c.Render.KubeconfigConfigMap,
		})
		if err != nil {
			return fmt.Errorf("render: %w", err)
		}
		o.Findings = append(o.Findings, b.configs.Findings)
	}
	if c.Approver != nil {
		requests, err := csr.New(csr.Options{
			Config: *c.Approver, Credential: c.Credential,
			Namespaces: slices.Concat(c.Kubernetes.MachineNamespaces, []string{c.Kubernetes.Namespace}), Namespace: c.Kubernetes.Namespace,
			Machines: known{b}, Records: known{b}, Log: s.Log, Audit: s.Audit, Now: s.Now,
			Ready: func() error { return b.cluster.Ready() },
		})
		if err != nil {
			return fmt.Errorf("approver: %w", err)
		}
		if err := requests.Register(s.Metrics.Registerer()); err != nil {
			return fmt.Errorf("approver: %w", err)
		}
		o.Names = true
		o.Findings = append(o.Findings, requests.Findings)
		b.controllers = append(b.controllers, requests.SetupWithManager)
		maps.Copy(b.cached, csr.Cache())
		b.watchFailed = append(b.watchFailed, requests.WatchFailed)
	}
	if c.Certificates != nil {
		live, err := kube.NewClient(api)
		if err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		certificates, err := mcscertificates.New(mcscertificates.Options{
			Client: live, Config: c, Log: s.Log, Events: b.events, Expiry: s.Metrics.Expiry, Now: s.Now,
		})
		if err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		b.controllers = append(b.controllers, certificates.SetupWithManager)
		o.Findings = append(o.Findings, certificates.Findings)
	}
	if len(b.controllers) > 0 {
		o.Lead = append(o.Lead, func(ctx context.Context) {
			kube.RunManager(ctx, s.Log, func() (manager.Manager, error) { return b.manager(api) })
		})
	}
	return nil
}

// manager returns a manager with all controllers, for the time that this replica holds the lease.
func (b *Cluster) manager(api *rest.Config) (manager.Manager, error) {
	m, err := kube.NewManager(api, kube.Options{
		Log: b.parts.Log, Cache: b.cached,
		WatchFailed: func(ctx context.Context, r *cache.Reflector, err error) {
			for _, failed := range b.watchFailed {
				failed(ctx, r, err)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	for _, setUp := range b.controllers {
		if err := setUp(m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// notify writes an Event about a config that is not the newest.
func (b *Cluster) notify(f poolconfig.Fault) {
	about := events.Object{APIVersion: render.Group + "/v1", Kind: f.About.Kind, Name: f.About.Name, UID: f.About.UID}
	b.events.Emit(events.Event{About: about, Warning: true, Reason: f.Reason, Message: f.Text})
}

// known is the cluster of a basis, for those who are begun before there is one.
type known struct{ b *Cluster }

func (k known) ByInternalDNS(name string) []machine.Ref      { return k.b.cluster.ByInternalDNS(name) }
func (k known) ByNode(node string) []machine.Ref             { return k.b.cluster.ByNode(node) }
func (k known) ByCredential(id string) (uid string, ok bool) { return k.b.cluster.ByCredential(id) }
func (k known) Counts() (machines, nodes int)                { return k.b.cluster.Counts() }
func (k known) Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	return k.b.cluster.Records().Record(ctx, uid)
}
func (k known) Update(ctx context.Context, uid string, change store.Change) error {
	return k.b.cluster.Records().Update(ctx, uid, change)
}
