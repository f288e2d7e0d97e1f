// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// callTimeout is the timeout of a call to the API.
const callTimeout = 5 * time.Second

const (
	// KeysSecret is the name of the Secret with the signing and sealing keys.
	KeysSecret          = "mcs-attest-keys"
	defaultDiscovery    = time.Minute
	defaultProbe        = 30 * time.Second
	defaultPass         = time.Minute
	defaultWritesPerSec = 20
)

// Options configure an Inventory, besides its configuration. Unless noted, a field may be zero.
type Options struct {
	Log     *slog.Logger     // required
	Now     func() time.Time // default time.Now
	Version string           // of this program
	// Account is the name of the service account of this process for hints. If empty, hints do not name
	// it.
	Account string
	// Identity is that of the controller, in the Lease and in the status of the AttestationVerifier.
	Identity string

	ProvisioningToken config.ProvisioningToken
	KeyPublishDelay   time.Duration // default 10 minutes
	Agents            bool          // the gate serves the agent

	// Certificate is called with each new serving certificate, one at a time.
	Certificate func(*tls.Certificate)
	// Changed is called after changes of the state, and each minute for what a change of the view does not show, such
	// as the number of Machines. There is one call at a time, and one may cover several changes.
	Changed func()
	// Events receives what happened to objects. If nil, Events are discarded.
	Events events.Sink
	// Called receives each call of the API for a record; see [records.Options].
	Called func(verb, resource string)

	// Names indexes Machines also by the names in certificate signing requests.
	Names bool
	// Observe keeps whole records, for [Inventory.State].
	Observe bool
	// Revoke revokes the bootstrap credentials of a Machine that was deleted or quarantined. Calls may
	// repeat. It is nil if machines have none.
	Revoke func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error

	// Token, if set, receives at each change of a record the id of the attestation token that its
	// machine may use now, or "".
	Token func(uid, tokenID string)
	// Requested, if set, receives each machine that waits for its node's certificate, at each change of
	// its record.
	Requested func(uid string)
	// RenewKeys replaces keys from before a restore of etcd. It fails if such keys remain. The front
	// has none.
	RenewKeys func(context.Context) error

	// Discovery is the pause between requests for a kind that the cluster does not have. Probe is the
	// interval of the reads of the API's revision. Pass is the interval at which the leader checks
	// everything. Defaults: a minute, 30 s, a minute.
	Discovery, Probe, Pass time.Duration
	// WritesPerSecond limits the leader's writes, except those of the records of Machines. Default 20.
	WritesPerSecond float32
}

// Inventory is the cached state of the cluster. It is safe for concurrent use.
type Inventory struct {
	*Machines
	*Faults
	*Policies
	*Secrets
	// Triggers are those of the controllers from which the inventory requests reconciliations.
	Triggers Triggers

	o       Options
	config  config.Kubernetes
	log     *slog.Logger
	dynamic dynamic.Interface
	host    string // of the API server

	records *records.Records
	events  events.Sink
	watches *sources.Runner
	view    atomic.Pointer[view.View]
	guard   *restore.Guard
	repair  *restore.Reconciler
	dirty   chan struct{} // capacity 1: something changed

	limit   flowcontrol.RateLimiter // of bookkeeping
	leading atomic.Bool
	reviews authorizationclient.SubjectAccessReviewInterface
	front   atomic.Pointer[[]view.Finding] // what only the processes that serve may not read

	// batch is held for reading while a whole list of the view's input is applied, and for writing
	// while the view is built.
	batch sync.RWMutex
	began time.Time
}

// Triggers are the sources of controllers.
type Triggers struct {
	MachineRecord, PolicyStatus, NodeRoles         kube.Trigger
	SigningKeys, ProvisioningToken, PointerConfigs kube.Trigger
}

