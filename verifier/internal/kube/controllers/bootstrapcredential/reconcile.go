// SPDX-License-Identifier: Apache-2.0

package bootstrapcredential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Options configure a Reconciler. All but Log and Now are required.
type Options struct {
	Issuer *credential.Issuer
	// Records reads and writes the records of the machines.
	Records Records
	// Redeemable reports whether the Machine with this UID exists and may have a config of the pool; see
	// machine.Registry.
	Redeemable func(uid, pool string, now time.Time) error
	// Confirm reads the Machine live. It returns an error if the inventory is out of date.
	Confirm func(ctx context.Context, uid string) error
	// Ready returns an error while the inventory is not reliable for this Machine.
	Ready func(uid string) error
	// Certificates means that a machine that attested its kubelet's key gets a certificate in place of a
	// credential.
	Certificates bool

	Log *slog.Logger     // default: none
	Now func() time.Time // default time.Now
}

// Records is the store of records.
type Records interface {
	Session(uid string) store.Session
}

// Reconciler is the controller. It is safe for concurrent use.
type Reconciler struct {
	o       Options
	trigger kube.Trigger
	live    client.Reader
	elected <-chan struct{}

	mu       sync.Mutex
	tokens   map[string]observed // by UID of the record
	issued   map[string]issued   // by UID of the record
	unread   string              // why the published credentials could not be watched
	failedAt time.Time
}

// observed is a live attestation token.
type observed struct {
	id    string
	since time.Time
}

// issued is how many credentials this replica made for an attestation token.
type issued struct {
	token string
	n     int
	last  time.Time
}

const (
	resync = 10 * time.Minute
	// minRetry is the minimum pause before the controller checks again a machine that may not have a
	// credential yet.
	minRetry = 2 * time.Second
	// standby is the time that a replica that does not lead leaves a new attestation to the leader.
	standby = 3 * time.Second
	// withoutPause is how many credentials a replica makes for one token without a pause. maxPause is the longest one.
	withoutPause = 3
	maxPause     = 4 * time.Minute
	// clocks is the maximum difference of the clocks of two replicas.
	clocks = 2 * keys.ClockSkew
	// failedRecently is longer than the pause of a failing watch before it starts again.
	failedRecently = 90 * time.Second
)

// New returns a Reconciler.
func New(o Options) *Reconciler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Reconciler{o: o, tokens: map[string]observed{}, issued: map[string]issued{}}
	r.trigger.All, r.trigger.Interval = r.all, resync
	return r
}

// Observe receives the id of the attestation token that a machine may use, at each change of its
// record. If there is none, the id is empty, and the published credential is deleted.
func (r *Reconciler) Observe(uid, tokenID string) {
	r.mu.Lock()
	changed := r.tokens[uid].id != tokenID
	switch {
	case !changed:
	case tokenID == "":
		delete(r.tokens, uid)
	default:
		r.tokens[uid] = observed{tokenID, r.o.Now()}
	}
	r.mu.Unlock()
	switch {
	case !changed:
	case tokenID == "":
		r.trigger.Enqueue(kube.PriorityRevoke, kube.Request(uid))
	default:
		r.trigger.Enqueue(kube.PriorityChange, kube.Request(uid))
	}
}

func (r *Reconciler) all() (all []reconcile.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range maps.Keys(r.tokens) {
		all = append(all, kube.Request(uid))
	}
	return all
}

// SetupWithManager adds the controller to a manager. The controller has its own cache, for one
// namespace and without the contents of Secrets. It has only Secrets of its own type: OpenShift creates others in each
// namespace, and again after a deletion.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	published, err := cache.New(m.GetConfig(), cache.Options{
		HTTPClient: m.GetHTTPClient(), Scheme: m.GetScheme(), Mapper: m.GetRESTMapper(),
		DefaultNamespaces:        map[string]cache.Config{r.o.Issuer.Namespace: {}},
		DefaultFieldSelector:     fields.OneTermEqualSelector("type", string(credential.SecretType)),
		DefaultWatchErrorHandler: r.watchFailed,
	})
	if err != nil {
		return fmt.Errorf("cache of published credentials: %w", err)
	}
	if err := m.Add(everywhere{published}); err != nil {
		return fmt.Errorf("cache of published credentials: %w", err)
	}
	r.live, r.elected = m.GetAPIReader(), m.Elected()
	options := kube.JoinOptions()
	options.NeedLeaderElection = ptr.To(false)
	b := builder.ControllerManagedBy(m).Named("bootstrapcredential").
		WatchesRawSource(&r.trigger).
		WatchesRawSource(source.Kind(published, secretMetadata(), handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, s *metav1.PartialObjectMetadata) []reconcile.Request {
				return []reconcile.Request{kube.Request(s.Name)}
			}))).
		WithOptions(options)
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("controller bootstrapcredential: %w", err)
	}
	return nil
}

