package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// The names that this package uses for Events.
type (
	Event     = events.Event
	Object    = events.Object
	EventSink = events.Sink
)

// callTimeout is how long one call of the API may take.
const callTimeout = 5 * time.Second

// LabelContent, on a ConfigMap of the verifier's namespace, says what its data
// holds: each key one file of that sort.
const (
	LabelContent         = "mcs-attest.dev/content"
	ContentReferences    = "reference-values"
	ContentRoots         = "ek-roots"
	ContentAKRoots       = string(trust.AKRoots)
	ContentAzureRoots    = string(trust.AzureRoots)
	ContentAWS           = string(trust.AWSCertificates)
	ContentGoogleKeys    = string(trust.GoogleKeys)
	LeaseName            = "mcs-attest-verifier"
	KeysSecret           = "mcs-attest-keys"
	defaultDiscovery     = time.Minute
	defaultProbe         = 30 * time.Second
	defaultPass          = time.Minute
	defaultWritesPerSec  = 20
	defaultLeaseDuration = 30 * time.Second
)

// Options are what a Cluster needs besides its configuration. The zero value
// works where nothing else is said.
type Options struct {
	Log     *slog.Logger     // required
	Now     func() time.Time // default time.Now
	Version string           // of this program
	// Identity of this replica in the Lease. Default: host name and process id.
	Identity string

	ProvisioningToken config.ProvisioningToken
	KeyRotation       time.Duration // default 30 days
	KeyPublishDelay   time.Duration // default 10 minutes

	// Certificate is called with each new serving certificate, one at a time.
	Certificate func(*tls.Certificate)
	// Changed is called after anything that is known has changed, one call at a
	// time and not for each change by itself.
	Changed func()
	// Events receives what happened to objects; nil: nobody hears of it.
	Events EventSink
	// Origins under which nodes reach the verifier: where in pointer configs the
	// provisioning token may go.
	Origins []string
	// Called hears of each call of the API for a record; see [records.Options].
	Called func(verb, resource string)

	// Names keeps Machines also by the names that certificate signing requests have.
	Names bool
	// Lead is run while this replica holds the lease; each ends with its context.
	Lead []func(ctx context.Context)
	// Findings are what others have found that somebody should look at: Degraded.
	Findings []func() []Finding
	// Conditions are further conditions of the AttestationVerifier; one without a type
	// is not written.
	Conditions []func() metav1.Condition
	// Revoke takes back the bootstrap credentials of a Machine that is gone or was
	// quarantined. It may be called again for the same; nil: there are none.
	Revoke func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error

	// Discovery is how often a kind that the cluster does not have is looked for,
	// Probe how often the API's revision is, Pass how often the holder of the
	// lease looks at everything. Defaults: a minute, 30 s, a minute.
	Discovery, Probe, Pass time.Duration
	// Lease is how long a holder that is gone keeps it. Default 30 s.
	Lease time.Duration
	// WritesPerSecond bounds what the holder writes. Default 20.
	WritesPerSecond float32
}

