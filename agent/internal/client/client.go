// Package client is the agent's side of the connection to a verifier.
//
// A [Session] is one TLS 1.3 connection and never a second one: the transcript
// binds the evidence to the connection's exporter, so Challenge and Attest must
// share it. When it breaks, the attestation starts anew. Errors come out as
// three kinds: [Denied] is the verifier's answer; [ErrNotVerifier] means that
// the server there is a plain Machine Config Server, which has never heard of
// us; anything else is a failure on the way, and worth another try.
package client

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// IgnitionAccept is an Accept header as a current Ignition sends it.
const IgnitionAccept = "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1"

// maxResponse bounds an answer of the verifier's.
const maxResponse = 64 << 10

// ErrNotVerifier reports that the server answered 404 or 405: it has no such API.
var ErrNotVerifier = errors.New("the server does not attest machines")

// Denied is the verifier's no.
type Denied struct {
	Class         mcsattestv1.DenialClass
	CorrelationID string
	Temporary     bool
	RetryAfter    time.Duration // 0: at our discretion
	// Mode and Unattested are the pool's, where the verifier came that far.
	Mode       mcsattestv1.Mode
	Unattested mcsattestv1.Unattested
}

func (d *Denied) Error() string {
	what, ok := classes[d.Class]
	if !ok {
		what = "the verifier denied it"
	}
	return fmt.Sprintf("%s (class %s, correlation id %s)", what, d.ClassName(), d.CorrelationID)
}

// classes are the contract's words. The server's own text is not printed: the
// correlation id leads to all of it, in the verifier's audit log.
var classes = map[mcsattestv1.DenialClass]string{
	mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED: "denied: the request breaks the contract",
	mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE: "denied: the challenge can no longer be used",
	mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE:  "denied: the evidence does not prove what it should",
	mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE: "denied: the identity is proven, but its Machine may not be " +
		"provisioned now",
	mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN: "denied: the token is not valid",
	mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET: "not yet: this machine is not ready, something must happen on " +
		"the cluster first",
	mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE: "not yet: the verifier is in trouble and cannot decide at the " +
		"moment",
}

// ClassName is the class in lower case: "not-yet".
func (d *Denied) ClassName() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(d.Class.String(), "DENIAL_CLASS_")), "_", "-")
}

// Session is one connection to a verifier. Close it.
type Session struct {
	conn   *tls.Conn
	api    mcsattestv1connect.AttestationClient
	status *lastStatus
	idle   func()
}

// Connect opens the connection. Origin is "https://host:port".
func Connect(ctx context.Context, d *Dialer, origin string) (*Session, error) {
	address, ok := strings.CutPrefix(origin, "https://")
	if !ok {
		return nil, fmt.Errorf("%s is not an https origin", origin)
	}
	conn, err := d.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	// A verifier has TLS 1.3, for the exporter's sake. Nothing is sent without;
	// a server that has none is not one.
	if conn.ConnectionState().Version < tls.VersionTLS13 {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: it has no TLS 1.3", ErrNotVerifier)
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
	httpClient := &http.Client{
		Transport: s.status,
		// The exporter is this connection's; there is nothing to follow.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s.api = mcsattestv1connect.NewAttestationClient(httpClient, origin, connect.WithReadMaxBytes(maxResponse))
	return s, nil
}

// Close ends the connection.
func (s *Session) Close() {
	s.idle()
	_ = s.conn.Close()
}

// Exporter is the connection's, as the transcript wants it.
func (s *Session) Exporter() ([]byte, error) {
	state := s.conn.ConnectionState()
	return state.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
}

// ServerSPKI is SHA-256 of the server certificate's public key.
func (s *Session) ServerSPKI() []byte {
	sum := sha256.Sum256(s.conn.ConnectionState().PeerCertificates[0].RawSubjectPublicKeyInfo)
	return sum[:]
}

// Challenge calls the method of that name.
func (s *Session) Challenge(ctx context.Context,
	req *mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
	return call(ctx, s, s.api.Challenge, req)
}

// Attest calls the method of that name.
func (s *Session) Attest(ctx context.Context, req *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
	return call(ctx, s, s.api.Attest, req)
}

// Report calls the method of that name.
func (s *Session) Report(ctx context.Context, req *mcsattestv1.ReportRequest) (*mcsattestv1.ReportResponse, error) {
	return call(ctx, s, s.api.Report, req)
}

func call[Req, Resp any](
	ctx context.Context, s *Session,
	method func(context.Context, *connect.Request[Req]) (*connect.Response[Resp], error), req *Req,
) (*Resp, error) {
	s.status.code = 0
	resp, err := method(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, s.explain(err)
	}
	return resp.Msg, nil
}

// explain sorts an error of a call.
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
				CorrelationID: bounded(denial.GetCorrelationId()),
				Temporary:     denial.GetTemporary(),
				RetryAfter:    time.Duration(denial.GetRetryAfterSeconds()) * time.Second,
				Mode:          denial.GetMode(),
				Unattested:    denial.GetUnattested(),
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

// Passing reports whether a 4xx is a passing failure of the server or of a proxy
// in front of it (RFC 9110, 15.5.9; RFC 8470; RFC 6585; 499 is Connect's "canceled").
func Passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, 499:
		return true
	}
	return false
}

// bounded keeps a server's id to what a console line has room for.
func bounded(id string) string { return id[:min(len(id), 64)] }

// Unexpected is a final answer that is neither the verifier's nor a Machine
// Config Server's.
type Unexpected struct{ Status int }

func (u *Unexpected) Error() string {
	return fmt.Sprintf("the server answered HTTP status %d, as neither a verifier nor a Machine Config Server does",
		u.Status)
}

// lastStatus remembers the HTTP status, which Connect's codes do not tell apart.
type lastStatus struct {
	next http.RoundTripper
	code int
}

func (l *lastStatus) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err == nil {
		l.code = resp.StatusCode
	}
	return resp, err
}