func (r *Reconciler) watchFailed(ctx context.Context, _ *toolscache.Reflector, err error) {
	if ctx.Err() != nil || kerrors.IsResourceExpired(err) || kerrors.IsGone(err) {
		return
	}
	text := fmt.Sprintf("published credentials in namespace %s cannot be watched, so no machine may get one: %v",
		r.o.Issuer.Namespace, err)
	r.mu.Lock()
	news := r.unread != text
	r.unread, r.failedAt = text, r.o.Now()
	r.mu.Unlock()
	if news {
		r.o.Log.Warn("bootstrap credentials", "finding", text)
	}
}

// Findings returns a finding for the condition Degraded if the published credentials could recently not
// be watched. Until they were listed once, this controller does nothing.
func (r *Reconciler) Findings() []view.Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unread == "" || r.o.Now().Sub(r.failedAt) > failedRecently {
		return nil
	}
	return []view.Finding{{Reason: "CredentialsUnreadable", Text: r.unread}}
}

// everywhere is a Runnable that also runs in replicas that do not lead.
type everywhere struct{ manager.Runnable }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

func secretMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
}

// Reconcile implements reconcile.Reconciler. The name of a request is the UID of a record.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	uid, began := req.Name, r.o.Now()
	published := secretMetadata()
	at := types.NamespacedName{Namespace: r.o.Issuer.Namespace, Name: uid}
	if err := r.live.Get(ctx, at, published); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("published credential: %w", err)
	}
	session := r.o.Records.Session(uid)
	rec, token, err := r.token(ctx, session, uid, began)
	if err != nil {
		return reconcile.Result{}, err
	}
	if published.UID != "" {
		if until, ok := serves(published, rec, token, began); ok {
			return reconcile.Result{RequeueAfter: until.Sub(began) + time.Second}, nil
		}
		if err := r.o.Issuer.Withdraw(ctx, uid, string(published.UID)); err != nil {
			return reconcile.Result{}, fmt.Errorf("published credential: %w", err)
		}
		r.o.Log.Info("withdrew a published bootstrap credential", "machine", uid, "credential",
			published.Annotations[credential.AnnotationCredential])
	}
	if token == nil || expired(token, began) {
		r.discount(uid)
		return reconcile.Result{RequeueAfter: r.retry(uid, rec)}, nil
	}
	if pause := max(r.pause(rec, began), r.repeated(uid, token.ID, began)); pause > 0 {
		return reconcile.Result{RequeueAfter: pause}, nil
	}
	expiry, err := r.provide(ctx, session, uid, token, began)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: expiry.Sub(r.o.Now()) + time.Second}, nil
}

// token returns the record of a machine, and its attestation token if the machine may have a credential
// now. That includes a token that has expired only by this replica's clock. An error means that the answer is unknown.
func (r *Reconciler) token(ctx context.Context, session store.Session, uid string, now time.Time,
) (*v1alpha1.MachineAttestation, *v1alpha1.TokenStatus, error) {
	if record.IsBreakGlass(uid) {
		return nil, nil, nil
	}
	rec, err := session.Record(ctx)
	if err != nil && reason.From(err).Code != reason.MachineNotFound {
		return nil, nil, err
	}
	token := record.CredentialToken(rec, now.Add(-clocks))
	// A machine that attested its kubelet's key gets a certificate for it. The approver accepts only that key.
	if err == nil && (token == nil || r.certified(rec)) {
		return rec, nil, nil
	}
	if err := r.o.Ready(uid); err != nil {
		return nil, nil, fmt.Errorf("inventory: %w", err)
	}
	if token == nil { // The Machine does not exist.
		return nil, nil, nil
	}
	if r.o.Redeemable(uid, token.Pool, now) != nil {
		return rec, nil, nil
	}
	if err := r.o.Confirm(ctx, uid); err != nil {
		return nil, nil, err
	}
	return rec, token, nil
}

func (r *Reconciler) certified(rec *v1alpha1.MachineAttestation) bool {
	return r.o.Certificates && rec.Status.CSRKeySHA256 != ""
}