// Cluster is what the verifier knows of its cluster. It is safe for concurrent use.
type Cluster struct {
	o         Options
	config    config.Kubernetes
	log       *slog.Logger
	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface
	leases    coordinationv1.LeasesGetter

	registry *machine.Registry
	names    *names // nil unless asked for
	records  *records.Records
	events   EventSink
	watches  []*watched
	world    atomic.Pointer[service.World]
	epoch    atomic.Uint32 // restores of etcd that were noticed
	restart  chan struct{} // capacity 1: watch anew
	dirty    chan struct{} // capacity 1: something changed

	discoveryMu sync.Mutex
	served      map[schema.GroupVersion]discovered

	revision revision
	secrets  secrets
	tasks    tasks

	// batch is held for reading while a whole list of what the world is made of is
	// taken in, and for writing while the world is made.
	batch sync.RWMutex

	mu           sync.Mutex
	texts        map[string]string
	faults       map[faultKey]fault
	started      bool // policies were read, and the cluster has them
	policies     map[string]*policyState
	leaving      map[string]*policyState // deleted, and in force for as long as lingering
	left         int                     // how many were deleted
	set          *policy.Set             // the last that compiled
	clash        map[string]string
	content      map[key]*contentState
	trust        *trust.Trust    // nil: to be joined anew
	pools        map[string]bool // MachineConfigPools; nil where there are none
	latches      map[string]latch
	controlPlane map[string]node
	// plans are the Machines of the control plane's pool.
	plans map[plannedKey]planned
	roles *roles // nil: not evaluated by this replica
	// credentials has the Machine's UID by the id of each live bootstrap credential.
	credentials map[string]string
	// orphaned are the credentials of records that are gone, by the Machine's UID,
	// until somebody has looked whether the Machine is, too.
	orphaned map[string][]v1alpha1.CredentialStatus
	restores []restore
	// remembered is what is to be latched again after a restore; nil: nothing is
	// to be done.
	remembered map[string]memory
	hold       *hold // until the restore is acknowledged; nil: the API's state counts
	began      time.Time
}

// faultKey names an object that is not as it should be.
type faultKey struct {
	kind string // as in a resource's name: "machines.machine.openshift.io"
	key
}

// fault is why an object cannot be used.
type fault struct {
	about      Object
	generation int64
	text       string
	never      bool // it has no last good state
	stops      mayStop
}

// latch is what is remembered of a record: as much as tells whether it is in line
// with its Machine. There is one for each Machine, so it is kept small.
type latch struct {
	key
	grant       *grant // the last that was used; nil: none
	joined      bool
	quarantined bool
	restored    bool     // quarantined by what was remembered over a restore
	credentials []string // ids of bootstrap credentials that have not ended
	unrevoked   bool     // some of them have not been taken back
	pool        string   // that the machine attested for
	node        string   // of its certificate
	mismatch    bool     // the condition RoleMismatch is true
}

// grant is a grant to attest once more that was used.
type grant struct {
	until time.Time
	count int32
}

// policyState is one AttestationPolicy.
type policyState struct {
	about      Object
	generation int64
	version    uint64
	observed   int64
	conditions []metav1.Condition
	parsed     []policy.Parsed // last good
	atStart    bool            // it was there, and broken, when the verifier started
}

// contentState is one ConfigMap: the last good content of each of its keys.
type contentState struct {
	references map[string][]measuredboot.ReferenceValues
	roots      map[string][]anchors.Anchor
	trust      map[string]trust.File
}

