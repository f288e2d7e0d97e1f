// SPDX-License-Identifier: Apache-2.0

package nodecertificate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Options configure a Reconciler. All but Log and Now are required.
type Options struct {
	// Rules are those of the approver. They name the account of this controller.
	Rules approver.Config
	// Lifetime of the certificates.
	Lifetime time.Duration
	// Records reads and writes the records of the machines.
	Records Records
	// Redeemable reports whether the Machine with this UID exists and may have a config of the pool; see
	// machine.Registry.
	Redeemable func(uid, pool string, now time.Time) error
	// Confirm reads the Machine live. It returns an error if the inventory is out of date.
	Confirm func(ctx context.Context, uid string) error
	// Ready returns an error while the inventory is not reliable for this Machine.
	Ready func(uid string) error
	// Waiting returns the UIDs of the records whose machines wait for their node's certificate.
	Waiting func() []string
	Log     *slog.Logger     // default: none
	Now     func() time.Time // default time.Now
}

// Records is the store of records.
type Records interface {
	Session(uid string) store.Session
}

// Reconciler is the controller. It is safe for concurrent use.
type Reconciler struct {
	o       Options
	trigger kube.Trigger
	client  client.Client
	live    client.Reader
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Reconciler{o: o}
	r.trigger.All, r.trigger.Interval = r.all, time.Minute
	return r
}

// all has the machines whose requests were recorded while no replica led.
func (r *Reconciler) all() (requests []reconcile.Request) {
	for _, uid := range r.o.Waiting() {
		requests = append(requests, kube.Request(uid))
	}
	return requests
}

// Observe receives each machine that waits for its node's certificate.
func (r *Reconciler) Observe(uid string) { r.trigger.Enqueue(kube.PriorityChange, kube.Request(uid)) }

// SetupWithManager adds the controller to a manager. The manager's cache may omit the content of
// requests.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	r.client, r.live = m.GetClient(), m.GetAPIReader()
	b := builder.ControllerManagedBy(m).Named("nodecertificate").
		WatchesRawSource(&r.trigger).
		Watches(&certificatesv1.CertificateSigningRequest{}, handler.EnqueueRequestsFromMapFunc(r.owner)).
		WithOptions(kube.JoinOptions())
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("controller nodecertificate: %w", err)
	}
	return nil
}

func (r *Reconciler) owner(_ context.Context, o client.Object) []reconcile.Request {
	csr, ok := o.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return nil
	}
	uid, ok := r.o.Rules.Issues(approver.FromCSR(csr))
	if !ok {
		return nil
	}
	return []reconcile.Request{kube.Request(uid)}
}

// Reconcile implements reconcile.Reconciler. The name of a request is the UID of a record.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	session := r.o.Records.Session(req.Name)
	rec, err := session.Record(ctx)
	if err != nil && reason.From(err).Code != reason.MachineNotFound {
		return reconcile.Result{}, err
	}
	if err != nil || rec == nil || rec.Status.CertificateRequest == nil ||
		rec.Status.Certificate != nil && len(rec.Status.Certificate.Issued) > 0 {
		return reconcile.Result{}, nil
	}
	want, err := approver.NewRequest(rec, r.o.Lifetime, r.o.Now())
	if err != nil {
		switch reason.From(err).Code {
		case reason.TokenSuperseded, reason.MachineJoined, reason.Quarantined:
			return reconcile.Result{}, nil // the machine does not wait anymore
		}
		// The front checked the same, so the record is forged.
		r.o.Log.Warn("a recorded request for a node's certificate is not valid", "machine", req.Name, "error", err)
		return reconcile.Result{}, nil
	}
	if err := r.mayJoin(ctx, req.Name, rec); err != nil {
		return reconcile.Result{}, err
	}
	csr, err := r.provide(ctx, req.Name, want)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.deliver(ctx, session, csr)
}

// mayJoin returns an error if the Machine may not become a Node now.
func (r *Reconciler) mayJoin(ctx context.Context, uid string, rec *v1alpha1.MachineAttestation) error {
	if err := r.o.Ready(uid); err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	if err := r.o.Redeemable(uid, rec.Status.Pool, r.o.Now()); err != nil {
		return err
	}
	return r.o.Confirm(ctx, uid)
}

// provide returns the request of this name. It creates it if it does not exist, and the machine has few
// others.
func (r *Reconciler) provide(ctx context.Context, uid string, want *certificatesv1.CertificateSigningRequest) (
	*certificatesv1.CertificateSigningRequest, error) {
	csr := new(certificatesv1.CertificateSigningRequest)
	err := r.live.Get(ctx, client.ObjectKeyFromObject(want), csr)
	if kerrors.IsNotFound(err) {
		var all certificatesv1.CertificateSigningRequestList // of the cache: a key is requested once
		if err := r.client.List(ctx, &all); err != nil {
			return nil, fmt.Errorf("list certificate signing requests: %w", err)
		}
		if err := r.o.Rules.MayIssue(uid, all.Items, r.o.Now()); err != nil {
			return nil, err
		}
		csr = want.DeepCopy()
		if err := r.client.Create(ctx, csr); err != nil {
			return nil, fmt.Errorf("create certificate signing request %s: %w", want.Name, err)
		}
		r.o.Log.Info("created a certificate signing request", "request", csr.Name)
		return csr, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate signing request %s: %w", want.Name, err)
	}
	if csr.Spec.Username != r.o.Rules.Issuer || !bytes.Equal(csr.Spec.Request, want.Spec.Request) {
		return nil, fmt.Errorf("certificate signing request %s is another one, by %.253q; delete it", csr.Name,
			csr.Spec.Username)
	}
	return csr, nil
}

// deliver adds the certificate of an approved request to the record. The record lacks the approval if
// the machine attested the same key again.
func (r *Reconciler) deliver(ctx context.Context, session store.Session,
	csr *certificatesv1.CertificateSigningRequest) error {
	if len(csr.Status.Certificate) == 0 {
		return nil // a change of the request follows
	}
	req := approver.FromCSR(csr)
	if err := checkLeaf(csr.Status.Certificate, req.PublicKeySHA256); err != nil {
		return fmt.Errorf("certificate of request %s: %w", csr.Name, err)
	}
	c := v1alpha1.CertificateStatus{Node: req.Node(), PublicKeySHA256: req.PublicKeySHA256, Request: csr.Name}
	return session.Update(ctx, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		next, err := record.Certify(rec, c, r.o.Now())
		if err != nil {
			return nil, err
		}
		if next == nil {
			next = rec
		}
		return record.Issued(next, csr.Name, csr.Status.Certificate), nil
	})
}

// checkLeaf checks that the first certificate of a chain has the attested key.
func checkLeaf(chain []byte, keySHA256 string) error {
	block, _ := pem.Decode(chain)
	if block == nil {
		return errors.New("it is not PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo); hex.EncodeToString(sum[:]) != keySHA256 {
		return errors.New("it has another key")
	}
	return nil
}
