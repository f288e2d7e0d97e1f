// SPDX-License-Identifier: Apache-2.0

package nodecertificate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

const (
	uid    = "6a2f8c1e-0000-4000-8000-000000000001"
	issuer = "system:serviceaccount:mcs-attest:mcs-attest-controller"
)

// site has one machine that attested its key and requested its certificate.
type site struct {
	*testing.T
	*Reconciler
	api client.Client
	// user is the account whose requests the API server records.
	user string
	key  *ecdsa.PrivateKey
	rec  *v1alpha1.MachineAttestation
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, user: issuer, key: newKey(t)}
	s.api = fake.NewClientBuilder().WithStatusSubresource(&certificatesv1.CertificateSigningRequest{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if csr, ok := o.(*certificatesv1.CertificateSigningRequest); ok {
					csr.Spec.Username = s.user // as the API server does
					csr.CreationTimestamp = metav1.NewTime(s.o.Now())
				}
				return c.Create(ctx, o, opts...)
			},
		}).Build()
	s.Reconciler = New(Options{
		Rules: approver.Config{Attestation: true, Issuer: issuer}, Lifetime: 4 * time.Hour, Records: s,
		Redeemable: func(string, string, time.Time) error { return nil },
		Confirm:    func(context.Context, string) error { return nil },
		Ready:      func(string) error { return nil },
		Waiting:    func() []string { return []string{uid} },
	})
	s.Reconciler.client, s.live = s.api, s.api
	s.rec = &v1alpha1.MachineAttestation{}
	s.rec.Status = v1alpha1.MachineAttestationStatus{
		MachineUID: uid, Phase: v1alpha1.PhaseAttested, Pool: "worker", CSRKeySHA256: s.hash(),
		Token:              &v1alpha1.TokenStatus{ID: "t1", Expiry: metav1.NewTime(time.Now().Add(time.Hour)), MaxUses: 3},
		CertificateRequest: &v1alpha1.CertificateRequestStatus{Request: s.request("system:node:worker-0"), Token: "t1"},
	}
	return s
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (s *site) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) hash() string {
	s.Helper()
	spki, err := x509.MarshalPKIXPublicKey(s.key.Public())
	s.ok(err)
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:])
}

func (s *site) request(name string) []byte {
	s.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: name}}, s.key)
	s.ok(err)
	return der
}

// Session implements Records.
func (s *site) Session(uid string) store.Session { return store.NewSession(s, uid) }

func (s *site) Record(_ context.Context, id string) (*v1alpha1.MachineAttestation, error) {
	if id != uid {
		return nil, reason.Deny(reason.MachineNotFound, "%s", id)
	}
	return s.rec.DeepCopy(), nil
}

func (s *site) Update(_ context.Context, _ string, change store.Change) error {
	next, err := change(s.rec.DeepCopy())
	if err == nil && next != nil {
		s.rec = next
	}
	return err
}

func (s *site) reconcile() error {
	s.Helper()
	_, err := s.Reconcile(s.Context(), kube.Request(uid))
	return err
}

func (s *site) requests() []certificatesv1.CertificateSigningRequest {
	s.Helper()
	var all certificatesv1.CertificateSigningRequestList
	s.ok(s.api.List(s.Context(), &all))
	return all.Items
}

// sign issues a certificate for the request, as kube-controller-manager does after an approval.
func (s *site) sign(csr *certificatesv1.CertificateSigningRequest, key *ecdsa.PrivateKey) {
	s.Helper()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)},
		&x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key)
	s.ok(err)
	csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	s.ok(s.api.Status().Update(s.Context(), csr))
}

