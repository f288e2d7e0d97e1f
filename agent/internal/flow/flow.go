// Package flow leads one attestation from the pointer config's source to a token
// that the gate has taken.
//
// # One round
//
// A round is one connection: Challenge, evidence over the transcript, Attest.
// When the verifier grants, the flow asks the gate with HEAD whether it takes
// the token, until it does: Ignition cannot refresh a token, and every 4xx is
// final to it. While the gate says 5xx for longer than half of the token's life
// a new round begins.
//
// # What ends it
//
//   - a grant that the gate takes;
//   - a server that has no such API, a pool with mode Off, an audit without a
//     token, or a denial where the gate serves machines that are not attested:
//     the pointer config is then left alone ([LeftAlone]);
//   - a final denial, or evidence that this machine cannot produce: an error.
//
// Everything else is tried again, for ever, with pauses from one to fifteen
// seconds: the verifier may not have started yet, and the Machine object may
// still be on its way.
package flow

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Target is what the pointer config asks for.
type Target struct {
	Origin string // "https://host:port"
	Pool   string
	URL    string // the source itself, for the pre-flight
}

// Grant is a token that the gate has taken.
type Grant struct {
	Token   secret.Bytes
	Ticket  secret.Bytes // for the failure report; may be empty
	Machine string
}

// LeftAlone is the outcome in which the pointer config stays as it is.
type LeftAlone struct {
	Why    string
	Ticket secret.Bytes
	// NoVerifier: there is nothing that attests, which "mcs-attest=require" refuses.
	NoVerifier bool
}

func (l *LeftAlone) Error() string { return "the pointer config is left alone: " + l.Why }

// MissingEvidence: the pool's policy wants what this machine cannot produce.
type MissingEvidence struct {
	Kinds []evidence.Kind
	Err   error // why there is no TPM, if that is it
}

func (m *MissingEvidence) Error() string {
	text := fmt.Sprintf("the pool's policy requires evidence that this machine cannot produce: %v", m.Kinds)
	if m.Err != nil {
		text += ": " + m.Err.Error()
	}
	return text
}

func (m *MissingEvidence) Unwrap() error { return m.Err }

// Flow attests. Its fields are set once, before [Flow.Run].
type Flow struct {
	Console *console.Console
	// TPM is nil where there is none; NoTPM then says why.
	TPM   TPM
	NoTPM error
	// EventLog reads the firmware's measurements.
	EventLog func() ([]byte, error)
	Claims   []byte
	Version  string
	Dialer   *client.Dialer
	// Sleep pauses; nil means to wait in truth.
	Sleep func(context.Context, time.Duration) error
	// Since is the monotonic time since an arbitrary moment; nil: the system's.
	Since func() time.Duration
}

const (
	firstPause = time.Second
	maxPause   = 15 * time.Second
	// softDenials is how often a temporary denial is tried again where the gate
	// serves machines that are not attested: their boot must not wait for us.
	softDenials = 3
	// refusals is how often a token may be made that the gate then refuses.
	refusals = 3
	// deviceTries is how often a TPM may fail.
	deviceTries = 3
	// callTime bounds one round; a slow TPM takes most of it.
	callTime = 5 * time.Minute
)

// NewDialer trusts exactly the pointer config's authorities.
func NewDialer(authorities []*x509.Certificate) *client.Dialer { return client.NewDialer(authorities) }

// Run attests until one of the ends in the package comment. A [LeftAlone] is
// returned as an error.
func (f *Flow) Run(ctx context.Context, t Target) (*Grant, error) {
	pause, soft, refused, broken := firstPause, 0, 0, 0
	for {
		var wait time.Duration
		g, mode, err := f.round(ctx, t)
		if err == nil {
			err = f.preflight(ctx, t, g)
			if err == nil {
				return &g.Grant, nil
			}
			var no *gateRefusal
			if errors.As(err, &no) {
				if refused++; refused >= refusals {
					return nil, fmt.Errorf("the gate refused %d new tokens: %w", refused, err)
				}
			}
		}
		var device *tpmError
		if errors.As(err, &device) {
			if broken++; broken >= deviceTries {
				err = final{err}
			}
		}
		var left *LeftAlone
		var denied *client.Denied
		var missing *MissingEvidence
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case errors.As(err, &left):
			return nil, err
		case errors.Is(err, client.ErrNotVerifier):
			return nil, &LeftAlone{Why: "this Machine Config Server does not attest machines", NoVerifier: true}
		case errors.As(err, &denied) && denied.Temporary:
			if soft++; mode.soft && soft >= softDenials {
				return nil, mode.left(err)
			}
			wait = min(denied.RetryAfter, maxPause)
		case errors.As(err, &denied), errors.As(err, &missing), isFinal(err):
			if mode.soft {
				return nil, mode.left(err)
			}
			return nil, err
		}
		wait = max(wait, pause)
		f.Console.Step("%v; trying again", err)
		if err := f.sleep(ctx, wait); err != nil {
			return nil, fmt.Errorf("interrupted: %w", err)
		}
		pause = min(2*pause, maxPause)
	}
}