// New prepares everything and makes no call yet.
func New(_ context.Context, r *rest.Config, c config.Kubernetes, o Options) (*Cluster, error) {
	r = rest.CopyConfig(r)
	// The API server's priority and fairness is what bounds us; client-go's own
	// five requests a second would make fifty machines wait for each other.
	r.QPS, r.Burst = -1, 0
	r.UserAgent = "mcs-attest-verifier/" + cmp.Or(o.Version, "unknown")
	o.Now = orElse(o.Now, time.Now)
	o.Discovery = cmp.Or(o.Discovery, defaultDiscovery)
	o.Probe = cmp.Or(o.Probe, defaultProbe)
	o.Pass = cmp.Or(o.Pass, defaultPass)
	o.Lease = cmp.Or(o.Lease, defaultLeaseDuration)
	o.WritesPerSecond = cmp.Or(o.WritesPerSecond, defaultWritesPerSec)
	o.KeyRotation = cmp.Or(o.KeyRotation, 30*24*time.Hour)
	o.KeyPublishDelay = cmp.Or(o.KeyPublishDelay, 10*time.Minute)
	if o.Certificate == nil {
		o.Certificate = func(*tls.Certificate) {}
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("this replica's name: %w", err)
		}
		o.Identity = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	k := &Cluster{
		o: o, config: c, log: o.Log, began: o.Now(), served: map[schema.GroupVersion]discovered{},
		restart: make(chan struct{}, 1), dirty: make(chan struct{}, 1),
		texts: map[string]string{}, faults: map[faultKey]fault{},
		policies: map[string]*policyState{}, leaving: map[string]*policyState{}, set: &policy.Set{}, content: map[key]*contentState{}, latches: map[string]latch{}, controlPlane: map[string]node{}, plans: map[plannedKey]planned{}, credentials: map[string]string{}, orphaned: map[string][]v1alpha1.CredentialStatus{},
	}
	var err error
	if k.dynamic, err = dynamic.NewForConfig(r); err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	if k.discovery, err = discovery.NewDiscoveryClientForConfig(r); err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	if k.leases, err = coordinationv1.NewForConfig(r); err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	k.registry = machine.NewRegistry(&k.secrets)
	if o.Names {
		k.names = newNames()
	}
	if k.events = o.Events; o.Events == nil {
		k.events = events.Discard{}
	}
	live, err := records.NewClient(r)
	if err != nil {
		return nil, err
	}
	k.records = records.New(records.Options{
		Client: live, Namespace: c.Namespace, Machine: k.registry.ByUID, Log: o.Log, Events: k.events, Called: o.Called,
		Revoke: o.Revoke, Withheld: k.withheld,
	})
	k.tasks.init(k)
	if err := k.plan(); err != nil {
		return nil, err
	}
	k.build()
	return k, nil
}

func orElse(f, def func() time.Time) func() time.Time {
	if f == nil {
		return def
	}
	return f
}

// plan lists what is watched.
func (c *Cluster) plan() error {
	namespaces := c.config.MachineNamespaces
	if slices.Contains(namespaces, "*") {
		namespaces = []string{""}
	}
	for _, ns := range namespaces {
		c.watch(&watched{kind: machineAPIKind, namespace: ns, optional: true, compact: compactMachine, put: c.putMachine, advance: c.advanceMachine, drop: c.dropMachine(machineAPIKind.group)})
		c.watch(&watched{kind: clusterAPIKind, namespace: ns, optional: true, compact: compactMachine, put: c.putMachine, advance: c.advanceMachine, drop: c.dropMachine(clusterAPIKind.group)})
		c.watch(&watched{kind: hostKind, namespace: ns, optional: true, compact: compactEnrolment, put: c.putHost, drop: c.dropHost})
	}
	if !slices.Contains(namespaces, "") && !slices.Contains(namespaces, c.config.Namespace) {
		namespaces = append(slices.Clone(namespaces), c.config.Namespace)
	}
	for _, ns := range namespaces {
		c.watch(&watched{kind: attestationKind, namespace: ns, compact: compactAttestation, put: c.putAttestation, drop: c.dropAttestation})
	}
	c.watch(&watched{kind: nodeKind, compact: compactNode, put: c.putNode, drop: c.dropNode})
	c.watch(&watched{
		kind: policyKind, whole: true, compact: compactPolicy, put: c.putPolicy, drop: c.dropPolicy,
		settled: c.policiesRead, vanished: c.policiesVanished,
	})
	c.watch(&watched{kind: poolKind, optional: true, advisory: true, compact: compactName, put: c.putPool, drop: c.dropPool, settled: c.poolsRead})
	c.watch(&watched{
		kind: configMapKind, namespace: c.config.Namespace, selector: LabelContent + " in (" + strings.Join([]string{ContentReferences, ContentRoots, ContentAKRoots, ContentAzureRoots, ContentAWS, ContentGoogleKeys}, ",") + ")",
		whole: true, compact: compactConfigMap, put: c.putContent, drop: c.dropContent,
	})
	return c.planSecrets()
}