func TestReconcile_CreatesOneRequestAndDeliversItsCertificate(t *testing.T) {
	s := newSite(t)
	for range 2 { // the second time as after a restart
		s.ok(s.reconcile())
	}
	all := s.requests()
	if len(all) != 1 {
		t.Fatalf("%d requests", len(all))
	}
	csr := &all[0]
	if csr.Name != approver.Name(uid, s.hash()) ||
		csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
		csr.Spec.ExpirationSeconds == nil || *csr.Spec.ExpirationSeconds != 4*3600 || len(csr.Status.Conditions) != 0 {
		t.Errorf("%+v", csr)
	}
	if s.rec.Status.Certificate != nil {
		t.Error("the record has a certificate before it was signed")
	}
	s.sign(csr, s.key)
	s.ok(s.reconcile())
	c := s.rec.Status.Certificate
	if c == nil || string(c.Issued) != string(csr.Status.Certificate) || c.Node != "worker-0" || c.Request != csr.Name ||
		s.rec.Status.Phase != v1alpha1.PhaseAttested {
		t.Fatalf("%+v", s.rec.Status)
	}
	// The same boot attests again with the same key: the record lost both, and gets both again.
	s.rec.Status.Certificate = nil
	s.rec.Status.Token.ID, s.rec.Status.CertificateRequest.Token = "t2", "t2"
	s.ok(s.reconcile())
	if c := s.rec.Status.Certificate; c == nil || len(c.Issued) == 0 || len(s.requests()) != 1 {
		t.Errorf("%+v", s.rec.Status)
	}
}

// A machine that does not join attests again and again, each time with a new key.
func TestAttack_T73_ManyKeysOfOneMachine(t *testing.T) {
	s := newSite(t)
	s.o.Rules.PendingPerMachine = 3
	now := time.Now()
	s.o.Now = func() time.Time { return now }
	foreign := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
		Name: approver.Name("6a2f8c1e-0000-4000-8000-000000000002", s.hash()), CreationTimestamp: metav1.NewTime(now)}}
	foreign.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName
	s.ok(s.api.Create(t.Context(), foreign))
	attestsAnew := func() error {
		s.key = newKey(t)
		s.rec.Status.CSRKeySHA256 = s.hash()
		s.rec.Status.CertificateRequest.Request = s.request("system:node:worker-0")
		return s.reconcile()
	}
	for range 3 {
		s.ok(attestsAnew())
	}
	last := s.requests()
	for range 2 {
		if d := reason.From(attestsAnew()); d == nil || d.Code != reason.CSRLimit || len(s.requests()) != len(last) {
			t.Fatalf("%v, %d requests", d, len(s.requests()))
		}
	}
	now = now.Add(approver.Window + time.Minute)
	s.rec.Status.Token.Expiry = metav1.NewTime(now.Add(time.Hour))
	s.ok(attestsAnew())
}

// The front can write any record. Each case is a record, or a cluster, for which nothing is requested.
func TestAttack_T73_StolenFront(t *testing.T) {
	fails := errors.New("no")
	for name, c := range map[string]struct {
		change func(*site)
		retry  bool
	}{
		"no request": {func(s *site) { s.rec.Status.CertificateRequest = nil }, false},
		"the name of an administrator": {func(s *site) {
			s.rec.Status.CertificateRequest.Request = s.request("system:admin")
		}, false},
		"no PKCS #10": {func(s *site) { s.rec.Status.CertificateRequest.Request = []byte("request") }, false},
		"a key that was not attested": {func(s *site) {
			s.rec.Status.CSRKeySHA256 = strings.Repeat("0", 64)
		}, false},
		"a token that ended":    {func(s *site) { s.rec.Status.Token.Expiry = metav1.NewTime(time.Now()) }, false},
		"a quarantined machine": {func(s *site) { s.rec.Spec.Quarantined = true }, false},
		"a machine that joined": {func(s *site) { s.rec.Status.Phase = v1alpha1.PhaseJoined }, false},
		"a Machine that may have no config": {func(s *site) {
			s.o.Redeemable = func(string, string, time.Time) error { return fails }
		}, true},
		"a Machine that the API server does not have": {func(s *site) {
			s.o.Confirm = func(context.Context, string) error { return fails }
		}, true},
		"an inventory that is not complete": {func(s *site) {
			s.o.Ready = func(string) error { return fails }
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c.change(s)
			if err := s.reconcile(); (err != nil) != c.retry {
				t.Errorf("%v", err)
			}
			if all := s.requests(); len(all) != 0 {
				t.Errorf("it requested %s", all[0].Name)
			}
		})
	}
}