// final marks an error that no second try mends.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func isFinal(err error) bool {
	var mark final
	var unexpected *client.Unexpected
	return errors.As(err, &mark) || errors.As(err, &unexpected) || errors.Is(err, attester.ErrEndorsementOwned)
}

// tpmError is a failure of this machine's TPM.
type tpmError struct{ err error }

func (e *tpmError) Error() string { return "TPM: " + e.err.Error() }
func (e *tpmError) Unwrap() error { return e.err }

// mode is what the challenge said of the gate.
type mode struct {
	soft bool // the gate serves machines that are not attested
	name string
}

func (m mode) left(err error) error {
	return &LeftAlone{Why: fmt.Sprintf("%v, and the pool's mode is %s", err, m.name)}
}

// grant is a Grant whose token may still be refused.
type grant struct {
	Grant
	lifetime time.Duration
	since    time.Duration // monotonic
}

// round is one connection.
func (f *Flow) round(ctx context.Context, t Target) (*grant, mode, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	f.Console.Step("asking %s for a challenge, pool %s", t.Origin, t.Pool)
	s, err := client.Connect(ctx, f.Dialer, t.Origin)
	if err != nil {
		return nil, mode{}, err
	}
	defer s.Close()
	ch, err := s.Challenge(ctx, f.challengeRequest(t))
	if err != nil {
		return nil, mode{}, err
	}
	m, err := readMode(ch)
	if err != nil {
		return nil, m, err
	}
	if ch.GetPool() != t.Pool || ch.GetOrigin() != t.Origin {
		// A verifier that answers for another origin may be passing on another's challenge.
		return nil, m, final{fmt.Errorf("the verifier answered for pool %q at %q", ch.GetPool(), ch.GetOrigin())}
	}
	if len(ch.GetRequired()) == 0 {
		return nil, m, &LeftAlone{Why: "the verifier asks for no evidence"}
	}
	req, err := f.evidence(s, ch)
	if err != nil {
		return nil, m, err
	}
	start := f.now()
	resp, err := s.Attest(ctx, req)
	if err != nil {
		return nil, m, err
	}
	g := &grant{
		Grant: Grant{
			Token:   secret.New([]byte(resp.GetToken())),
			Ticket:  secret.New([]byte(resp.GetReportTicket())),
			Machine: resp.GetMachine(),
		},
		lifetime: time.Duration(resp.GetTokenLifetimeSeconds()) * time.Second,
		since:    start,
	}
	f.Console.Step("attested as machine %s (correlation id %s)", g.Machine, resp.GetCorrelationId())
	if g.Token.Empty() {
		return nil, m, &LeftAlone{Why: "the pool's mode is " + m.name, Ticket: g.Ticket}
	}
	return g, m, nil
}

func readMode(ch *mcsattestv1.ChallengeResponse) (mode, error) {
	switch {
	case ch.GetMode() == mcsattestv1.Mode_MODE_OFF:
		return mode{soft: true, name: "Off"}, &LeftAlone{Why: "the pool's mode is Off"}
	case ch.GetMode() == mcsattestv1.Mode_MODE_AUDIT:
		return mode{soft: true, name: "Audit"}, nil
	case ch.GetUnattested() == mcsattestv1.Unattested_UNATTESTED_PRE_APPROVED:
		return mode{soft: true, name: "Enforce with a pre-approved config"}, nil
	}
	return mode{name: "Enforce"}, nil
}

func (f *Flow) challengeRequest(t Target) *mcsattestv1.ChallengeRequest {
	req := &mcsattestv1.ChallengeRequest{Pool: t.Pool, Origin: t.Origin, AgentVersion: f.Version}
	if f.TPM == nil {
		return req
	}
	id := f.TPM.Identity()
	req.Offered = append(req.Offered, mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2)
	req.Tpm = &mcsattestv1.TpmIdentity{EkPublic: id.EKPublic, EkCertificates: id.EKCertificates, AkPublic: id.AKPublic}
	for _, b := range id.Banks {
		req.Tpm.Banks = append(req.Tpm.Banks, uint32(b))
	}
	return req
}

