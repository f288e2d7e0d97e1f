// SPDX-License-Identifier: Apache-2.0

// Package verifiertest provides a verifier and a gate in one process for the agent's tests. By
// default they follow the contract, with the verifier's own packages. Tests can replace each part
// with a function.
package verifiertest

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
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// Token is the token that the default verifier issues and the default gate accepts.
const Token = "eyJhbGciOiJFUzI1NiJ9.dG9rZW4.c2lnbmF0dXJl"

// Ticket is the default verifier's report ticket.
const Ticket = "ticket-for-reports"

// Verifier is a fake verifier. Its zero value, once started, follows the contract.
type Verifier struct {
	// These replace the default response. If they are nil or return nil, nil, the default applies.
	ChallengeFunc func(*mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error)
	AttestFunc    func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error)
	GateFunc      func(http.ResponseWriter, *http.Request) bool // returns true if it answered
	CertifyFunc   func(*mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error)
	RehearseFunc  func(*mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error)
	// Front receives each API request first, as a load balancer does. It returns true if it
	// answered.
	Front func(http.ResponseWriter, *http.Request) bool
	// Change modifies the default challenge.
	Change func(*mcsattestv1.ChallengeResponse)
	// Certificate modifies the server's certificate before it is signed.
	Certificate func(leaf *x509.Certificate)

	PCRs     []int // 11 by default
	Required []mcsattestv1.EvidenceKind
	Mode     mcsattestv1.Mode // Enforce by default
	// ProvisioningToken is the token that verifier and gate accept where it is required.
	ProvisioningToken string
	// NodeCertificate is what the default challenge states. Nodes are the names of the Machine.
	NodeCertificate mcsattestv1.NodeCertificate
	Nodes           []string
	// Clouds verify the documents of the required kinds. The Machine is the one that the claims
	// name.
	Clouds map[evidence.Kind]evidence.Verifier
	// RehearsalTicket opens a rehearsal. Without it, the verifier is one of a version without rehearsals.
	RehearsalTicket []byte
	// Relay makes the challenges of rehearsals those of attestations, as a stolen front could.
	Relay bool

	Origin    string
	Authority *x509.Certificate

	mu      sync.Mutex
	pending map[string]*pending
	reports []*mcsattestv1.ReportRequest
	tokens  []string // every Authorization header that the gate received
	claims  []string
	offered [][]mcsattestv1.EvidenceKind
	caKey   *ecdsa.PrivateKey
	keys    [][]byte               // the attested hash of each granted attestation
	issuing map[string]certifiable // by certify ticket
}

type certifiable struct {
	key    []byte
	remote string
}

type pending struct {
	shared    string
	challenge *mcsattestv1.ChallengeResponse
	tpm       tpm2.Challenge
	remote    string
	clouds    map[evidence.Kind]evidence.Verifier
	rehearsal bool
}

// Start starts the servers, which run until the test ends.
func (v *Verifier) Start(t testing.TB) {
	t.Helper()
	v.pending, v.issuing = map[string]*pending{}, map[string]certifiable{}
	certificate := v.certify(t)
	mux := http.NewServeMux()
	prefix, api := mcsattestv1connect.NewAttestationHandler(v)
	mux.HandleFunc(prefix, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case v.Front != nil && v.Front(w, r):
		case v.RehearsalTicket == nil && strings.HasPrefix(r.URL.Path, prefix+"Rehearse"):
			http.NotFound(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
	mux.HandleFunc("/config/", v.gate)
	server := httptest.NewUnstartedServer(withTLS(mux))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	// A client's first handshake may fail by design; see client.Dialer.
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	v.Origin = server.URL
}

// certify creates an authority and the server's certificate.
func (v *Verifier) certify(t testing.TB) tls.Certificate {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	v.caKey = caKey
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2044, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "verifier"},
		NotBefore: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2034, 6, 1, 0, 0, 0, 0, time.UTC),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if v.Certificate != nil {
		v.Certificate(leaf)
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	fatal(t, err)
	v.Authority, err = x509.ParseCertificate(caDER)
	fatal(t, err)
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, v.Authority, &leafKey.PublicKey, caKey)
	fatal(t, err)
	return tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}
}

// Pointer returns a pointer config for this server and a pool.
func (v *Verifier) Pointer(pool string) []byte {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Authority.Raw})
	return fmt.Appendf(nil, `{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"%s/config/%s"}]},`+
		`"security":{"tls":{"certificateAuthorities":[{"source":"data:;base64,%s"}]}}}}`,
		v.Origin, pool, base64.StdEncoding.EncodeToString(ca))
}