// The name of the request is taken, or its certificate is for another key.
func TestAttack_T73_AnotherRequestUnderTheName(t *testing.T) {
	for name, change := range map[string]func(*site, *certificatesv1.CertificateSigningRequest){
		"of another account": func(s *site, _ *certificatesv1.CertificateSigningRequest) {
			s.user = "system:serviceaccount:mcs-attest:mcs-attest-verifier"
		},
		"with other content": func(s *site, csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST",
				Bytes: s.request("system:node:worker-1")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			csr, err := approver.NewRequest(s.rec, time.Hour, time.Now())
			s.ok(err)
			change(s, csr)
			s.ok(s.api.Create(t.Context(), csr))
			s.sign(csr, s.key)
			if err := s.reconcile(); err == nil || s.rec.Status.Certificate != nil {
				t.Errorf("%v, %+v", err, s.rec.Status.Certificate)
			}
		})
	}
	t.Run("a certificate for another key", func(t *testing.T) {
		s := newSite(t)
		s.ok(s.reconcile())
		s.sign(&s.requests()[0], newKey(t))
		if err := s.reconcile(); err == nil || s.rec.Status.Certificate != nil {
			t.Errorf("%v, %+v", err, s.rec.Status.Certificate)
		}
	})
}

// A record that changed between the request and the certificate gets none.
func TestReconcile_DeliversOnlyToTheMachineThatRequested(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.MachineAttestation){
		"quarantined":    func(r *v1alpha1.MachineAttestation) { r.Status.Quarantined = true },
		"attested again": func(r *v1alpha1.MachineAttestation) { r.Status.CSRKeySHA256 = strings.Repeat("1", 64) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.ok(s.reconcile())
			s.sign(&s.requests()[0], s.key)
			change(s.rec)
			s.ok(s.reconcile())
			if s.rec.Status.Certificate != nil {
				t.Errorf("%+v", s.rec.Status.Certificate)
			}
		})
	}
}

// The controller evaluates a recorded request each minute, as long as the record exists. A machine that stopped waiting
// is no reason for a warning.
func TestReconcile_WarnsOnlyOfARequestThatIsNotValid(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*site)
		warns  bool
	}{
		"a token that ended":    {func(s *site) { s.rec.Status.Token.Expiry = metav1.NewTime(time.Now()) }, false},
		"a quarantined machine": {func(s *site) { s.rec.Status.Quarantined = true }, false},
		"a machine that joined": {func(s *site) { s.rec.Status.Phase = v1alpha1.PhaseJoined }, false},
		"a forged request": {func(s *site) {
			s.rec.Status.CertificateRequest.Request = s.request("system:admin")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			var log bytes.Buffer
			s.o.Log = slog.New(slog.NewTextHandler(&log, nil))
			c.change(s)
			s.ok(s.reconcile())
			if warns := strings.Contains(log.String(), "level=WARN"); warns != c.warns {
				t.Errorf("log: %s", log.String())
			}
		})
	}
}

// A request that was recorded while no replica led reaches the next leader.
func TestNewLeader_FindsTheRequestsOfBefore(t *testing.T) {
	s := newSite(t)
	queue := priorityqueue.New[reconcile.Request]("nodecertificate")
	defer queue.ShutDown()
	s.Observe(uid) // nothing runs yet
	s.ok(s.trigger.Start(t.Context(), queue))
	if got, shutdown := queue.Get(); shutdown || got.Name != uid {
		t.Errorf("the new leader reconciles %q", got.Name)
	}
}