func (c *Cluster) watch(w *watched) {
	w.c, w.known = c, map[key]seen{}
	if w.settled == nil {
		w.settled = func() {}
	}
	if w.vanished == nil {
		w.vanished = func() {}
	}
	c.watches = append(c.watches, w)
}

// The kinds that are watched.
var (
	machineAPIKind  = kind{"machine.openshift.io", "machines", []string{"v1beta1"}}
	clusterAPIKind  = kind{"cluster.x-k8s.io", "machines", []string{"v1beta2", "v1beta1"}}
	hostKind        = kind{"metal3.io", "baremetalhosts", []string{"v1alpha1"}}
	poolKind        = kind{"machineconfiguration.openshift.io", "machineconfigpools", []string{"v1"}}
	attestationKind = kind{v1alpha1.GroupVersion.Group, "machineattestations", []string{v1alpha1.GroupVersion.Version}}
	policyKind      = kind{v1alpha1.GroupVersion.Group, "attestationpolicies", []string{v1alpha1.GroupVersion.Version}}
	nodeKind        = kind{"", "nodes", []string{"v1"}}
	configMapKind   = kind{"", "configmaps", []string{"v1"}}
	secretKind      = kind{"", "secrets", []string{"v1"}}
)

var namespacesResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// Run watches until ctx ends, and does the work of the lease's holder while it is
// this replica.
func (c *Cluster) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(c.log.Handler()))
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.tell(ctx) })
	wg.Go(func() { c.watchRevision(ctx) })
	wg.Go(func() { c.lead(ctx) })
	wg.Go(func() { c.repair(ctx) })
	wg.Go(func() { c.keepSigning(ctx) })
	for ctx.Err() == nil {
		round, stop := context.WithCancel(ctx)
		var watches sync.WaitGroup
		for _, w := range c.watches {
			watches.Go(func() { w.run(round) })
		}
		select {
		case <-ctx.Done():
		case <-c.restart:
			c.log.Warn("watching everything anew")
		}
		stop()
		watches.Wait()
	}
	return nil
}

// tell tells the caller of changes, several at once where they come fast.
func (c *Cluster) tell(ctx context.Context) {
	look := time.NewTicker(lookForStale)
	defer look.Stop()
	for was := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			c.notice(time.Now())
		case <-c.dirty:
			c.build()
			now := c.World().Complete
			if now && !was {
				c.everything() // what had to wait for it
			}
			was = now
			c.o.Changed()
			c.tasks.later(task{about: aboutStatus}, 500*time.Millisecond)
			sleep(ctx, 50*time.Millisecond)
		}
	}
}

// lookForStale is how often is looked whether what is known has become too old. No
// event tells of that.
const lookForStale = 5 * time.Second

// notice has the world made anew if what is known has become too old, or is not
// too old any more.
func (c *Cluster) notice(now time.Time) {
	in, all := c.outdated(now)
	if w := c.World(); fmt.Sprint(all, in) != fmt.Sprint(w.Stale, w.StaleIn) {
		c.changed()
	}
}

// outdated says what may have changed without being heard of; nil if nothing has been
// out of sight for long. An API that is away for a short time is no reason: the
// records, which decide, are read as they are. What the verifier may not read in one
// namespace counts only for the Machines of that namespace.
func (c *Cluster) outdated(now time.Time) (in map[string]error, all error) {
	everywhere := c.barredEverywhere()
	for _, w := range c.watches {
		why := w.outdated(now)
		switch {
		case why == "":
		case !everywhere && w.barred():
			if in == nil {
				in = map[string]error{}
			}
			in[w.namespace] = errors.New(bounded(why))
		case all == nil:
			all = errors.New(bounded(why))
		}
	}
	return in, all
}

