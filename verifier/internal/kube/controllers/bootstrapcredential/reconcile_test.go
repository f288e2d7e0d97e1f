// SPDX-License-Identifier: Apache-2.0

package bootstrapcredential_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/bootstrapcredential"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// site is the part of a cluster that belongs to one test. The records are in memory.
type site struct {
	*testing.T
	admin                kubernetes.Interface
	accounts, published  string // namespaces
	manager              manager.Manager
	controller           *bootstrapcredential.Reconciler
	redeemable, confirm  error
	ready                error
	mu                   sync.Mutex
	records              map[string]*v1alpha1.MachineAttestation
	beforeWrite, written func(uid string) error
	now                  func() time.Time
}

func newSite(t *testing.T, kind config.CredentialKind, change ...func(*bootstrapcredential.Options)) *site {
	t.Helper()
	c := cluster.StartShared(t)
	s := &site{T: t, records: map[string]*v1alpha1.MachineAttestation{}, now: time.Now}
	var err error
	s.admin, err = kubernetes.NewForConfig(c.Admin())
	s.ok(err)
	s.accounts = "t-" + strings.ToLower(rand.Text()[:10])
	s.published = s.accounts + "-published"
	for _, name := range []string{s.accounts, s.published} {
		_, err := s.admin.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		s.ok(err)
		t.Cleanup(func() {
			s.ok(s.admin.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
	}
	_, err = s.admin.CoreV1().ServiceAccounts(s.accounts).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "node-bootstrapper"}}, metav1.CreateOptions{})
	s.ok(err)
	issuer, err := credential.NewIssuer(credential.Options{
		Client: s.admin, Namespace: s.published, Timeout: time.Minute,
		Config: config.Credential{Kind: kind, ServiceAccount: s.accounts + "/node-bootstrapper",
			Lifetime: config.Duration(time.Hour)},
	})
	s.ok(err)
	o := bootstrapcredential.Options{
		Issuer: issuer, Records: s, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Redeemable: func(string, string, time.Time) error { return s.redeemable },
		Confirm:    func(context.Context, string) error { return s.confirm },
		Ready:      func(string) error { return s.ready },
		Now:        func() time.Time { return s.now() },
	}
	for _, f := range change {
		f(&o)
	}
	s.controller = bootstrapcredential.New(o)
	s.manager, err = kube.NewManager(c.Admin(), kube.Options{Log: slog.New(slog.DiscardHandler)})
	s.ok(err)
	s.ok(s.controller.SetupWithManager(s.manager))
	return s
}

func (s *site) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Session implements bootstrapcredential.Records.
func (s *site) Session(uid string) store.Session { return store.NewSession(s, uid) }

func (s *site) Record(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := s.records[uid]; rec != nil {
		return rec.DeepCopy(), nil
	}
	return nil, reason.Deny(reason.MachineNotFound, "no Machine with UID %s", uid)
}

func (s *site) Update(_ context.Context, uid string, change store.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beforeWrite != nil {
		if err := s.beforeWrite(uid); err != nil {
			return err
		}
	}
	next, err := change(s.records[uid])
	if err != nil || next == nil {
		return err
	}
	s.records[uid] = next
	if s.written != nil {
		return s.written(uid)
	}
	return nil
}

// change changes a record, as the front or another controller does.
func (s *site) change(uid string, f func(*v1alpha1.MachineAttestation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.records[uid])
}

// attested is the UID of a machine that attested.
func (s *site) attested() (uid string) {
	uid = string(uuid.NewUUID())
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := &v1alpha1.MachineAttestation{}
	rec.Status.MachineUID, rec.Status.Phase = uid, v1alpha1.PhaseAttested
	rec.Status.Token = &v1alpha1.TokenStatus{ID: "t1", Pool: "worker", Expiry: metav1.NewTime(time.Now().Add(time.Hour)),
		MaxUses: 3}
	s.records[uid] = rec
	return uid
}

func (s *site) reconcile(uid string) error {
	_, err := s.controller.Reconcile(s.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: uid}})
	return err
}

