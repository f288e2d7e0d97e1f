// SPDX-License-Identifier: Apache-2.0

// Package client is the agent's side of the connection to a verifier.
//
// A [Session] is exactly one TLS 1.3 connection. The transcript binds the evidence to the exporter
// of that connection, so Challenge and Attest must share it. When the connection breaks, the
// attestation starts over.
//
// Errors are of three kinds. [Denied] is the verifier's denial. [ErrNotVerifier] means that the
// server is a plain Machine Config Server without the attestation API. Any other error is a
// transport failure that a caller may retry.
package client

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// IgnitionAccept is the Accept header of Ignition 2.16 to 2.18.
const IgnitionAccept = "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1"

// maxResponse is the largest response that the agent reads from a verifier, in bytes.
const maxResponse = 64 << 10

// ErrNotVerifier reports that the server answered 404 or 405: it does not have the attestation API.
var ErrNotVerifier = errors.New("the server does not attest machines")

// Denied is the verifier's denial of a request.
type Denied struct {
	Class         mcsattestv1.DenialClass
	CorrelationID string
	Temporary     bool
	RetryAfter    time.Duration // 0: the agent chooses
	// Mode and Unattested are the pool's, if the verifier got as far as reading its policy.
	Mode       mcsattestv1.Mode
	Unattested mcsattestv1.Unattested
	// Refused is why the cluster refused the node's certificate, or 0.
	Refused reason.Code
}

func (d *Denied) Error() string {
	what, ok := classes[d.Class]
	if !ok {
		what = "denied by the verifier"
	}
	class := d.ClassName()
	if d.Refused != 0 {
		class += ", " + d.Refused.String()
	}
	return fmt.Sprintf("%s (class %s, correlation id %s)", what, class, d.CorrelationID)
}

// classes maps each denial class of the contract to a sentence. The server's own text is not
// printed. The correlation id finds the full reason in the verifier's audit log.
var classes = map[mcsattestv1.DenialClass]string{
	mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED: "denied: the request breaks the contract",
	mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE: "denied: the challenge can no longer be used",
	mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE:  "denied: the evidence does not prove what it should",
	mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE: "denied: the identity is proven, but its Machine may not be " +
		"provisioned now",
	mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN: "denied: the token is not valid",
	mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET: "not yet: this machine is not ready, something must happen on " +
		"the cluster first",
	mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE: "not yet: the verifier limits requests, or cannot decide at the " +
		"moment",
}

// ClassName returns the class in lower case, for example "not-yet".
func (d *Denied) ClassName() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(d.Class.String(), "DENIAL_CLASS_")), "_", "-")
}

// Session is one connection to a verifier. The caller must close it.
type Session struct {
	conn   *tls.Conn
	api    mcsattestv1connect.AttestationClient
	status *lastStatus
	idle   func()
}