// barredEverywhere reports whether there is no namespace of Machines that the verifier
// may read. Then nothing can be served.
func (c *Cluster) barredEverywhere() bool {
	namespaces, barred := map[string]bool{}, map[string]bool{}
	for _, w := range c.watches {
		if w.local() && !w.vacant() {
			namespaces[w.namespace] = true
			if w.barred() {
				barred[w.namespace] = true
			}
		}
	}
	return len(namespaces) > 0 && len(barred) == len(namespaces) && !slices.Contains(c.config.MachineNamespaces, c.config.Namespace)
}

// Outdated says why nothing is granted to the Machine with this UID now; nil if it may be.
func (c *Cluster) Outdated(uid string) error {
	w := c.World()
	if w.Stale != nil || len(w.StaleIn) == 0 {
		return w.Stale
	}
	m, ok := c.registry.ByUID(uid)
	if !ok { // it may be in the namespace that cannot be read
		return w.StaleIn[slices.Sorted(maps.Keys(w.StaleIn))[0]]
	}
	return w.Outdated(m)
}

// changed notes that something is not as it was.
func (c *Cluster) changed() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// World is what the service appraises with now.
func (c *Cluster) World() *service.World { return c.world.Load() }

// Registry is every Machine that is known.
func (c *Cluster) Registry() *machine.Registry { return c.registry }

// Records are the records.
func (c *Cluster) Records() *records.Records { return c.records }

// Synced reports whether everything that serving depends on was read and may be
// read, and what was not. A namespace of Machines that may not be read stops no others.
func (c *Cluster) Synced() (bool, []string) { return c.synced(!c.barredEverywhere()) }

// synced is Synced; with others, a namespace that may not be read does not count.
func (c *Cluster) synced(others bool) (bool, []string) {
	var missing []string
	for _, w := range c.watches {
		if others && w.barred() {
			continue
		}
		if s, wrong := w.state(); wrong && !s.advisory && (s.unsynced || s.forbidden) {
			missing = append(missing, s.text)
		}
	}
	return len(missing) == 0, missing
}

// build makes the world of what is known now.
func (c *Cluster) build() {
	c.batch.Lock()
	defer c.batch.Unlock()
	complete := c.complete()
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &service.World{Complete: complete, Machines: c.registry, Policies: c.compile()}
	w.StaleIn, w.Stale = c.outdated(time.Now())
	var roots [][]anchors.Anchor
	for _, k := range slices.SortedFunc(maps.Keys(c.content), compareKeys) {
		s := c.content[k]
		for _, name := range slices.Sorted(maps.Keys(s.references)) {
			w.References = append(w.References, s.references[name]...)
		}
		for _, name := range slices.Sorted(maps.Keys(s.roots)) {
			roots = append(roots, s.roots[name])
		}
	}
	if h := c.hold; h != nil {
		w.Policies, w.References, w.EKRoots, w.Trust = h.world.Policies, h.world.References, h.world.EKRoots, h.world.Trust
		c.world.Store(w)
		return
	}
	set := anchors.NewSet(roots...)
	c.secrets.roots.Store(set)
	w.EKRoots = tpm2.Roots{Anchors: set.Roots(), Intermediates: set.Intermediates()}
	if c.trust == nil {
		c.trust = c.trusted()
	}
	w.Trust = c.trust
	c.world.Store(w)
}

// trusted joins the anchors of all ConfigMaps; it is called when one has changed.
func (c *Cluster) trusted() *trust.Trust {
	var files []trust.File
	for _, k := range slices.SortedFunc(maps.Keys(c.content), compareKeys) {
		s := c.content[k]
		for _, name := range slices.Sorted(maps.Keys(s.trust)) {
			files = append(files, s.trust[name])
		}
	}
	t, problems := trust.New(files...)
	for _, p := range problems {
		c.log.Error("anchors that contradict each other are not in force", "problem", p.Error())
	}
	return t
}

// complete reports whether everything that an administrator wrote about Machines
// is in force. What was never readable may be the Machine that nobody finds, or
// the quarantine that nobody sees.
func (c *Cluster) complete() bool {
	if synced, _ := c.synced(false); !synced {
		return false
	}
	return !c.unreadable(machineAPIKind, clusterAPIKind, hostKind, attestationKind)
}