// again is how long after a reconciliation without an error the next one is.
func (s *site) again(uid string) time.Duration {
	s.Helper()
	result, err := s.controller.Reconcile(s.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: uid}})
	s.ok(err)
	return result.RequeueAfter
}

// secret is the published credential of a machine; nil: there is none.
func (s *site) secret(uid string) *corev1.Secret {
	s.Helper()
	o, err := s.admin.CoreV1().Secrets(s.published).Get(context.Background(), uid, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return nil
	}
	s.ok(err)
	return o
}

// serves returns the id of the credential that the front serves for a token of the machine.
func (s *site) serves(uid, tokenID string) string {
	s.Helper()
	published := s.secret(uid)
	if published == nil || published.Annotations[credential.AnnotationToken] != tokenID {
		s.Fatalf("nothing is published for the token %s", tokenID)
	}
	id := published.Annotations[credential.AnnotationCredential]
	if _, ok := record.Credential(s.records[uid], id, time.Now()); !ok {
		s.Fatalf("%s is not on the record", id)
	}
	return id
}

func TestReconcile_RecordsACredentialBeforeItIsPublished(t *testing.T) {
	for _, kind := range []config.CredentialKind{config.ServiceAccountToken, config.BootstrapToken} {
		t.Run(string(kind), func(t *testing.T) {
			s := newSite(t, kind)
			uid := s.attested()
			s.written = func(uid string) error {
				if s.secret(uid) != nil {
					t.Error("it was published before")
				}
				return nil
			}
			s.ok(s.reconcile(uid))
			id := s.serves(uid, "t1")
			// For each use of the token it is the same.
			s.change(uid, func(r *v1alpha1.MachineAttestation) {
				r.Status.Phase, r.Status.Token.Uses = v1alpha1.PhaseFetched, 1
			})
			s.ok(s.reconcile(uid))
			if again := s.serves(uid, "t1"); again != id || len(s.records[uid].Status.Credentials) != 1 {
				t.Errorf("%s, and then %s", id, again)
			}
		})
	}
}

// A machine that attested its kubelet's key gets a certificate, but no credential.
func TestReconcile_MakesNoCredentialForAnAttestedKey(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken, func(o *bootstrapcredential.Options) { o.Certificates = true })
	keyed, plain := s.attested(), s.attested()
	s.change(keyed, func(r *v1alpha1.MachineAttestation) { r.Status.CSRKeySHA256 = "k1" })
	s.controller.Observe(keyed, "t1")
	if pause := s.again(keyed); pause != 0 { // the record changes if it attests again
		t.Errorf("retried after %v", pause)
	}
	if s.secret(keyed) != nil || len(s.records[keyed].Status.Credentials) > 0 {
		t.Error("it has a credential")
	}
	s.ok(s.reconcile(plain))
	s.serves(plain, "t1")
	// It attests again without a key.
	s.change(keyed, func(r *v1alpha1.MachineAttestation) { r.Status.CSRKeySHA256, r.Status.Token.ID = "", "t2" })
	s.ok(s.reconcile(keyed))
	s.serves(keyed, "t2")
}

// The front can write records. What a Machine is decides the inventory.
func TestAttack_T49_ARecordWithoutAMachineReceivesNoCredential(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	for name, set := range map[string]func(on bool){
		"a quarantined Machine":                   func(on bool) { s.redeemable = denied(on, reason.Quarantined) },
		"a joined Machine":                        func(on bool) { s.redeemable = denied(on, reason.MachineJoined) },
		"a Machine of another pool":               func(on bool) { s.redeemable = denied(on, reason.MachinePool) },
		"no Machine":                              func(on bool) { s.redeemable = denied(on, reason.MachineNotFound) },
		"a deleted Machine":                       func(on bool) { s.redeemable = denied(on, reason.MachineDeleting) },
		"a Machine that differs in the live read": func(on bool) { s.confirm = denied(on, reason.StoreUnavailable) },
		"an inventory that is out of date":        func(on bool) { s.ready = denied(on, reason.StoreUnavailable) },
	} {
		uid := s.attested()
		set(true)
		err := s.reconcile(uid)
		if s.secret(uid) != nil || len(s.records[uid].Status.Credentials) > 0 {
			t.Errorf("%s received a credential: %v", name, err)
		}
		set(false)
		s.ok(s.reconcile(uid))
		s.serves(uid, "t1")
	}
}