// evidence gathers what the challenge requires, bound to this connection.
func (f *Flow) evidence(s *client.Session, ch *mcsattestv1.ChallengeResponse) (*mcsattestv1.AttestRequest, error) {
	kinds, missing := f.kinds(ch)
	if len(missing) > 0 {
		return nil, &MissingEvidence{Kinds: missing, Err: f.NoTPM}
	}
	fields := transcript.Fields{
		Sealed: ch.GetSealed(), Nonce: ch.GetNonce(), ServerSPKI: s.ServerSPKI(),
		Origin: ch.GetOrigin(), Pool: ch.GetPool(), Claims: f.Claims,
	}
	switch ch.GetBinding() {
	case mcsattestv1.BindingMode_BINDING_MODE_EXPORTER:
		exporter, err := s.Exporter()
		if err != nil {
			return nil, fmt.Errorf("TLS exporter: %w", err)
		}
		fields.Binding, fields.Exporter = "exporter", exporter
	case mcsattestv1.BindingMode_BINDING_MODE_TERMINATED:
		fields.Binding = "terminated"
	default:
		return nil, final{fmt.Errorf("the verifier asked for binding mode %v, which this agent does not know", ch.GetBinding())}
	}
	req := &mcsattestv1.AttestRequest{Sealed: ch.GetSealed(), ServerSpkiSha256: fields.ServerSPKI, Claims: f.Claims}
	var bank uint16
	var pcrs []int
	if slices.Contains(kinds, evidence.TPM2) {
		tc := ch.GetTpm()
		bank = uint16(tc.GetBank())
		for _, p := range tc.GetPcrs() {
			pcrs = append(pcrs, int(p))
		}
		id := f.TPM.Identity()
		fields.EKSPKI, fields.AKName = id.EKSPKI[:], id.AKName
	}
	fields.Required = transcript.Required(kinds, bank, pcrs)
	h := fields.Hash()
	if slices.Contains(kinds, evidence.TPM2) {
		f.Console.Step("proving this machine with its TPM (%s)", fields.Required)
		ev, err := f.quote(ch.GetTpm(), bank, pcrs, h)
		if err != nil {
			return nil, err
		}
		req.Tpm2 = ev
	}
	return req, nil
}

// kinds are the required kinds of evidence, and those that are not to be had.
func (f *Flow) kinds(ch *mcsattestv1.ChallengeResponse) (required, missing []evidence.Kind) {
	for _, k := range ch.GetRequired() {
		kind := evidence.Kind(k)
		required = append(required, kind)
		if kind != evidence.TPM2 || f.TPM == nil || ch.GetTpm() == nil {
			missing = append(missing, kind)
		}
	}
	return required, missing
}

func (f *Flow) quote(tc *mcsattestv1.TpmChallenge, bank uint16, pcrs []int, h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error) {
	out := &mcsattestv1.Tpm2Evidence{}
	if tc.GetEventLog() && f.EventLog != nil {
		log, err := f.EventLog()
		if err != nil {
			// An empty log is the verifier's to judge.
			f.Console.Step("no event log: %v", err)
		}
		out.EventLog = log
	}
	ev, err := f.TPM.Attest(attester.Challenge{
		CredentialBlob:  tc.GetCredentialBlob(),
		EncryptedSecret: tc.GetEncryptedSecret(),
		Bank:            bank,
		PCRs:            pcrs,
	}, h)
	if err != nil {
		return nil, &tpmError{err}
	}
	out.Quote, out.Signature, out.Activation, out.PcrValues = ev.Quote, ev.Signature, ev.Activation, ev.PCRValues
	return out, nil
}

func (f *Flow) sleep(ctx context.Context, d time.Duration) error {
	if f.Sleep != nil {
		return f.Sleep(ctx, d)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// started anchors the monotonic time; the wall clock is not read.
var started = time.Now()

func (f *Flow) now() time.Duration {
	if f.Since != nil {
		return f.Since()
	}
	return time.Since(started)
}

// TPM is a machine's TPM with its keys prepared.
type TPM interface {
	Identity() attester.Identity
	Attest(attester.Challenge, transcript.Hash) (*attester.Evidence, error)
}