// New prepares the inventory. It makes no call.
func New(r *rest.Config, c config.Kubernetes, o Options) (*Inventory, error) {
	r = rest.CopyConfig(r)
	// API Priority and Fairness limits the calls. client-go's default of five requests per second would
	// make fifty machines wait for each other.
	r.QPS, r.Burst = -1, 0
	r.UserAgent = "mcs-attest-verifier/" + cmp.Or(o.Version, "unknown")
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Discovery = cmp.Or(o.Discovery, defaultDiscovery)
	o.Probe = cmp.Or(o.Probe, defaultProbe)
	o.Pass = cmp.Or(o.Pass, defaultPass)
	o.WritesPerSecond = cmp.Or(o.WritesPerSecond, defaultWritesPerSec)
	o.KeyPublishDelay = cmp.Or(o.KeyPublishDelay, 10*time.Minute)
	if o.Certificate == nil {
		o.Certificate = func(*tls.Certificate) {}
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Token == nil {
		o.Token = func(string, string) {}
	}
	if o.Requested == nil {
		o.Requested = func(string) {}
	}
	k := &Inventory{
		o: o, config: c, log: o.Log, began: o.Now(), host: r.Host,
		dirty: make(chan struct{}, 1),
	}
	var err error
	if k.dynamic, err = dynamic.NewForConfig(r); err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	authorization, err := authorizationclient.NewForConfig(r)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	k.reviews = authorization.SubjectAccessReviews()
	live, err := records.NewClient(r)
	if err != nil {
		return nil, err
	}
	k.newGuard(live)
	secrets, err := kube.NewSecretClient(r)
	if err != nil {
		return nil, err
	}
	k.Secrets = newSecrets(secretsOptions{
		Config: c, Token: o.ProvisioningToken, Client: secrets, Guard: k.guard, Now: func() time.Time { return k.o.Now() },
		Log: o.Log, Certificate: o.Certificate, Changed: k.changed, Triggers: &k.Triggers, Interval: o.Pass,
	})
	k.Machines = newMachines(machinesOptions{
		Registry: machine.NewRegistry(k.Secrets), Now: o.Now, Names: o.Names, Revocable: o.Revoke != nil, Observe: o.Observe,
		Admit:           func(m machine.Machine) (machine.Machine, bool) { return k.guard.Machine(m) },
		AdmitEnrollment: func(e machine.Enrollment) (machine.Enrollment, bool) { return k.guard.Enrollment(e) },
		Recorded:        func(uid string, l latch) { k.recorded(uid, l) },
		Trigger:         &k.Triggers.MachineRecord, RolesChanged: k.rolesChanged,
		Rejected: func(name types.NamespacedName, rejected bool) { k.Faults.setRejected(name, rejected) },
		Token:    o.Token, Requested: o.Requested,
	})
	k.Faults = &Faults{log: o.Log, trigger: &k.Triggers.PolicyStatus, all: map[faultKey]fault{},
		rejected: map[types.NamespacedName]bool{}}
	k.Policies = newPolicies(policiesOptions{
		Log: o.Log, Faults: k.Faults, Trigger: &k.Triggers.PolicyStatus, Changed: k.changed, PoolsChanged: k.rolesChanged,
	})
	k.Triggers.PolicyStatus.All, k.Triggers.PolicyStatus.Interval = k.Policies.requests, o.Pass
	k.Triggers.NodeRoles.All = func() []reconcile.Request { return []reconcile.Request{{}} }
	k.Triggers.NodeRoles.Interval = o.Pass
	if k.events = o.Events; o.Events == nil {
		k.events = events.Discard{}
	}
	k.records = records.New(records.Options{
		Client: live, Namespace: c.Namespace, Machine: k.registry.ByUID, Log: o.Log, Events: k.events, Called: o.Called,
		Revoke: o.Revoke, Withheld: k.guard.WithheldGrant, Revisions: k.guard,
		Cached: func(name types.NamespacedName) (uint64, uint32) { return k.watches.Cached(attestationKind, name) },
	})
	k.limit = flowcontrol.NewTokenBucketRateLimiter(o.WritesPerSecond, int(2*o.WritesPerSecond)+1)
	k.repair.Limit = k.limit
	if err := k.newWatches(r); err != nil {
		return nil, err
	}
	k.build()
	return k, nil
}

// plan returns the sources to watch.
func (c *Inventory) plan() ([]*sources.Source, error) {
	namespaces := c.config.MachineNamespaces
	if slices.Contains(namespaces, "*") {
		namespaces = []string{""}
	}
	own := namespaces
	if !slices.Contains(namespaces, "") && !slices.Contains(namespaces, c.config.Namespace) {
		own = append(slices.Clone(namespaces), c.config.Namespace)
	}
	all := slices.Concat(c.Machines.Sources(namespaces, own), c.Policies.Sources(c.config.Namespace))
	single, err := c.Secrets.Sources()
	return append(all, single...), err
}

// kind is a resource of the API.
type kind = sources.Kind

// The kinds that are watched.
var (
	machineAPIKind = kind{Group: "machine.openshift.io", Resource: "machines", Kind: "Machine",
		Versions: []string{"v1beta1"}}
	clusterAPIKind = kind{Group: "cluster.x-k8s.io", Resource: "machines", Kind: "Machine",
		Versions: []string{"v1beta2", "v1beta1"}}
	hostKind = kind{Group: "metal3.io", Resource: "baremetalhosts", Kind: "BareMetalHost",
		Versions: []string{"v1alpha1"}}
	poolKind = kind{Group: "machineconfiguration.openshift.io", Resource: "machineconfigpools",
		Kind: "MachineConfigPool", Versions: []string{"v1"}}
	attestationKind = kind{Group: v1alpha1.GroupVersion.Group, Resource: "machineattestations",
		Kind: v1alpha1.KindMachineAttestation, Versions: []string{v1alpha1.GroupVersion.Version}}
	policyKind = kind{Group: v1alpha1.GroupVersion.Group, Resource: "attestationpolicies",
		Kind: v1alpha1.KindAttestationPolicy, Versions: []string{v1alpha1.GroupVersion.Version}}
	nodeKind      = kind{Resource: "nodes", Kind: "Node", Versions: []string{"v1"}}
	configMapKind = kind{Resource: "configmaps", Kind: "ConfigMap", Versions: []string{"v1"}}
	secretKind    = kind{Resource: "secrets", Kind: "Secret", Versions: []string{"v1"}}
)

var namespacesResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// key identifies an object of a kind.
type key struct{ namespace, name string }

func (k key) String() string {
	return sources.Name(types.NamespacedName{Namespace: k.namespace, Name: k.name})
}

func keyOf(n types.NamespacedName) key { return key{n.Namespace, n.Name} }

// aboutOf returns the object of an Event.
func aboutOf(o *sources.Object) events.Object {
	return events.Object{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

// newWatches creates the sources.
func (c *Inventory) newWatches(r *rest.Config) error {
	scheme, err := kube.Scheme()
	if err != nil {
		return err
	}
	all, err := c.plan()
	if err != nil {
		return err
	}
	c.watches, err = sources.New(sources.Options{
		Config: r, Scheme: scheme, Log: c.log, Account: c.o.Account, Namespace: c.config.Namespace,
		MachineNamespaces: c.config.MachineNamespaces, Retry: c.o.Discovery, Revisions: c.guard,
		NamespaceGone: c.namespaceGone, Batch: c.batch.RLocker(), Unusable: c.unusable, Usable: c.usable,
		Changed: c.changed,
	}, all...)
	return err
}

// namespaceGone reports whether a namespace does not exist or is being deleted.
func (c *Inventory) namespaceGone(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ns, err := c.dynamic.Resource(namespacesResource).Get(ctx, name, metav1.GetOptions{})
	return kerrors.IsNotFound(err) || err == nil && ns.GetDeletionTimestamp() != nil
}

// Run watches until ctx ends.
func (c *Inventory) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(c.log.Handler()))
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.publish(ctx) })
	wg.Go(func() { c.guard.Run(ctx) })
	c.watches.Run(ctx)
	return nil
}