// No event follows when a published credential ends, by itself or with its token.
func TestReconcile_RunsWhenAPublishedCredentialExpires(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken) // a credential lasts an hour
	began := time.Now().Truncate(time.Second)
	s.now = func() time.Time { return began }
	for _, token := range []time.Duration{20 * time.Minute, 2 * time.Hour} {
		uid := s.attested()
		s.change(uid, func(r *v1alpha1.MachineAttestation) {
			r.Status.Token.Expiry = metav1.NewTime(began.Add(token))
		})
		for what, pause := range map[string]time.Duration{"published": s.again(uid), "published before": s.again(uid)} {
			ends := began.Add(token)
			if own := s.records[uid].Status.Credentials[0].Expiry.Time; own.Before(ends) {
				ends = own
			}
			if next := began.Add(pause); !next.After(ends) || next.After(ends.Add(time.Minute)) {
				t.Errorf("%s: the next time is %v after the end", what, next.Sub(ends))
			}
		}
	}
}

// The inventory may show the Machine late. No event follows when it does, so the controller retries.
func TestMachineThatMayNotHaveACredentialYet_ReceivesItLater(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	uid := s.attested()
	began := time.Now()
	s.now = func() time.Time { return began }
	s.controller.Observe(uid, "t1")
	s.redeemable = denied(true, reason.MachineNotFound)
	first := s.again(uid)
	if first <= 0 || first > 5*time.Second {
		t.Errorf("retried after %v", first)
	}
	s.now = func() time.Time { return began.Add(20 * time.Second) }
	if later := s.again(uid); later <= first {
		t.Errorf("retried after %v, then after %v", first, later)
	}
	s.now = func() time.Time { return began.Add(2 * time.Hour) } // the token has expired
	if never := s.again(uid); never != 0 {
		t.Errorf("retried after %v without a token", never)
	}
	s.now = time.Now
	s.redeemable = nil
	s.ok(s.reconcile(uid))
	s.serves(uid, "t1")

	const unknown = "c0ffee00-0000-0000-0000-000000000001" // its record was watched, its Machine not yet
	s.controller.Observe(unknown, "t1")
	if pause := s.again(unknown); pause <= 0 || pause > 5*time.Second {
		t.Errorf("without a Machine: retried after %v", pause)
	}
	s.controller.Observe(unknown, "")
	if pause := s.again(unknown); pause != 0 {
		t.Errorf("without a record: retried after %v", pause)
	}
}

func denied(on bool, code reason.Code) error {
	if !on {
		return nil
	}
	return reason.Deny(code, "m")
}

func TestReconcile_WithdrawsAPublishedCredential(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	for name, change := range map[string]func(uid string){
		"when the machine joined": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Phase, r.Status.Token = v1alpha1.PhaseJoined, nil })
		},
		"when the machine is quarantined": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Quarantined = true })
		},
		"when the token has expired": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) {
				r.Status.Token.Expiry = metav1.NewTime(time.Now().Add(-2 * keys.ClockSkew))
			})
		},
		"when the Machine was deleted": func(uid string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.records, uid)
		},
		"when the Machine joined in the inventory": func(string) { s.redeemable = denied(true, reason.MachineJoined) },
	} {
		uid := s.attested()
		s.ok(s.reconcile(uid))
		s.serves(uid, "t1")
		change(uid)
		s.ok(s.reconcile(uid))
		if s.secret(uid) != nil {
			t.Errorf("%s it is still published", name)
		}
		s.redeemable = nil
	}
}