// Reports returns the requests that Report received.
func (v *Verifier) Reports() []*mcsattestv1.ReportRequest {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reports
}

// Tokens returns the Authorization headers that the gate received.
func (v *Verifier) Tokens() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tokens
}

// Offered returns the kinds of evidence in each Challenge.
func (v *Verifier) Offered() [][]mcsattestv1.EvidenceKind {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.offered
}

// Keys returns the hash of the kubelet's key in each granted attestation.
func (v *Verifier) Keys() [][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.keys
}

// Claims returns the claims of the granted attestations.
func (v *Verifier) Claims() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.claims
}

// Denial returns an error in the form in which the verifier sends it.
func Denial(class mcsattestv1.DenialClass, temporary bool) error {
	return denied(&mcsattestv1.Denial{Class: class, Temporary: temporary, CorrelationId: "c0ffee"})
}

// Refusal returns the denial of Certify while the cluster refuses the certificate.
func Refusal(why mcsattestv1.Reason) error {
	return denied(&mcsattestv1.Denial{Class: mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, Temporary: true,
		CorrelationId: "c0ffee", CertificateRefused: why})
}

func denied(d *mcsattestv1.Denial) error {
	err := connect.NewError(connect.CodePermissionDenied, errors.New("denied"))
	detail, detailErr := connect.NewErrorDetail(d)
	if detailErr != nil {
		return detailErr
	}
	err.AddDetail(detail)
	return err
}

// bank is TPM_ALG_SHA256, which every TPM has.
const bank uint16 = 0x000B

type tlsKey struct{}

// withTLS passes the state of the connection to the handlers.
func withTLS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tlsKey{}, r.TLS)))
	})
}

// Challenge implements the service. It denies a machine that offers no TPM if one is required.
func (v *Verifier) Challenge(_ context.Context,
	req *connect.Request[mcsattestv1.ChallengeRequest]) (*connect.Response[mcsattestv1.ChallengeResponse], error) {
	if v.ChallengeFunc != nil {
		if resp, err := v.ChallengeFunc(req.Msg); resp != nil || err != nil {
			return connect.NewResponse(resp), err
		}
	}
	resp, err := v.challenge(req.Msg, &pending{remote: req.Peer().Addr})
	if err == nil && resp.GetMode() != mcsattestv1.Mode_MODE_OFF && req.Msg.GetTpm() == nil &&
		slices.Contains(resp.GetRequired(), mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2) {
		return nil, denied(&mcsattestv1.Denial{Class: mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, CorrelationId: "c0ffee",
			Mode: resp.GetMode(), Unattested: resp.GetUnattested()})
	}
	return connect.NewResponse(resp), err
}

// challenge returns the default challenge and stores it as p.
func (v *Verifier) challenge(req *mcsattestv1.ChallengeRequest, p *pending) (*mcsattestv1.ChallengeResponse, error) {
	sealed, nonce, k := random(), random(), random()
	resp := &mcsattestv1.ChallengeResponse{
		Sealed: sealed, Nonce: nonce, Binding: mcsattestv1.BindingMode_BINDING_MODE_EXPORTER,
		Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Mode:     mcsattestv1.Mode_MODE_ENFORCE, Unattested: mcsattestv1.Unattested_UNATTESTED_DENY,
		LifetimeSeconds: 120, Pool: req.GetPool(), Origin: req.GetOrigin(), NodeCertificate: v.NodeCertificate,
	}
	if v.Required != nil {
		resp.Required = v.Required
	}
	if v.Mode != 0 {
		resp.Mode = v.Mode
	}
	v.mu.Lock()
	v.offered = append(v.offered, req.GetOffered())
	v.mu.Unlock()
	p.challenge, p.shared, p.clouds = resp, v.ProvisioningToken, v.Clouds
	if tpm := req.GetTpm(); tpm != nil {
		ek, err := tpm2.ParseEK(tpm.GetEkPublic())
		if err != nil {
			return nil, err
		}
		ak, err := tpm2.ParseAK(tpm.GetAkPublic())
		if err != nil {
			return nil, err
		}
		pcrs := v.PCRs
		if pcrs == nil {
			pcrs = []int{11}
		}
		blob, encrypted, err := tpm2.MakeCredential(rand.Reader, ek, ak.Name(), k)
		if err != nil {
			return nil, err
		}
		p.tpm = tpm2.Challenge{EK: ek, AK: ak, Secret: secret.New(k), Bank: bank, PCRs: pcrs}
		resp.Tpm = &mcsattestv1.TpmChallenge{CredentialBlob: blob, EncryptedSecret: encrypted, Bank: uint32(bank),
			EventLog: len(pcrs) > 1}
		for _, i := range pcrs {
			resp.Tpm.Pcrs = append(resp.Tpm.Pcrs, uint32(i))
		}
	}
	if v.Change != nil {
		v.Change(resp)
	}
	v.mu.Lock()
	v.pending[string(sealed)] = p
	v.mu.Unlock()
	return resp, nil
}