// Connect opens a connection to origin, which has the form "https://host:port".
func Connect(ctx context.Context, d *Dialer, origin string) (*Session, error) {
	address, ok := strings.CutPrefix(origin, "https://")
	if !ok {
		return nil, fmt.Errorf("%s is not an https origin", origin)
	}
	conn, err := d.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	// The transcript needs the exporter of TLS 1.3, so every verifier supports it. A server without
	// it is not a verifier, and the agent sends nothing to it.
	if conn.ConnectionState().Version < tls.VersionTLS13 {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: it does not support TLS 1.3", ErrNotVerifier)
	}
	var used atomic.Bool
	transport := &http.Transport{
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("the connection to the verifier ended, and an attestation has only one")
			}
			return conn, nil
		},
		DisableCompression:     true,
		MaxConnsPerHost:        1,
		ResponseHeaderTimeout:  responseTime,
		MaxResponseHeaderBytes: maxHeader,
	}
	s := &Session{conn: conn, status: &lastStatus{next: transport}, idle: transport.CloseIdleConnections}
	s.api = mcsattestv1connect.NewAttestationClient(&http.Client{
		Transport: s.status,
		// The exporter belongs to this connection, so a redirect cannot be followed.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, origin, connect.WithReadMaxBytes(maxResponse))
	return s, nil
}

// Close closes the connection.
func (s *Session) Close() {
	s.idle()
	_ = s.conn.Close()
}

// Exporter returns the TLS exporter of the connection, for the transcript.
func (s *Session) Exporter() ([]byte, error) {
	state := s.conn.ConnectionState()
	return state.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
}

// ServerSPKI returns the SHA-256 of the server certificate's SubjectPublicKeyInfo.
func (s *Session) ServerSPKI() []byte {
	sum := sha256.Sum256(s.conn.ConnectionState().PeerCertificates[0].RawSubjectPublicKeyInfo)
	return sum[:]
}

// Time returns the server's time in its last response, or the zero time. An intermediary that
// terminates TLS can also have written it.
func (s *Session) Time() time.Time {
	t, err := http.ParseTime(s.status.date)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Chains returns the verified chains of the server's certificate.
func (s *Session) Chains() [][]*x509.Certificate { return s.conn.ConnectionState().VerifiedChains }

// Challenge calls the RPC of the same name.
func (s *Session) Challenge(ctx context.Context,
	req *mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
	return call(ctx, s, s.api.Challenge, req)
}

// Attest calls the RPC of the same name.
func (s *Session) Attest(ctx context.Context, req *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
	return call(ctx, s, s.api.Attest, req)
}

// Certify calls the RPC of the same name.
func (s *Session) Certify(ctx context.Context, req *mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
	return call(ctx, s, s.api.Certify, req)
}

// Report calls the RPC of the same name.
func (s *Session) Report(ctx context.Context, req *mcsattestv1.ReportRequest) (*mcsattestv1.ReportResponse, error) {
	return call(ctx, s, s.api.Report, req)
}

// RehearseChallenge calls the RPC of the same name.
func (s *Session) RehearseChallenge(ctx context.Context,
	req *mcsattestv1.RehearseChallengeRequest) (*mcsattestv1.RehearseChallengeResponse, error) {
	return call(ctx, s, s.api.RehearseChallenge, req)
}

// Rehearse calls the RPC of the same name.
func (s *Session) Rehearse(ctx context.Context,
	req *mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
	return call(ctx, s, s.api.Rehearse, req)
}

func call[Req, Res any](ctx context.Context, s *Session,
	method func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), req *Req) (*Res, error) {
	s.status.code = 0
	res, err := method(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, s.explain(err)
	}
	return res.Msg, nil
}

// explain converts the error of a call into one of the three kinds of the package comment.
func (s *Session) explain(err error) error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return Plain(err)
	}
	for _, d := range ce.Details() {
		m, err := d.Value()
		if err != nil {
			continue
		}
		if denial, ok := m.(*mcsattestv1.Denial); ok {
			return &Denied{
				Class:         denial.GetClass(),
				CorrelationID: truncate(denial.GetCorrelationId()),
				Temporary:     denial.GetTemporary(),
				RetryAfter:    time.Duration(denial.GetRetryAfterSeconds()) * time.Second,
				Mode:          denial.GetMode(),
				Unattested:    denial.GetUnattested(),
				Refused:       reason.Code(denial.GetCertificateRefused()),
			}
		}
	}
	switch code := s.status.code; {
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed:
		return ErrNotVerifier
	case code >= 300 && code < 500 && !Passing(code):
		return &Unexpected{Status: code}
	case code != 0:
		return fmt.Errorf("the server answered HTTP status %d: %w", code, Plain(ce.Unwrap()))
	}
	return Plain(ce.Unwrap())
}

// Passing reports whether a 4xx status is a temporary failure of the server or of a proxy in front
// of it (RFC 9110, 15.5.9; RFC 8470; RFC 6585; 499 is Connect's "canceled").
func Passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, 499:
		return true
	}
	return false
}

// truncate shortens a correlation id so that it fits on a console line.
func truncate(id string) string { return id[:min(len(id), 64)] }

// Unexpected reports a final HTTP status that neither a verifier nor a Machine Config Server sends.
type Unexpected struct{ Status int }

func (u *Unexpected) Error() string {
	return fmt.Sprintf("the server answered HTTP status %d, as neither a verifier nor a Machine Config Server does",
		u.Status)
}

// lastStatus records the HTTP status of the last response, which Connect's error codes do not
// preserve, and its time.
type lastStatus struct {
	next http.RoundTripper
	code int
	date string
}

func (l *lastStatus) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err == nil {
		l.code, l.date = resp.StatusCode, resp.Header.Get("Date")
	}
	return resp, err
}
