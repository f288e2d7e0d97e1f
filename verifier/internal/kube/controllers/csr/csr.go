// SPDX-License-Identifier: Apache-2.0

// Package csr approves the certificate signing requests of kubelets, in place of or beside OpenShift's
// cluster-machine-approver, the stock approver (docs/approver.md). Package pkg/approver decides each
// request. Package approval reads the facts for it.
//
// The package watches CertificateSigningRequests. Each of the kubelet's two signers has its own
// controller, so that a kubelet that does not answer delays no client certificate. Both controllers
// share one Reconcile, which reads the request from the API server before the decision. A decision
// has these consequences:
//
//   - Approve: for a client certificate with attestation, the controller first writes the key and the
//     request's name to the machine's record, by compare-and-swap. Then it approves the request.
//     Another key can replace that key only if no request with it was approved. Before that, the
//     controller denies the waiting requests with the former key.
//   - Deny: the request gets the condition Denied. This outcome is only for a request that
//     proves which machine made it.
//   - Refuse: nothing is written; the request waits for an administrator.
//   - Retry: the request is evaluated again, after pauses that grow with its age.
//   - Ignore: the request is not for this approver.
//
// If a machine's own credential made a request, a refusal is written to that machine's record, which
// emits an Event. Any other refusal causes only a line in the audit log, from a budget, and a metric. So
// a client without such a credential causes no write. If another approver approves a request with a
// machine's own credential, that approval also counts as the machine's first certificate.
//
// It writes: the conditions Approved and Denied, MachineAttestations through [Records]. Permissions:
// get, list and watch of certificatesigningrequests, update of their approval, approve for both
// signers, and the permissions of package approval (deploy/components/approver).
//
// The controllers run while the replica holds the lease. Two concurrent instances do no harm, because
// they write records and conditions with the resource version that they read. An instance that starts
// late evaluates all waiting requests. If it stops between the write of the record and the approval, a
// later instance approves the same key. The controllers make no decision while the inventory, the
// cached Machines and records, is not reliable (Options.Ready): a missing record could then exist. A
// record that cannot be read delays only requests of its own machine.
//
// There is one decision at a time for each machine and for each name of a Node. The verifier's
// replicas can change a record during a decision, so the record does not prevent the approval of a
// second key by itself.
//
// The content of requests and the status of Nodes are untrusted.
package csr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/semaphore"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Records reads and changes the record of a Machine.
type Records interface {
	approval.Records
	Update(ctx context.Context, uid string, change store.Change) error
}

// Options of the controllers.
type Options struct {
	// Config and Credential must be complete, as package config returns them. Credential
	// is nil where machines have no credentials of their own.
	Config     config.Approver
	Credential *config.Credential
	// Namespaces are those of Machines and that of the verifier. "*" means every
	// namespace.
	Namespaces []string
	Namespace  string // the verifier's own, one of them
	Machines   approval.Directory
	Records    Records

	Log   *slog.Logger
	Audit *audit.Log // if nil, it writes to Log

	Now func() time.Time // default time.Now
	// Dial connects to a kubelet. If nil, it connects to any address except those of this
	// host.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Ready returns why Machines and Records are not reliable now. If nil, they always are.
	Ready func() error

	Timeout   time.Duration // of one decision. Default 3 minutes
	Scan      time.Duration // the interval of checks of the stock approver and the limits. Default 30 s
	MinPause  time.Duration // before a request is decided again. Default 500 ms
	SyncLimit time.Duration // within which the requests must have been listed. Default 1 year
}

// The pauses before a request is evaluated again.
const (
	maxPause = 2 * time.Minute
	// oldPause is for a request that no longer counts as waiting.
	oldPause = 10 * time.Minute
	// busyPause is for a request of a machine or node for which another decision is in progress.
	busyPause = 200 * time.Millisecond
	// unreadyPauses is the pause while the inventory is not reliable, in units of MinPause.
	unreadyPauses = 10
)

// young is the age below which the inventory may not have the record for a request yet.
const young = time.Minute

// decisionTimeout is the default of Options.Timeout. It is longer than two lists of all quarantines: a
// decision may wait for a list in progress, and then for its own.
const decisionTimeout = 3 * time.Minute

// workers is the number of concurrent decisions for each signer.
const workers = 8

type request = reconcile.Request

// Controllers decide requests. Create them with [New].
type Controllers struct {
	o        Options
	rules    approver.Config
	audit    *audit.Log
	metrics  metrics
	writes   *listen.KeyedLimiter[string]
	findings findings
}

// New returns the controllers. It makes no call.
func New(o Options) (*Controllers, error) {
	if o.Machines == nil || o.Records == nil || o.Log == nil {
		return nil, errors.New("csr controllers: an option is missing")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Timeout, o.Scan = cmp.Or(o.Timeout, decisionTimeout), cmp.Or(o.Scan, 30*time.Second)
	o.MinPause, o.SyncLimit = cmp.Or(o.MinPause, 500*time.Millisecond), cmp.Or(o.SyncLimit, 365*24*time.Hour)
	if o.Audit == nil {
		o.Audit = audit.New(o.Log)
	}
	return &Controllers{
		o: o, rules: approval.Rules(o.Config, o.Credential, o.Namespace), audit: o.Audit, metrics: newMetrics(),
		writes: newBudget(), findings: findings{log: o.Log},
	}, nil
}

// Cache returns the options of the manager's cache for the kinds that the controllers watch.
func Cache() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&certificatesv1.CertificateSigningRequest{}: {
			Transform: func(obj any) (any, error) {
				if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
					return approver.Trim(csr), nil
				}
				return obj, nil
			},
			UnsafeDisableDeepCopy: ptr.To(true), // cached requests are only read
		},
	}
}