// Attest implements the service.
func (v *Verifier) Attest(ctx context.Context,
	req *connect.Request[mcsattestv1.AttestRequest]) (*connect.Response[mcsattestv1.AttestResponse], error) {
	if v.AttestFunc != nil {
		if resp, err := v.AttestFunc(req.Msg); resp != nil || err != nil {
			return connect.NewResponse(resp), err
		}
	}
	p := v.answered(req.Msg.GetSealed(), req.Peer().Addr, false)
	if p == nil {
		return nil, Denial(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, false)
	}
	if err := p.check(ctx, req.Msg); err != nil {
		return nil, errors.Join(Denial(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, false), err)
	}
	v.mu.Lock()
	v.claims = append(v.claims, string(req.Msg.GetClaims()))
	v.keys = append(v.keys, req.Msg.GetCsrSpkiSha256())
	v.mu.Unlock()
	resp := &mcsattestv1.AttestResponse{
		Token: Token, TokenLifetimeSeconds: 600, ReportTicket: Ticket, Machine: "default/worker-0", CorrelationId: "decade",
	}
	if slices.Equal(p.challenge.GetRequired(),
		[]mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN}) {
		resp = &mcsattestv1.AttestResponse{CorrelationId: "decade"}
	}
	if p.challenge.GetMode() == mcsattestv1.Mode_MODE_AUDIT {
		resp.Token, resp.TokenLifetimeSeconds = "", 0
	}
	if key := req.Msg.GetCsrSpkiSha256(); len(key) > 0 && v.NodeCertificate != 0 {
		resp.CertifyTicket = hex.EncodeToString(random())
		v.mu.Lock()
		v.issuing[resp.GetCertifyTicket()] = certifiable{key, req.Peer().Addr}
		v.mu.Unlock()
	}
	return connect.NewResponse(resp), nil
}

// answered returns and forgets the challenge of a connection, or nil.
func (v *Verifier) answered(sealed []byte, remote string, rehearsal bool) *pending {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.pending[string(sealed)]
	delete(v.pending, string(sealed))
	if p == nil || p.remote != remote || p.rehearsal != rehearsal {
		return nil
	}
	return p
}

// Certify implements the service.
func (v *Verifier) Certify(_ context.Context,
	req *connect.Request[mcsattestv1.CertifyRequest]) (*connect.Response[mcsattestv1.CertifyResponse], error) {
	if v.CertifyFunc != nil {
		if resp, err := v.CertifyFunc(req.Msg); resp != nil || err != nil {
			return connect.NewResponse(resp), err
		}
	}
	v.mu.Lock()
	may, ok := v.issuing[req.Msg.GetTicket()]
	v.mu.Unlock()
	if !ok || may.remote != req.Peer().Addr {
		return nil, Denial(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, false)
	}
	resp := &mcsattestv1.CertifyResponse{Nodes: v.Nodes}
	if len(req.Msg.GetCsr()) == 0 {
		return connect.NewResponse(resp), nil
	}
	csr, err := x509.ParseCertificateRequest(req.Msg.GetCsr())
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo); csr.CheckSignature() != nil || !bytes.Equal(sum[:], may.key) {
		return nil, Denial(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, false)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: csr.Subject, NotAfter: time.Now().Add(time.Hour),
	}, v.Authority, csr.PublicKey, v.caKey)
	resp.Certificates = [][]byte{der}
	return connect.NewResponse(resp), err
}