// A replica whose clock is ahead must not withdraw what one whose clock is behind still provides. They would repeat
// that without a pause, until the token expires for both.
func TestReconcile_TheClocksOfReplicasDiffer(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	uid := s.attested()
	s.ok(s.reconcile(uid))
	own := s.serves(uid, "t1")
	expiry := s.records[uid].Status.Token.Expiry.Time
	for _, clock := range []time.Time{expiry, expiry.Add(2*keys.ClockSkew - time.Second), time.Now()} {
		s.now = func() time.Time { return clock }
		end := expiry
		if !clock.Before(expiry) {
			end = expiry.Add(2 * keys.ClockSkew)
		}
		if pause := s.again(uid); clock.Add(pause).Before(end) {
			t.Errorf("at %v the next time is after %v", clock, pause)
		}
		if again := s.serves(uid, "t1"); again != own {
			t.Errorf("at %v the credential is %s instead of %s", clock, again, own)
		}
	}
	s.now = func() time.Time { return expiry.Add(2 * keys.ClockSkew) }
	if pause := s.again(uid); pause != 0 || s.secret(uid) != nil {
		t.Errorf("no replica provides it, but it is published, and the next time is after %v", pause)
	}

	s.now = time.Now
	revoked := s.attested()
	s.ok(s.reconcile(revoked))
	s.change(revoked, func(r *v1alpha1.MachineAttestation) { r.Status.Credentials[0].Revoked = true })
	s.now = func() time.Time { return s.records[revoked].Status.Token.Expiry.Time }
	if s.again(revoked); s.secret(revoked) != nil {
		t.Error("a revoked credential is still published")
	}
}

// One replica may withdraw what another one publishes, because their views of the Machine differ.
func TestReconcile_ReplicasThatDisagreeDoNotWriteWithoutAPause(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	uid := s.attested()
	clock := time.Now()
	s.now = func() time.Time { return clock }
	published, last := 0, time.Time{}
	for end := clock.Add(10 * time.Minute); clock.Before(end); clock = clock.Add(10 * time.Second) {
		s.again(uid)
		if s.secret(uid) == nil {
			continue
		}
		published, last = published+1, clock
		s.ok(s.admin.CoreV1().Secrets(s.published).Delete(t.Context(), uid, metav1.DeleteOptions{}))
	}
	if published < 5 || published > v1alpha1.MaxCredentials || clock.Sub(last) > 4*time.Minute {
		t.Errorf("published %d times in ten minutes, %v ago for the last time", published, clock.Sub(last))
	}
	s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Token.ID = "t2" })
	if s.again(uid); s.secret(uid) == nil {
		t.Error("another attestation waits")
	}
}

func TestAttack_T49_AnotherPublishedSecretIsReplaced(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	for name, change := range map[string]func(uid string){
		"of the attestation before": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Token.ID = "t2" })
		},
		"that is not on the record": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Credentials = nil })
		},
		"that was revoked": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Credentials[0].Revoked = true })
		},
		"that expired": func(uid string) {
			s.change(uid, func(r *v1alpha1.MachineAttestation) { r.Status.Credentials[0].Expiry = metav1.NewTime(time.Now()) })
		},
		"without annotations": func(uid string) {
			published := s.secret(uid)
			published.Annotations = nil
			_, err := s.admin.CoreV1().Secrets(s.published).Update(t.Context(), published, metav1.UpdateOptions{})
			s.ok(err)
		},
	} {
		uid := s.attested()
		s.ok(s.reconcile(uid))
		before := s.serves(uid, "t1")
		change(uid)
		s.ok(s.reconcile(uid))
		if after := s.serves(uid, s.records[uid].Status.Token.ID); after == before {
			t.Errorf("one %s stays", name)
		}
	}
}

// The process may end between any two steps.
func TestCrashBetweenTwoSteps_LeavesEveryCredentialOnTheRecord(t *testing.T) {
	for _, kind := range []config.CredentialKind{config.ServiceAccountToken, config.BootstrapToken} {
		t.Run(string(kind), func(t *testing.T) {
			s := newSite(t, kind)
			uid := s.attested()
			s.beforeWrite = func(string) error { return errors.New("the API is unavailable") }
			if err := s.reconcile(uid); err == nil {
				t.Error("no error without a record")
			}
			if s.secret(uid) != nil || len(s.bootstrapTokens(uid)) > 0 {
				t.Error("what is on no record is left")
			}
			s.beforeWrite = nil
			s.written = func(string) error { return errors.New("the answer was lost") }
			if err := s.reconcile(uid); err == nil {
				t.Error("no error without an answer")
			}
			if s.secret(uid) != nil {
				t.Error("it was published without an answer")
			}
			s.written = nil
			s.ok(s.reconcile(uid))
			s.serves(uid, "t1")
		})
	}
}