// retry returns the pause before the next try for a machine that has a live attestation token, but may
// not have a credential now. No event follows when the inventory receives its Machine. It returns 0 if
// the machine has no such token, or gets a certificate: a token is for one attestation, with or without a key.
func (r *Reconciler) retry(uid string, rec *v1alpha1.MachineAttestation) time.Duration {
	now := r.o.Now()
	r.mu.Lock()
	token, ok := r.tokens[uid]
	r.mu.Unlock()
	if !ok || rec != nil && (record.CredentialToken(rec, now) == nil || r.certified(rec)) {
		return 0
	}
	return min(max(now.Sub(token.since)/2, minRetry), kube.MaxJoinPause)
}

// pause returns the time that a replica that does not lead waits before it creates a credential.
func (r *Reconciler) pause(rec *v1alpha1.MachineAttestation, now time.Time) time.Duration {
	select {
	case <-r.elected:
		return 0
	default:
	}
	if rec.Status.LastAttested == nil {
		return 0
	}
	return min(standby, standby-now.Sub(rec.Status.LastAttested.Time)) // the clock of the front may be ahead
}

// repeated returns the time that a replica waits before it makes another credential for a token. One replica may
// withdraw what another one publishes, because their views of the Machine differ. The pause becomes longer each time,
// because a record has only the last [v1alpha1.MaxCredentials].
func (r *Reconciler) repeated(uid, tokenID string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.issued[uid]
	if t.token != tokenID || t.n < withoutPause {
		return 0
	}
	pause := min(kube.MaxJoinPause<<min(t.n-withoutPause, 8), maxPause)
	return min(pause, pause-now.Sub(t.last)) // the clock may have been set back
}

// count counts a credential that this replica made for a token.
func (r *Reconciler) count(uid, tokenID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 1
	if t := r.issued[uid]; t.token == tokenID {
		n += t.n
	}
	r.issued[uid] = issued{tokenID, n, r.o.Now()}
}

// discount removes the count of a machine that may have no credential.
func (r *Reconciler) discount(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.issued, uid)
}

// serves reports whether a published credential belongs to a token, and until when. The record must have the
// credential. It also belongs to a token that has expired only by this replica's clock. If this replica withdrew it,
// one whose clock is behind would immediately publish another one, again and again.
func serves(published client.Object, rec *v1alpha1.MachineAttestation, token *v1alpha1.TokenStatus, now time.Time,
) (time.Time, bool) {
	a := published.GetAnnotations()
	if token == nil || a[credential.AnnotationToken] != token.ID || published.GetDeletionTimestamp() != nil {
		return time.Time{}, false
	}
	var late time.Duration
	if expired(token, now) {
		late = clocks
	}
	own, ok := record.Credential(rec, a[credential.AnnotationCredential], now.Add(-late))
	if !ok || own.Revoked {
		return time.Time{}, false
	}
	return earlier(token.Expiry.Time, own.Expiry.Time).Add(late), true
}

func expired(token *v1alpha1.TokenStatus, now time.Time) bool { return !now.Before(token.Expiry.Time) }

// provide creates a credential, adds it to the record, and publishes it.
func (r *Reconciler) provide(ctx context.Context, session store.Session, uid string, token *v1alpha1.TokenStatus,
	began time.Time) (time.Time, error) {
	own, err := r.o.Issuer.Issue(ctx, uid)
	if err != nil {
		return time.Time{}, err
	}
	r.count(uid, token.ID)
	err = session.Update(ctx, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.AddCredential(rec, token.ID, *own, r.o.Now())
	})
	if err != nil {
		r.o.Issuer.Discard(context.WithoutCancel(ctx), own)
		return time.Time{}, err
	}
	if err := r.o.Issuer.Publish(ctx, uid, token.ID, own); err != nil {
		if r.unpublished(ctx, uid, own.ID, err) {
			r.o.Issuer.Discard(context.WithoutCancel(ctx), own)
		}
		return time.Time{}, err
	}
	r.o.Log.Info("published a bootstrap credential", "machine", uid, "credential", own.ID, "expires", own.Expiry,
		"took", r.o.Now().Sub(began).String())
	return earlier(token.Expiry.Time, own.Expiry), nil
}

// unpublished reports whether a credential is certainly not published. The API server may have performed a request that
// has no answer, or whose answer is that of a repetition.
func (r *Reconciler) unpublished(ctx context.Context, uid, own string, err error) bool {
	var s kerrors.APIStatus
	if !errors.As(err, &s) || s.Status().Code/100 != 4 {
		return false
	}
	found := secretMetadata()
	err = r.live.Get(ctx, types.NamespacedName{Namespace: r.o.Issuer.Namespace, Name: uid}, found)
	return client.IgnoreNotFound(err) == nil && found.Annotations[credential.AnnotationCredential] != own
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
