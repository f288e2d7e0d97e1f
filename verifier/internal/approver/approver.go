// Package approver approves the certificate signing requests of kubelets, in place
// of or beside OpenShift's cluster-machine-approver (DESIGN, section 11.2). What is
// approved says package pkg/approver; here is where it is looked up, and what
// follows from a decision.
//
// Requests are watched; each is read anew before it is decided, and so is
// everything that a decision rests on, see [World]. A decision has these
// consequences:
//
//   - Approve: with attestation the record of the machine first takes the key and
//     the name of its first client certificate, by compare-and-swap, which is when
//     it has joined; then the request is approved. Whoever dies in between is no
//     harm: the same key is approved again. Another takes its place only where no
//     request with the first was approved; those that wait are denied before, so that
//     none will be.
//   - Deny: the condition Denied, since the request proves whose it is.
//   - Refuse: nothing is done; the request waits for a human.
//   - Retry: it is looked at again, after ever longer pauses.
//   - Ignore: it is somebody else's.
//
// A refusal of a request that was made with a machine's own credential is noted on
// that machine's record, from where an Event tells of it. Any other leaves a line
// in the audit log, from a budget, and a metric: who makes requests without a
// credential of ours must not have the verifier write anything (DESIGN, section
// 19, rule 3).
//
// A request with a machine's own credential that somebody else approved counts as
// that machine's first certificate, too.
//
// It runs on the replica that holds the lease. Two at a time would do no harm.
//
// Nothing is decided while what was watched cannot be relied on (Options.Ready): that
// no record has a credential, or no Machine a Node, would be no fact.
//
// Untrusted: the content of requests, and what a Node says of itself.
package approver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Options are what an Approver works with.
type Options struct {
	// Client and Dynamic must not be slowed down by client-go's default of five
	// requests per second.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Config and Credential must be complete, as the configuration has them;
	// Credential is nil where machines have no credentials of their own.
	Config     config.Approver
	Credential *config.Credential
	// Namespaces of Machines, and the verifier's own; "*" is every namespace.
	Namespaces []string
	Namespace  string // the verifier's own, one of them
	Machines   Directory
	Records    Records

	Log   *slog.Logger
	Audit *audit.Log // nil: one that writes to Log

	Now     func() time.Time // nil: time.Now
	Timeout time.Duration    // of one call; 0 is 5 seconds
	// Dial reaches a kubelet; nil: any address but those of this very host.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Look is how often the stock approver and the limits are looked at. Default 30 s.
	Look time.Duration
	// Ready says why what Machines and Records say cannot be relied on now: it was not
	// all read yet, or is old, or does not belong together. nil: it always can.
	Ready func() error
	// Again is the first pause before a request is looked at again. Default 500 ms.
	Again time.Duration
}

// How many requests of each kind are decided at a time. They have queues of their
// own: a kubelet that does not answer holds up no machine's first certificate.
const workers = 8

// Pauses before a request is looked at again.
const (
	firstPause = 500 * time.Millisecond
	mostPause  = 2 * time.Minute
	// oldPause is for one that has waited for longer than counts.
	oldPause = 10 * time.Minute
	// deaf is how long a watch that has failed counts as one that does.
	deaf = 2 * time.Minute
	// unready is the pause while nothing can be decided, in first pauses.
	unready = 10
	// young is a request that may be ahead of what was watched.
	young = time.Minute
)

// Approver decides requests. Create it by [New].
type Approver struct {
	o        Options
	decide   approver.Config
	world    *World
	attested bool
	audit    *audit.Log
	metrics  metrics
	writes   budget

	mu   sync.Mutex
	said map[string]string // by request: what the audit log was last told
	busy map[string]bool   // users and machines for which something is being decided
	off  bool              // the switch for client certificates, when last looked at
	// What is not as it should be.
	stock, unread, watching, crowd string
	deafAt                         time.Time // when a watch last failed
	foreign                        foreign   // the last that was seen
}