func (s *site) bootstrapTokens(uid string) []corev1.Secret {
	s.Helper()
	all, err := s.admin.CoreV1().Secrets("kube-system").List(context.Background(),
		metav1.ListOptions{LabelSelector: credential.LabelMachine + "=" + uid})
	s.ok(err)
	return all.Items
}

// publication changes the first request that creates a Secret in a namespace. It drops the answer, or answers that the
// Secret exists.
type publication struct {
	http.RoundTripper
	namespace         string
	perform, conflict bool
	once              sync.Once
}

func (p *publication) RoundTrip(r *http.Request) (res *http.Response, err error) {
	changed := false
	if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/"+p.namespace+"/") {
		p.once.Do(func() { changed = true })
	}
	if !changed || p.perform {
		res, err = p.RoundTripper.RoundTrip(r)
	}
	switch {
	case !changed || err != nil:
		return res, err
	case !p.conflict:
		return nil, errors.New("the answer was lost")
	}
	answer := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`
	return &http.Response{StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(answer)), Request: r}, nil
}

// A credential that may be published must not be deleted: the machine could have received it.
func TestReconcile_DeletesOnlyACredentialThatIsNotPublished(t *testing.T) {
	for name, test := range map[string]struct {
		perform, conflict bool
		left              int // the tokens before the next try
	}{
		"no answer":                     {perform: true, left: 1},
		"the request was repeated":      {perform: true, conflict: true, left: 1},
		"another credential was faster": {conflict: true, left: 0},
		"the request was lost":          {left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, config.BootstrapToken, func(o *bootstrapcredential.Options) {
				changed := rest.CopyConfig(cluster.StartShared(t).Admin())
				changed.Wrap(func(rt http.RoundTripper) http.RoundTripper {
					return &publication{RoundTripper: rt, namespace: o.Issuer.Namespace, perform: test.perform,
						conflict: test.conflict}
				})
				issuer := o.Issuer.Options
				var err error
				if issuer.Client, err = kubernetes.NewForConfig(changed); err != nil {
					t.Fatal(err)
				}
				if o.Issuer, err = credential.NewIssuer(issuer); err != nil {
					t.Fatal(err)
				}
			})
			uid := s.attested()
			if err := s.reconcile(uid); err == nil {
				t.Error("no error")
			}
			if all := s.bootstrapTokens(uid); len(all) != test.left {
				t.Errorf("%d tokens, not %d", len(all), test.left)
			}
			s.ok(s.reconcile(uid))
			id := strings.TrimPrefix(s.serves(uid, "t1"), "system:bootstrap:")
			all := s.bootstrapTokens(uid)
			if !slices.ContainsFunc(all, func(o corev1.Secret) bool { return string(o.Data["token-id"]) == id }) {
				t.Errorf("%s is published, but is not among %d tokens", id, len(all))
			}
		})
	}
}

// A record that changes while the credential is made refuses it.
func TestReconcile_PublishesNothingIfTheRecordChanged(t *testing.T) {
	s := newSite(t, config.BootstrapToken)
	for name, change := range map[string]func(*v1alpha1.MachineAttestation){
		"quarantined":    func(r *v1alpha1.MachineAttestation) { r.Status.Quarantined = true },
		"attested again": func(r *v1alpha1.MachineAttestation) { r.Status.Token.ID = "t2" },
		"joined":         func(r *v1alpha1.MachineAttestation) { r.Status.Phase = v1alpha1.PhaseJoined },
	} {
		uid := s.attested()
		s.beforeWrite = func(uid string) error {
			change(s.records[uid])
			return nil
		}
		err := s.reconcile(uid)
		if err == nil || s.secret(uid) != nil || len(s.records[uid].Status.Credentials) > 0 ||
			len(s.bootstrapTokens(uid)) > 0 {
			t.Errorf("%s in the meantime: %v, %v", name, err, s.records[uid].Status.Credentials)
		}
		s.beforeWrite = nil
	}
}

// The controller in its manager: what is observed is published, and a Secret that an administrator deleted is
// published again. It logs how long it takes from the record to the published credential.
func TestManager_PublishesForObservedMachines(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	early := s.attested()
	s.controller.Observe(early, "t1") // before the manager starts
	// As OpenShift does for each service account of each namespace, and again after each deletion.
	foreign, err := s.admin.CoreV1().Secrets(s.published).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "default-dockercfg-x7k2p"}, Type: corev1.SecretTypeDockercfg,
		Data: map[string][]byte{corev1.DockerConfigKey: []byte("{}")}}, metav1.CreateOptions{})
	s.ok(err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.manager.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not after a minute", what)
			}
		}
	}
	until("observed before the start", func() bool { return s.secret(early) != nil })
	s.ok(s.admin.CoreV1().Secrets(s.published).Delete(t.Context(), early, metav1.DeleteOptions{}))
	until("deleted", func() bool { return s.secret(early) != nil })

	const machines = 50
	var uids []string
	for range machines {
		uids = append(uids, s.attested())
	}
	began := time.Now()
	for _, uid := range uids {
		s.controller.Observe(uid, "t1")
	}
	var first time.Duration
	for n, uid := range uids {
		until(fmt.Sprint("machine ", n), func() bool { return s.secret(uid) != nil })
		if n == 0 {
			first = time.Since(began)
		}
	}
	t.Logf("published the first credential after %v, %d after %v", first, machines, time.Since(began))

	s.change(uids[0], func(r *v1alpha1.MachineAttestation) { r.Status.Phase, r.Status.Token = v1alpha1.PhaseJoined, nil })
	s.controller.Observe(uids[0], "")
	until("joined", func() bool { return s.secret(uids[0]) == nil })
	if s.secret(foreign.Name) == nil {
		t.Error("the controller deleted a Secret of another type")
	}
}

// A replica that does not lead waits for the one that does, and then acts.
func TestReconcile_FollowerActsAfterTheLeader(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken) // its manager does not run, so it does not lead
	uid := s.attested()
	s.change(uid, func(r *v1alpha1.MachineAttestation) {
		r.Status.LastAttested = &metav1.Time{Time: time.Now().Add(time.Hour)}
	})
	if pause := s.again(uid); s.secret(uid) != nil || pause <= 0 || pause > 5*time.Second {
		t.Errorf("it did not wait, or it acts after %v", pause)
	}
	s.change(uid, func(r *v1alpha1.MachineAttestation) {
		r.Status.LastAttested = &metav1.Time{Time: time.Now().Add(-time.Minute)}
	})
	s.ok(s.reconcile(uid))
	s.serves(uid, "t1")
}

// While the published Secrets cannot be listed, the controller waits, and reports the reason to an administrator.
func TestCredentialsThatCannotBeWatchedAreReported(t *testing.T) {
	s := newSite(t, config.ServiceAccountToken)
	api := rest.CopyConfig(cluster.StartShared(t).Admin())
	api.Impersonate.UserName = "system:serviceaccount:" + s.accounts + ":node-bootstrapper" // it may do nothing
	m, err := kube.NewManager(api, kube.Options{Log: slog.New(slog.DiscardHandler)})
	s.ok(err)
	s.ok(s.controller.SetupWithManager(m))
	if all := s.controller.Findings(); len(all) != 0 {
		t.Errorf("before the start: %v", all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Start(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all := s.controller.Findings()
		if len(all) == 1 && all[0].Reason == "CredentialsUnreadable" && strings.Contains(all[0].Text, "forbidden") &&
			strings.Contains(all[0].Text, s.published) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after a minute: %v", all)
		}
	}
	cancel()
	wg.Wait()
	s.now = func() time.Time { return time.Now().Add(2 * time.Minute) } // without another error
	if all := s.controller.Findings(); len(all) != 0 {
		t.Errorf("later: %v", all)
	}
}