func (p *pending) check(ctx context.Context, req *mcsattestv1.AttestRequest) error {
	state, ok := ctx.Value(tlsKey{}).(*tls.ConnectionState)
	if !ok || state.Version != tls.VersionTLS13 {
		return errors.New("TLS 1.3 is required")
	}
	exporter, err := state.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
	if err != nil {
		return err
	}
	fields := transcript.Fields{
		Sealed: req.GetSealed(), Nonce: p.challenge.GetNonce(), Binding: "exporter", Exporter: exporter,
		ServerSPKI: req.GetServerSpkiSha256(), Origin: p.challenge.GetOrigin(), Pool: p.challenge.GetPool(),
		Claims: req.GetClaims(), CSRSPKI: req.GetCsrSpkiSha256(), Rehearsal: p.rehearsal,
	}
	var kinds []evidence.Kind
	for _, k := range p.challenge.GetRequired() {
		kinds = append(kinds, evidence.Kind(k))
	}
	withTPM := slices.Contains(kinds, evidence.TPM2)
	if withTPM && req.GetTpm2() == nil {
		return errors.New("tpm2 is missing")
	}
	if withTPM {
		ek := p.tpm.EK.SPKIHash()
		fields.EKSPKI, fields.AKName = ek[:], p.tpm.AK.Name()
	}
	fields.Required = transcript.Required(kinds, p.tpm.Bank, p.tpm.PCRs)
	p.tpm.Transcript = fields.Hash()
	if slices.Contains(kinds, evidence.ProvisioningToken) && !bytes.Equal(req.GetProvisioningToken(),
		transcript.ProvisioningToken([]byte(p.shared), p.tpm.Transcript)) {
		return errors.New("the provisioning token does not match")
	}
	if err := p.checkClouds(ctx, req, kinds, p.tpm.Transcript); err != nil {
		return err
	}
	if !withTPM {
		return nil
	}
	_, err = tpm2.VerifyQuote(p.tpm, tpm2.Evidence{
		Quote: req.GetTpm2().GetQuote(), Signature: req.GetTpm2().GetSignature(),
		Activation: req.GetTpm2().GetActivation(), PCRValues: req.GetTpm2().GetPcrValues(),
	})
	return err
}

// checkClouds verifies the document of each required cloud kind, and that there is no other
// document.
func (p *pending) checkClouds(ctx context.Context, req *mcsattestv1.AttestRequest, kinds []evidence.Kind,
	h transcript.Hash) error {
	var hint struct{ ProviderID string }
	if err := json.Unmarshal(req.GetClaims(), &hint); err != nil {
		return err
	}
	documents := req.GetCloud()
	for _, kind := range kinds {
		verifier, ok := p.clouds[kind]
		if !ok {
			continue
		}
		if len(documents) == 0 || evidence.Kind(documents[0].GetKind()) != kind {
			return fmt.Errorf("no document of kind %v at its position", kind)
		}
		d := documents[0]
		documents = documents[1:]
		claim, err := verifier.Verify(ctx, evidence.Document{Kind: kind, Raw: d.GetDocument(),
			Certificates: d.GetCertificates(), Token: d.GetToken()},
			evidence.Binding{Transcript: h, Origin: p.challenge.GetOrigin()}, time.Now())
		if err != nil {
			return err
		}
		if _, err := claim.Confirm(ctx, evidence.Candidate{ProviderID: hint.ProviderID}); err != nil {
			return err
		}
	}
	if len(documents) != 0 {
		return fmt.Errorf("%d documents that were not requested", len(documents))
	}
	return nil
}

// Report implements the service.
func (v *Verifier) Report(_ context.Context,
	req *connect.Request[mcsattestv1.ReportRequest]) (*connect.Response[mcsattestv1.ReportResponse], error) {
	v.mu.Lock()
	v.reports = append(v.reports, req.Msg)
	v.mu.Unlock()
	return connect.NewResponse(&mcsattestv1.ReportResponse{CorrelationId: "facade"}), nil
}

func (v *Verifier) gate(w http.ResponseWriter, r *http.Request) {
	authorization := r.Header.Get("Authorization")
	v.mu.Lock()
	v.tokens = append(v.tokens, authorization)
	v.mu.Unlock()
	if v.GateFunc != nil && v.GateFunc(w, r) {
		return
	}
	shown := strings.TrimPrefix(authorization, "Bearer ")
	if shown != Token && (shown == "" || shown != v.ProvisioningToken) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = w.Write([]byte(`{"ignition":{"version":"3.4.0"}}`))
}

func random() []byte {
	b := make([]byte, sha256.Size)
	_, _ = rand.Read(b) // never fails
	return b
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