// New makes no call yet.
func New(o Options) (*Approver, error) {
	if o.Client == nil || o.Dynamic == nil || o.Machines == nil || o.Records == nil || o.Log == nil {
		return nil, errors.New("approver: an option is missing")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Look, o.Again = cmp.Or(o.Look, 30*time.Second), cmp.Or(o.Again, firstPause)
	o.Timeout = cmp.Or(o.Timeout, callTimeout)
	if o.Audit == nil {
		o.Audit = audit.New(o.Log)
	}
	a := &Approver{
		o: o, audit: o.Audit, metrics: newMetrics(), attested: o.Config.Attestation != config.AttestationOff,
		said: map[string]string{}, busy: map[string]bool{}, writes: newBudget(),
		decide: Rules(o.Config, o.Credential),
	}
	a.world = NewWorld(WorldOptions{
		Client: o.Client, Dynamic: o.Dynamic, Config: o.Config, Credential: o.Credential, Namespaces: o.Namespaces, Namespace: o.Namespace, Machines: o.Machines, Records: o.Records,
		Timeout: o.Timeout, Now: o.Now, Dial: o.Dial,
	})
	return a, nil
}

// Rules are what requests are decided by.
func Rules(c config.Approver, own *config.Credential) approver.Config {
	rules := approver.Config{
		Attestation: c.Attestation != config.AttestationOff, MaxMachineAge: time.Duration(c.MaxMachineAge), PendingPerMachine: c.PendingPerMachine,
	}
	if own != nil {
		rules.ServiceAccount, rules.BootstrapTokens, rules.BootstrapGroups = own.ServiceAccount, own.Kind == config.BootstrapToken, own.Groups
	}
	return rules
}

// Run decides until ctx ends. It may be run again.
func (a *Approver) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer a.rest()
	a.world.o.waiting.reset() // what went while this replica did not look
	queues := map[string]queue{}
	for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName} {
		q := a.newQueue()
		queues[signer] = q
		wg.Go(func() { a.watch(ctx, signer, q) })
	}
	wg.Go(func() { a.lookNowAndThen(ctx, queues[certificatesv1.KubeAPIServerClientKubeletSignerName]) })
	<-ctx.Done()
	for _, q := range queues {
		q.ShutDown()
	}
}

// rest leaves nothing behind that only the replica that decides knows.
func (a *Approver) rest() {
	a.metrics.pending.Set(0)
	a.metrics.limit.Set(0)
	a.metrics.stock.Set(0)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stock, a.unread, a.watching, a.crowd = "", "", "", ""
	a.foreign = foreign{}
	clear(a.said)
}

type queue = workqueue.TypedRateLimitingInterface[string]

func (a *Approver) newQueue() queue {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](a.o.Again, mostPause))
}

// work decides what comes out of the queue.
func (a *Approver) work(ctx context.Context, q queue) {
	for {
		name, over := q.Get()
		if over {
			return
		}
		again := a.reconcile(ctx, name)
		switch {
		case ctx.Err() != nil:
		case again == never:
			q.Forget(name)
		case again > 0:
			q.AddAfter(name, again)
		default:
			q.AddRateLimited(name)
		}
		q.Done(name)
	}
}

// What reconcile returns: when to look again.
const (
	never = time.Duration(-1)
	later = time.Duration(0) // after the next pause
	soon  = 200 * time.Millisecond
)

