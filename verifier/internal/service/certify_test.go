// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// oneRecord is the record of one machine. After a write, controller changes it as the controller does.
type oneRecord struct {
	Records
	rec        *v1alpha1.MachineAttestation
	writes     int
	controller func(*v1alpha1.MachineAttestation)
}

func (o *oneRecord) Update(_ context.Context, uid string, change store.Change) error {
	if uid != o.rec.Status.MachineUID {
		return reason.Deny(reason.MachineNotFound, "%s", uid)
	}
	next, err := change(o.rec)
	if err != nil || next == nil {
		return err
	}
	o.rec = next
	o.writes++
	if o.controller != nil {
		o.controller(o.rec)
	}
	return nil
}

// certifying is a machine that attested its key and calls Certify.
type certifying struct {
	*Service
	records *oneRecord
	key     *ecdsa.PrivateKey
	hash    string
	names   []string
	tls     *tls.ConnectionState
	ticket  seal.CertifyTicket
}

func newCertifying(t *testing.T) *certifying {
	t.Helper()
	now := time.Now()
	keys, err := seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	x := &certifying{names: []string{"worker-0"}, key: newKey(t)}
	spki, err := x509.MarshalPKIXPublicKey(x.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(spki)
	x.hash = hex.EncodeToString(sum[:])
	rec := &v1alpha1.MachineAttestation{}
	rec.Status = v1alpha1.MachineAttestationStatus{
		MachineUID: "u1", Phase: v1alpha1.PhaseAttested, CSRKeySHA256: x.hash,
		Token: &v1alpha1.TokenStatus{ID: "t1", Expiry: metav1.NewTime(now.Add(time.Hour)), MaxUses: 3},
	}
	x.records = &oneRecord{rec: rec, controller: func(r *v1alpha1.MachineAttestation) {
		r.Status.Certificate = &v1alpha1.CertificateStatus{Node: "worker-0", PublicKeySHA256: x.hash, Request: "r",
			Issued: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("leaf")})}
	}}
	x.Service = &Service{
		SealKeys: func() seal.Ring { return keys }, Records: x.records, Audit: audit.New(slog.New(slog.DiscardHandler)),
		Limiter: listen.NewLimiter(100), Now: func() time.Time { return now },
		Source:     func(*http.Request) netip.Addr { return netip.MustParseAddr("127.0.0.1") },
		NodeNames:  func(context.Context, string) ([]string, error) { return x.names, nil },
		Redeemable: func(context.Context, string, string) error { return nil },
	}
	x.ticket = seal.CertifyTicket{MachineUID: "u1", TokenID: "t1", KeySHA256: x.hash, Expiry: now.Add(time.Hour)}
	return x
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func request(t *testing.T, key *ecdsa.PrivateKey, name string) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: name},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (x *certifying) call(t *testing.T, csr []byte) (*mcsattestv1.CertifyResponse, error) {
	t.Helper()
	text, err := x.SealKeys().SealCertifyTicket(rand.Reader, x.Now(), x.ticket)
	if err != nil {
		t.Fatal(err)
	}
	// A call that waits for the controller ends with its context. All others end by themselves.
	patience := time.Minute
	if x.records.controller == nil {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := &call{start: x.Now(), id: "c1", yield: func() {}, tls: x.tls}
	return x.certify(ctx, c, &mcsattestv1.CertifyRequest{Ticket: text, Csr: csr})
}

func TestCertify_ReturnsTheCertificateOfTheRecord(t *testing.T) {
	x := newCertifying(t)
	res, err := x.call(t, nil)
	if err != nil || len(res.GetNodes()) != 1 || res.GetNodes()[0] != "worker-0" || x.records.writes != 0 {
		t.Fatalf("the names: %v, %v, %d writes", res, err, x.records.writes)
	}
	der := request(t, x.key, "system:node:worker-0")
	for range 2 { // the second call is a retry
		res, err = x.call(t, der)
		if err != nil || len(res.GetCertificates()) != 1 || string(res.GetCertificates()[0]) != "leaf" {
			t.Fatalf("%v, %v", res, err)
		}
	}
	got := x.records.rec.Status.CertificateRequest
	if got == nil || !bytes.Equal(got.Request, der) || x.records.writes != 1 {
		t.Errorf("%+v, %d writes", got, x.records.writes)
	}
}

func TestCertify_WaitsForTheController(t *testing.T) {
	x := newCertifying(t)
	x.records.controller = nil
	_, err := x.call(t, request(t, x.key, "system:node:worker-0"))
	if d := reason.From(err); d == nil || d.Code != reason.CredentialUnavailable || !d.Code.Temporary() {
		t.Errorf("%v", err)
	}
	if x.records.writes != 1 {
		t.Errorf("%d writes", x.records.writes)
	}
}

// A replica may know of a quarantine that the controller has not yet written into the record. A certificate cannot be
// revoked, so it is not delivered.
func TestAttack_T67_ACertificateWaitsForNoQuarantineInTheRecord(t *testing.T) {
	x := newCertifying(t)
	x.records.rec.Status.Pool = "worker"
	der := request(t, x.key, "system:node:worker-0")
	if _, err := x.call(t, der); err != nil {
		t.Fatal(err)
	}
	var asked string
	x.Redeemable = func(_ context.Context, uid, pool string) error {
		asked = uid + " " + pool
		return reason.Deny(reason.Quarantined, "Machine m")
	}
	res, err := x.call(t, der)
	if d := reason.From(err); d == nil || d.Code != reason.Quarantined || res != nil || asked != "u1 worker" {
		t.Errorf("the certificate of %q: %v, %v", asked, res, err)
	}
}

// The alert about outages does not select clients that did not wait.
func TestFinish_ReportsAClientThatDisconnected(t *testing.T) {
	x := newAttesting(t, evidence.AWSIID)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var outcomes []string
	x.Observe = func(_, _, outcome, _ string, _ time.Duration) { outcomes = append(outcomes, outcome) }
	for _, ctx := range []context.Context{gone, t.Context()} {
		for _, code := range []reason.Code{reason.StoreUnavailable, reason.Malformed} {
			_ = x.finish(ctx, "attest", &call{start: x.Now()}, reason.Deny(code, "a denial"))
		}
	}
	if want := []string{"disconnected", "denied", "denied", "denied"}; !slices.Equal(outcomes, want) {
		t.Errorf("%v, want %v", outcomes, want)
	}
}

// The machine attested, so it receives the reason. Other denials have only their class.
func TestCertify_ReturnsWhyTheApproverRefused(t *testing.T) {
	x := newCertifying(t)
	x.records.controller = func(r *v1alpha1.MachineAttestation) {
		denial := reason.From(reason.Deny(reason.CSRNodeExists, "worker-0"))
		r.Status = record.Refused(r, denial, x.Now()).Status
	}
	for csr, want := range map[string]*mcsattestv1.Denial{
		string(request(t, x.key, "system:node:worker-0")): {Class: mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET,
			Temporary: true, CertificateRefused: mcsattestv1.Reason_REASON_CSR_NODE_EXISTS},
		"garbage": {Class: mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED},
	} {
		_, err := x.call(t, []byte(csr))
		got := denialOf(t, x.finish(t.Context(), "certify", &call{start: x.Now(), id: "c1"}, err))
		if got.GetClass() != want.GetClass() || got.GetTemporary() != want.GetTemporary() ||
			got.GetCertificateRefused() != want.GetCertificateRefused() {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// denialOf returns the denial that the caller receives.
func denialOf(t *testing.T, err error) *mcsattestv1.Denial {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) || len(ce.Details()) != 1 {
		t.Fatalf("%v has no detail", err)
	}
	value, err := ce.Details()[0].Value()
	if err != nil {
		t.Fatal(err)
	}
	denial, _ := value.(*mcsattestv1.Denial)
	return denial
}

// While credential.mode changes, a ticket of another replica reaches one that issues no certificates.
func TestCertify_WithoutCertificatesIsTemporary(t *testing.T) {
	x := newCertifying(t)
	x.NodeNames = nil
	_, err := x.call(t, nil)
	if d := reason.From(err); d == nil || d.Code != reason.CredentialUnavailable || !d.Code.Temporary() {
		t.Errorf("%v", err)
	}
}

// Each case changes one thing of the honest machine. None writes to a record.
func TestAttack_T73_Certify(t *testing.T) {
	honest := func(t *testing.T, x *certifying) []byte { return request(t, x.key, "system:node:worker-0") }
	for name, c := range map[string]struct {
		change func(*certifying)
		csr    func(*testing.T, *certifying) []byte
		want   reason.Code
	}{
		"another key": {nil, func(t *testing.T, _ *certifying) []byte {
			return request(t, newKey(t), "system:node:worker-0")
		}, reason.CSRKeyChanged},
		"another name": {nil, func(t *testing.T, x *certifying) []byte {
			return request(t, x.key, "system:node:worker-1")
		}, reason.CSRContent},
		"the name of an administrator": {nil, func(t *testing.T, x *certifying) []byte {
			return request(t, x.key, "system:admin")
		}, reason.CSRContent},
		"a signature of another key": {nil, func(t *testing.T, x *certifying) []byte {
			der := request(t, x.key, "system:node:worker-0")
			der[len(der)-1] ^= 1
			return der
		}, reason.CSRMalformed},
		"a request that is too large": {nil, func(*testing.T, *certifying) []byte {
			return make([]byte, maxCSR+1)
		}, reason.TooLarge},
		"garbage": {nil, func(*testing.T, *certifying) []byte { return []byte("request") }, reason.CSRMalformed},
		"another connection": {func(x *certifying) { x.ticket.Exporter = []byte("of another connection") }, honest,
			reason.CertifyTicketInvalid},
		"a ticket that ended": {func(x *certifying) { x.ticket.Expiry = x.Now().Add(-time.Second) }, honest,
			reason.CertifyTicketInvalid},
		"the ticket of an earlier attestation": {func(x *certifying) { x.ticket.TokenID = "t0" }, honest,
			reason.TokenSuperseded},
		"a machine that attested again, with another key": {func(x *certifying) {
			x.records.rec.Status.CSRKeySHA256 = "another"
		}, honest, reason.CSRKeyChanged},
		"a machine that is quarantined": {func(x *certifying) { x.records.rec.Status.Quarantined = true }, honest,
			reason.Quarantined},
		"a machine that joined": {func(x *certifying) { x.records.rec.Status.Phase = v1alpha1.PhaseJoined }, honest,
			reason.MachineJoined},
		"a Machine without a name": {func(x *certifying) { x.names = nil }, honest, reason.NodeNameUnknown},
		"a Machine that was deleted": {func(x *certifying) { x.ticket.MachineUID = "u0" }, honest,
			reason.MachineNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			x := newCertifying(t)
			if c.change != nil {
				c.change(x)
			}
			res, err := x.call(t, c.csr(t, x))
			if d := reason.From(err); d == nil || d.Code != c.want || res != nil {
				t.Errorf("%v, %v, expected %s", res, err, c.want)
			}
			if x.records.writes != 0 {
				t.Error("it was written to a record")
			}
		})
	}
}

func TestAttack_T73_ASecondRequestWithOneTicket(t *testing.T) {
	x := newCertifying(t)
	if _, err := x.call(t, request(t, x.key, "system:node:worker-0")); err != nil {
		t.Fatal(err)
	}
	// A signature is random, so this is another request.
	_, err := x.call(t, request(t, x.key, "system:node:worker-0"))
	if d := reason.From(err); d == nil || d.Code != reason.CSRKeyChanged || x.records.writes != 1 {
		t.Errorf("%v, %d writes", err, x.records.writes)
	}
}