// Registry returns all known Machines.
func (c *Inventory) Registry() *machine.Registry { return c.registry }

// Records are the records.
func (c *Inventory) Records() *records.Records { return c.records }

// CanChange reports whether every object was read that could prevent a change in a namespace of Machines.
// If release is true, it also considers the objects that could prevent the release of a quarantine. A
// forbidden namespace affects only its own Machines. The namespace is "" if it is unknown.
func (c *Inventory) CanChange(namespace string, release bool) bool {
	if synced, _ := c.Synced(); !synced {
		return false
	}
	if c.watches.Complete() {
		return true
	}
	for _, w := range c.watches.Sources() {
		s, _ := w.Status()
		switch {
		case !w.Forbidden():
		case namespace == "" || w.Namespace == namespace:
			return false
		case release && s.Unsynced && w.Resource == attestationKind.Resource:
			return false // an object there that was never read may require it
		}
	}
	return true
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// rolesChanged requests a comparison of the roles of Nodes with their pools.
func (c *Inventory) rolesChanged() {
	c.Triggers.NodeRoles.EnqueueAfter(200*time.Millisecond, kube.PriorityChange, reconcile.Request{})
}

// unusable records that an object cannot be used as it is.
func (c *Inventory) unusable(s *sources.Source, o *sources.Object, problems []manifest.Problem, hadGood bool) {
	c.Faults.put(s.Kind, o, problems, hadGood)
	if s.Kind.String() == policyKind.String() {
		c.Policies.putUnusable(o)
	}
	c.changed()
}

// usable records that an object can be used, or was deleted.
func (c *Inventory) usable(s *sources.Source, name types.NamespacedName) {
	c.Faults.drop(s.Kind, name)
	c.changed()
}

// Limit returns the rate limit of the leader's writes.
func (c *Inventory) Limit() flowcontrol.RateLimiter { return c.limit }