// reconcile decides one request.
func (a *Approver) reconcile(ctx context.Context, name string) time.Duration {
	// One at a time for each node, as what a node claims takes time to look up; and for
	// each machine, so that of two requests one is the first.
	whose := a.world.o.waiting.whose(name)
	if whose != "" {
		if !a.enter(whose) {
			return soon
		}
		defer a.leave(whose)
	}
	call, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	csr, err := a.o.Client.CertificatesV1().CertificateSigningRequests().Get(call, name, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return never
	}
	if err != nil {
		a.o.Log.Debug("a certificate signing request cannot be read", "request", name, "error", err)
		return later
	}
	if !a.ready(name) {
		return unready * a.o.Again
	}
	if decided(csr) {
		return a.approvedByOthers(ctx, csr)
	}
	r := approver.FromCSR(csr)
	if uid, ok := a.o.Machines.ByCredential(r.CredentialID); ok && whose == "" && r.CredentialID != "" {
		if !a.enter(ofMachine(uid)) { // its record was seen after it
			return soon
		}
		defer a.leave(ofMachine(uid))
	}
	began := time.Now()
	now := a.o.Now()
	d := approver.Decide(ctx, r, a.world, a.decide, now)
	if ctx.Err() != nil {
		return never
	}
	if !a.ready(name) { // the decision rests on what it was meanwhile
		return unready * a.o.Again
	}
	again := a.act(ctx, csr, d, now)
	a.metrics.duration.WithLabelValues(label(d.Kind)).Observe(time.Since(began).Seconds())
	if again == later && now.Sub(r.Created) > approver.Window {
		return oldPause
	}
	return again
}

func (a *Approver) ready(request string) bool {
	if a.o.Ready == nil {
		return true
	}
	err := a.o.Ready()
	if err != nil {
		a.o.Log.Debug("a certificate signing request cannot be decided yet", "request", request, "error", err)
	}
	return err == nil
}

func (a *Approver) enter(whose string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy[whose] {
		return false
	}
	a.busy[whose] = true
	return true
}

func (a *Approver) leave(whose string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.busy, whose)
}

// lookNowAndThen looks at what no request tells of.
func (a *Approver) lookNowAndThen(ctx context.Context, clients queue) {
	tick := time.NewTicker(a.o.Look)
	defer tick.Stop()
	for {
		a.look(ctx, clients)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *Approver) look(ctx context.Context, clients queue) {
	machines, nodes := a.o.Machines.Counts()
	limit := approver.Load{Machines: machines, Nodes: nodes}.Limit()
	pending := a.world.o.waiting.pending(a.o.Now())
	a.metrics.pending.Set(float64(pending))
	a.metrics.limit.Set(float64(limit))
	var crowd, unread, stock string
	if pending > limit {
		crowd = fmt.Sprintf("%d certificate signing requests wait, at most %d may; requests without a machine's own credential are left for a human", pending, limit)
	}
	off, err := a.world.disabled(ctx, a.o.Config.ConfigMap)
	if was := a.switched(off || err != nil); was && !off && err == nil {
		// What waits may be at the end of a long pause.
		for _, name := range a.world.o.waiting.clients() {
			clients.Forget(name)
			clients.Add(name)
		}
	}
	if err != nil {
		unread = "the switch for client certificates cannot be read: " + err.Error()
		if a.attested {
			unread += "; none is approved meanwhile"
		}
	}
	name := ""
	err = nil
	if a.attested {
		name, err = a.world.stock(ctx)
	}
	switch {
	case err != nil:
		stock = "whether the stock approver approves client certificates, too, cannot be found out: " + err.Error()
	case name != "":
		stock = fmt.Sprintf("%s approves client certificates without attestation; set nodeClientCert.disabled: true in %s", name, a.o.Config.StockConfigMap)
	}
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.foreign
	recent := !f.at.IsZero() && a.o.Now().Sub(f.at) < remembered
	if recent && name == "" {
		stock = fmt.Sprintf("request %s for a client certificate was approved by another approver (reason %q) at %s, without attestation; find out which one, and switch it off", f.request, f.by, f.at.UTC().Format(time.RFC3339))
	}
	a.metrics.stock.Set(map[bool]float64{true: 1}[name != "" || recent])
	// A watch that fails says so each time that it is tried again.
	if time.Since(a.deafAt) > deaf {
		a.note(&a.watching, "")
	}
	a.note(&a.crowd, crowd)
	a.note(&a.unread, unread)
	a.note(&a.stock, stock)
}

// switched notes how the switch is, and tells how it was.
func (a *Approver) switched(off bool) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, a.off = a.off, off
	return was
}

// note logs what has changed; the lock is held.
func (a *Approver) note(was *string, is string) {
	if *was == is {
		return
	}
	if is != "" {
		a.o.Log.Warn("certificate signing requests", "finding", is)
	}
	*was = is
}