// unreadable reports whether some object of these kinds has never had a state that
// could be used.
func (c *Cluster) unreadable(kinds ...kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, f := range c.faults {
		if f.never && slices.ContainsFunc(kinds, func(kind kind) bool { return kind.String() == k.kind }) {
			return true
		}
	}
	return false
}

// mayBeStopped reports whether an object that was never readable may quarantine this
// Machine.
func (c *Cluster) mayBeStopped(m *machine.Machine) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, f := range c.faults {
		if !f.never || k.kind != attestationKind.String() || f.stops.nobody {
			continue
		}
		for _, m := range []*machine.Machine{m, m.Mirror} {
			if m != nil && (f.stops.machine == key{} || f.stops.machine == key{m.Namespace, m.Name}) {
				return true
			}
		}
	}
	return false
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// EKRoots are the roots that the ConfigMaps hold, for their expiry.
func (c *Cluster) EKRoots() *anchors.Set { return c.secrets.roots.Load() }

// says is a problem without the file that an object of the API does not have.
func says(p manifest.Problem) string {
	if p.Want == "" {
		return p.What
	}
	return p.What + "; " + p.Want
}

// unusable notes that an object cannot be used as it stands.
func (c *Cluster) unusable(kind kind, i *item, problems []manifest.Problem, hadGood bool) {
	var texts []string
	for _, p := range problems {
		if !p.Warning {
			texts = append(texts, says(p))
		}
	}
	text := bounded(strings.Join(texts, "\n"))
	k := faultKey{kind.String(), i.key}
	c.mu.Lock()
	before, known := c.faults[k]
	f := fault{about: i.about, generation: i.at, text: text, never: !hadGood}
	f.stops, _ = i.rest.(mayStop)
	c.faults[k] = f
	if k.kind == policyKind.String() {
		p := c.policies[i.name]
		if p == nil {
			p = cmp.Or(c.leaving[i.name], &policyState{atStart: !c.started})
			delete(c.leaving, i.name)
			c.policies[i.name] = p
		}
		p.about, p.generation, p.version, p.observed, p.conditions = i.about, i.at, i.version, i.observed, i.conditions
	}
	c.mu.Unlock()
	if !known || before.text != text {
		c.log.Error("an object cannot be used as it stands; its last good state stays in force", "object", k.kind+" "+i.String(), "problem", text, "none_good", f.never)
	}
	c.tasks.add(task{about: aboutFault, kind: k.kind, key: i.key})
	c.changed()
}

// maxFaultText bounds what a condition says of an object.
const maxFaultText = 1024

func bounded(s string) string {
	if len(s) > maxFaultText {
		return strings.ToValidUTF8(s[:maxFaultText], "")
	}
	return s
}

// mended notes that an object can be used, or is gone.
func (c *Cluster) mended(kind kind, k key) {
	at := faultKey{kind.String(), k}
	c.mu.Lock()
	delete(c.faults, at)
	c.mu.Unlock()
	c.log.Info("an object can be used again, or is gone", "object", at.kind+" "+k.String())
	c.tasks.add(task{about: aboutFault, kind: at.kind, key: k})
	c.changed()
}

// Problems are the objects that cannot be used as they stand, for status and the
// metric.
func (c *Cluster) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for k, f := range c.faults {
		all = append(all, k.kind+" "+k.String()+": "+f.text)
	}
	for name, text := range c.clash {
		all = append(all, policyKind.String()+" "+name+": "+text)
	}
	slices.Sort(all)
	return all
}

// intern keeps one copy of what many objects say alike.
func (c *Cluster) intern(s string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, ok := c.texts[s]; ok {
		return one
	}
	if len(c.texts) < 10_000 {
		c.texts[s] = s
	}
	return s
}