// SetupWithManager adds the controllers to a manager whose cache has the options of [Cache].
func (c *Controllers) SetupWithManager(m manager.Manager) error {
	r := &reconciler{Controllers: c, client: m.GetClient(), wake: make(chan event.GenericEvent)}
	r.index = newIndex(m, c.rules)
	r.reader = approval.NewReader(approval.Options{
		Client: m.GetAPIReader(), Config: c.o.Config, Rules: c.rules, Namespaces: c.o.Namespaces, Namespace: c.o.Namespace,
		Machines: c.o.Machines, Records: c.o.Records, Waiting: r.index.list, Now: c.o.Now, Dial: c.o.Dial,
	})
	for name, signer := range map[string]string{
		"csr-client":  certificatesv1.KubeAPIServerClientKubeletSignerName,
		"csr-serving": certificatesv1.KubeletServingSignerName,
	} {
		b := builder.ControllerManagedBy(m).Named(name).
			For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(undecided(signer))).
			WithOptions(controller.Options{
				MaxConcurrentReconciles: workers,
				// The priority queue sorts the requests of the first list after all new ones. Many new
				// ones would starve those that were waiting before a change of the leader.
				UsePriorityQueue:      ptr.To(false),
				RateLimiter:           workqueue.NewTypedItemExponentialFailureRateLimiter[request](c.o.MinPause, maxPause),
				ReconciliationTimeout: c.o.Timeout,
				// Other controllers of the manager must run while requests cannot be listed.
				CacheSyncTimeout: c.o.SyncLimit,
			})
		if signer == certificatesv1.KubeAPIServerClientKubeletSignerName {
			b = b.WatchesRawSource(source.Channel(r.wake, &handler.EnqueueRequestForObject{}))
		}
		if err := b.Complete(r); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	if err := m.Add(manager.RunnableFunc(r.scanUntil)); err != nil {
		return fmt.Errorf("scan of certificate signing requests: %w", err)
	}
	return nil
}

// undecided selects the requests for a signer that have no decision, those that another
// approver approved, and deleted requests.
func undecided(signer string) predicate.Predicate {
	needed := func(obj client.Object) bool {
		csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
		if !ok || csr.Spec.SignerName != signer {
			return false
		}
		c := approved(csr)
		return c == nil && !approver.FromCSR(csr).Decided || c != nil && c.Reason != ConditionReason
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return needed(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return needed(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		GenericFunc: func(e event.GenericEvent) bool { return needed(e.Object) },
	}
}

// approved returns the condition of an approved request, or nil.
func approved(csr *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequestCondition {
	for i := range csr.Status.Conditions {
		if c := &csr.Status.Conditions[i]; c.Type == certificatesv1.CertificateApproved && c.Status != corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

// indexName is the name of the index by [approver.Config.IndexKeys].
const indexName = "waiting"

// index finds waiting requests in the manager's cache. It is an index of the informer, because a list
// by the manager's client would copy all requests of a key for each decision.
type index struct {
	m     manager.Manager
	rules approver.Config
	busy  *semaphore.Weighted
	found toolscache.Indexer // nil until the first use
}

func newIndex(m manager.Manager, rules approver.Config) *index {
	return &index{m: m, rules: rules, busy: semaphore.NewWeighted(1)}
}

// list returns the requests with one key. The caller must not change them.
func (i *index) list(ctx context.Context, key string) ([]*certificatesv1.CertificateSigningRequest, error) {
	indexer, err := i.indexer(ctx)
	if err != nil {
		return nil, err
	}
	found, err := indexer.ByIndex(indexName, key)
	if err != nil {
		return nil, fmt.Errorf("list waiting certificate signing requests: %w", err)
	}
	all := make([]*certificatesv1.CertificateSigningRequest, 0, len(found))
	for _, obj := range found {
		if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
			all = append(all, csr)
		}
	}
	return all, nil
}

// indexer adds the index at its first use. An index that is added before the manager starts would
// prevent the start of all its controllers while requests cannot be listed.
func (i *index) indexer(ctx context.Context) (toolscache.Indexer, error) {
	if err := i.busy.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for the index of certificate signing requests: %w", err)
	}
	defer i.busy.Release(1)
	if i.found != nil {
		return i.found, nil
	}
	informer, err := i.m.GetCache().GetInformer(ctx, new(certificatesv1.CertificateSigningRequest))
	if err != nil {
		return nil, fmt.Errorf("list certificate signing requests: %w", err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("the informer of certificate signing requests is a %T", informer)
	}
	keys := func(obj any) ([]string, error) {
		csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
		if !ok {
			return nil, nil
		}
		return i.rules.IndexKeys(csr), nil
	}
	if err := shared.AddIndexers(toolscache.Indexers{indexName: keys}); err != nil {
		return nil, fmt.Errorf("index certificate signing requests: %w", err)
	}
	i.found = shared.GetIndexer()
	return i.found, nil
}
